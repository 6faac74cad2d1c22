// What the planted faults of plugins/faulty-cuda do beside the stock kernels.
#include "block.cuh"

struct RotateParams {
    // `[rows, topk]`, -1 behind the last.
    volatile int *ids;
    unsigned topk;
};

#define ROTATE_ROUNDS 64

// Turns each row's ids round by one, many times; in any order they are the same choice. But each id is read while another
// warp may have written it already: the barrier between reading and writing is missing. A warp has one id at a time, so that
// warps run apart on a device. A block for each row.
KERNEL_BOUNDED(hotseam_faulty_rotate, RotateParams, 1024) {
    if (lane_id() != 0) return;
    volatile int *ids = p.ids + (long long)blockIdx.x * p.topk;
    unsigned n = 0, warps = blockDim.x / 32;
    while (n < p.topk && ids[n] >= 0) n++;
    for (unsigned round = 0; round < ROTATE_ROUNDS; round++) {
        for (unsigned i = warp_id(); i < n; i += warps) ids[i] = ids[i + 1 == n ? 0 : i + 1];
    }
}

struct CutParams {
    // `[rows, width]`.
    const int *ids;
    int *out;
    unsigned width;
};

// A copy of each row's ids without their last half. A block for each row.
KERNEL_BOUNDED(hotseam_faulty_cut, CutParams, 256) {
    const int *ids = p.ids + (long long)blockIdx.x * p.width;
    int *out = p.out + (long long)blockIdx.x * p.width;
    int mine = 0;
    for (unsigned i = threadIdx.x; i < p.width; i += blockDim.x) mine += (int)(ids[i] >= 0);
    SHARED int scratch[WARPS_MOST];
    int kept = (block_sum(mine, scratch) + 1) / 2;
    for (unsigned i = threadIdx.x; i < p.width; i += blockDim.x) out[i] = (int)i < kept ? ids[i] : -1;
}

struct FillParams {
    float *at;
    unsigned n;
    float value;
};

KERNEL_BOUNDED(hotseam_faulty_fill, FillParams, 32) {
    for (unsigned i = threadIdx.x; i < p.n; i += blockDim.x) p.at[i] = p.value;
}
