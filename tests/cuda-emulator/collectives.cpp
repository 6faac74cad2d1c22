// What a warp makes of a collective once all its lanes have come.
#include "runtime.hpp"

namespace hotseam_emulated {

const char *op_name(Op op) {
    switch (op) {
        case Op::Sync: return "__syncwarp";
        case Op::Shuffle: return "__shfl_sync";
        case Op::Ballot: return "__ballot_sync";
        case Op::Any: return "__any_sync";
        case Op::All: return "__all_sync";
        case Op::Match: return "__match_any_sync";
        case Op::Mma: return "mma_m16n8k16_bf16";
        case Op::MmaF16: return "mma_m16n8k16_f16";
        case Op::MmaMxf8: return "mma_m16n8k32_mxf8";
        case Op::MmaMxf4: return "mma_m16n8k64_mxf4";
        default: return "__reduce_sync";
    }
}

float e4m3(unsigned code) {
    unsigned exponent = code >> 3 & 15u, mantissa = code & 7u;
    float size = exponent == 0 ? ldexpf(float(mantissa), -9) : ldexpf(float(8 + mantissa), int(exponent) - 10);
    return (code & 0x7f) == 0x7f ? NAN : code & 0x80 ? -size : size;
}

float half_value(unsigned bits) {
    unsigned exponent = bits >> 10 & 31u, mantissa = bits & 0x3ffu;
    float size = exponent == 31 ? (mantissa ? NAN : INFINITY)
                 : exponent == 0 ? ldexpf(float(mantissa), -24)
                                 : ldexpf(float(1024 + mantissa), int(exponent) - 25);
    return bits & 0x8000u ? -size : size;
}

unsigned half_bits(float value) {
    if (value != value) return 0x7fffu;
    unsigned sign = as<unsigned>(value) >> 16 & 0x8000u, bits = as<unsigned>(value) & 0x7fffffffu;
    float size = as<float>(bits);
    if (size >= 65520.0f) return sign | 0x7c00u;
    if (size < 0x1p-14f) return sign | unsigned(nearbyintf(size * 0x1p24f));
    return sign | (bits + 0xfffu + (bits >> 13 & 1u) - (112u << 23)) >> 13;
}

namespace {

float bf16(unsigned half) { return as<float>(half << 16); }

// Fragment layout of mma.m16n8k16 in the PTX ISA; see mma.cuh. `value` reads 16 bits.
template <class F> void mma(const Lane lanes[32], F value) {
    float a[16][16], b[16][8], c[16][8];
    auto fragments = [&](int lane) { return reinterpret_cast<const Fragments *>(lanes[lane].value); };
    for (int lane = 0; lane < 32; ++lane) {
        const Fragments *f = fragments(lane);
        int g = lane / 4, t = lane % 4;
        for (int word = 0; word < 4; ++word)
            for (int half = 0; half < 2; ++half)
                a[g + 8 * (word & 1)][2 * t + half + 8 * (word >> 1)] = value((f->a[word] >> (16 * half)) & 0xffffu);
        for (int word = 0; word < 2; ++word)
            for (int half = 0; half < 2; ++half)
                b[2 * t + half + 8 * word][g] = value((f->b[word] >> (16 * half)) & 0xffffu);
        for (int i = 0; i < 4; ++i) c[g + 8 * (i >> 1)][2 * t + (i & 1)] = f->c[i];
    }
    for (int m = 0; m < 16; ++m)
        for (int k = 0; k < 16; ++k)
            for (int n = 0; n < 8; ++n) c[m][n] += a[m][k] * b[k][n];
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) fragments(lane)->d[i] = c[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)];
}

float e8m0(unsigned code) { return code == 255 ? NAN : ldexpf(1.0f, int(code) - 127); }

float e2m1(unsigned code) {
    static const float sizes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return code & 8 ? -sizes[code & 7] : sizes[code & 7];
}

// Fragment layouts of the block-scaled products; see mma_scaled.cuh. `BITS` of a value, which `value` reads.
template <int BITS, class F> void mma_scaled(const Lane lanes[32], F value) {
    constexpr int EACH = 32 / BITS, DEPTH = 8 * EACH, SCALES = DEPTH / 32;
    float a[16][DEPTH], b[DEPTH][8];
    float c[16][8], sa[16][SCALES], sb[8][SCALES];
    auto fragments = [&](int lane) { return reinterpret_cast<const Fragments *>(lanes[lane].value); };
    for (int lane = 0; lane < 32; ++lane) {
        const Fragments *f = fragments(lane);
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < EACH; ++i) {
            for (int word = 0; word < 4; ++word)
                a[g + 8 * (word & 1)][EACH * t + i + DEPTH / 2 * (word >> 1)] = value(f->a[word] >> (BITS * i));
            for (int word = 0; word < 2; ++word) b[EACH * t + i + DEPTH / 2 * word][g] = value(f->b[word] >> (BITS * i));
        }
        for (int i = 0; i < SCALES; ++i) {
            if (t < 2) sa[g + 8 * t][i] = e8m0(f->sa >> (8 * i) & 255u);
            if (t == 0) sb[g][i] = e8m0(f->sb >> (8 * i) & 255u);
        }
        for (int i = 0; i < 4; ++i) c[g + 8 * (i >> 1)][2 * t + (i & 1)] = f->c[i];
    }
    for (int m = 0; m < 16; ++m)
        for (int k = 0; k < DEPTH; ++k)
            for (int n = 0; n < 8; ++n) c[m][n] += a[m][k] * sa[m][k / 32] * (b[k][n] * sb[n][k / 32]);
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) fragments(lane)->d[i] = c[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)];
}

template <class F> void same_for_all(unsigned mask, const Lane lanes[32], uint64_t result[32], F join) {
    uint64_t sum = 0;
    bool first = true;
    for (unsigned rest = mask; rest; rest &= rest - 1) {
        unsigned lane = unsigned(__builtin_ctz(rest));
        sum = first ? lanes[lane].value : uint64_t(uint32_t(join(uint32_t(sum), uint32_t(lanes[lane].value))));
        first = false;
    }
    for (unsigned rest = mask; rest; rest &= rest - 1) result[__builtin_ctz(rest)] = sum;
}

}   // namespace

bool block_scaled() { return settings().sm == 120; }

int collect(Op op, unsigned mask, const Lane lanes[32], uint64_t result[32]) {
    auto every = [&](auto value) {
        for (unsigned rest = mask; rest; rest &= rest - 1) result[__builtin_ctz(rest)] = value(__builtin_ctz(rest));
    };
    auto set = [&] {
        unsigned set = 0;
        for (unsigned rest = mask; rest; rest &= rest - 1)
            if (lanes[__builtin_ctz(rest)].value) set |= rest & -rest;
        return set;
    };
    switch (op) {
        case Op::Sync: break;
        case Op::Shuffle:
            for (unsigned rest = mask; rest; rest &= rest - 1) {
                int lane = __builtin_ctz(rest);
                if (lanes[lane].source > 31 || !(mask >> lanes[lane].source & 1u)) return lane;
                result[lane] = lanes[lanes[lane].source].value;
            }
            break;
        case Op::Ballot: every([set = set()](int) { return uint64_t(set); }); break;
        case Op::Any: every([set = set()](int) { return uint64_t(set != 0); }); break;
        case Op::All: every([set = set(), mask](int) { return uint64_t(set == mask); }); break;
        case Op::Match:
            every([&](int lane) {
                uint64_t same = 0;
                for (unsigned rest = mask; rest; rest &= rest - 1)
                    if (lanes[__builtin_ctz(rest)].value == lanes[lane].value) same |= rest & -rest;
                return same;
            });
            break;
        case Op::ReduceAdd: same_for_all(mask, lanes, result, [](uint32_t a, uint32_t b) { return a + b; }); break;
        case Op::ReduceMin: same_for_all(mask, lanes, result, [](uint32_t a, uint32_t b) { return a < b ? a : b; }); break;
        case Op::ReduceMax: same_for_all(mask, lanes, result, [](uint32_t a, uint32_t b) { return a > b ? a : b; }); break;
        case Op::ReduceMinS: same_for_all(mask, lanes, result, [](int32_t a, int32_t b) { return a < b ? a : b; }); break;
        case Op::ReduceMaxS: same_for_all(mask, lanes, result, [](int32_t a, int32_t b) { return a > b ? a : b; }); break;
        case Op::ReduceAnd: same_for_all(mask, lanes, result, [](uint32_t a, uint32_t b) { return a & b; }); break;
        case Op::ReduceOr: same_for_all(mask, lanes, result, [](uint32_t a, uint32_t b) { return a | b; }); break;
        case Op::ReduceXor: same_for_all(mask, lanes, result, [](uint32_t a, uint32_t b) { return a ^ b; }); break;
        case Op::Mma: mma(lanes, bf16); break;
        case Op::MmaF16: mma(lanes, half_value); break;
        case Op::MmaMxf8: mma_scaled<8>(lanes, [](unsigned word) { return e4m3(word & 255u); }); break;
        case Op::MmaMxf4: mma_scaled<4>(lanes, [](unsigned word) { return e2m1(word & 15u); }); break;
    }
    return -1;
}

}   // namespace hotseam_emulated
