// `indexer.select`: scores of the entries of a row, `sum over heads of weight * relu(q . key)`. NaN stays NaN. An entry that no
// page is mapped for has a score of minus infinity.
#pragma once

#include "mma.cuh"
#include "select.cuh"

#define SCORES_THREADS 256

DEVICE void scores_write(const SelectParams &p, long long row, long long entry, float score) {
    p.scores[row * p.width + entry] = score;
    if (p.args.scores != nullptr && entry < p.args.scores_width) {
        p.args.scores[(p.first_row + row) * p.args.scores_width + entry] = score;
    }
}

// As torch has it: NaN stays NaN.
DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }

// In f32 ----------------------------------------------------------------------------------------------------------------

// Channels that are staged at once, and floats of shared memory: those of the most heads or keys that a block stages.
#define SCORES_DEPTH 16
#define SCORES_SHARED (SCORES_DEPTH * (16 + 4 + 512 + 4))

// A thread has four heads and four keys, and `LANES` threads side by side have the heads.
template <unsigned LANES> DEVICE void scores_tiles(const SelectParams &p, long long row, long long complete, float *shared) {
    constexpr unsigned HEADS = 4 * LANES, KEYS = 4 * (SCORES_THREADS / LANES);
    unsigned dim = p.args.keys.dim, n_heads = p.args.heads, lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    long long seq = p.batch.row_seq[p.first_row + row];
    float *qs = shared, *ks = shared + SCORES_DEPTH * (HEADS + 4);
    for (long long tile = blockIdx.x; tile * KEYS < complete; tile += gridDim.x) {
        float scores[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (unsigned first = 0; first < n_heads; first += HEADS) {
            float dots[4][4] = {};
            for (unsigned base = 0; base < dim; base += SCORES_DEPTH) {
                __syncthreads();
                for (unsigned i = threadIdx.x; i < (HEADS + KEYS) * (SCORES_DEPTH / 4); i += SCORES_THREADS) {
                    unsigned one = i / (SCORES_DEPTH / 4), channel = i % (SCORES_DEPTH / 4) * 4;
                    float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    float *to = ks + channel * (KEYS + 4) + one - HEADS;
                    unsigned stride = KEYS + 4;
                    if (one < HEADS) {
                        to = qs + channel * (HEADS + 4) + one;
                        stride = HEADS + 4;
                        if (first + one < n_heads && base + channel < dim) {
                            four = load_floats(p.q + (row * n_heads + first + one) * dim + base + channel);
                        }
                    } else if (tile * KEYS + one - HEADS < complete && base + channel < dim) {
                        Entry entry = pool_lookup(p.args.keys, seq, tile * KEYS + one - HEADS);
                        if (entry.data != nullptr) four = entry_four(p.args.keys, entry, base + channel);
                    }
                    to[0] = four.x;
                    to[stride] = four.y;
                    to[2 * stride] = four.z;
                    to[3 * stride] = four.w;
                }
                __syncthreads();
#pragma unroll 4
                for (unsigned d = 0; d < SCORES_DEPTH; d++) {
                    float4 q = *(const float4 *)(qs + d * (HEADS + 4) + 4 * lane);
                    float4 k = *(const float4 *)(ks + d * (KEYS + 4) + 4 * group);
                    float heads[4] = {q.x, q.y, q.z, q.w}, keys[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
                    for (int h = 0; h < 4; h++) {
#pragma unroll
                        for (int j = 0; j < 4; j++) dots[h][j] = fmaf(heads[h], keys[j], dots[h][j]);
                    }
                }
            }
#pragma unroll
            for (unsigned h = 0; h < 4; h++) {
                unsigned head = first + 4 * lane + h;
                float weight = head < n_heads ? p.weights[row * n_heads + head] : 0.0f;
#pragma unroll
                for (int j = 0; j < 4; j++) scores[j] = head < n_heads ? fmaf(weight, relu(dots[h][j]), scores[j]) : scores[j];
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (unsigned step = 1; step < LANES; step *= 2) scores[j] += __shfl_xor_sync(ALL_LANES, scores[j], step);
            long long entry = tile * KEYS + 4 * group + j;
            if (lane != 0 || entry >= complete) continue;
            bool there = pool_lookup(p.args.keys, seq, entry).data != nullptr;
            scores_write(p, row, entry, there ? scores[j] : -HOTSEAM_INFINITY);
        }
    }
}

DEVICE void scores_block(const SelectParams &p, float *shared) {
    long long row = blockIdx.y;
    if (row >= p.rows || !select_scored(p, row)) return;
    long long complete = select_complete(p, row);
    if (p.args.heads <= 8) {
        scores_tiles<2>(p, row, complete, shared);
    } else if (p.args.heads <= 16) {
        scores_tiles<4>(p, row, complete, shared);
    } else {
        scores_tiles<16>(p, row, complete, shared);
    }
}

// On tensor cores --------------------------------------------------------------------------------------------------------

// Keys of a warp, and channels that a warp takes of them at once; a lane has 16 of these 64. Products do not ask for the order
// of channels, so a lane takes those that lie side by side, of keys and queries alike.
#define SCORES_WARP_KEYS 32
#define SCORES_CHANNELS 64
// Most channels of a key.
#define SCORES_DIM_MOST 128
#define SCORES_BLOCK_KEYS (SCORES_THREADS / 32 * SCORES_WARP_KEYS)

// Words of shared memory of a query's head: so many that lanes meet in no bank.
#define SCORES_HEAD_WORDS(dim) ((dim) / 2 + 2)

// Sixteen values from `i` on as bf16, without the scale of a layout with one for each entry.
DEVICE void entry_sixteen(const HotseamPoolRef &pool, Entry entry, unsigned i, unsigned (&words)[8]) {
    if (pool.layout == HOTSEAM_LAYOUT_KEY_BF16) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned four[4];
            load_words(entry.data + 2 * i + 16 * half, four);
#pragma unroll
            for (int c = 0; c < 4; c++) words[4 * half + c] = four[c];
        }
        return;
    }
    float v[16];
    if (pool.layout == HOTSEAM_LAYOUT_KEY_FP8_HADAMARD) {
        unsigned codes[4];
        load_words(entry.data + i, codes);
#pragma unroll
        for (int c = 0; c < 16; c++) v[c] = e4m3_value(codes[c / 4] >> 8 * (c % 4) & 255u);
    } else {
        unsigned codes[2];
        load_words(entry.data + i / 2, codes);
#pragma unroll
        for (int c = 0; c < 16; c++) v[c] = e2m1_small(codes[c / 8] >> 4 * (c % 8));
        lift<126>(v, entry.scale[i / 32]);
    }
#pragma unroll
    for (int c = 0; c < 8; c++) words[c] = bf16_bits(v[2 * c]) | bf16_bits(v[2 * c + 1]) << 16;
}

// `words` is `[heads, rounded up to 8][SCORES_HEAD_WORDS]`, then as many floats: queries in bf16, and head weights.
DEVICE void scores_mma_block(const SelectParams &p, unsigned *words) {
    long long row = blockIdx.y;
    if (row >= p.rows || !select_scored(p, row)) return;
    unsigned dim = p.args.keys.dim, n_heads = p.args.heads, padded = (n_heads + 7) / 8 * 8, stride = SCORES_HEAD_WORDS(dim);
    long long complete = select_complete(p, row), seq = p.batch.row_seq[p.first_row + row];
    float *weights = (float *)(words + padded * stride);
    for (unsigned i = threadIdx.x; i < padded * (dim / 2); i += SCORES_THREADS) {
        unsigned head = i / (dim / 2), pair = i % (dim / 2);
        const float *q = p.q + (row * n_heads + head) * dim + 2 * pair;
        words[head * stride + pair] = head < n_heads ? bf16_bits(q[0]) | bf16_bits(q[1]) << 16 : 0;
    }
    for (unsigned i = threadIdx.x; i < padded; i += SCORES_THREADS) {
        weights[i] = i < n_heads ? p.weights[row * n_heads + i] : 0.0f;
    }
    __syncthreads();
    unsigned g = lane_id() / 4, t = lane_id() % 4;
    for (long long tile = blockIdx.x; tile * SCORES_BLOCK_KEYS < complete; tile += gridDim.x) {
        long long first = tile * SCORES_BLOCK_KEYS + warp_id() * SCORES_WARP_KEYS;
        if (first >= complete) continue;
        // Of keys `g + 8 i`: 16 channels of each 64; what multiplies the sum in the end.
        unsigned keys[SCORES_WARP_KEYS / 8][SCORES_DIM_MOST / SCORES_CHANNELS][8];
        float factor[SCORES_WARP_KEYS / 8];
        bool there[SCORES_WARP_KEYS / 8];
#pragma unroll
        for (unsigned i = 0; i < SCORES_WARP_KEYS / 8; i++) {
            long long number = first + 8 * i + g;
            Entry entry{nullptr, nullptr};
            if (number < complete) entry = pool_lookup(p.args.keys, seq, number);
            there[i] = entry.data != nullptr;
            bool scaled = there[i] && p.args.keys.layout == HOTSEAM_LAYOUT_KEY_FP8_HADAMARD;
            factor[i] = scaled ? __uint_as_float(load_word(entry.scale)) : 1.0f;
#pragma unroll
            for (unsigned part = 0; part < SCORES_DIM_MOST / SCORES_CHANNELS; part++) {
#pragma unroll
                for (int c = 0; c < 8; c++) keys[i][part][c] = 0;
                if (there[i] && part * SCORES_CHANNELS < dim) {
                    entry_sixteen(p.args.keys, entry, part * SCORES_CHANNELS + 16 * t, keys[i][part]);
                }
            }
        }
        float scores[SCORES_WARP_KEYS / 8] = {};
        for (unsigned n = 0; n < padded; n += 8) {
            float dots[SCORES_WARP_KEYS / 16][4] = {};
#pragma unroll
            for (unsigned part = 0; part < SCORES_DIM_MOST / SCORES_CHANNELS; part++) {
                if (part * SCORES_CHANNELS >= dim) continue;
#pragma unroll
                for (unsigned k = 0; k < SCORES_CHANNELS / 16; k++) {
                    const unsigned *at = words + (n + g) * stride + part * (SCORES_CHANNELS / 2) + 8 * t + 2 * k;
                    uint2 pair = *(const uint2 *)at;
                    unsigned q[2] = {pair.x, pair.y};
#pragma unroll
                    for (unsigned m = 0; m < SCORES_WARP_KEYS / 16; m++) {
                        unsigned a[4] = {keys[2 * m][part][2 * k], keys[2 * m + 1][part][2 * k],
                                         keys[2 * m][part][2 * k + 1], keys[2 * m + 1][part][2 * k + 1]};
                        mma_m16n8k16_bf16(dots[m], a, q, dots[m]);
                    }
                }
            }
            float low = weights[n + 2 * t], high = weights[n + 2 * t + 1];
#pragma unroll
            for (unsigned i = 0; i < SCORES_WARP_KEYS / 8; i++) {
                const float *dot = dots[i / 2] + i % 2 * 2;
                // A head that pads has a weight and a product of zero; it would only turn an infinite key into NaN.
                if (n + 2 * t < n_heads) scores[i] = fmaf(low, relu(dot[0]), scores[i]);
                if (n + 2 * t + 1 < n_heads) scores[i] = fmaf(high, relu(dot[1]), scores[i]);
            }
        }
#pragma unroll
        for (unsigned i = 0; i < SCORES_WARP_KEYS / 8; i++) {
#pragma unroll
            for (unsigned step = 1; step < 4; step *= 2) scores[i] += __shfl_xor_sync(ALL_LANES, scores[i], step);
            long long number = first + 8 * i + g;
            if (t == 0 && number < complete) scores_write(p, row, number, there[i] ? scores[i] * factor[i] : -HOTSEAM_INFINITY);
        }
    }
}
