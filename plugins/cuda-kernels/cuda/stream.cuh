// Products of few rows: `y[rows, n] = x[rows, k] w[n, k]^T`, bound by how fast weights come. The warps of a block share out the
// inputs of the same outputs. Each brings weights, their scales and its part of the rows through a ring of its own in shared
// memory, stage after stage, and multiplies on tensor cores: 16 outputs are the rows of a product, the rows of `x` its columns.
//
// It is as exact as f32. Codes of 8 bits or fewer are f16 as they are, and bf16 is bf16. An input is the sum of parts: two f16,
// 11 bits of it each, times a power of two that brings the largest input of the warp's part of the row near the end of f16; or
// three bf16. What the cores sum of 32 inputs is multiplied by the scale of the weights and added up in f32. (An infinite input
// gives NaN.) The order of a sum follows from k alone, so a row has the same bits whatever is computed beside it.
#pragma once

#include "block.cuh"
#include "copy.cuh"
#include "half.cuh"
#include "weights.cuh"

#define STREAM_WARPS 4
#define STREAM_THREADS (32 * STREAM_WARPS)
// Most rows of x, and the outputs of a tile.
#define STREAM_ROWS 8
#define STREAM_OUTPUTS 16
// Inputs of a step of tensor cores, and bytes of a row of weights in a stage.
#define STREAM_UNIT 32
#define STREAM_LINE 64
// Bytes of a warp's ring, and its most stages.
#define STREAM_RING 12272
#define STREAM_STAGES 8
// Bytes of shared memory of a block.
#define STREAM_SHARED (STREAM_WARPS * STREAM_RING)

// What a format is: units of a stage, bytes of scales of a row in a stage that come through the ring, parts of an input, and the
// power of two by which codes are too small.
template <unsigned FORMAT> struct StreamFormat;
template <> struct StreamFormat<HOTSEAM_WEIGHT_FORMAT_BF16> {
    enum { UNITS = 1, SCALES = 0, PARTS = 3, LIFT = 0 };
};
template <> struct StreamFormat<HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK> {
    enum { UNITS = 2, SCALES = 0, PARTS = 2, LIFT = 0 };
};
template <> struct StreamFormat<HOTSEAM_WEIGHT_FORMAT_MXFP4> {
    enum { UNITS = 4, SCALES = 4, PARTS = 2, LIFT = 14 };
};
template <> struct StreamFormat<HOTSEAM_WEIGHT_FORMAT_NVFP4> {
    enum { UNITS = 4, SCALES = 8, PARTS = 2, LIFT = 9 };
};

// Rows of weights that follow each other, from a multiple of their number in a block on: `left` of them, at most as many as the
// block takes.
struct StreamRows {
    const unsigned char *codes;
    const unsigned char *scales;
    float global;
    int left;
};

// The rows from `row` on.
DEVICE StreamRows stream_rows(const WeightRow &row, long long left) {
    if (left <= 0) return StreamRows{nullptr, nullptr, 1.0f, 0};
    return StreamRows{row.codes, row.scales, row.global, (int)min(left, 1024ll)};
}

// Where 16 bytes of a row lie in its line: so that lanes of other rows meet in no bank.
DEVICE unsigned stream_place(unsigned row, unsigned chunk) { return chunk ^ ((row & 2) | (row >> 2 & 1)); }

// The ring of a warp.
struct StreamRing {
    unsigned char *memory;
    // Bytes of a stage, and where its scales and its inputs begin.
    unsigned stage, scales, inputs;
};

// Begins to copy the weights of a stage and their scales.
template <unsigned FORMAT, int MATRICES, int TILES>
DEVICE void stream_fetch_weights(
    const StreamRows (&w)[MATRICES], unsigned k, const StreamRing &ring, unsigned stage, unsigned slot
) {
    using F = StreamFormat<FORMAT>;
    unsigned char *to = ring.memory + slot * ring.stage;
    // Bytes of a row of weights.
    unsigned pitch = k / STREAM_UNIT * (STREAM_LINE / F::UNITS);
    unsigned row = lane_id() / 4, chunk = lane_id() % 4, at = stage * STREAM_LINE + 16 * chunk;
#pragma unroll
    for (int m = 0; m < MATRICES; m++) {
        const unsigned char *from = w[m].codes + row * pitch + at;
        unsigned char *line = to + (m * TILES * STREAM_OUTPUTS + row) * STREAM_LINE + 16 * stream_place(row, chunk);
        int left = at < pitch ? w[m].left - (int)row : 0;
#pragma unroll
        for (int r = 0; r < TILES * STREAM_OUTPUTS; r += 8, from += 8 * pitch) copy_16(line + r * STREAM_LINE, from, r < left);
    }
    if (F::SCALES != 0) {
        unsigned of_row = k / (F::UNITS * STREAM_UNIT) * F::SCALES;
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            for (unsigned r = lane_id(); r < TILES * STREAM_OUTPUTS; r += 32) {
                bool there = (int)r < w[m].left;
                unsigned char *scales = to + ring.scales + (m * TILES * STREAM_OUTPUTS + r) * F::SCALES;
                const unsigned char *from = w[m].scales + (there ? r * of_row + stage * F::SCALES : 0);
                if (F::SCALES == 4) {
                    copy_4(scales, from, there);
                } else {
                    copy_8(scales, from, there);
                }
            }
        }
    }
}

// Begins to copy the inputs of a stage.
template <unsigned FORMAT>
DEVICE void stream_fetch_inputs(
    const float *const *rows, int n_rows, unsigned k, const StreamRing &ring, unsigned stage, unsigned slot
) {
    unsigned char *to = ring.memory + slot * ring.stage + ring.inputs;
    // Four inputs in each copy; of the eight that a lane multiplies, the first four of all lanes come before the others.
    const unsigned fours = StreamFormat<FORMAT>::UNITS * STREAM_UNIT / 4;
    for (unsigned i = lane_id(); i < n_rows * fours; i += 32) {
        unsigned r = i / fours, four = i % fours, half = (four ^ r) & 1, col = stage * (4 * fours) + 4 * four;
        unsigned place = r * fours + four / 8 * 8 + half * 4 + four / 2 % 4;
        copy_16(to + 16 * place, rows[r] + (col < k ? col : 0), col < k);
    }
}

// Eight inputs as pairs: of inputs `i` and `i + 4` for codes of four bits, as they lie in a word, else of neighbours.
template <bool NIBBLES, class Pack> DEVICE void stream_pairs(const float (&v)[8], unsigned (&pairs)[4], const Pack &pack) {
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = NIBBLES ? pack(v[i], v[i + 4]) : pack(v[2 * i], v[2 * i + 1]);
}

// Eight inputs of this lane in parts, the largest first.
template <unsigned FORMAT>
DEVICE void stream_inputs(float (&v)[8], float scale, unsigned (&parts)[StreamFormat<FORMAT>::PARTS][4]) {
    if (FORMAT == HOTSEAM_WEIGHT_FORMAT_BF16) {
#pragma unroll
        for (int part = 0; part < StreamFormat<FORMAT>::PARTS; part++) {
            stream_pairs<false>(v, parts[part], [](float a, float b) {
                return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x7632);
            });
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] -= __uint_as_float(__float_as_uint(v[i]) & 0xffff0000u);
        }
        return;
    }
    const bool nibbles = StreamFormat<FORMAT>::UNITS == 4;
    float high[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] *= scale;
        high[i] = __uint_as_float(__float_as_uint(v[i]) & 0xffffe000u);
        v[i] -= high[i];
    }
    stream_pairs<nibbles>(high, parts[0], [](float a, float b) { return half_pair(a, b); });
    stream_pairs<nibbles>(v, parts[1], [](float a, float b) { return half_pair(a, b); });
}

// Eight codes of four bits as f16 of 2^-14 their size, in pairs of codes `i` and `i + 4`.
DEVICE void stream_nibbles(unsigned word, unsigned (&pairs)[4]) {
    // A code is the upper byte of its f16; those of the odd codes lie as they are.
    unsigned even = (word << 4 & 0x80808080u) | (word << 1 & 0x0e0e0e0eu), odd = (word & 0x80808080u) | (word >> 3 & 0x0e0e0e0eu);
    pairs[0] = __byte_perm(even, 0, 0x2404);
    pairs[1] = __byte_perm(odd, 0, 0x2404);
    pairs[2] = even & 0xff00ff00u;
    pairs[3] = odd & 0xff00ff00u;
}

// Eight weights of this lane from a line, in pairs as those of `stream_inputs`. `scales` are the row's in the stage.
template <unsigned FORMAT>
DEVICE void stream_weights(
    const unsigned char *line, unsigned row, unsigned unit, const unsigned char *scales, unsigned (&pairs)[4]
) {
    unsigned t = lane_id() % 4;
    if (FORMAT == HOTSEAM_WEIGHT_FORMAT_BF16) {
        uint4 words = *(const uint4 *)(line + 16 * stream_place(row, t));
        pairs[0] = words.x;
        pairs[1] = words.y;
        pairs[2] = words.z;
        pairs[3] = words.w;
    } else if (FORMAT == HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK) {
        uint2 words = *(const uint2 *)(line + 16 * stream_place(row, 2 * unit + t / 2) + 8 * (t & 1));
        pairs[0] = half_pair_of_e4m3(words.x);
        pairs[1] = half_pair_of_e4m3(words.x >> 16);
        pairs[2] = half_pair_of_e4m3(words.y);
        pairs[3] = half_pair_of_e4m3(words.y >> 16);
    } else {
        stream_nibbles(*(const unsigned *)(line + 16 * stream_place(row, unit) + 4 * t), pairs);
        if (FORMAT == HOTSEAM_WEIGHT_FORMAT_NVFP4) {
            // A scale of 16 codes, times 32: with it they are f16 still.
            unsigned code = scales[2 * unit + t / 2];
            unsigned scale = half_pair_product(half_pair_of_e4m3(code | code << 8), 0x50005000u);
#pragma unroll
            for (int i = 0; i < 4; i++) pairs[i] = half_pair_product(pairs[i], scale);
        }
    }
}

// `acc += ` the products of a stage. `scale` is that of this lane's row of x; `block` that of the weights of FP8 in this stage.
template <unsigned FORMAT, int MATRICES, int ALL>
DEVICE void stream_stage(
    const unsigned char *stage, const StreamRing &ring, int n_rows, float scale, const float (&block)[MATRICES],
    float (&acc)[ALL][4]
) {
    using F = StreamFormat<FORMAT>;
    int g = lane_id() / 4, t = lane_id() % 4;
    // The scale of unit `t` of this lane's two rows.
    float sizes[ALL][2];
    if (FORMAT == HOTSEAM_WEIGHT_FORMAT_MXFP4) {
#pragma unroll
        for (int m = 0; m < ALL; m++) {
            const unsigned char *scales = stage + ring.scales + (m * STREAM_OUTPUTS + g) * F::SCALES + t;
            sizes[m][0] = e8m0_value(scales[0]);
            sizes[m][1] = e8m0_value(scales[8 * F::SCALES]);
        }
    }
#pragma unroll 1
    for (unsigned unit = 0; unit < F::UNITS; unit++) {
        float v[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        if (g < n_rows) {
            const float4 *from = (const float4 *)(stage + ring.inputs) + (g * F::UNITS + unit) * (STREAM_UNIT / 4) + t;
            float4 low = from[4 * (g & 1)], high = from[4 * (~g & 1)];
            v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
            v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
        }
        unsigned x[F::PARTS][4];
        stream_inputs<FORMAT>(v, scale, x);
#pragma unroll
        for (int m = 0; m < ALL; m++) {
            unsigned low[4], high[4];
            const unsigned char *line = stage + (m * STREAM_OUTPUTS + g) * STREAM_LINE;
            const unsigned char *scales = stage + ring.scales + (m * STREAM_OUTPUTS + g) * F::SCALES;
            stream_weights<FORMAT>(line, g, unit, scales, low);
            stream_weights<FORMAT>(line + 8 * STREAM_LINE, g, unit, scales + 8 * F::SCALES, high);
            float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            // The smallest part first.
#pragma unroll
            for (int part = F::PARTS - 1; part >= 0; part--) {
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    unsigned a[4] = {low[i], high[i], low[i + 1], high[i + 1]}, b[2] = {x[part][i], x[part][i + 1]};
                    if (FORMAT == HOTSEAM_WEIGHT_FORMAT_BF16) {
                        mma_m16n8k16_bf16(sum, a, b, sum);
                    } else {
                        mma_m16n8k16_f16(sum, a, b, sum);
                    }
                }
            }
            float one = 1.0f, two = 1.0f;
            if (FORMAT == HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK) one = two = block[m / (ALL / MATRICES)];
            if (FORMAT == HOTSEAM_WEIGHT_FORMAT_MXFP4) {
                one = __shfl_sync(ALL_LANES, sizes[m][0], unit, 4);
                two = __shfl_sync(ALL_LANES, sizes[m][1], unit, 4);
            }
            acc[m][0] = fmaf(sum[0], one, acc[m][0]);
            acc[m][1] = fmaf(sum[1], one, acc[m][1]);
            acc[m][2] = fmaf(sum[2], two, acc[m][2]);
            acc[m][3] = fmaf(sum[3], two, acc[m][3]);
        }
    }
}

// The power of two that brings inputs of at most this size to 2^14 .. 2^15, by its bits, and what undoes it.
DEVICE float stream_scale(unsigned most) { return __uint_as_float((268 - max(most >> 23, 15u)) << 23); }
DEVICE float stream_unscale(unsigned most) { return __uint_as_float((max(most >> 23, 15u) - 14) << 23); }

// The bits of the largest of the inputs `from .. to`, both multiples of four, without their sign; NaN are larger than all.
DEVICE unsigned stream_most(const float *row, unsigned from, unsigned to) {
    unsigned most = 0;
#pragma unroll 4
    for (unsigned col = from + 4 * lane_id(); col < to; col += 128) {
        uint4 v = *(const uint4 *)(row + col);
        most = max(max(most, v.x & 0x7fffffffu), v.y & 0x7fffffffu);
        most = max(max(most, v.z & 0x7fffffffu), v.w & 0x7fffffffu);
    }
    return __reduce_max_sync(ALL_LANES, most);
}

// `acc` = the products of this warp's inputs, as those of tensor cores, with the `n_rows` of `rows`, which lie in shared memory.
template <unsigned FORMAT, int TILES, bool EARLY, int MATRICES>
DEVICE void stream_warp(
    const StreamRows (&w)[MATRICES], const float *const *rows, int n_rows, unsigned k, unsigned char *memory,
    float (&acc)[MATRICES * TILES][4]
) {
    using F = StreamFormat<FORMAT>;
    const unsigned inputs = F::UNITS * STREAM_UNIT, outputs = MATRICES * TILES * STREAM_OUTPUTS;
    unsigned all = (k + inputs - 1) / inputs, first = all * warp_id() / STREAM_WARPS, last = all * (warp_id() + 1) / STREAM_WARPS;
    StreamRing ring;
    ring.memory = memory + warp_id() * STREAM_RING;
    ring.scales = outputs * STREAM_LINE;
    ring.inputs = ring.scales + outputs * F::SCALES;
    ring.stage = ring.inputs + n_rows * inputs * 4;
    unsigned stages = min(STREAM_RING / ring.stage, STREAM_STAGES + 0u);
    auto fetch_weights = [&](unsigned stage, unsigned slot) {
        if (stage < last) stream_fetch_weights<FORMAT, MATRICES, TILES>(w, k, ring, stage, slot);
    };
    auto fetch_inputs = [&](unsigned stage, unsigned slot) {
        if (stage < last) stream_fetch_inputs<FORMAT>(rows, n_rows, k, ring, stage, slot);
        copy_commit();
    };
    if (EARLY) {
        for (unsigned i = 0; i < stages; i++) fetch_weights(first + i, i);
        await_before();
        for (unsigned i = 0; i < stages; i++) fetch_inputs(first + i, i);
    } else {
        for (unsigned i = 0; i < stages; i++) {
            fetch_weights(first + i, i);
            fetch_inputs(first + i, i);
        }
    }
#pragma unroll
    for (int m = 0; m < MATRICES * TILES; m++) {
#pragma unroll
        for (int c = 0; c < 4; c++) acc[m][c] = 0.0f;
    }
    // Lane `l` has the scale of 128 inputs number `window + l` of each matrix.
    unsigned window = first * inputs / 128;
    float blocks[MATRICES], block[MATRICES];
    auto look = [&]() {
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            bool there = w[m].left > 0 && window + lane_id() < (k + 127) / 128;
            blocks[m] = there ? e8m0_value(w[m].scales[window + lane_id()]) : 0.0f;
            block[m] = 0.0f;
        }
    };
    if (FORMAT == HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK) look();
    unsigned most = 0;
    if (FORMAT != HOTSEAM_WEIGHT_FORMAT_BF16) {
        for (int r = 0; r < n_rows; r++) {
            unsigned of_row = stream_most(rows[r], first * inputs, min(last * inputs, k));
            if (r == lane_id() / 4) most = of_row;
        }
    }
    float scale = stream_scale(most);
    for (unsigned stage = first, slot = 0; stage < last; stage++) {
        copy_wait(stages - 1);
        __syncwarp();
        if (FORMAT == HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK) {
            unsigned at = stage * inputs / 128 - window;
            if (at == 32) {
                window += 32;
                at = 0;
                look();
            }
#pragma unroll
            for (int m = 0; m < MATRICES; m++) block[m] = __shfl_sync(ALL_LANES, blocks[m], at);
        }
        stream_stage<FORMAT>(ring.memory + slot * ring.stage, ring, n_rows, scale, block, acc);
        __syncwarp();
        fetch_weights(stage + stages, slot);
        fetch_inputs(stage + stages, slot);
        slot = slot + 1 == stages ? 0 : slot + 1;
    }
    copy_wait(0);
    float undo = FORMAT == HOTSEAM_WEIGHT_FORMAT_BF16 ? 1.0f : stream_unscale(most);
    float even = __shfl_sync(ALL_LANES, undo, 8 * (lane_id() % 4)), odd = __shfl_sync(ALL_LANES, undo, 8 * (lane_id() % 4) + 4);
#pragma unroll
    for (int m = 0; m < MATRICES * TILES; m++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            acc[m][c] = acc[m][c] * (float)(1 << F::LIFT) * (c % 2 == 0 ? even : odd) * w[m / TILES].global;
        }
    }
}

// The outputs of `TILES` tiles of each matrix for at most eight rows: calls `store(row, output, values)` with those of all tiles
// once for each row and output of a tile, those of the first matrix first. `rows`, in shared memory, are aligned to 16 bytes, as
// all of the weights; `k` is a multiple of 32, and of 128 with codes of four bits. All threads of the block call it; `memory` of
// `STREAM_SHARED` bytes is aligned to 16. An `EARLY` kernel has not called `await_before()`, which is done here once weights are
// on their way.
template <int TILES, bool EARLY, int MATRICES, class Store>
DEVICE void stream_products(
    unsigned format, const StreamRows (&w)[MATRICES], const float *const *rows, int n_rows, unsigned k, unsigned char *memory,
    const Store &store
) {
    const int all = MATRICES * TILES;
    float acc[all][4];
    switch (format) {
    case HOTSEAM_WEIGHT_FORMAT_BF16:
        stream_warp<HOTSEAM_WEIGHT_FORMAT_BF16, TILES, EARLY>(w, rows, n_rows, k, memory, acc);
        break;
    case HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK:
        stream_warp<HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK, TILES, EARLY>(w, rows, n_rows, k, memory, acc);
        break;
    case HOTSEAM_WEIGHT_FORMAT_MXFP4:
        stream_warp<HOTSEAM_WEIGHT_FORMAT_MXFP4, TILES, EARLY>(w, rows, n_rows, k, memory, acc);
        break;
    default: stream_warp<HOTSEAM_WEIGHT_FORMAT_NVFP4, TILES, EARLY>(w, rows, n_rows, k, memory, acc); break;
    }
    // The warps' sums are added in their order.
    float *sums = (float *)memory;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < all; m++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int row = 2 * (lane_id() % 4) + c % 2, output = lane_id() / 4 + c / 2 * 8;
            sums[((warp_id() * all + m) * STREAM_ROWS + row) * STREAM_OUTPUTS + output] = acc[m][c];
        }
    }
    __syncthreads();
    int row = threadIdx.x / STREAM_OUTPUTS, output = threadIdx.x % STREAM_OUTPUTS;
    if (row >= n_rows) return;
    float values[all];
#pragma unroll
    for (int m = 0; m < all; m++) {
        values[m] = 0.0f;
#pragma unroll
        for (int w = 0; w < STREAM_WARPS; w++) {
            values[m] += sums[((w * all + m) * STREAM_ROWS + row) * STREAM_OUTPUTS + output];
        }
    }
    store(row, output, values);
}
