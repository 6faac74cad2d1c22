// Kernels of the emulator's own test: right ones, and ones with the faults that it must show.
#include "mma.cuh"

struct SelftestParams {
    float *x, *y;
    unsigned n;
    int choice;
};

DEVICE float warp_sum(float value) {
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

// y[block] = sum of the block's x.
KERNEL(hotseam_selftest_sum, SelftestParams) {
    SHARED float partial[32];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = warp_sum(i < p.n ? p.x[i] : 0.0f);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) p.y[blockIdx.x] = sum;
    }
}

// Reverses a block through shared memory; without its barrier if `choice` is 1.
KERNEL(hotseam_selftest_reverse, SelftestParams) {
    DYNAMIC_SHARED(float, row);
    row[threadIdx.x] = p.x[threadIdx.x];
    if (p.choice == 0) __syncthreads();
    p.y[threadIdx.x] = row[blockDim.x - 1 - threadIdx.x];
}

template <int N> DEVICE float in_template(float value) {
    SHARED float kept[N];
    float before = kept[threadIdx.x % N];
    kept[threadIdx.x % N] = value;
    return before;
}

// What shared memory holds before it is written, in each block anew.
KERNEL(hotseam_selftest_poison, SelftestParams) {
    SHARED float kept[4];
    DYNAMIC_SHARED(float, bytes);
    bool all = isnan(kept[0]) && isnan(bytes[0]) && isnan(in_template<3>(1.0f));
    kept[0] = bytes[0] = 1.0f;
    p.y[blockIdx.x] = all ? 1.0f : 0.0f;
}

KERNEL(hotseam_selftest_barriers, SelftestParams) {
    if (p.choice == 0) {   // threads that end do not count
        if (threadIdx.x >= 40) return;
        __syncthreads();
    } else if (p.choice == 1) {   // two barriers, of which each is reached by some
        if (threadIdx.x < 32) {
            __syncthreads();
        } else {
            __syncthreads();
        }
    } else if (p.choice == 2) {   // a barrier against a warp's collective
        if (threadIdx.x == 3) __syncthreads();
        __syncwarp();
    } else if (p.choice == 3) {   // a lane of the mask has ended
        if (threadIdx.x == 5) return;
        p.y[threadIdx.x] = __shfl_sync(ALL_LANES, 1.0f, 0);
    } else if (p.choice == 4) {   // reads a lane that is not in the mask
        if (threadIdx.x < 16) p.y[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.0f, 16);
    } else if (p.choice == 5) {   // two halves, each with its mask
        unsigned half = threadIdx.x & 16u, mask = 0xffffu << half;
        p.y[threadIdx.x] = __shfl_sync(mask, float(threadIdx.x), int(half));
    }
    if (p.choice == 0) p.y[threadIdx.x] = float(__syncthreads_count(threadIdx.x % 2));
}

KERNEL(hotseam_selftest_lanes, SelftestParams) {
    unsigned lane = threadIdx.x;
    long long wide = (long long)lane << 40;
    unsigned odd = __ballot_sync(ALL_LANES, lane & 1u);
    bool right = __shfl_down_sync(ALL_LANES, wide, 1) == (long long)(lane == 31 ? 31 : lane + 1) << 40;
    right = right && __shfl_up_sync(ALL_LANES, lane, 2) == (lane < 2 ? lane : lane - 2);
    right = right && __shfl_sync(ALL_LANES, lane, 1, 8) == (lane & ~7u) + 1;
    right = right && __shfl_down_sync(ALL_LANES, double(lane), 3, 4) == (lane % 4 == 0 ? lane + 3 : lane);
    right = right && odd == 0xaaaaaaaau && __any_sync(ALL_LANES, lane == 7) && !__all_sync(ALL_LANES, lane != 7);
    right = right && __reduce_add_sync(ALL_LANES, lane) == 496u && __reduce_min_sync(ALL_LANES, -int(lane)) == -31;
    right = right && __match_any_sync(ALL_LANES, lane % 3) == (0x49249249u << (lane % 3)) && __brev(1u) == 0x80000000u;
    p.y[lane] = right ? 1.0f : 0.0f;
}

// y[n + i]; one past the end if `choice` is 1, the address 16 if it is 2, more stack than there is if it is 3, from an odd
// address if it is 4.
static __device__ __noinline__ float deep(unsigned n) {
    volatile float space[100000];
    space[n] = 1.0f;
    return space[n / 2];
}
KERNEL(hotseam_selftest_bounds, SelftestParams) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float *y = p.choice == 2 ? reinterpret_cast<float *>(16) : p.y;
    if (p.choice == 3) y[0] = deep(p.n);
    if (p.choice == 4) y = reinterpret_cast<float *>(reinterpret_cast<char *>(y) + 1);
    if (i < p.n + (p.choice == 1)) y[i] = float(i);
}

// One product of x as bf16 bits, or f16 if `choice` is 1, A[16][16] and then B[16][8], into y[16][8].
KERNEL(hotseam_selftest_mma, SelftestParams) {
    const unsigned short *a = reinterpret_cast<const unsigned short *>(p.x), *b = a + 256;
    unsigned g = threadIdx.x / 4, t = threadIdx.x % 4;
    auto two = [](unsigned low, unsigned high) { return low | high << 16; };
    unsigned fa[4], fb[2];
    for (unsigned i = 0; i < 4; ++i) {
        unsigned row = g + 8 * (i & 1), column = 2 * t + 8 * (i >> 1);
        fa[i] = two(a[row * 16 + column], a[row * 16 + column + 1]);
    }
    for (unsigned i = 0; i < 2; ++i) fb[i] = two(b[(2 * t + 8 * i) * 8 + g], b[(2 * t + 8 * i + 1) * 8 + g]);
    float d[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if (p.choice == 1) {
        mma_m16n8k16_f16(d, fa, fb, d);
    } else {
        mma_m16n8k16_bf16(d, fa, fb, d);
    }
    for (unsigned i = 0; i < 4; ++i) p.y[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)] = d[i];
}

// Copies of 16 bytes in two groups: y is 1 where they are in shared memory when they have been waited for, and not before.
KERNEL(hotseam_selftest_copies, SelftestParams) {
    SHARED uint4 staged[3][32];
    const uint4 *from = reinterpret_cast<const uint4 *>(p.x);
    unsigned i = threadIdx.x;
    auto word = [&](unsigned of) { return reinterpret_cast<volatile uint4 *>(&staged[of][i])->w; };
    copy_16(&staged[0][i], from + i, true);
    copy_commit();
    copy_16(&staged[1][i], from + i, false);
    copy_commit();
    copy_4(&staged[2][i].w, &from[i].w, true);
    bool right = word(0) == 0xffffffffu;
    copy_wait(1);
    right = right && word(0) == from[i].w && word(1) == 0xffffffffu;
    copy_wait(0);
    right = right && word(1) == 0 && word(2) == 0xffffffffu;
    copy_commit();
    copy_wait(0);
    p.y[i] = right && word(2) == from[i].w ? 1.0f : 0.0f;
}

// x as f16 in y, its low half from a pair and its high half from a product with 1.
KERNEL(hotseam_selftest_half, SelftestParams) {
    unsigned i = threadIdx.x, pair = half_pair(p.x[i], p.x[i]), one = half_pair(1.0f, 1.0f);
    p.y[i] = __uint_as_float((pair & 0xffffu) | (half_pair_product(pair, one) & 0xffff0000u));
    p.y[32 + i] = __uint_as_float(half_pair_of_e4m3(i * 4 | (i * 4 + 1) << 8));
}

KERNEL(hotseam_selftest_add, SelftestParams) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) p.y[i] += p.x[i];
}

KERNEL_BOUNDED(hotseam_selftest_fmaf, SelftestParams, 256) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = p.x[0];
    for (int k = 0; k < p.choice; ++k) sum = fmaf(sum, 0.5f, float(i));
    p.y[threadIdx.x] = sum;
}

KERNEL(hotseam_selftest_barrier_rate, SelftestParams) {
    for (int k = 0; k < p.choice; ++k) __syncthreads();
}
