// How a kernel of Hotseam is written, for the compiler of the device and for the emulator that runs the same source on a CPU.
//
// A kernel takes one argument, a struct by value, and is named by `KERNEL(name, Params)`:
//
//     struct AddParams { float *x; unsigned n; };
//     KERNEL(hotseam_add, AddParams) {
//         unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
//         if (i < p.n) p.x[i] += 1.0f;
//     }
//
// Static shared memory is `SHARED float rows[4][32];`, dynamic shared memory `DYNAMIC_SHARED(unsigned char, bytes);`.
// The names are the symbols that the host asks a module for, so they begin with `hotseam_` and the name of the seam.
// `Kernel::launch_early` launches it: it may be set up while the one before it on the stream still runs, but touches no memory until
// that one is done. `KERNEL` and `KERNEL_BOUNDED(name, Params, threads)` begin with `await_before()`; one that is declared with
// `KERNEL_EARLY` calls it itself, in every thread, and before it does so reads nothing but its parameters and weights, which no kernel writes.
// Nothing but the language is included: no CUDA header, so that NVRTC alone compiles it.
#pragma once

#include "hotseam/args.h"

#ifdef HOTSEAM_EMULATED
#include "emulated.hpp"
#else
#define KERNEL_AS(name, Params, bounds, begin)                              \
    static __device__ __forceinline__ void name##_body(const Params &p);    \
    extern "C" __global__ void bounds name(const __grid_constant__ Params p) { \
        begin;                                                              \
        name##_body(p);                                                     \
    }                                                                       \
    static __device__ __forceinline__ void name##_body(const Params &p)
#define KERNEL(name, Params) KERNEL_AS(name, Params, , await_before())
#define KERNEL_BOUNDED(name, Params, threads) KERNEL_AS(name, Params, __launch_bounds__(threads), await_before())
#define KERNEL_EARLY(name, Params, threads) KERNEL_AS(name, Params, __launch_bounds__(threads), )
#define SHARED __shared__
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
#define DEVICE static __device__ __forceinline__
#define ALL_LANES 0xffffffffu
#define HOTSEAM_INFINITY __int_as_float(0x7f800000)

// Waits until what was enqueued before is done, and lets what is enqueued behind be set up as soon as all blocks have come here.
DEVICE void await_before() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#endif
