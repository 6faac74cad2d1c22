// The driver API: the device, its context and its memory.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <mutex>

#include "runtime.hpp"

using namespace hotseam_emulated;

using CUdevice = int;
using CUcontext = void *;
using CUstream = void *;
using CUdeviceptr = unsigned long long;

namespace hotseam_emulated {

void say(const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "hotseam emulator: %s\n", text);
}

namespace {

uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    if (!text || !*text) return otherwise;
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*end == '\0') return value;
    say("%s is '%s', not a number", name, text);
    abort();
}

Settings read_settings() {
    Settings s;
    s.seed = number("HOTSEAM_EMULATOR_SEED", s.seed);
    s.memory = number("HOTSEAM_EMULATOR_MEMORY", s.memory);
    s.strict = number("HOTSEAM_EMULATOR_STRICT", 0) != 0;
    s.sm = int(number("HOTSEAM_EMULATOR_SM", 90));
    const char *fault = getenv("HOTSEAM_EMULATOR_FAULT");
    if (fault && *fault) {
        static const std::map<std::string, Fault> names = {{"stub", Fault::Stub},
                                                           {"no-device", Fault::NoDevice},
                                                           {"old-driver", Fault::OldDriver},
                                                           {"other-sm", Fault::OtherSm},
                                                           {"launch", Fault::Launch}};
        auto found = names.find(fault);
        if (found == names.end()) {
            say("HOTSEAM_EMULATOR_FAULT is '%s' (expected stub, no-device, old-driver, other-sm or launch)", fault);
            abort();
        }
        s.fault = found->second;
    }
    if (s.fault == Fault::OtherSm) s.sm = 80;
    return s;
}

std::atomic<bool> initialised;
std::atomic<unsigned> stuck{CUDA_SUCCESS};
std::atomic<int> retained;
std::atomic<unsigned long long> context_number;
int primary_context;   // its address is the handle
thread_local std::vector<CUcontext> contexts;

CUcontext current_context() { return contexts.empty() ? nullptr : contexts.back(); }
CUresult known() { return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

CUresult device(CUdevice d) {
    if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
    return d == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}   // namespace

const Settings &settings() {
    static const Settings s = read_settings();
    return s;
}

CUresult usable() {
    if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (stuck != CUDA_SUCCESS) return CUresult(stuck.load());
    if (current_context() != &primary_context || retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

CUresult launchable() {
    CUresult result = usable();
    if (result == CUDA_SUCCESS && settings().fault == Fault::Launch) return stick(CUDA_ERROR_LAUNCH_FAILED);
    return result;
}

CUresult stick(CUresult result) {
    if (result != CUDA_SUCCESS) stuck = result;
    return result;
}

}   // namespace hotseam_emulated

#define NEEDS(check)                                                       \
    do {                                                                   \
        if (CUresult result_ = (check); result_ != CUDA_SUCCESS) return result_; \
    } while (0)
#define NEEDS_POINTER(p)                                 \
    do {                                                 \
        if (!(p)) return CUDA_ERROR_INVALID_VALUE;       \
    } while (0)

// ---- the library and its device ---------------------------------------------------------------------------------------------

EXPORTED CUresult cuInit(unsigned flags) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (settings().fault == Fault::Stub) return CUDA_ERROR_STUB_LIBRARY;
    if (settings().fault == Fault::NoDevice) return CUDA_ERROR_NO_DEVICE;
    initialised = true;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDriverGetVersion(int *version) {
    NEEDS_POINTER(version);
    if (settings().fault == Fault::Stub) return CUDA_ERROR_STUB_LIBRARY;
    *version = settings().fault == Fault::OldDriver ? 12020 : 13000;
    return CUDA_SUCCESS;
}

// NVRTC looks for tables of the driver as soon as `cuInit` succeeds, and takes for granted that there are some. Such a table
// begins with its size in bytes; the ones given here have no entry.
EXPORTED CUresult cuGetExportTable(const void **table, const void *) {
    static const uint64_t empty[1] = {sizeof empty};
    NEEDS_POINTER(table);
    *table = empty;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetCount(int *count) {
    NEEDS_POINTER(count);
    NEEDS(known());
    *count = 1;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGet(CUdevice *out, int ordinal) {
    NEEDS_POINTER(out);
    NEEDS(device(ordinal));
    *out = ordinal;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetName(char *name, int length, CUdevice d) {
    NEEDS(device(d));
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, size_t(length), "Hotseam emulated device sm_%d", settings().sm);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice d) {
    NEEDS_POINTER(value);
    NEEDS(device(d));
    const int sm = settings().sm, optin = sm == 90 ? 232448 : sm == 80 ? 166912 : 101376;
    static const std::map<int, int> fixed = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64},                       // threads a block, and by dimension
        {5, 2147483647}, {6, 65535}, {7, 65535},                        // blocks by dimension
        {8, 49152}, {9, 65536}, {10, 32}, {12, 65536},                  // shared, constant, warp, registers
        {13, 1980000}, {14, 512}, {15, 1}, {19, 1}, {31, 1}, {32, 1},   // clock, texture alignment, overlap, mapping, ECC
        {33, 1}, {34, 0}, {36, 3201000}, {37, 6144}, {38, 62914560},    // PCI bus and device, memory clock and bus, L2
        {39, 2048}, {40, 3}, {41, 1}, {78, 1}, {82, 65536},             // threads an SM, copies, unified addresses
        {83, 1}, {90, 1}, {95, 1}, {99, 1}, {102, 1}, {106, 32},        // managed, preemption, cooperative launch
        {108, 39321600}, {109, 134217728}, {111, 1024}, {115, 1},       // persisting L2, reserved shared memory, pools
    };
    auto found = fixed.find(attribute);
    *value = found == fixed.end() ? 0 : found->second;
    if (attribute == 16) *value = sm == 90 ? 132 : sm == 80 ? 108 : 188;
    if (attribute == 75) *value = sm / 10;
    if (attribute == 76) *value = sm % 10;
    if (attribute == 81) *value = optin + 1024;
    if (attribute == 97) *value = optin;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice d) {
    NEEDS_POINTER(bytes);
    NEEDS(device(d));
    *bytes = settings().memory;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice d) {
    NEEDS_POINTER(uuid);
    NEEDS(device(d));
    memcpy(uuid, "hotseam-emulator", 16);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetUuid(void *uuid, CUdevice d) { return cuDeviceGetUuid_v2(uuid, d); }

EXPORTED CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice d) {
    NEEDS(device(d));
    if (!text || length < 13) return CUDA_ERROR_INVALID_VALUE;
    snprintf(text, size_t(length), "0000:01:00.0");
    return CUDA_SUCCESS;
}

// ---- contexts ------------------------------------------------------------------------------------------------------------

EXPORTED CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice d) {
    NEEDS_POINTER(context);
    NEEDS(device(d));
    if (retained++ == 0) ++context_number;
    *context = &primary_context;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) {
    NEEDS(device(d));
    if (retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--retained == 0) unload_modules();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) {
    NEEDS(device(d));
    if (flags) *flags = 0;
    if (active) *active = retained > 0;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned) { return device(d); }

EXPORTED CUresult cuCtxSetCurrent(CUcontext context) {
    NEEDS(known());
    if (context && context != &primary_context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!contexts.empty()) contexts.pop_back();
    if (context) contexts.push_back(context);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetCurrent(CUcontext *context) {
    NEEDS_POINTER(context);
    NEEDS(known());
    *context = current_context();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    NEEDS_POINTER(id);
    NEEDS(known());
    if (context && context != &primary_context) return CUDA_ERROR_INVALID_CONTEXT;
    *id = context_number;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxPushCurrent_v2(CUcontext context) {
    NEEDS(known());
    if (context != &primary_context) return CUDA_ERROR_INVALID_CONTEXT;
    contexts.push_back(context);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    NEEDS(known());
    if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = contexts.back();
    contexts.pop_back();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetDevice(CUdevice *out) {
    NEEDS_POINTER(out);
    NEEDS(known());
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *out = 0;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    NEEDS_POINTER(version);
    NEEDS(known());
    if (context && context != &primary_context) return CUDA_ERROR_INVALID_CONTEXT;
    *version = 3020;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    NEEDS(usable());
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxSynchronize() {
    NEEDS(usable());
    return capture_forbids(true) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

// ---- memory --------------------------------------------------------------------------------------------------------------

EXPORTED CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    NEEDS_POINTER(free && total);
    NEEDS(usable());
    memory::info(free, total);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    NEEDS_POINTER(address);
    NEEDS(usable());
    if (capture_forbids(false)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    uint64_t at;
    NEEDS(memory::allocate(bytes, &at));
    *address = at;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemFree_v2(CUdeviceptr address) {
    NEEDS(usable());
    if (capture_forbids(false)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return memory::release(address);
}

// Allowed during a capture of another stream. In a capturing one the driver would make a node of it, which is not emulated.
EXPORTED CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
    NEEDS_POINTER(address);
    NEEDS(usable());
    NEEDS(idle_stream(stream));
    uint64_t at;
    NEEDS(memory::allocate(bytes, &at));
    *address = at;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    NEEDS(usable());
    NEEDS(idle_stream(stream));
    return memory::release(address);
}

EXPORTED CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    NEEDS(usable());
    uint64_t at;
    size_t all;
    if (!memory::allocation_at(address, &at, &all)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = at;
    if (bytes) *bytes = all;
    return CUDA_SUCCESS;
}

namespace {

std::mutex pinned_mutex;
std::map<void *, size_t> pinned;

}   // namespace

bool hotseam_emulated::is_pinned(uint64_t address) {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    auto after = pinned.upper_bound(reinterpret_cast<void *>(address));
    if (after == pinned.begin()) return false;
    const auto &[begin, bytes] = *std::prev(after);
    return address - reinterpret_cast<uintptr_t>(begin) < bytes;
}

EXPORTED CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned) {
    NEEDS_POINTER(address);
    NEEDS(usable());
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (capture_forbids(false)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned[at] = bytes;
    *address = at;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemAllocHost_v2(void **address, size_t bytes) { return cuMemHostAlloc(address, bytes, 0); }

EXPORTED CUresult cuMemFreeHost(void *address) {
    NEEDS(usable());
    std::lock_guard<std::mutex> lock(pinned_mutex);
    auto found = pinned.find(address);
    if (found == pinned.end()) return CUDA_ERROR_INVALID_VALUE;
    munmap(address, found->second);
    pinned.erase(found);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned) {
    NEEDS_POINTER(device);
    NEEDS(usable());
    *device = reinterpret_cast<uintptr_t>(host);
    return CUDA_SUCCESS;
}

// Attributes of a pointer: 2 is the kind of its memory (1 host, 2 device), 9 the ordinal of its device.
EXPORTED CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    NEEDS_POINTER(data);
    NEEDS(usable());
    bool device = memory::holds(address, 1);
    if (!device && !is_pinned(address)) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == 2) {
        *static_cast<unsigned *>(data) = device ? 2 : 1;
    } else if (attribute == 9) {
        *static_cast<int *>(data) = 0;
    } else {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

// ---- copies and fills ------------------------------------------------------------------------------------------------------

namespace {

Node copy(uint64_t to, uint64_t from, size_t bytes) {
    Node node;
    node.type = Node::MemcpyNode;
    node.to = to;
    node.from = from;
    node.bytes = bytes;
    return node;
}

Node fill(uint64_t to, unsigned value, unsigned width, size_t count) {
    Node node;
    node.type = Node::MemsetNode;
    node.to = to;
    node.bytes = count * width;
    node.value = value;
    node.width = width;
    return node;
}

uint64_t at(const void *host) { return reinterpret_cast<uintptr_t>(host); }

CUresult check_range(const char *call, uint64_t address, size_t bytes) {
    if (bytes == 0 || memory::holds(address, bytes)) return CUDA_SUCCESS;
    say("%s of %zu bytes at 0x%llx: not in one allocation (%s)", call, bytes, (unsigned long long)address,
        memory::nearest(address).c_str());
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult now(const Node &node) {
    if (capture_forbids(true)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return perform(node);
}

}   // namespace

// A copy or fill in two forms: `name`, which waits, and `nameAsync`, which takes a stream.
#define BOTH_FORMS(name, async_name, parameters, async_parameters, checks, node) \
    EXPORTED CUresult name parameters {                                         \
        NEEDS(usable());                                                        \
        checks;                                                                 \
        return now(node);                                                       \
    }                                                                           \
    EXPORTED CUresult async_name async_parameters {                             \
        NEEDS(usable());                                                        \
        checks;                                                                 \
        return enqueue(stream, node);                                           \
    }
#define LIST(...) (__VA_ARGS__)

BOTH_FORMS(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, LIST(CUdeviceptr to, const void *from, size_t bytes),
           LIST(CUdeviceptr to, const void *from, size_t bytes, CUstream stream), NEEDS(check_range("cuMemcpyHtoD", to, bytes)),
           copy(to, at(from), bytes))
BOTH_FORMS(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, LIST(void *to, CUdeviceptr from, size_t bytes),
           LIST(void *to, CUdeviceptr from, size_t bytes, CUstream stream), NEEDS(check_range("cuMemcpyDtoH", from, bytes)),
           copy(at(to), from, bytes))
BOTH_FORMS(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, LIST(CUdeviceptr to, CUdeviceptr from, size_t bytes),
           LIST(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
           NEEDS(check_range("cuMemcpyDtoD", to, bytes));
           NEEDS(check_range("cuMemcpyDtoD", from, bytes)), copy(to, from, bytes))
BOTH_FORMS(cuMemcpy, cuMemcpyAsync, LIST(CUdeviceptr to, CUdeviceptr from, size_t bytes),
           LIST(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
           if (memory::in_arena(to)) NEEDS(check_range("cuMemcpy", to, bytes));
           if (memory::in_arena(from)) NEEDS(check_range("cuMemcpy", from, bytes)), copy(to, from, bytes))
BOTH_FORMS(cuMemsetD8_v2, cuMemsetD8Async, LIST(CUdeviceptr to, unsigned char value, size_t count),
           LIST(CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
           NEEDS(check_range("cuMemsetD8", to, count)), fill(to, value, 1, count))
BOTH_FORMS(cuMemsetD16_v2, cuMemsetD16Async, LIST(CUdeviceptr to, unsigned short value, size_t count),
           LIST(CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
           NEEDS(check_range("cuMemsetD16", to, 2 * count)), fill(to, value, 2, count))
BOTH_FORMS(cuMemsetD32_v2, cuMemsetD32Async, LIST(CUdeviceptr to, unsigned value, size_t count),
           LIST(CUdeviceptr to, unsigned value, size_t count, CUstream stream),
           NEEDS(check_range("cuMemsetD32", to, 4 * count)), fill(to, value, 4, count))
