// Matrix products of one warp on its tensor cores.
//
// `mma_m16n8k16_bf16(d, a, b, c)`: d[16][8] = a[16][16] * b[16][8] + c[16][8], a and b in bf16, c and d in f32. The whole warp
// calls it together. Lane l, with g = l / 4 and t = l % 4, holds (PTX ISA, "Matrix fragments for mma.m16n8k16"):
//
//     a[0] = A[g][2t, 2t+1]    a[1] = A[g+8][2t, 2t+1]    a[2] = A[g][2t+8, 2t+9]    a[3] = A[g+8][2t+8, 2t+9]
//     b[0] = B[2t, 2t+1][g]    b[1] = B[2t+8, 2t+9][g]
//     c[0], c[1] = C[g][2t, 2t+1]    c[2], c[3] = C[g+8][2t, 2t+1]        d as c
//
// The lower half of a word is the first of its two values. d may be c. It runs on every device from sm_80 on.
// `mma_m16n8k16_f16` is the same with a and b in f16.
#pragma once

#include "kernel.cuh"

#ifndef HOTSEAM_EMULATED
DEVICE void mma_m16n8k16_bf16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

DEVICE void mma_m16n8k16_f16(float d[4], const unsigned a[4], const unsigned b[2], const float c[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
#endif
