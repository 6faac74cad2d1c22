// Reductions over a warp and over a block of whole warps, at most 1024 threads. All sum in one fixed order, so that a result
// has the same bits in every run, and every thread gets it.
#pragma once

#include "kernel.cuh"

// What block-wide reductions pass between warps.
#define WARPS_MOST 32

DEVICE int lane_id() { return threadIdx.x & 31; }
DEVICE int warp_id() { return threadIdx.x >> 5; }

template <class T> DEVICE T warp_sum(T value) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// NaN are passed over unless there is nothing else.
DEVICE float warp_max(float value) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

// All threads of the block call it. `scratch` has `WARPS_MOST` places and may be used again at once.
template <class T> DEVICE T block_sum(T value, T *scratch) {
    value = warp_sum(value);
    if (lane_id() == 0) scratch[warp_id()] = value;
    __syncthreads();
    T total = warp_sum(lane_id() < (int)(blockDim.x >> 5) ? scratch[lane_id()] : T(0));
    __syncthreads();
    return total;
}

// As `block_sum`.
DEVICE float block_max(float value, float *scratch) {
    value = warp_max(value);
    if (lane_id() == 0) scratch[warp_id()] = value;
    __syncthreads();
    float most = warp_max(lane_id() < (int)(blockDim.x >> 5) ? scratch[lane_id()] : -HOTSEAM_INFINITY);
    __syncthreads();
    return most;
}

// Sums of 32 values each over the warp: lane `i` gets that of `v[i]`. `v` is spent.
DEVICE float warp_sums(float (&v)[32]) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        bool high = (lane_id() & step) != 0;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            if (i >= step) continue;
            float keep = high ? v[i + step] : v[i], give = high ? v[i] : v[i + step];
            v[i] = keep + __shfl_xor_sync(ALL_LANES, give, step);
        }
    }
    return v[0];
}

// Sum of the values of the lanes before this one.
template <class T> DEVICE T warp_scan(T value) {
    T sum = value;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
        T before = __shfl_sync(ALL_LANES, sum, (lane_id() - step) & 31);
        if (lane_id() >= step) sum += before;
    }
    return sum - value;
}

// Sum of the values of the threads before this one; `total` is that of all. As `block_sum`.
template <class T> DEVICE T block_scan(T value, T *scratch, T &total) {
    T before = warp_scan(value);
    if (lane_id() == 31) scratch[warp_id()] = before + value;
    __syncthreads();
    T warps = lane_id() < (int)(blockDim.x >> 5) ? scratch[lane_id()] : T(0);
    T warps_before = warp_scan(warps);
    total = warp_sum(warps);
    before += __shfl_sync(ALL_LANES, warps_before, warp_id());
    __syncthreads();
    return before;
}
