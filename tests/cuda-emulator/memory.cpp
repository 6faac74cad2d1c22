// Device memory: a range of addresses of its own, that only kernels and copies can touch.
//
// Allocations end at a page that cannot be touched, and a range that was freed stays so until the arena is used up. Pages that
// must never be touched are pages past the end of an empty file: changing the protection of the whole arena, by one system
// call, leaves them out of reach (SIGBUS instead of SIGSEGV).
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "runtime.hpp"

namespace hotseam_emulated::memory {

uint64_t arena_begin, arena_bytes;

namespace {

constexpr uint64_t PAGE = 4096, ALIGNMENT = 256, CHUNK = 2 << 20;
constexpr int POISON = 0xcd;

struct Allocation {
    uint64_t first_page, end;   // of its pages, without the guard
    size_t bytes;
};

std::mutex mutex;
std::map<uint64_t, Allocation> allocations;   // by address
std::map<uint64_t, size_t> freed;             // by address, until it is handed out again
uint64_t high;              // what lies from `high` on was never handed out
size_t used;
int opened, no_pages = -1, poison = -1;

uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

int protection() { return !settings().strict || opened > 0 ? PROT_READ | PROT_WRITE : PROT_NONE; }

bool map_at(uint64_t address, uint64_t bytes, int protect, int flags, int fd, uint64_t offset) {
    return mmap(reinterpret_cast<void *>(address), bytes, protect, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | flags, fd,
                off_t(offset)) != MAP_FAILED;
}

// Offsets that follow the address let the kernel keep neighbours as one mapping.
bool close_off(uint64_t address, uint64_t bytes) {
    return map_at(address, bytes, settings().strict ? protection() : PROT_NONE, 0, no_pages, address - arena_begin);
}

bool begin() {
    if (arena_begin) return true;
    uint64_t bytes = std::max<uint64_t>(64ull << 30, settings().memory * 4);
    void *at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    no_pages = memfd_create("hotseam-emulator-guard", MFD_CLOEXEC);
    poison = memfd_create("hotseam-emulator-poison", MFD_CLOEXEC);
    if (at == MAP_FAILED || no_pages < 0 || poison < 0 || ftruncate(poison, CHUNK) != 0) return false;
    void *chunk = mmap(nullptr, CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, poison, 0);
    if (chunk == MAP_FAILED) return false;
    memset(chunk, POISON, CHUNK);
    munmap(chunk, CHUNK);
    arena_begin = reinterpret_cast<uintptr_t>(at);
    arena_bytes = bytes;
    high = arena_begin;
    return true;
}

// A gap of `bytes`: behind everything, or between allocations once the arena has been handed out to its end.
uint64_t find(uint64_t bytes) {
    if (arena_begin + arena_bytes - high >= bytes) return high;
    uint64_t from = arena_begin;
    for (const auto &[address, a] : allocations) {
        if (a.first_page - from >= bytes) return from;
        from = a.end + PAGE;
    }
    return arena_begin + arena_bytes - from >= bytes ? from : 0;
}

// Large ones share one file of poison, page by page, until they are written.
bool fill(uint64_t address, uint64_t bytes) {
    if (bytes < 8 * CHUNK) {
        if (!map_at(address, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1, 0)) return false;
        memset(reinterpret_cast<void *>(address), POISON, bytes);
    } else {
        for (uint64_t done = 0; done < bytes; done += CHUNK)
            if (!map_at(address + done, std::min(CHUNK, bytes - done), PROT_READ | PROT_WRITE, 0, poison, 0)) return false;
    }
    return mprotect(reinterpret_cast<void *>(address), bytes, protection()) == 0;
}

// The allocation at or before an address.
const std::pair<const uint64_t, Allocation> *before(uint64_t address) {
    auto after = allocations.upper_bound(address);
    return after == allocations.begin() ? nullptr : &*std::prev(after);
}

}   // namespace

CUresult allocate(size_t bytes, uint64_t *address) {
    std::lock_guard<std::mutex> lock(mutex);
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > settings().memory || round_up(bytes, ALIGNMENT) + used > settings().memory || !begin())
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t rounded = round_up(bytes, ALIGNMENT), pages = round_up(rounded, PAGE);
    uint64_t at = find(pages + PAGE);
    if (at == 0 || !fill(at, pages) || !close_off(at + pages, PAGE)) return CUDA_ERROR_OUT_OF_MEMORY;
    high = std::max(high, at + pages + PAGE);
    used += rounded;
    *address = at + pages - rounded;
    // What was freed there is told of no more. A range that began before it at most overlaps by its end.
    freed.erase(freed.lower_bound(at), freed.lower_bound(at + pages));
    allocations[*address] = {at, at + pages, bytes};
    return CUDA_SUCCESS;
}

CUresult release(uint64_t address) {
    std::lock_guard<std::mutex> lock(mutex);
    if (address == 0) return CUDA_SUCCESS;
    auto found = allocations.find(address);
    if (found == allocations.end()) {
        say("cuMemFree of 0x%llx, which is no allocation", static_cast<unsigned long long>(address));
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Allocation &a = found->second;
    used -= round_up(a.bytes, ALIGNMENT);
    freed[address] = a.bytes;
    bool closed = close_off(a.first_page, a.end - a.first_page);
    allocations.erase(found);
    return closed ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void info(size_t *free, size_t *total) {
    std::lock_guard<std::mutex> lock(mutex);
    *total = settings().memory;
    *free = settings().memory - used;
}

bool allocation_at(uint64_t address, uint64_t *base, size_t *bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto *a = before(address);
    if (!a || address >= a->first + a->second.bytes) return false;
    *base = a->first;
    *bytes = a->second.bytes;
    return true;
}

bool holds(uint64_t address, size_t bytes) {
    uint64_t base;
    size_t all;
    return allocation_at(address, &base, &all) && bytes <= all - (address - base);
}

std::string nearest(uint64_t address) {
    std::lock_guard<std::mutex> lock(mutex);
    char text[200];
    const auto *a = before(address);
    if (!in_arena(address)) {
        snprintf(text, sizeof text, "which is no device memory");
    } else if (a && address < a->first + a->second.bytes) {
        snprintf(text, sizeof text, "byte %llu of the %zu bytes at 0x%llx", (unsigned long long)(address - a->first),
                 a->second.bytes, (unsigned long long)a->first);
    } else if (auto after = freed.upper_bound(address);
               after != freed.begin() && address < std::prev(after)->first + std::prev(after)->second) {
        snprintf(text, sizeof text, "in the %zu bytes at 0x%llx, which were freed", std::prev(after)->second,
                 (unsigned long long)std::prev(after)->first);
    } else if (a) {
        snprintf(text, sizeof text, "%llu bytes past the end of the %zu bytes at 0x%llx",
                 (unsigned long long)(address - a->first - a->second.bytes), a->second.bytes, (unsigned long long)a->first);
    } else {
        snprintf(text, sizeof text, "before every allocation");
    }
    return text;
}

Open::Open() {
    std::lock_guard<std::mutex> lock(mutex);
    if (opened++ == 0 && settings().strict && high > arena_begin)
        mprotect(reinterpret_cast<void *>(arena_begin), high - arena_begin, PROT_READ | PROT_WRITE);
}

Open::~Open() {
    std::lock_guard<std::mutex> lock(mutex);
    if (--opened == 0 && settings().strict && high > arena_begin)
        mprotect(reinterpret_cast<void *>(arena_begin), high - arena_begin, PROT_NONE);
}

}   // namespace hotseam_emulated::memory
