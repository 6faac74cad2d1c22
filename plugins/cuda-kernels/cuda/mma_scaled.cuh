// Block-scaled matrix products of one warp, which the family of sm_120 has: e4m3 or e2m1 operands with a power of two (e8m0)
// for every 32 values along k, sums in f32.
//
// `mma_m16n8k32_mxf8(d, a, b, c, sa, sb)`: d[16][8] = a[16][32] b[32][8] + c[16][8] in e4m3. Lane l, g = l / 4, t = l % 4, holds
//
//     a[0] = A[g][4t ..]    a[1] = A[g+8][4t ..]    a[2] = A[g][4t+16 ..]    a[3] = A[g+8][4t+16 ..]    of four values
//     b[0] = B[4t ..][g]    b[1] = B[4t+16 ..][g]
//     sa = scale of A's row g + 8 (t % 2)    sb = scale of B's column g, in the lowest byte
//
// `mma_m16n8k64_mxf4(d, a, b, c, sa, sb)`: the same with 64 values in e2m1, eight a word, the lowest bits first; word 0 and 1
// of `a` and word 0 of `b` are of the first 32 values, and the two lowest bytes of `sa` and `sb` the scales of both halves.
// c and d are as in mma.cuh.
//
// `HOTSEAM_BLOCK_SCALED` says whether the device has them. Elsewhere they must not be called, and a kernel goes another way; the
// emulated device has them if it is one of sm_120.
#pragma once

#include "mma.cuh"

#if defined(HOTSEAM_EMULATED)
#define HOTSEAM_BLOCK_SCALED hotseam_emulated::block_scaled()
#elif defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1200 && __CUDA_ARCH_FAMILY_SPECIFIC__ < 1300
#define HOTSEAM_BLOCK_SCALED true
DEVICE void mma_m16n8k32_mxf8(
    float d[4], const unsigned a[4], const unsigned b[2], const float c[4], unsigned sa, unsigned sb
) {
    asm("mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13}, {%14}, {0, 0}, {%15}, {0, 0};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]),
          "r"(sa), "r"(sb));
}

DEVICE void mma_m16n8k64_mxf4(
    float d[4], const unsigned a[4], const unsigned b[2], const float c[4], unsigned sa, unsigned sb
) {
    asm("mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13}, {%14}, {0, 0}, {%15}, {0, 0};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]),
          "r"(sa), "r"(sb));
}
#else
#define HOTSEAM_BLOCK_SCALED false
DEVICE void mma_m16n8k32_mxf8(float *, const unsigned *, const unsigned *, const float *, unsigned, unsigned) { __trap(); }
DEVICE void mma_m16n8k64_mxf4(float *, const unsigned *, const unsigned *, const float *, unsigned, unsigned) { __trap(); }
#endif

// Products of two pairs of bf16, rounded to bf16; subnormal values count as what they are.
#ifdef HOTSEAM_EMULATED
DEVICE unsigned bf16_pair_product(unsigned a, unsigned b) {
    auto one = [](unsigned x, unsigned y) {
        float product = __uint_as_float(x << 16) * __uint_as_float(y << 16);
        unsigned bits = __float_as_uint(product);
        return product != product ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    };
    return one(a & 0xffffu, b & 0xffffu) | one(a >> 16, b >> 16) << 16;
}
#else
DEVICE unsigned bf16_pair_product(unsigned a, unsigned b) {
    unsigned product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
#endif
