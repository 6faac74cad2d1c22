// `attention.core` for SM120: a tile of 32 keys is brought to shared memory as bf16 once for all 16 heads of a block, the raw
// bytes of the next tile are on their way in registers meanwhile, and the keys of a row are split among blocks.
//
// An e4m3 becomes bf16 by bit placement and one packed product with its power of two, which is exact. Where the device has
// block-scaled products, scores of fp8 entries come from the codes as they lie in the pool, with their scales as the scales
// of the product; a query is then the sum of two e4m3, each with a power of two for 32 values, which is as exact as bf16.
//
// A warp has the scores of 8 keys over one half of the channels, and the weighted sums of its own channels over all keys.
#pragma once

#include "core.cuh"
#include "mma_scaled.cuh"

#define SM120_THREADS 256
#define SM120_WARPS (SM120_THREADS / 32)
#define SM120_HEADS 16
// Keys of a tile, and those of them that a warp brings.
#define SM120_TILE 32
#define SM120_WARP_KEYS (SM120_TILE / SM120_WARPS)
// Length of a row of scores, and of a row of weights, of a tile.
#define SM120_SCORE_ROW (SM120_TILE + 4)
#define SM120_WEIGHT_ROW (SM120_TILE + 8)

struct Sm120CoreParams {
    CoreParams core;
    // Most parts of a row. The number of its keys and this decide how it is cut.
    unsigned splits;
};

// Entries of `DIM` values, the first `CODES` of them in e4m3 and the rest in bf16. `SCALED`: scores by block-scaled products.
template <unsigned DIM_, unsigned CODES_, bool SCALED_> struct Sm120Form {
    static constexpr unsigned DIM = DIM_, CODES = CODES_;
    static constexpr bool SCALED = SCALED_;
    // Pieces of 16 bytes of an entry, and of a warp's keys for each lane.
    static constexpr unsigned PIECES = CODES / 16 + (DIM - CODES) / 8;
    static constexpr unsigned EACH = (SM120_WARP_KEYS * PIECES + 31) / 32;
    // Words of a key in bf16 and in codes: so many that lanes meet in no bank.
    static constexpr unsigned WORDS = DIM / 2 + 4, CODE_WORDS = CODES / 4 + 4;
    // Channels of a warp's sums, and the warps that have some.
    static constexpr unsigned SLICE = DIM >= 16 * SM120_WARPS ? DIM / SM120_WARPS : 16, SUM_WARPS = DIM / SLICE;
    // Steps over a half of the channels: of 16 in bf16, or of 32 in codes and then of 16 in bf16.
    static constexpr unsigned CODE_STEPS = SCALED ? CODES / 64 : 0, STEPS = (DIM - 64 * CODE_STEPS) / 32;

    struct Shared {
        unsigned keys[SM120_TILE * WORDS];
        unsigned codes[SCALED ? SM120_TILE * CODE_WORDS : 1];
        // Scales of a key's codes, 8 bytes each.
        unsigned char scales[SCALED ? SM120_TILE * 8 : 1];
        float scores[2][SM120_HEADS * SM120_SCORE_ROW];
        unsigned weights[SM120_HEADS * SM120_WEIGHT_ROW / 2];
        // Of the keys of each warp, those that are there.
        unsigned there[SM120_WARPS];
        // Of the part: largest score and weight of each head, and the factor of what was summed before this tile.
        CoreState state[SM120_HEADS];
        float before[SM120_HEADS];
    };

    // Queries of 16 heads over this warp's half of the channels.
    struct Queries {
        unsigned half[STEPS][4];
        unsigned high[CODE_STEPS + 1][4], low[CODE_STEPS + 1][4];
        // Scales of `high` and `low`, four steps a word.
        unsigned high_scales[CODE_STEPS / 4 + 1], low_scales[CODE_STEPS / 4 + 1];
    };

    struct Sums {
        float v[SLICE / 8][4];
    };

    // What is on its way: pieces of 16 bytes, and the scale of each.
    struct Raw {
        uint4 piece[EACH];
        unsigned scale[EACH];
    };
};

// Keys ----------------------------------------------------------------------------------------------------------------

// The entry of this lane's key of the tile from `first` on, of which lanes below `SM120_WARP_KEYS` have one.
DEVICE Entry sm120_entry(const CoreParams &p, const CoreRow &r, unsigned first, unsigned to) {
    unsigned key = first + warp_id() * SM120_WARP_KEYS + lane_id();
    return lane_id() < SM120_WARP_KEYS && key < to ? core_key(p, r, key) : Entry{nullptr, nullptr};
}

DEVICE unsigned char *sm120_shuffled(unsigned char *pointer, unsigned lane) {
    return (unsigned char *)__shfl_sync(ALL_LANES, (unsigned long long)pointer, lane);
}

// Asks for the keys of a tile, whose entries lanes have by `sm120_entry`.
template <class Form> DEVICE void sm120_fetch(Entry mine, typename Form::Raw &raw) {
#pragma unroll
    for (unsigned n = 0; n < Form::EACH; n++) {
        unsigned i = lane_id() + 32 * n, key = min(i / Form::PIECES, SM120_WARP_KEYS - 1u), piece = i % Form::PIECES;
        Entry entry{sm120_shuffled(mine.data, key), sm120_shuffled(mine.scale, key)};
        unsigned words[4] = {0, 0, 0, 0};
        raw.scale[n] = 127;
        if (entry.data != nullptr && i / Form::PIECES < SM120_WARP_KEYS) {
            load_words(entry.data + 16 * piece, words);
            if (16 * piece + 16 <= Form::CODES) raw.scale[n] = entry.scale[piece / 4];
        }
        raw.piece[n] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// Two e4m3 in the upper bytes of halves, as bf16 of 2^-120 their size.
DEVICE unsigned sm120_placed(unsigned codes) { return (codes & 0x80008000u) | (codes & 0x7f007f00u) >> 4; }

// Four e4m3 times an e8m0 as bf16.
DEVICE void sm120_decode(unsigned codes, unsigned scale, unsigned &low, unsigned &high) {
    low = sm120_placed(__byte_perm(codes, 0, 0x1404));
    high = sm120_placed(__byte_perm(codes, 0, 0x3424));
    if (scale >= 3 && scale <= 134) {
        unsigned factor = (scale + 120) << 7;
        factor |= factor << 16;
        low = bf16_pair_product(low, factor);
        high = bf16_pair_product(high, factor);
    } else {
        float v[4];
#pragma unroll
        for (int c = 0; c < 4; c++) v[c] = e4m3_small(codes >> 8 * c);
        lift<120>(v, scale);
        low = bf16_bits(v[0]) | bf16_bits(v[1]) << 16;
        high = bf16_bits(v[2]) | bf16_bits(v[3]) << 16;
    }
    // What would be 480 is NaN.
    if ((((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0) {
        if ((codes & 0x7fu) == 0x7fu) low |= 0x7fc0u;
        if ((codes & 0x7f00u) == 0x7f00u) low |= 0x7fc00000u;
        if ((codes & 0x7f0000u) == 0x7f0000u) high |= 0x7fc0u;
        if ((codes & 0x7f000000u) == 0x7f000000u) high |= 0x7fc00000u;
    }
}

// Lays what was fetched into shared memory.
template <class Form> DEVICE void sm120_lay(const typename Form::Raw &raw, Entry mine, typename Form::Shared &shared) {
    unsigned there = __ballot_sync(ALL_LANES, mine.data != nullptr);
    if (lane_id() == 0) shared.there[warp_id()] = there;
#pragma unroll
    for (unsigned n = 0; n < Form::EACH; n++) {
        unsigned i = lane_id() + 32 * n, key = i / Form::PIECES, piece = i % Form::PIECES;
        if (key >= SM120_WARP_KEYS) continue;
        key += warp_id() * SM120_WARP_KEYS;
        uint4 words = raw.piece[n];
        if (16 * piece + 16 > Form::CODES) {
            *(uint4 *)(shared.keys + key * Form::WORDS + Form::CODES / 2 + 4 * (piece - Form::CODES / 16)) = words;
            continue;
        }
        if constexpr (Form::SCALED) {
            *(uint4 *)(shared.codes + key * Form::CODE_WORDS + 4 * piece) = words;
            if (piece % 4 == 0) shared.scales[8 * key + piece / 4] = (unsigned char)raw.scale[n];
        }
        uint4 *to = (uint4 *)(shared.keys + key * Form::WORDS + 8 * piece);
        uint4 one, two;
        sm120_decode(words.x, raw.scale[n], one.x, one.y);
        sm120_decode(words.y, raw.scale[n], one.z, one.w);
        sm120_decode(words.z, raw.scale[n], two.x, two.y);
        sm120_decode(words.w, raw.scale[n], two.z, two.w);
        to[0] = one;
        to[1] = two;
    }
}

// Queries -------------------------------------------------------------------------------------------------------------

// Sixteen values as e4m3 with a scale for each row of the quad: `v[0 .. 8]` are of row `g`, the others of row `g + 8`. They are
// left as what the codes lack.
DEVICE void sm120_quantise(float (&v)[16], unsigned (&codes)[4], unsigned &scale) {
    unsigned scales[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float most = 448.0f * __uint_as_float(0x00800000u);
#pragma unroll
        for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(v[8 * row + i]));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
        scales[row] = e8m0_at_least(most * (1.0f / 448.0f));
        float size = e8m0_value(scales[row]), inverse = 1.0f / size;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned word = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &value = v[8 * row + 4 * half + i];
                unsigned code = e4m3_bits(value * inverse);
                word |= code << 8 * i;
                value -= e4m3_value(code) * size;
            }
            codes[row + 2 * half] = word;
        }
    }
    scale = lane_id() % 2 == 0 ? scales[0] : scales[1];
}

// `q` is the first channel of the first head; heads from `heads` on are zeros.
template <class Form>
DEVICE void sm120_queries(const float *q, unsigned heads, typename Form::Queries &to) {
    unsigned g = lane_id() / 4, t = lane_id() % 4, half = warp_id() / (SM120_WARPS / 2);
    if constexpr (Form::SCALED) {
#pragma unroll
        for (unsigned i = 0; i < Form::CODE_STEPS / 4 + 1; i++) to.high_scales[i] = to.low_scales[i] = 0;
#pragma unroll
        for (unsigned step = 0; step < Form::CODE_STEPS; step++) {
            float v[16];
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
                unsigned head = g + i / 2 * 8, channel = 32 * (half * Form::CODE_STEPS + step) + i % 2 * 16 + 4 * t;
                float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (head < heads) four = load_floats(q + head * Form::DIM + channel);
                v[4 * i] = four.x;
                v[4 * i + 1] = four.y;
                v[4 * i + 2] = four.z;
                v[4 * i + 3] = four.w;
            }
            unsigned scale;
            sm120_quantise(v, to.high[step], scale);
            to.high_scales[step / 4] |= scale << 8 * (step % 4);
            sm120_quantise(v, to.low[step], scale);
            to.low_scales[step / 4] |= scale << 8 * (step % 4);
        }
    }
#pragma unroll
    for (unsigned step = 0; step < Form::STEPS; step++) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            unsigned head = g + i % 2 * 8;
            unsigned channel = 64 * Form::CODE_STEPS + 16 * (half * Form::STEPS + step) + i / 2 * 8 + 2 * t;
            const float *from = q + head * Form::DIM + channel;
            to.half[step][i] = head < heads ? bf16_bits(from[0]) | bf16_bits(from[1]) << 16 : 0;
        }
    }
}

// Tiles ---------------------------------------------------------------------------------------------------------------

// Scores of this warp's eight keys over its half of the channels, in two sums that do not wait for each other.
template <class Form> DEVICE void sm120_scores(const typename Form::Queries &q, typename Form::Shared &shared) {
    unsigned g = lane_id() / 4, t = lane_id() % 4, half = warp_id() / (SM120_WARPS / 2);
    unsigned key = warp_id() % (SM120_WARPS / 2) * 8 + g;
    float sums[2][4] = {};
    if constexpr (Form::SCALED) {
        const unsigned *codes = shared.codes + key * Form::CODE_WORDS + half * Form::CODE_STEPS * 8 + t;
#pragma unroll
        for (unsigned step = 0; step < Form::CODE_STEPS; step++) {
            unsigned b[2] = {codes[8 * step], codes[8 * step + 4]};
            unsigned scale = shared.scales[8 * key + (half * Form::CODE_STEPS + step) / 2];
            unsigned high = q.high_scales[step / 4] >> 8 * (step % 4) & 255u;
            unsigned low = q.low_scales[step / 4] >> 8 * (step % 4) & 255u;
            mma_m16n8k32_mxf8(sums[0], q.high[step], b, sums[0], high, scale);
            mma_m16n8k32_mxf8(sums[1], q.low[step], b, sums[1], low, scale);
        }
    }
    const unsigned *words = shared.keys + key * Form::WORDS + 32 * Form::CODE_STEPS + half * Form::STEPS * 8 + t;
#pragma unroll
    for (unsigned step = 0; step < Form::STEPS; step++) {
        unsigned b[2] = {words[8 * step], words[8 * step + 4]};
        mma_m16n8k16_bf16(sums[step % 2], q.half[step], b, sums[step % 2]);
    }
    float *to = shared.scores[half] + g * SM120_SCORE_ROW + warp_id() % (SM120_WARPS / 2) * 8 + 2 * t;
    *(float2 *)to = make_float2(sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]);
    *(float2 *)(to + 8 * SM120_SCORE_ROW) = make_float2(sums[0][2] + sums[1][2], sums[0][3] + sums[1][3]);
}

// Weights of a tile, and the state of the part with them; half a warp for a head, two keys a lane.
template <class Form> DEVICE void sm120_softmax(float scale, typename Form::Shared &shared) {
    unsigned lane = lane_id() % 16, head = threadIdx.x / 16;
    CoreState state = shared.state[head];
    const float *from = shared.scores[0] + head * SM120_SCORE_ROW + 2 * lane;
    const float *more = shared.scores[1] + head * SM120_SCORE_ROW + 2 * lane;
    unsigned there = shared.there[2 * lane / SM120_WARP_KEYS] >> 2 * lane % SM120_WARP_KEYS;
    float low = (there & 1) != 0 ? (from[0] + more[0]) * scale : -HOTSEAM_INFINITY;
    float high = (there & 2) != 0 ? (from[1] + more[1]) * scale : -HOTSEAM_INFINITY;
    float most = fmaxf(state.most, fmaxf(low, high));
#pragma unroll
    for (unsigned step = 1; step < 16; step *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, step));
    float base = core_base(most), before = exp2f(state.most - base);
    unsigned bits[2] = {bf16_bits((there & 1) != 0 ? exp2f(low - base) : 0.0f),
                        bf16_bits((there & 2) != 0 ? exp2f(high - base) : 0.0f)};
    shared.weights[head * SM120_WEIGHT_ROW / 2 + lane] = bits[0] | bits[1] << 16;
    float total = bf16_value(bits[0]) + bf16_value(bits[1]);
#pragma unroll
    for (unsigned step = 1; step < 16; step *= 2) total += __shfl_xor_sync(ALL_LANES, total, step);
    // All lanes have read the state that one of them changes.
    __syncwarp();
    if (lane == 0) {
        shared.state[head] = CoreState{most, fmaf(state.weight, before, total)};
        shared.before[head] = before;
    }
}

// Adds a tile's keys by their weights. Of each 16 channels the even ones are in one tile of products and the odd ones in the
// next, so that a word of a key serves both.
template <class Form> DEVICE void sm120_sum(const typename Form::Shared &shared, typename Form::Sums &sums) {
    if ((unsigned)warp_id() >= Form::SUM_WARPS) return;
    unsigned g = lane_id() / 4, t = lane_id() % 4;
    float before[2] = {shared.before[g], shared.before[g + 8]};
    // Most tiles raise no head's largest score.
    if (__any_sync(ALL_LANES, before[0] != 1.0f || before[1] != 1.0f)) {
#pragma unroll
        for (unsigned n = 0; n < Form::SLICE / 8; n++) {
#pragma unroll
            for (unsigned c = 0; c < 4; c++) sums.v[n][c] *= before[c / 2];
        }
    }
#pragma unroll
    for (unsigned k = 0; k < SM120_TILE / 16; k++) {
        const unsigned *low = shared.weights + (g * SM120_WEIGHT_ROW + 16 * k) / 2 + t;
        const unsigned *high = low + 8 * SM120_WEIGHT_ROW / 2;
        unsigned weights[4] = {low[0], high[0], low[4], high[4]};
#pragma unroll
        for (unsigned n = 0; n < Form::SLICE / 16; n++) {
            const unsigned *key = shared.keys + (16 * k + 2 * t) * Form::WORDS + warp_id() * (Form::SLICE / 2) + 8 * n + g;
            unsigned words[4] = {key[0], key[Form::WORDS], key[8 * Form::WORDS], key[9 * Form::WORDS]};
            unsigned even[2] = {__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410)};
            unsigned odd[2] = {__byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632)};
            mma_m16n8k16_bf16(sums.v[2 * n], weights, even, sums.v[2 * n]);
            mma_m16n8k16_bf16(sums.v[2 * n + 1], weights, odd, sums.v[2 * n + 1]);
        }
    }
}

// Keys `from .. to` of a row.
template <class Form>
DEVICE void sm120_part(
    const CoreParams &p, const CoreRow &r, const typename Form::Queries &q, unsigned from, unsigned to,
    typename Form::Shared &shared, typename Form::Sums &sums
) {
    float scale = p.args.scale * LOG2_E;
    __syncthreads();
    if (threadIdx.x < SM120_HEADS) shared.state[threadIdx.x] = CoreState{-HOTSEAM_INFINITY, 0.0f};
    Entry entry = sm120_entry(p, r, from, to), next = sm120_entry(p, r, from + SM120_TILE, to);
    typename Form::Raw raw;
    sm120_fetch<Form>(entry, raw);
    for (unsigned first = from; first < to; first += SM120_TILE) {
        // All sums of the tile before are done.
        __syncthreads();
        sm120_lay<Form>(raw, entry, shared);
        entry = next;
        sm120_fetch<Form>(entry, raw);
        next = sm120_entry(p, r, first + 2 * SM120_TILE, to);
        __syncthreads();
        sm120_scores<Form>(q, shared);
        __syncthreads();
        sm120_softmax<Form>(scale, shared);
        __syncthreads();
        sm120_sum<Form>(shared, sums);
    }
}

// Rows ----------------------------------------------------------------------------------------------------------------

// As `core_row`, with parts by the number of keys and `splits`.
DEVICE bool sm120_row(const Sm120CoreParams &p, long long row, CoreRow &r) {
    if (!core_row(p.core, row, r)) return false;
    unsigned tiles = max((r.keys + SM120_TILE - 1) / SM120_TILE, 1u);
    r.part = SM120_TILE * ((tiles + p.splits - 1) / p.splits);
    return true;
}

// Calls `f(half, head, channel, four)` for the sums of this thread, by fours of neighbouring channels.
template <class Form, class F> DEVICE void sm120_each(const typename Form::Sums &sums, const F &f) {
    if ((unsigned)warp_id() >= Form::SUM_WARPS) return;
    unsigned g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
#pragma unroll
        for (unsigned n = 0; n < Form::SLICE / 16; n++) {
            const float *even = sums.v[2 * n] + 2 * half, *odd = sums.v[2 * n + 1] + 2 * half;
            f(half, g + 8 * half, warp_id() * Form::SLICE + 16 * n + 4 * t, make_float4(even[0], odd[0], even[1], odd[1]));
        }
    }
}

template <class Form> DEVICE void sm120_heads(const Sm120CoreParams &params, unsigned char *bytes) {
    const CoreParams &p = params.core;
    typename Form::Shared &shared = *(typename Form::Shared *)bytes;
    CoreRow r;
    if (!sm120_row(params, p.first_row + blockIdx.z, r)) return;
    unsigned n_heads = (unsigned)p.args.q.shape[1], head = blockIdx.x * SM120_HEADS, parts = (r.keys + r.part - 1) / r.part;
    unsigned begin = p.partial == nullptr ? 0 : blockIdx.y, end = p.partial == nullptr ? parts : min(begin + 1, parts);
    if (begin >= end && p.partial != nullptr) return;
    unsigned g = lane_id() / 4;
    typename Form::Queries q;
    sm120_queries<Form>((const float *)p.args.q.data + (r.row * n_heads + head) * Form::DIM, n_heads - head, q);
    typename Form::Sums all{};
    CoreState states[2] = {{-HOTSEAM_INFINITY, 0.0f}, {-HOTSEAM_INFINITY, 0.0f}};
    for (unsigned part = begin; part < end; part++) {
        typename Form::Sums sums{};
        sm120_part<Form>(p, r, q, part * r.part, min((part + 1) * r.part, r.keys), shared, sums);
        if (p.partial != nullptr) {
            sm120_each<Form>(sums, [&](unsigned, unsigned of, unsigned channel, float4 four) {
                if (head + of < n_heads) store_floats(core_sums(p, r.row, part, head + of) + channel, four);
            });
            if (threadIdx.x < SM120_HEADS && head + threadIdx.x < n_heads) {
                *core_state(p, r.row, part, head + threadIdx.x) = shared.state[threadIdx.x];
            }
            return;
        }
#pragma unroll
        for (unsigned half = 0; half < 2; half++) {
            float mine, theirs;
            core_take(states[half], shared.state[g + 8 * half], mine, theirs);
#pragma unroll
            for (unsigned n = 0; n < Form::SLICE / 8; n++) {
#pragma unroll
                for (unsigned c = 2 * half; c < 2 * half + 2; c++) {
                    all.v[n][c] = core_taken(all.v[n][c], sums.v[n][c], mine, theirs);
                }
            }
        }
    }
    float factor[2];
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        unsigned of = head + g + 8 * half;
        factor[half] = core_factor(states[half], of < n_heads ? ((const float *)p.args.sinks.data)[of] : 0.0f);
    }
    float *out = (float *)p.args.out.data + (r.row * n_heads + head) * Form::DIM;
    sm120_each<Form>(all, [&](unsigned half, unsigned of, unsigned channel, float4 four) {
        if (head + of >= n_heads) return;
        float by = factor[half];
        store_floats(out + of * Form::DIM + channel, make_float4(four.x * by, four.y * by, four.z * by, four.w * by));
    });
}
