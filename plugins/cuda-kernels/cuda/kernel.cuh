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
// Nothing but the language is included: no CUDA header, so that NVRTC alone compiles it.
#pragma once

#include "hotseam/args.h"

#ifdef HOTSEAM_EMULATED
#include "emulated.hpp"
#else
#define KERNEL(name, Params) extern "C" __global__ void name(const __grid_constant__ Params p)
#define KERNEL_BOUNDED(name, Params, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Params p)
#define SHARED __shared__
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
#define DEVICE static __device__ __forceinline__
#define ALL_LANES 0xffffffffu
#define HOTSEAM_INFINITY __int_as_float(0x7f800000)
#endif
