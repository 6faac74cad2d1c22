// The words of CUDA C++ for g++: what a kernel written by kernel.cuh needs to run on the emulated device.
//
// A kernel becomes a function over its parameters and an entry in the emulator's table. The threads of a block are fibers:
// barriers and warp collectives call into the emulator, which runs other threads until all have arrived. Everything else is
// plain C++ and runs at the speed of the compiler. What is here follows the CUDA C++ programming guide, except where this is
// stricter: a warp collective fails the launch if a lane of its mask has ended, and a barrier if threads reach it by
// different lines.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmath>

// Each source file has its shared variables in a section of its own, so that the emulator poisons those of one file only.
#ifndef HOTSEAM_EMULATED_UNIT
#define HOTSEAM_EMULATED_UNIT 0
#endif
#ifndef HOTSEAM_EMULATED_CHECKED
#define HOTSEAM_EMULATED_CHECKED 0
#endif
#define HOTSEAM_EMULATED_TEXT2(x) #x
#define HOTSEAM_EMULATED_TEXT(x) HOTSEAM_EMULATED_TEXT2(x)
#define HOTSEAM_EMULATED_PASTE2(a, b) a##b
#define HOTSEAM_EMULATED_PASTE(a, b) HOTSEAM_EMULATED_PASTE2(a, b)
#define HOTSEAM_EMULATED_SECTION "hotseam_shared_" HOTSEAM_EMULATED_TEXT(HOTSEAM_EMULATED_UNIT)
#define HOTSEAM_EMULATED_BEGIN HOTSEAM_EMULATED_PASTE(__start_hotseam_shared_, HOTSEAM_EMULATED_UNIT)
#define HOTSEAM_EMULATED_END HOTSEAM_EMULATED_PASTE(__stop_hotseam_shared_, HOTSEAM_EMULATED_UNIT)

extern "C" {
// Made by the linker; null where the file has no shared variable.
extern unsigned char HOTSEAM_EMULATED_BEGIN[] __attribute__((weak, visibility("hidden")));
extern unsigned char HOTSEAM_EMULATED_END[] __attribute__((weak, visibility("hidden")));
}

// ---- vectors ------------------------------------------------------------------------------------------------------------

#define HOTSEAM_EMULATED_VECTORS(T, name, align2, align4)                                                          \
    struct alignas(align2) name##2 { T x, y; };                                                                    \
    struct name##3 { T x, y, z; };                                                                                 \
    struct alignas(align4) name##4 { T x, y, z, w; };                                                              \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                                     \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                             \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
HOTSEAM_EMULATED_VECTORS(signed char, char, 2, 4)
HOTSEAM_EMULATED_VECTORS(unsigned char, uchar, 2, 4)
HOTSEAM_EMULATED_VECTORS(short, short, 4, 8)
HOTSEAM_EMULATED_VECTORS(unsigned short, ushort, 4, 8)
HOTSEAM_EMULATED_VECTORS(int, int, 8, 16)
HOTSEAM_EMULATED_VECTORS(unsigned, uint, 8, 16)
HOTSEAM_EMULATED_VECTORS(long long, longlong, 16, 16)
HOTSEAM_EMULATED_VECTORS(unsigned long long, ulonglong, 16, 16)
HOTSEAM_EMULATED_VECTORS(float, float, 8, 16)
HOTSEAM_EMULATED_VECTORS(double, double, 16, 16)
#undef HOTSEAM_EMULATED_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Of the thread that runs; set by the emulator whenever it goes to another.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// ---- the emulator ---------------------------------------------------------------------------------------------------------

namespace hotseam_emulated {

struct Kernel {
    const char *name;
    unsigned unit;      // its source file
    bool checked;       // compiled with a check before every access
    size_t bytes;       // of its parameters
    unsigned threads;   // most a block, as declared
    void (*run)(const void *params);
    unsigned char *shared_begin, *shared_end;   // the static shared memory of its file
};

// Puts a kernel into the table; called before `main`.
struct Enlist {
    explicit Enlist(const Kernel &kernel);
};

enum class Op : unsigned { Sync, Shuffle, Ballot, Any, All, Match, ReduceAdd, ReduceMin, ReduceMax, ReduceMinS, ReduceMaxS,
                           ReduceAnd, ReduceOr, ReduceXor, Mma, MmaF16, MmaMxf8, MmaMxf4 };

// What one lane brings to a collective: for a shuffle its value and the lane that it reads, for an MMA a pointer.
struct Lane {
    uint64_t value;
    unsigned source;
};

void barrier(const char *file, int line);
int barrier_vote(int predicate, int kind, const char *file, int line);
uint64_t collective(Op op, unsigned mask, Lane lane, const char *file, int line);
[[noreturn]] void trap(const char *file, int line);
extern unsigned char *dynamic_shared;
extern unsigned lane_number;

struct Fragments {
    float *d;
    const unsigned *a, *b;
    const float *c;
    unsigned sa, sb;    // scales, of those that have some
};

// Whether the device has block-scaled products: those of sm_120 do.
bool block_scaled();

// Of numbers of few bits.
float e4m3(unsigned code);
float half_value(unsigned bits);
unsigned half_bits(float value);

// A copy that a thread has begun, and the group that it is of.
struct Copy {
    unsigned *to, words[4], count, group;
};
void copy_begin(Copy copy);
void copy_group();
// Takes the oldest copy of the thread that is not of its `keep` last groups; false if there is none.
bool copy_take(unsigned keep, Copy &copy);

template <class T> inline uint64_t bits(T value) {
    static_assert(sizeof(T) <= 8, "at most 8 bytes travel by one shuffle");
    uint64_t out = 0;
    memcpy(&out, &value, sizeof(T));
    return out;
}
template <class T> inline T unbits(uint64_t value) {
    T out;
    memcpy(&out, &value, sizeof(T));
    return out;
}
template <class T>
inline T shuffle(unsigned mask, T value, unsigned source, const char *file, int line) {
    return unbits<T>(collective(Op::Shuffle, mask, {bits(value), source}, file, line));
}
template <class To, class From> inline To as(From value) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To out;
    memcpy(&out, &value, sizeof(To));
    return out;
}

}   // namespace hotseam_emulated

// Where a call stands, for the lines that the emulator writes.
#define HOTSEAM_EMULATED_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// ---- how a kernel is written ---------------------------------------------------------------------------------------------

#define KERNEL_BOUNDED(name, Params, threads)                                                                      \
    static_assert(sizeof(Params) <= 32764, "the parameters of a kernel are at most 32764 bytes");                  \
    static void name##_body(const Params &p);                                                                      \
    static void name##_run(const void *p) { name##_body(*static_cast<const Params *>(p)); }                        \
    static const hotseam_emulated::Enlist name##_enlisted(                                                         \
        {#name, HOTSEAM_EMULATED_UNIT, HOTSEAM_EMULATED_CHECKED, sizeof(Params), threads, name##_run,              \
         HOTSEAM_EMULATED_BEGIN, HOTSEAM_EMULATED_END});                                                           \
    static void name##_body([[maybe_unused]] const Params &p)
#define KERNEL(name, Params) KERNEL_BOUNDED(name, Params, 1024)
#define KERNEL_EARLY(name, Params, threads) KERNEL_BOUNDED(name, Params, threads)
inline void await_before() {}
#define SHARED static __attribute__((section(HOTSEAM_EMULATED_SECTION)))
#define DYNAMIC_SHARED(type, name) type *const name = reinterpret_cast<type *>(hotseam_emulated::dynamic_shared)
#define DEVICE static inline __attribute__((always_inline, unused))
#define ALL_LANES 0xffffffffu
#define HOTSEAM_INFINITY __builtin_inff()

#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __device__
#define __host__
#define __constant__ static

// ---- barriers and warps -------------------------------------------------------------------------------------------------

inline void __syncthreads(HOTSEAM_EMULATED_HERE) { hotseam_emulated::barrier(file, line); }
inline int __syncthreads_count(int p, HOTSEAM_EMULATED_HERE) { return hotseam_emulated::barrier_vote(p, 0, file, line); }
inline int __syncthreads_and(int p, HOTSEAM_EMULATED_HERE) { return hotseam_emulated::barrier_vote(p, 1, file, line); }
inline int __syncthreads_or(int p, HOTSEAM_EMULATED_HERE) { return hotseam_emulated::barrier_vote(p, 2, file, line); }
inline void __syncwarp(unsigned mask = ALL_LANES, HOTSEAM_EMULATED_HERE) {
    hotseam_emulated::collective(hotseam_emulated::Op::Sync, mask, {0, 0}, file, line);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __trap(HOTSEAM_EMULATED_HERE) { hotseam_emulated::trap(file, line); }

// The lane that is read follows `shfl.sync` of the PTX ISA: segments of `width` lanes, and one's own value past their ends.
template <class T> inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, HOTSEAM_EMULATED_HERE) {
    unsigned self = hotseam_emulated::lane_number, base = self & ~(unsigned(width) - 1);
    return hotseam_emulated::shuffle(mask, value, base | (unsigned(lane) & (unsigned(width) - 1)), file, line);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, HOTSEAM_EMULATED_HERE) {
    unsigned self = hotseam_emulated::lane_number, last = self | (unsigned(width) - 1), source = self ^ unsigned(bits);
    return hotseam_emulated::shuffle(mask, value, source > last ? self : source, file, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, HOTSEAM_EMULATED_HERE) {
    unsigned self = hotseam_emulated::lane_number, last = self | (unsigned(width) - 1), source = self + delta;
    return hotseam_emulated::shuffle(mask, value, source > last ? self : source, file, line);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, HOTSEAM_EMULATED_HERE) {
    unsigned self = hotseam_emulated::lane_number, within = self & (unsigned(width) - 1);
    return hotseam_emulated::shuffle(mask, value, delta > within ? self : self - delta, file, line);
}

#define HOTSEAM_EMULATED_WARP(Result, name, Value, op)                                                             \
    inline Result name(unsigned mask, Value value, HOTSEAM_EMULATED_HERE) {                                        \
        uint64_t bits = hotseam_emulated::bits(value);                                                             \
        return Result(hotseam_emulated::collective(hotseam_emulated::Op::op, mask, {bits, 0}, file, line));        \
    }
HOTSEAM_EMULATED_WARP(unsigned, __ballot_sync, int, Ballot)
HOTSEAM_EMULATED_WARP(int, __any_sync, int, Any)
HOTSEAM_EMULATED_WARP(int, __all_sync, int, All)
HOTSEAM_EMULATED_WARP(unsigned, __match_any_sync, unsigned, Match)
HOTSEAM_EMULATED_WARP(unsigned, __match_any_sync, int, Match)
HOTSEAM_EMULATED_WARP(unsigned, __match_any_sync, unsigned long long, Match)
HOTSEAM_EMULATED_WARP(unsigned, __reduce_add_sync, unsigned, ReduceAdd)
HOTSEAM_EMULATED_WARP(int, __reduce_add_sync, int, ReduceAdd)
HOTSEAM_EMULATED_WARP(unsigned, __reduce_min_sync, unsigned, ReduceMin)
HOTSEAM_EMULATED_WARP(int, __reduce_min_sync, int, ReduceMinS)
HOTSEAM_EMULATED_WARP(unsigned, __reduce_max_sync, unsigned, ReduceMax)
HOTSEAM_EMULATED_WARP(int, __reduce_max_sync, int, ReduceMaxS)
HOTSEAM_EMULATED_WARP(unsigned, __reduce_and_sync, unsigned, ReduceAnd)
HOTSEAM_EMULATED_WARP(unsigned, __reduce_or_sync, unsigned, ReduceOr)
HOTSEAM_EMULATED_WARP(unsigned, __reduce_xor_sync, unsigned, ReduceXor)
#undef HOTSEAM_EMULATED_WARP

// `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`: the whole warp's product, its sums in f32 and in order of k.
inline void mma_m16n8k16_bf16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4], HOTSEAM_EMULATED_HERE) {
    hotseam_emulated::Fragments fragments{d, a, b, c, 0, 0};
    uint64_t address = reinterpret_cast<uintptr_t>(&fragments);
    hotseam_emulated::collective(hotseam_emulated::Op::Mma, ALL_LANES, {address, 0}, file, line);
}

// The same with f16.
inline void mma_m16n8k16_f16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4], HOTSEAM_EMULATED_HERE) {
    hotseam_emulated::Fragments fragments{d, a, b, c, 0, 0};
    uint64_t address = reinterpret_cast<uintptr_t>(&fragments);
    hotseam_emulated::collective(hotseam_emulated::Op::MmaF16, ALL_LANES, {address, 0}, file, line);
}

// What half.cuh names.
inline unsigned half_pair(float low, float high) {
    return hotseam_emulated::half_bits(low) | hotseam_emulated::half_bits(high) << 16;
}
inline unsigned half_pair_of_e4m3(unsigned codes) {
    return half_pair(hotseam_emulated::e4m3(codes & 255u), hotseam_emulated::e4m3(codes >> 8 & 255u));
}
inline unsigned half_pair_product(unsigned a, unsigned b) {
    using hotseam_emulated::half_value;
    return half_pair(half_value(a & 0xffffu) * half_value(b & 0xffffu), half_value(a >> 16) * half_value(b >> 16));
}

// What copy.cuh names. The bytes are read when a copy begins and written when it is waited for.
template <unsigned BYTES> inline void hotseam_emulated_copy(void *to, const void *from, bool there) {
    using Words = unsigned[BYTES / 4];
    hotseam_emulated::Copy copy{static_cast<unsigned *>(to), {0, 0, 0, 0}, BYTES / 4, 0};
    if (reinterpret_cast<uintptr_t>(to) % BYTES != 0 || reinterpret_cast<uintptr_t>(from) % BYTES != 0) __trap();
    if (there)
        for (unsigned i = 0; i < BYTES / 4; ++i) copy.words[i] = (*static_cast<const Words *>(from))[i];
    hotseam_emulated::copy_begin(copy);
}
inline void copy_16(void *to, const void *from, bool there) { hotseam_emulated_copy<16>(to, from, there); }
inline void copy_8(void *to, const void *from, bool there) { hotseam_emulated_copy<8>(to, from, there); }
inline void copy_4(void *to, const void *from, bool there) { hotseam_emulated_copy<4>(to, from, there); }
inline void copy_commit() { hotseam_emulated::copy_group(); }
inline void copy_wait(unsigned n) {
    hotseam_emulated::Copy copy;
    while (hotseam_emulated::copy_take(n, copy))
        for (unsigned i = 0; i < copy.count; ++i) copy.to[i] = copy.words[i];
}

// The block-scaled products of mma_scaled.cuh. Their values and scales are exact in f32, and so are the products.
#define HOTSEAM_EMULATED_SCALED(name, op)                                                                          \
    inline void name(float d[4], const unsigned a[4], const unsigned b[2], const float c[4], unsigned sa, unsigned sb,  \
                     HOTSEAM_EMULATED_HERE) {                                                                      \
        hotseam_emulated::Fragments fragments{d, a, b, c, sa, sb};                                                 \
        uint64_t address = reinterpret_cast<uintptr_t>(&fragments);                                                \
        hotseam_emulated::collective(hotseam_emulated::Op::op, ALL_LANES, {address, 0}, file, line);               \
    }
HOTSEAM_EMULATED_SCALED(mma_m16n8k32_mxf8, MmaMxf8)
HOTSEAM_EMULATED_SCALED(mma_m16n8k64_mxf4, MmaMxf4)
#undef HOTSEAM_EMULATED_SCALED

// ---- atomics: one thread runs at a time, so they are plain ----------------------------------------------------------------

#define HOTSEAM_EMULATED_ATOMIC(name, T, expression)                                                               \
    inline T name(T *address, T value) {                                                                           \
        T old = *address;                                                                                          \
        *address = expression;                                                                                     \
        return old;                                                                                                \
    }
#define HOTSEAM_EMULATED_ATOMICS(T)                                                                                \
    HOTSEAM_EMULATED_ATOMIC(atomicAdd, T, old + value)                                                          \
    HOTSEAM_EMULATED_ATOMIC(atomicMin, T, value < old ? value : old)                                               \
    HOTSEAM_EMULATED_ATOMIC(atomicMax, T, value > old ? value : old)                                               \
    HOTSEAM_EMULATED_ATOMIC(atomicOr, T, old | value)                                                           \
    HOTSEAM_EMULATED_ATOMIC(atomicAnd, T, old & value)                                                          \
    HOTSEAM_EMULATED_ATOMIC(atomicXor, T, old ^ value)                                                          \
    HOTSEAM_EMULATED_ATOMIC(atomicExch, T, value)                                                                  \
    inline T atomicCAS(T *address, T compare, T value) {                                                           \
        T old = *address;                                                                                          \
        if (old == compare) *address = value;                                                                      \
        return old;                                                                                                \
    }
HOTSEAM_EMULATED_ATOMICS(int)
HOTSEAM_EMULATED_ATOMICS(unsigned)
HOTSEAM_EMULATED_ATOMICS(unsigned long long)
HOTSEAM_EMULATED_ATOMIC(atomicSub, int, old - value)
HOTSEAM_EMULATED_ATOMIC(atomicSub, unsigned, old - value)
HOTSEAM_EMULATED_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1u)
HOTSEAM_EMULATED_ATOMIC(atomicMin, long long, value < old ? value : old)
HOTSEAM_EMULATED_ATOMIC(atomicMax, long long, value > old ? value : old)
HOTSEAM_EMULATED_ATOMIC(atomicAdd, float, old + value)
HOTSEAM_EMULATED_ATOMIC(atomicAdd, double, old + value)
HOTSEAM_EMULATED_ATOMIC(atomicExch, float, value)
#undef HOTSEAM_EMULATED_ATOMICS
#undef HOTSEAM_EMULATED_ATOMIC

// ---- arithmetic -----------------------------------------------------------------------------------------------------------

template <class T> inline T __ldg(const T *address) { return *address; }
template <class T> inline T __ldcg(const T *address) { return *address; }
template <class T> inline T __ldcs(const T *address) { return *address; }
template <class T> inline void __stcg(T *address, T value) { *address = value; }
template <class T> inline void __stcs(T *address, T value) { *address = value; }

inline unsigned __float_as_uint(float x) { return hotseam_emulated::as<unsigned>(x); }
inline int __float_as_int(float x) { return hotseam_emulated::as<int>(x); }
inline float __uint_as_float(unsigned x) { return hotseam_emulated::as<float>(x); }
inline float __int_as_float(int x) { return hotseam_emulated::as<float>(x); }
inline long long __double_as_longlong(double x) { return hotseam_emulated::as<long long>(x); }
inline double __longlong_as_double(long long x) { return hotseam_emulated::as<double>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
inline unsigned __brev(unsigned x) {
    x = ((x >> 1) & 0x55555555u) | ((x & 0x55555555u) << 1);
    x = ((x >> 2) & 0x33333333u) | ((x & 0x33333333u) << 2);
    x = ((x >> 4) & 0x0f0f0f0fu) | ((x & 0x0f0f0f0fu) << 4);
    return __builtin_bswap32(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t both = a | (uint64_t(b) << 32);
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned nibble = (selector >> (4 * i)) & 15u, byte = unsigned(both >> (8 * (nibble & 7u))) & 255u;
        if (nibble & 8u) byte = byte & 128u ? 255u : 0u;
        out |= byte << (8 * i);
    }
    return out;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return unsigned(((uint64_t(high) << 32 | low) << (shift & 31u)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) >> (shift & 31u));
}

// `min` and `max` of floats are those of IEEE: a NaN loses against a number.
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
#define HOTSEAM_EMULATED_MIN_MAX(A, B, T)                                                                          \
    inline T min(A a, B b) { return (T)a < (T)b ? (T)a : (T)b; }                                                   \
    inline T max(A a, B b) { return (T)a > (T)b ? (T)a : (T)b; }
HOTSEAM_EMULATED_MIN_MAX(int, int, int)
HOTSEAM_EMULATED_MIN_MAX(unsigned, unsigned, unsigned)
HOTSEAM_EMULATED_MIN_MAX(int, unsigned, unsigned)
HOTSEAM_EMULATED_MIN_MAX(unsigned, int, unsigned)
HOTSEAM_EMULATED_MIN_MAX(long, long, long)
HOTSEAM_EMULATED_MIN_MAX(unsigned long, unsigned long, unsigned long)
HOTSEAM_EMULATED_MIN_MAX(long long, long long, long long)
HOTSEAM_EMULATED_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef HOTSEAM_EMULATED_MIN_MAX

// The fast intrinsics of the device are approximate; these are exact to the last place or two. Names that the C library has
// declared for itself are macros.
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }

// Conversions saturate and make NaN a 0, as the device does; a plain cast out of range is undefined in C++.
inline int __float2int_rz(float x) {
    return x != x ? 0 : x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : int(x);
}
inline int __float2int_rn(float x) { return __float2int_rz(nearbyintf(x)); }
inline int __float2int_rd(float x) { return __float2int_rz(floorf(x)); }
inline int __float2int_ru(float x) { return __float2int_rz(ceilf(x)); }
inline unsigned __float2uint_rz(float x) { return !(x > 0.0f) ? 0u : x >= 4294967296.0f ? 0xffffffffu : unsigned(x); }
inline unsigned __float2uint_rn(float x) { return __float2uint_rz(nearbyintf(x)); }
