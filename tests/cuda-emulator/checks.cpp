// Checks every access of a kernel, for the strict mode.
//
// Kernels are compiled twice, the second time with the calls that g++ makes before each access for the address sanitiser of an
// operating system's kernel, but without its shadow memory: these are the functions that it calls. A kernel may touch
// device memory (whose gaps fault by themselves), pinned memory, its own stack, parameters and shared memory, at addresses that
// fit the width of the access. On a CPU anything else that the process has mapped would do too, the host's memory first of all.
#include "runtime.hpp"

extern "C" {
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));
}

namespace hotseam_emulated {

namespace {

template <size_t alignment> inline void check(uintptr_t address, size_t bytes) {
    if (address % alignment != 0) refuse_access(address, bytes, CUDA_ERROR_MISALIGNED_ADDRESS);
    if (address - memory::arena_begin < memory::arena_bytes || address - stack_begin < stack_bytes) return;
    // The library itself: constants, static shared memory, parameters.
    uintptr_t begin = reinterpret_cast<uintptr_t>(__ehdr_start), end = reinterpret_cast<uintptr_t>(_end);
    if (address - begin < end - begin) return;
    if (address - reinterpret_cast<uintptr_t>(dynamic_shared) < dynamic_shared_bytes) return;
    if (!is_pinned(address)) refuse_access(address, bytes, CUDA_ERROR_ILLEGAL_ADDRESS);
}

}   // namespace

}   // namespace hotseam_emulated

#define ACCESS(bytes, alignment)                                                                                      \
    extern "C" void __asan_load##bytes##_noabort(uintptr_t address) { hotseam_emulated::check<alignment>(address, bytes); } \
    extern "C" void __asan_store##bytes##_noabort(uintptr_t address) { hotseam_emulated::check<alignment>(address, bytes); }
ACCESS(1, 1)
ACCESS(2, 2)
ACCESS(4, 4)
ACCESS(8, 8)
// The compiler makes one access of 16 bytes of two of 8, too.
ACCESS(16, 8)

extern "C" void __asan_loadN_noabort(uintptr_t address, size_t bytes) { hotseam_emulated::check<1>(address, bytes); }
extern "C" void __asan_storeN_noabort(uintptr_t address, size_t bytes) { hotseam_emulated::check<1>(address, bytes); }
extern "C" void __asan_handle_no_return() {}
extern "C" void __asan_before_dynamic_init(const char *) {}
extern "C" void __asan_after_dynamic_init() {}
