// `attention.core` on tensor cores, for entries whose values are bf16. Queries and weights are each two bf16 numbers, the second what
// the first leaves of the f32, so that products keep 16 bits of them; sums are f32.
//
// A block has 16 heads of a row. Each warp has 64 channels of every key, which it alone brings to shared memory, for the
// scores as well as for the weighted sums; only the scores are summed across warps.
#pragma once

#include "core.cuh"
#include "mma.cuh"

#define MMA_HEADS 16
// Keys of a tile.
#define MMA_TILE 32
// Channels of a warp, and the words that a key of them takes in shared memory: so many that lanes meet in no bank.
#define MMA_SLICE 64
#define MMA_KEY_WORDS (MMA_SLICE / 2 + 4)
// Words of a warp's queries: of each 16 channels what each lane gives to a product, first numbers and second.
#define MMA_QUERY_WORDS (MMA_SLICE / 16 * 2 * 32 * 4)
// Length of a row of scores, and of a row of weights, of a tile.
#define MMA_SCORE_ROW (MMA_TILE + 8)
#define MMA_THREADS_MOST 256

// What follows the warps' keys and scores in shared memory.
struct MmaShared {
    Entry entries[CORE_STRIDE];
    // First and second numbers.
    unsigned short weights[2][MMA_HEADS * MMA_SCORE_ROW];
    // Of the part: largest score and weight of each head, and the factor of what was summed before this tile.
    CoreState state[MMA_HEADS];
    float before[MMA_HEADS];
};

// Bytes of shared memory for so many warps.
#define MMA_SHARED(warps) \
    ((warps) * 4 * (MMA_QUERY_WORDS + MMA_TILE * MMA_KEY_WORDS + MMA_HEADS * MMA_SCORE_ROW) + (unsigned)sizeof(MmaShared))

// Values `i .. i + 8` of an entry as bf16, which they are.
DEVICE void entry_eight(const HotseamPoolRef &pool, Entry entry, unsigned i, unsigned (&words)[4]) {
    unsigned nope = pool.dim - pool.rope_dim;
    if (pool.layout == HOTSEAM_LAYOUT_KV_BF16) return load_words(entry.data + 2 * i, words);
    if (i >= nope) return load_words(entry.data + 2 * i - nope, words);
    unsigned codes[2];
    load_words(entry.data + i, codes);
    float v[8];
#pragma unroll
    for (int c = 0; c < 8; c++) v[c] = e4m3_small(codes[c / 4] >> 8 * (c % 4));
    if ((((codes[0] & 0x7f7f7f7fu) + 0x01010101u) | ((codes[1] & 0x7f7f7f7fu) + 0x01010101u)) & 0x80808080u) {
#pragma unroll
        for (int c = 0; c < 8; c++) {
            if ((codes[c / 4] >> 8 * (c % 4) & 0x7f) == 0x7f) v[c] = __uint_as_float(0x7fc00000u);
        }
    }
    lift<120>(v, entry.scale[i / 64]);
#pragma unroll
    for (int c = 0; c < 4; c++) words[c] = __byte_perm(__float_as_uint(v[2 * c]), __float_as_uint(v[2 * c + 1]), 0x7632);
}

DEVICE unsigned bf16_pair(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }

// What a bf16 number leaves of a value; nothing of one that is not finite, which it holds itself.
DEVICE float bf16_rest(float v) {
    float rest = v - bf16_value(bf16_bits(v));
    return rest - rest == 0.0f ? rest : 0.0f;
}

// A part of a row, as its block's threads hold it: sums of rows `lane / 4` and `lane / 4 + 8` of the heads. Of each 16
// channels the even ones are in one tile of products and the odd ones in the next, so that a word of a key serves both.
struct MmaSums {
    float v[MMA_SLICE / 8][4];
};

struct MmaBlock {
    uint4 *queries;         // `[MMA_SLICE / 16][2][32]`, of this warp
    unsigned *keys;         // `[MMA_TILE][MMA_KEY_WORDS]`, of this warp
    float *scores;          // `[warps][MMA_HEADS][MMA_SCORE_ROW]`
    MmaShared *shared;
    unsigned channel;       // first channel of this warp
};

// Brings this warp's channels of a tile to shared memory.
DEVICE void mma_load(const CoreParams &p, const CoreRow &r, MmaBlock &b, unsigned first, unsigned tile) {
    unsigned lane = lane_id(), chunk = lane % 8;
    __syncwarp();
#pragma unroll 4
    for (unsigned k = lane / 8; k < MMA_TILE; k += 4) {
        Entry entry = b.shared->entries[tile + k];
        unsigned words[4] = {0, 0, 0, 0};
        if (entry.data != nullptr) entry_eight(core_pool(p, r, first + tile + k), entry, b.channel + 8 * chunk, words);
        *(uint4 *)(b.keys + k * MMA_KEY_WORDS + 4 * chunk) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    __syncwarp();
}

// Scores of a tile over this warp's channels.
DEVICE void mma_scores(MmaBlock &b) {
    unsigned g = lane_id() / 4, t = lane_id() % 4;
    float *scores = b.scores + warp_id() * MMA_HEADS * MMA_SCORE_ROW;
    float sums[MMA_TILE / 8][4] = {};
#pragma unroll
    for (unsigned k = 0; k < MMA_SLICE / 16; k++) {
        uint4 first = b.queries[2 * k * 32 + lane_id()], second = b.queries[(2 * k + 1) * 32 + lane_id()];
        unsigned q[2][4] = {{first.x, first.y, first.z, first.w}, {second.x, second.y, second.z, second.w}};
#pragma unroll
        for (unsigned n = 0; n < MMA_TILE / 8; n++) {
            const unsigned *key = b.keys + (8 * n + g) * MMA_KEY_WORDS + t + 8 * k;
            unsigned keys[2] = {key[0], key[4]};
            mma_m16n8k16_bf16(sums[n], q[0], keys, sums[n]);
            mma_m16n8k16_bf16(sums[n], q[1], keys, sums[n]);
        }
    }
#pragma unroll
    for (unsigned n = 0; n < MMA_TILE / 8; n++) {
        *(float2 *)(scores + g * MMA_SCORE_ROW + 8 * n + 2 * t) = make_float2(sums[n][0], sums[n][1]);
        *(float2 *)(scores + (g + 8) * MMA_SCORE_ROW + 8 * n + 2 * t) = make_float2(sums[n][2], sums[n][3]);
    }
}

// Weights of a tile, and the state of the part with them; half a warp for a head.
DEVICE void mma_softmax(const CoreParams &p, MmaBlock &b, unsigned tile) {
    unsigned lane = lane_id() % 16, warps = blockDim.x / 32;
    float scale = p.args.scale * LOG2_E;
    for (unsigned head = threadIdx.x / 16; head < MMA_HEADS; head += blockDim.x / 16) {
        CoreState state = b.shared->state[head];
        float score[MMA_TILE / 16], most = state.most;
        bool there[MMA_TILE / 16];
#pragma unroll
        for (unsigned i = 0; i < MMA_TILE / 16; i++) {
            const float *from = b.scores + head * MMA_SCORE_ROW + 16 * i + lane;
            float sum = 0.0f;
            for (unsigned w = 0; w < warps; w++) sum += from[w * MMA_HEADS * MMA_SCORE_ROW];
            there[i] = b.shared->entries[tile + 16 * i + lane].data != nullptr;
            score[i] = there[i] ? sum * scale : -HOTSEAM_INFINITY;
            most = fmaxf(most, score[i]);
        }
#pragma unroll
        for (unsigned step = 1; step < 16; step *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, step));
        float base = core_base(most), before = exp2f(state.most - base), total = 0.0f;
#pragma unroll
        for (unsigned i = 0; i < MMA_TILE / 16; i++) {
            float weight = there[i] ? exp2f(score[i] - base) : 0.0f;
            unsigned first = bf16_bits(weight), second = bf16_bits(bf16_rest(weight)), at = head * MMA_SCORE_ROW + 16 * i + lane;
            b.shared->weights[0][at] = (unsigned short)first;
            b.shared->weights[1][at] = (unsigned short)second;
            total += bf16_value(first) + bf16_value(second);
        }
#pragma unroll
        for (unsigned step = 1; step < 16; step *= 2) total += __shfl_xor_sync(ALL_LANES, total, step);
        // All lanes have read the state that one of them changes.
        __syncwarp();
        if (lane == 0) {
            b.shared->state[head] = CoreState{most, fmaf(state.weight, before, total)};
            b.shared->before[head] = before;
        }
    }
}

// Adds a tile's keys by their weights.
DEVICE void mma_sum(MmaBlock &b, MmaSums &sums) {
    unsigned g = lane_id() / 4, t = lane_id() % 4;
    float before[2] = {b.shared->before[g], b.shared->before[g + 8]};
#pragma unroll
    for (unsigned n = 0; n < MMA_SLICE / 8; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) sums.v[n][c] *= before[c / 2];
    }
#pragma unroll
    for (unsigned k = 0; k < MMA_TILE / 16; k++) {
        unsigned weights[2][4];
#pragma unroll
        for (unsigned part = 0; part < 2; part++) {
            const unsigned *low = (const unsigned *)b.shared->weights[part] + (g * MMA_SCORE_ROW + 16 * k) / 2 + t;
            const unsigned *high = low + 8 * MMA_SCORE_ROW / 2;
            weights[part][0] = low[0], weights[part][1] = high[0], weights[part][2] = low[4], weights[part][3] = high[4];
        }
#pragma unroll
        for (unsigned n = 0; n < MMA_SLICE / 16; n++) {
            const unsigned *key = b.keys + (16 * k + 2 * t) * MMA_KEY_WORDS + 8 * n + g;
            unsigned words[4] = {key[0], key[MMA_KEY_WORDS], key[8 * MMA_KEY_WORDS], key[9 * MMA_KEY_WORDS]};
            unsigned even[2] = {__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410)};
            unsigned odd[2] = {__byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632)};
#pragma unroll
            for (unsigned part = 0; part < 2; part++) {
                mma_m16n8k16_bf16(sums.v[2 * n], weights[part], even, sums.v[2 * n]);
                mma_m16n8k16_bf16(sums.v[2 * n + 1], weights[part], odd, sums.v[2 * n + 1]);
            }
        }
    }
}

// Keys `from .. to` of a row.
DEVICE void mma_part(const CoreParams &p, const CoreRow &r, MmaBlock &b, unsigned from, unsigned to, MmaSums &sums) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < MMA_HEADS; i += blockDim.x) b.shared->state[i] = CoreState{-HOTSEAM_INFINITY, 0.0f};
    for (unsigned first = from; first < to; first += CORE_STRIDE) {
        for (unsigned i = threadIdx.x; i < CORE_STRIDE; i += blockDim.x) b.shared->entries[i] = core_key(p, r, first + i);
        __syncthreads();
        for (unsigned tile = 0; tile < CORE_STRIDE && first + tile < to; tile += MMA_TILE) {
            if (__ballot_sync(ALL_LANES, b.shared->entries[tile + lane_id()].data != nullptr) == 0) continue;
            mma_load(p, r, b, first, tile);
            mma_scores(b);
            __syncthreads();
            mma_softmax(p, b, tile);
            __syncthreads();
            mma_sum(b, sums);
        }
        __syncthreads();
    }
}

// Calls `f(half, head, channel, four)` for the sums of this thread, by fours of neighbouring channels.
template <class F> DEVICE void mma_each(const MmaSums &sums, unsigned channel, const F &f) {
    unsigned g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
#pragma unroll
        for (unsigned n = 0; n < MMA_SLICE / 16; n++) {
            const float *even = sums.v[2 * n] + 2 * half, *odd = sums.v[2 * n + 1] + 2 * half;
            f(half, g + 8 * half, channel + 16 * n + 4 * t, make_float4(even[0], odd[0], even[1], odd[1]));
        }
    }
}

DEVICE void mma_block(const CoreParams &p, unsigned char *bytes) {
    CoreRow r;
    if (!core_row(p, p.first_row + blockIdx.z, r)) return;
    unsigned dim = (unsigned)p.args.q.shape[2], n_heads = (unsigned)p.args.q.shape[1], warps = blockDim.x / 32;
    unsigned head = blockIdx.x * MMA_HEADS, parts = (r.keys + r.part - 1) / r.part, g = lane_id() / 4, t = lane_id() % 4;
    MmaBlock b;
    b.queries = (uint4 *)bytes + warp_id() * MMA_QUERY_WORDS / 4;
    b.keys = (unsigned *)bytes + warps * MMA_QUERY_WORDS + warp_id() * MMA_TILE * MMA_KEY_WORDS;
    b.scores = (float *)bytes + warps * (MMA_QUERY_WORDS + MMA_TILE * MMA_KEY_WORDS);
    b.shared = (MmaShared *)(b.scores + warps * MMA_HEADS * MMA_SCORE_ROW);
    b.channel = warp_id() * MMA_SLICE;
    const float *q = (const float *)p.args.q.data + (r.row * n_heads + head) * dim + b.channel + 2 * t;
    for (unsigned k = 0; k < MMA_SLICE / 16; k++) {
        unsigned words[2][4];
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            unsigned of = g + i % 2 * 8;
            const float *from = q + (long long)of * dim + 16 * k + i / 2 * 8;
            float low = head + of < n_heads ? from[0] : 0.0f, high = head + of < n_heads ? from[1] : 0.0f;
            words[0][i] = bf16_pair(low, high);
            words[1][i] = bf16_pair(bf16_rest(low), bf16_rest(high));
        }
        // Read by the lane that writes it.
        for (unsigned part = 0; part < 2; part++) {
            const unsigned *w = words[part];
            b.queries[(2 * k + part) * 32 + lane_id()] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
    MmaSums all{};
    CoreState states[2] = {{-HOTSEAM_INFINITY, 0.0f}, {-HOTSEAM_INFINITY, 0.0f}};
    unsigned begin = p.partial == nullptr ? 0 : blockIdx.y, end = p.partial == nullptr ? parts : min(begin + 1, parts);
    for (unsigned part = begin; part < end; part++) {
        MmaSums sums{};
        mma_part(p, r, b, part * r.part, min((part + 1) * r.part, r.keys), sums);
        if (p.partial != nullptr) {
            mma_each(sums, b.channel, [&](unsigned, unsigned of, unsigned channel, float4 four) {
                if (head + of < n_heads) store_floats(core_sums(p, r.row, part, head + of) + channel, four);
            });
            if (threadIdx.x < MMA_HEADS && head + threadIdx.x < n_heads) {
                *core_state(p, r.row, part, head + threadIdx.x) = b.shared->state[threadIdx.x];
            }
            continue;
        }
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            float mine, theirs;
            core_take(states[half], b.shared->state[g + 8 * half], mine, theirs);
#pragma unroll
            for (unsigned n = 0; n < MMA_SLICE / 8; n++) {
#pragma unroll
                for (unsigned c = 2 * half; c < 2 * half + 2; c++) {
                    all.v[n][c] = core_taken(all.v[n][c], sums.v[n][c], mine, theirs);
                }
            }
        }
    }
    if (p.partial != nullptr) return;
    float factor[2];
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        unsigned of = head + g + 8 * half;
        factor[half] = core_factor(states[half], of < n_heads ? ((const float *)p.args.sinks.data)[of] : 0.0f);
    }
    float *out = (float *)p.args.out.data + (r.row * n_heads + head) * dim;
    mma_each(all, b.channel, [&](unsigned half, unsigned of, unsigned channel, float4 four) {
        if (head + of >= n_heads) return;
        float by = factor[half];
        store_floats(out + (long long)of * dim + channel, make_float4(four.x * by, four.y * by, four.z * by, four.w * by));
    });
}
