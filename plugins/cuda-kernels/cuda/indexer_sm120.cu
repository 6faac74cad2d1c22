// The patched `indexer.select` of SM120, for keys of 128 values in fp8 or fp4. Scores are not written to memory: a block goes
// over a run of the entries of a row in rising order and keeps the best of them in shared memory. An entry is taken only if its
// score is above that of the worst kept, which is exact, since whoever is kept has a lower number. The blocks' best are merged.
//
// Where the device has block-scaled products, keys enter them as they lie in the pool.
#include "mma_scaled.cuh"
#include "select_scores.cuh"
#include "select_topk.cuh"

#define PICK_THREADS 256
#define PICK_WARPS (PICK_THREADS / 32)
#define PICK_DIM 128
// Keys of a warp, one a lane in the end, and of a block.
#define PICK_WARP_KEYS 32
#define PICK_KEYS (PICK_WARPS * PICK_WARP_KEYS)
// Candidates in shared memory, which are thinned out when the next tile might not fit; a row keeps at most half of them.
#define PICK_MOST 2048
#define PICK_MEMBER __device__ __forceinline__

struct PickParams {
    SelectParams select;
    // `[rows, blocks, topk]`, and how many of them there are, `[rows, blocks]`.
    unsigned long long *candidates;
    unsigned *counts;
    // Blocks of a row, and whether they stop at its last entry instead of the end of the table.
    unsigned blocks, early_exit;
};

struct PickShared {
    unsigned long long best[PICK_MOST];
    unsigned count;
};

// The larger the better: the score first, then the lower number.
DEVICE unsigned long long pick_rank(float score, unsigned number) {
    return (unsigned long long)topk_key(score) << 32 | (0xffffffffu - number);
}

// Puts the candidates in falling order, with zeros past `count`.
DEVICE void pick_sort(PickShared &shared, unsigned count) {
    unsigned size = 64;
    while (size < count) size *= 2;
    __syncthreads();
    for (unsigned i = count + threadIdx.x; i < size; i += PICK_THREADS) shared.best[i] = 0;
    for (unsigned run = 2; run <= size; run *= 2) {
        for (unsigned step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (unsigned i = threadIdx.x; i < size / 2; i += PICK_THREADS) {
                unsigned low = i / step * 2 * step + i % step, high = low + step;
                unsigned long long one = shared.best[low], two = shared.best[high];
                if ((one < two) == ((low & run) == 0)) {
                    shared.best[low] = two;
                    shared.best[high] = one;
                }
            }
        }
    }
    __syncthreads();
}

// Keeps the best `topk`; the worst of them if there are as many, else 0.
DEVICE unsigned long long pick_thin(PickShared &shared, unsigned topk) {
    __syncthreads();
    unsigned count = shared.count;
    pick_sort(shared, count);
    if (threadIdx.x == 0) shared.count = min(count, topk);
    unsigned long long worst = count >= topk ? shared.best[topk - 1] : 0;
    __syncthreads();
    return worst;
}

// Adds the candidates of the lanes that have one. The whole warp calls it.
DEVICE void pick_add(PickShared &shared, bool taken, unsigned long long rank) {
    unsigned lanes = __ballot_sync(ALL_LANES, taken), place = 0;
    if (lanes == 0) return;
    if (lane_id() == 0) place = atomicAdd(&shared.count, (unsigned)__popc(lanes));
    place = __shfl_sync(ALL_LANES, place, 0);
    if (taken) shared.best[place + __popc(lanes & ((1u << lane_id()) - 1))] = rank;
}

// Keys ----------------------------------------------------------------------------------------------------------------

// `f` is called once for each key of this lane, `i` known beforehand: `f(i, entry)`.
template <class F> DEVICE void pick_each(const SelectParams &p, long long seq, long long first, long long end, const F &f) {
#pragma unroll
    for (unsigned i = 0; i < PICK_WARP_KEYS / 8; i++) {
        long long number = first + 8 * i + lane_id() / 4;
        f(i, number < end ? pool_lookup(p.args.keys, seq, number) : Entry{nullptr, nullptr});
    }
}

// In bf16, as the stock variant has them: a lane has 16 of each 64 channels of four keys.
template <bool FP4> struct PickPlain {
    static constexpr unsigned STRIDE = SCORES_HEAD_WORDS(PICK_DIM), STEPS = PICK_DIM / 16;
    unsigned words[PICK_WARP_KEYS / 8][PICK_DIM / 64][8];

    DEVICE void query(const float *q, unsigned *to, unsigned i, unsigned n) {
        for (; i < PICK_DIM / 2; i += n) to[i] = bf16_bits(q[2 * i]) | bf16_bits(q[2 * i + 1]) << 16;
    }

    PICK_MEMBER void load(const HotseamPoolRef &pool, unsigned i, Entry entry) {
        // The compiler then knows the layout.
        HotseamPoolRef known = pool;
        known.layout = FP4 ? HOTSEAM_LAYOUT_KEY_FP4_HADAMARD : HOTSEAM_LAYOUT_KEY_FP8_HADAMARD;
#pragma unroll
        for (unsigned part = 0; part < PICK_DIM / 64; part++) {
#pragma unroll
            for (int c = 0; c < 8; c++) words[i][part][c] = 0;
            if (entry.data != nullptr) entry_sixteen(known, entry, 64 * part + 16 * (lane_id() % 4), words[i][part]);
        }
    }

    // Products of the keys `16 m ..` with eight heads, of which `head` is that of this lane.
    PICK_MEMBER void product(float (&dots)[4], unsigned m, const unsigned *head) const {
#pragma unroll
        for (unsigned k = 0; k < STEPS; k++) {
            uint2 pair = *(const uint2 *)(head + k / 4 * 32 + 8 * (lane_id() % 4) + 2 * (k % 4));
            unsigned q[2] = {pair.x, pair.y};
            const unsigned *low = words[2 * m][k / 4], *high = words[2 * m + 1][k / 4];
            unsigned a[4] = {low[2 * (k % 4)], high[2 * (k % 4)], low[2 * (k % 4) + 1], high[2 * (k % 4) + 1]};
            mma_m16n8k16_bf16(dots, a, q, dots);
        }
    }
};

// In codes of e4m3: a lane has 32 channels that lie side by side, of keys and queries alike.
struct PickFp8 {
    static constexpr unsigned STRIDE = PICK_DIM / 4 + 2, STEPS = PICK_DIM / 32;
    unsigned words[PICK_WARP_KEYS / 8][8];

    DEVICE void query(const float *q, unsigned *to, unsigned i, unsigned n) {
        for (; i < PICK_DIM / 4; i += n) {
            float v[4] = {q[4 * i], q[4 * i + 1], q[4 * i + 2], q[4 * i + 3]};
            to[i] = e4m3_word(v, 1.0f);
        }
    }

    PICK_MEMBER void load(const HotseamPoolRef &, unsigned i, Entry entry) {
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            unsigned four[4] = {0, 0, 0, 0};
            if (entry.data != nullptr) load_words(entry.data + 32 * (lane_id() % 4) + 16 * half, four);
#pragma unroll
            for (int c = 0; c < 4; c++) words[i][4 * half + c] = four[c];
        }
    }

    PICK_MEMBER void product(float (&dots)[4], unsigned m, const unsigned *head) const {
#pragma unroll
        for (unsigned k = 0; k < STEPS; k++) {
            uint2 pair = *(const uint2 *)(head + 8 * (lane_id() % 4) + 2 * k);
            unsigned q[2] = {pair.x, pair.y};
            const unsigned *low = words[2 * m], *high = words[2 * m + 1];
            unsigned a[4] = {low[2 * k], high[2 * k], low[2 * k + 1], high[2 * k + 1]};
            mma_m16n8k32_mxf8(dots, a, q, dots, 127, 127);
        }
    }
};

// In codes of e2m1 with their scales: a lane has 8 channels of each 32.
struct PickFp4 {
    static constexpr unsigned STRIDE = PICK_DIM / 8 + 4, STEPS = PICK_DIM / 64;
    unsigned words[PICK_WARP_KEYS / 8][4], scales[PICK_WARP_KEYS / 8];

    // A query is a key of the same layout, so its codes and scales are exact.
    DEVICE void query(const float *q, unsigned *to, unsigned i, unsigned n) {
        for (; i < PICK_DIM / 32; i += n) {
            float most = 6.0f * __uint_as_float(0x00800000u);
            bool nan = false;
            for (int c = 0; c < 32; c++) {
                most = fmaxf(most, fabsf(q[32 * i + c]));
                nan |= q[32 * i + c] != q[32 * i + c];
            }
            unsigned scale = nan ? 255u : e8m0_at_least(most * (1.0f / 6.0f));
            float inverse = 1.0f / e8m0_value(scale);
            for (int word = 0; word < 4; word++) {
                unsigned codes = 0;
                for (int c = 0; c < 8; c++) codes |= e2m1_bits(q[32 * i + 8 * word + c] * inverse) << 4 * c;
                to[4 * i + word] = codes;
            }
            ((unsigned char *)(to + PICK_DIM / 8))[i] = (unsigned char)scale;
        }
    }

    PICK_MEMBER void load(const HotseamPoolRef &, unsigned i, Entry entry) {
        scales[i] = 0x7f7f7f7fu;
        if (entry.data != nullptr) scales[i] = load_word(entry.scale);
#pragma unroll
        for (unsigned c = 0; c < 4; c++) {
            words[i][c] = 0;
            if (entry.data != nullptr) words[i][c] = load_word(entry.data + 16 * c + 4 * (lane_id() % 4));
        }
    }

    PICK_MEMBER void product(float (&dots)[4], unsigned m, const unsigned *head) const {
        unsigned t = lane_id() % 4, of_keys = t % 2 == 0 ? scales[2 * m] : scales[2 * m + 1], of_query = head[PICK_DIM / 8];
#pragma unroll
        for (unsigned k = 0; k < STEPS; k++) {
            unsigned q[2] = {head[8 * k + t], head[8 * k + 4 + t]};
            const unsigned *low = words[2 * m], *high = words[2 * m + 1];
            unsigned a[4] = {low[2 * k], high[2 * k], low[2 * k + 1], high[2 * k + 1]};
            mma_m16n8k64_mxf4(dots, a, q, dots, of_keys >> 16 * k & 0xffffu, of_query >> 16 * k & 0xffffu);
        }
    }
};

// Rows ----------------------------------------------------------------------------------------------------------------

// `words` is `[heads, rounded up to 8][Keys::STRIDE]`, then as many floats: queries, and head weights.
template <class Keys, bool SCALE> DEVICE void pick_block(const PickParams &params, unsigned *words, PickShared &shared) {
    const SelectParams &p = params.select;
    long long row = blockIdx.y, complete = select_complete(p, row);
    unsigned topk = p.args.topk, n_heads = p.args.heads, padded = (n_heads + 7) / 8 * 8;
    if (complete <= (long long)topk) return;
    long long seq = p.batch.row_seq[p.first_row + row];
    float *weights = (float *)(words + padded * Keys::STRIDE);
    for (unsigned head = warp_id(); head < padded; head += PICK_WARPS) {
        unsigned *to = words + head * Keys::STRIDE;
        if (head < n_heads) {
            Keys::query(p.q + (row * n_heads + head) * PICK_DIM, to, lane_id(), 32);
        } else {
            for (unsigned i = lane_id(); i < Keys::STRIDE; i += 32) to[i] = 0;
        }
        if (lane_id() == 0) weights[head] = head < n_heads ? p.weights[row * n_heads + head] : 0.0f;
    }
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    // A run of tiles for each block.
    long long end = params.early_exit != 0 ? complete : p.width, tiles = (end + PICK_KEYS - 1) / PICK_KEYS;
    long long each = (tiles + params.blocks - 1) / params.blocks, last = min((blockIdx.x + 1) * each, tiles);
    unsigned g = lane_id() / 4, t = lane_id() % 4;
    unsigned long long worst = 0;
    for (long long tile = blockIdx.x * each; tile < last; tile++) {
        long long first = tile * PICK_KEYS + warp_id() * PICK_WARP_KEYS;
        Keys keys;
        // Of this lane's key, which is `g + 8 t` of the warp's.
        float factor = 1.0f, score = 0.0f;
        bool there = false;
        pick_each(p, seq, first, end, [&](unsigned i, Entry entry) {
            keys.load(p.args.keys, i, entry);
            if (i != t) return;
            there = entry.data != nullptr;
            if (SCALE && there) factor = __uint_as_float(load_word(entry.scale));
        });
        float scores[PICK_WARP_KEYS / 8] = {};
        for (unsigned n = 0; n < padded; n += 8) {
            float dots[PICK_WARP_KEYS / 16][4] = {};
#pragma unroll
            for (unsigned m = 0; m < PICK_WARP_KEYS / 16; m++) keys.product(dots[m], m, words + (n + g) * Keys::STRIDE);
            float low = weights[n + 2 * t], high = weights[n + 2 * t + 1];
#pragma unroll
            for (unsigned i = 0; i < PICK_WARP_KEYS / 8; i++) {
                const float *dot = dots[i / 2] + i % 2 * 2;
                // A head that pads has a weight and a product of zero; it would only turn an infinite key into NaN.
                if (n + 2 * t < n_heads) scores[i] = fmaf(low, relu(dot[0]), scores[i]);
                if (n + 2 * t + 1 < n_heads) scores[i] = fmaf(high, relu(dot[1]), scores[i]);
            }
        }
#pragma unroll
        for (unsigned i = 0; i < PICK_WARP_KEYS / 8; i++) {
#pragma unroll
            for (unsigned step = 1; step < 4; step *= 2) scores[i] += __shfl_xor_sync(ALL_LANES, scores[i], step);
            if (i == t) score = scores[i];
        }
        long long number = first + 8 * t + g;
        unsigned long long rank = pick_rank(there ? score * factor : -HOTSEAM_INFINITY, (unsigned)number);
        pick_add(shared, number < complete && rank > worst, rank);
        // All threads see the same number: nobody adds before all have passed.
        __syncthreads();
        unsigned count = shared.count;
        __syncthreads();
        if (count > PICK_MOST - PICK_KEYS) worst = pick_thin(shared, topk);
    }
    pick_thin(shared, topk);
    long long list = row * params.blocks + blockIdx.x;
    for (unsigned i = threadIdx.x; i < shared.count; i += PICK_THREADS) params.candidates[list * topk + i] = shared.best[i];
    if (threadIdx.x == 0) params.counts[list] = shared.count;
}

// Grid of both: blocks of a row, rows.
KERNEL_BOUNDED(hotseam_indexer_sm120_pick_fp8, PickParams, PICK_THREADS) {
    DYNAMIC_SHARED(unsigned, words);
    SHARED PickShared shared;
    if (HOTSEAM_BLOCK_SCALED) {
        pick_block<PickFp8, true>(p, words, shared);
    } else {
        pick_block<PickPlain<false>, true>(p, words, shared);
    }
}

KERNEL_BOUNDED(hotseam_indexer_sm120_pick_fp4, PickParams, PICK_THREADS) {
    DYNAMIC_SHARED(unsigned, words);
    SHARED PickShared shared;
    if (HOTSEAM_BLOCK_SCALED) {
        pick_block<PickFp4, false>(p, words, shared);
    } else {
        pick_block<PickPlain<true>, false>(p, words, shared);
    }
}

// The best of all blocks of a row, by rising number. A block for each row.
KERNEL_BOUNDED(hotseam_indexer_sm120_merge, PickParams, PICK_THREADS) {
    SHARED PickShared shared;
    const SelectParams &of = p.select;
    long long row = blockIdx.x, complete = select_complete(of, row);
    unsigned topk = of.args.topk;
    if (of.first_row + row >= of.batch.n_rows) return;
    int *ids = of.args.ids + (of.first_row + row) * topk;
    if (complete <= (long long)topk) {
        for (unsigned i = threadIdx.x; i < topk; i += PICK_THREADS) ids[i] = i < complete ? (int)i : -1;
        return;
    }
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    unsigned long long worst = 0;
    for (unsigned block = 0; block < p.blocks; block++) {
        long long list = row * p.blocks + block;
        unsigned there = p.counts[list];
        for (unsigned base = 0; base < there; base += PICK_THREADS) {
            unsigned long long rank = base + threadIdx.x < there ? p.candidates[list * topk + base + threadIdx.x] : 0;
            pick_add(shared, rank > worst, rank);
            __syncthreads();
            unsigned count = shared.count;
            __syncthreads();
            if (count > PICK_MOST - PICK_THREADS) worst = pick_thin(shared, topk);
        }
    }
    pick_thin(shared, topk);
    // Lower numbers have larger lower halves.
    for (unsigned i = threadIdx.x; i < topk; i += PICK_THREADS) shared.best[i] &= 0xffffffffu;
    pick_sort(shared, topk);
    for (unsigned i = threadIdx.x; i < topk; i += PICK_THREADS) ids[i] = (int)(0xffffffffu - (unsigned)shared.best[i]);
}
