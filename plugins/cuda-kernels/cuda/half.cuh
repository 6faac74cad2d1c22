// Pairs of f16, the first in the lower half of a word: products, and what becomes one. Subnormal values count as what they are.
#pragma once

#include "mma.cuh"

#ifndef HOTSEAM_EMULATED
// Two floats, rounded to nearest.
DEVICE unsigned half_pair(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Two e4m3 of the low 16 bits, which is exact; NaN stay NaN.
DEVICE unsigned half_pair_of_e4m3(unsigned codes) {
    unsigned pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((unsigned short)codes));
    return pair;
}

DEVICE unsigned half_pair_product(unsigned a, unsigned b) {
    unsigned product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}
#endif
