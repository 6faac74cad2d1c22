// The patched `moe.experts` of SM120: products with weights in FP4 for few rows. An e2m1 becomes bf16 by bit placement and packed
// products with its scale, which is exact, and the weights are the 16 rows of a tensor core product, so that one serves eight
// pairs. An input is the sum of three bf16, 8 bits of it each: the result is as exact as in f32.
//
// A lane has 32 inputs of a row of weights, which lie side by side, of each 128; products do not ask for the order of inputs.
#include "activation.cuh"
#include "experts.cuh"
#include "layouts.cuh"
#include "mma_scaled.cuh"

#define FP4_THREADS 128
#define FP4_WARPS (FP4_THREADS / 32)
// Outputs of a warp, pairs of a tile, inputs of a step and those that lie in shared memory at once.
#define FP4_OUTPUTS 16
#define FP4_PAIRS 8
#define FP4_STEP 128
#define FP4_STAGE 512
// Words of a pair's inputs in one part: so many that lanes meet in no bank.
#define FP4_ROW (FP4_STAGE / 2 + 16)
#define FP4_SHARED (3 * FP4_PAIRS * FP4_ROW)

// Stages the inputs `base ..` of the pairs. Of 32 inputs, 8 make four words of pairs four apart, as codes in a word lie.
template <class RowOf> DEVICE void fp4_stage(const RowOf &row_of, long long base, long long k, unsigned *shared) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < FP4_PAIRS * FP4_STAGE / 8; i += FP4_THREADS) {
        unsigned pair = i / (FP4_STAGE / 8), eight = i % (FP4_STAGE / 8);
        const float *row = row_of(pair);
        float4 low = make_float4(0.0f, 0.0f, 0.0f, 0.0f), high = low;
        if (row != nullptr) {
            low = load_floats_until(row, base + 8 * eight, k);
            high = load_floats_until(row, base + 8 * eight + 4, k);
        }
        float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        // Sixteen words for each of the four words of codes, of which each lane of a quad has four.
        unsigned place = eight / 16 * 64 + eight % 4 * 16 + eight / 4 % 4 * 4;
#pragma unroll
        for (unsigned part = 0; part < 3; part++) {
            unsigned words[4];
#pragma unroll
            for (unsigned c = 0; c < 4; c++) words[c] = __byte_perm(__float_as_uint(v[c]), __float_as_uint(v[c + 4]), 0x7632);
            *(uint4 *)(shared + (part * FP4_PAIRS + pair) * FP4_ROW + place) = make_uint4(words[0], words[1], words[2], words[3]);
#pragma unroll
            for (unsigned c = 0; c < 8; c++) v[c] -= __uint_as_float(__float_as_uint(v[c]) & 0xffff0000u);
        }
    }
    __syncthreads();
}

// 32 codes of a row, and their scales as they are; zeros past the end.
struct Fp4Codes {
    unsigned words[4], scales;
};

DEVICE Fp4Codes fp4_codes(const WeightRow &w, long long col, long long k) {
    // A scale that is a number in either format.
    Fp4Codes codes{{0, 0, 0, 0}, 0x3838u};
    if (w.codes == nullptr || col >= k) return codes;
    load_words(w.codes + col / 2, codes.words);
    codes.scales = w.format == HOTSEAM_WEIGHT_FORMAT_MXFP4 ? w.scales[col / 32] * 0x101u
                                                           : w.scales[col / 16] | (unsigned)w.scales[col / 16 + 1] << 8;
    return codes;
}

// Two bf16 of the same value.
DEVICE unsigned fp4_twice(unsigned bits) { return bits | bits << 16; }

// Eight codes times their scale as four pairs of bf16, of codes `j` and `j + 4`. NVFP4's factor is left to the end.
DEVICE void fp4_decode(unsigned word, unsigned scale, bool mx, unsigned (&pairs)[4]) {
    // Codes are placed as bf16 of 2^-126 their size.
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        unsigned w = word << (12 - 4 * j);
        pairs[j] = (w & 0x80008000u) | (w & 0x70007000u) >> 6;
    }
    if (mx && scale >= 3 && scale <= 128) {
        unsigned factor = fp4_twice((scale + 126) << 7);
#pragma unroll
        for (unsigned j = 0; j < 4; j++) pairs[j] = bf16_pair_product(pairs[j], factor);
        return;
    }
    // By two factors, since one would be no bf16.
    float size = mx ? e8m0_value(scale) : e4m3_value(scale);
    unsigned one = fp4_twice((126 + 127) << 7), two = fp4_twice(__float_as_uint(size) >> 16);
#pragma unroll
    for (unsigned j = 0; j < 4; j++) pairs[j] = bf16_pair_product(bf16_pair_product(pairs[j], one), two);
}

// Products of 32 inputs a lane with the pairs that are staged: `acc` as a product's sums, its columns the pairs.
DEVICE void fp4_products(
    const Fp4Codes &low, const Fp4Codes &high, bool mx, const unsigned *staged, float (&acc)[4]
) {
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        unsigned one[4], two[4];
        fp4_decode(low.words[i], low.scales >> i / 2 * 8 & 255u, mx, one);
        fp4_decode(high.words[i], high.scales >> i / 2 * 8 & 255u, mx, two);
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        // The smallest part first.
#pragma unroll
        for (int part = 2; part >= 0; part--) {
            uint4 x = *(const uint4 *)(staged + part * FP4_PAIRS * FP4_ROW + 16 * i);
            unsigned a[4] = {one[0], two[0], one[1], two[1]}, b[2] = {x.x, x.y};
            mma_m16n8k16_bf16(sum, a, b, sum);
            unsigned c[4] = {one[2], two[2], one[3], two[3]}, d[2] = {x.z, x.w};
            mma_m16n8k16_bf16(sum, c, d, sum);
        }
        // What the cores sum is short, and added up in f32.
#pragma unroll
        for (unsigned c = 0; c < 4; c++) acc[c] += sum[c];
    }
}

// `acc[n]` = products of 16 rows of `MATRICES` matrices; lane `l` has rows `l / 4` and `l / 4 + 8` of them in `w[n]`.
template <unsigned MATRICES, class RowOf>
DEVICE void fp4_rows(
    const RowOf &row_of, const WeightRow (&w)[MATRICES][2], long long k, unsigned *shared, float (&acc)[MATRICES][4]
) {
    unsigned g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (unsigned n = 0; n < MATRICES; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) acc[n][c] = 0.0f;
    }
    for (long long base = 0; base < k; base += FP4_STAGE) {
        fp4_stage(row_of, base, k, shared);
#pragma unroll 1
        for (unsigned step = 0; step < FP4_STAGE / FP4_STEP; step++) {
            long long col = base + step * FP4_STEP + 32 * t;
            const unsigned *staged = shared + g * FP4_ROW + step * (FP4_STEP / 2) + 4 * t;
            if (base + step * FP4_STEP >= k) break;
#pragma unroll
            for (unsigned n = 0; n < MATRICES; n++) {
                Fp4Codes low = fp4_codes(w[n][0], col, k), high = fp4_codes(w[n][1], col, k);
                fp4_products(low, high, w[n][0].format == HOTSEAM_WEIGHT_FORMAT_MXFP4, staged, acc[n]);
            }
        }
    }
#pragma unroll
    for (unsigned n = 0; n < MATRICES; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) acc[n][c] *= w[n][c / 2].global;
    }
}

// Row `o` of a matrix; one past the end has no codes, but the format of the others.
DEVICE WeightRow fp4_row(const HotseamWeightRef &w, long long o, long long n, long long k) {
    return o < n ? weight_row(w, o, k) : WeightRow{nullptr, nullptr, 1.0f, w.format};
}

// Grid: 16 inner channels a warp, a tile of at most eight pairs a block.
KERNEL_BOUNDED(hotseam_moe_sm120_up, ExpertsParams, FP4_THREADS) {
    SHARED uint4 shared[FP4_SHARED / 4];
    Tile tile = tile_at(p, blockIdx.y);
    if (tile.count == 0) return;
    const HotseamExpertRef &expert = p.args.experts_device[tile.expert];
    long long hidden = p.args.x.shape[1];
    unsigned g = lane_id() / 4, t = lane_id() % 4, o = (blockIdx.x * FP4_WARPS + warp_id()) * FP4_OUTPUTS + g;
    WeightRow w[2][2] = {{fp4_row(expert.w1, o, p.inter, hidden), fp4_row(expert.w1, o + 8, p.inter, hidden)},
                         {fp4_row(expert.w3, o, p.inter, hidden), fp4_row(expert.w3, o + 8, p.inter, hidden)}};
    float acc[2][4];
    fp4_rows([&](int i) { return pair_input(p, tile, i); }, w, hidden, (unsigned *)shared, acc);
#pragma unroll
    for (unsigned c = 0; c < 4; c++) {
        int i = 2 * t + c % 2;
        unsigned channel = o + c / 2 * 8;
        if (i >= tile.count || channel >= p.inter) continue;
        p.inner[(long long)pair_at(p, tile, i) * p.inter + channel] = swiglu(acc[0][c], acc[1][c], p.args.swiglu_limit);
    }
}

// Grid: 16 outputs a warp, a tile of at most eight pairs a block.
KERNEL_BOUNDED(hotseam_moe_sm120_down, ExpertsParams, FP4_THREADS) {
    SHARED uint4 shared[FP4_SHARED / 4];
    Tile tile = tile_at(p, blockIdx.y);
    if (tile.count == 0) return;
    const HotseamExpertRef &expert = p.args.experts_device[tile.expert];
    long long hidden = p.args.x.shape[1];
    unsigned g = lane_id() / 4, t = lane_id() % 4, o = (blockIdx.x * FP4_WARPS + warp_id()) * FP4_OUTPUTS + g;
    WeightRow w[1][2] = {{fp4_row(expert.w2, o, hidden, p.inter), fp4_row(expert.w2, o + 8, hidden, p.inter)}};
    float acc[1][4];
    fp4_rows([&](int i) { return pair_inner(p, tile, i); }, w, p.inter, (unsigned *)shared, acc);
#pragma unroll
    for (unsigned c = 0; c < 4; c++) {
        int i = 2 * t + c % 2;
        unsigned output = o + c / 2 * 8;
        if (i < tile.count && output < hidden) p.results[pair_at(p, tile, i) * hidden + output] = acc[0][c];
    }
}
