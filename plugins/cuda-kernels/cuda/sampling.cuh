// From logits to tokens, by the definition of `host/engine/src/sampler.rs`: a token's mass is an integer, so that sums do not depend
// on their order, and the host takes the same token from the same logits.
//
// Tokens are in order of falling logits, equal ones by rising id. A draw takes the first token with which the sum of masses passes a
// number; it is found by the bits of the scaled logits, some at a time from the highest on.
#pragma once

#include "block.cuh"

#define SAMPLE_THREADS 1024
#define SAMPLE_BINS 2048

// What a row is drawn by; its token is the most likely one at temperature 0.
struct Draw {
    float temperature, top_p;
    // In [0, 1).
    double uniform;
};

// A row's token, or -1 if its logits hold NaN or no finite maximum; its natural-log probability at temperature 1.
struct Chosen {
    int id;
    float logprob;
};

struct SampleParams {
    // `[rows, width]`.
    const float *logits;
    // `[rows]`.
    const Draw *draws;
    Chosen *chosen;
    unsigned width;
};

typedef unsigned long long Mass;

// Sums of masses by bin, in two words: shared memory adds single ones without trying again while others add.
struct SampleBins {
    unsigned low[SAMPLE_BINS], high[SAMPLE_BINS];
};

struct SampleShared {
    // By the highest eleven bits, and by the next ones of those that share them.
    SampleBins first, next;
    Mass sums[WARPS_MOST];
    int counts[WARPS_MOST], places[WARPS_MOST];
    float values[WARPS_MOST];
    unsigned bin;
    Mass passed;
    int id;
};

// `exp(x)` times 2^32, rounded; `x` is at most 0. Additions and products are single ones: a fused one has other bits.
DEVICE Mass sample_mass(float logit) {
    double x = logit;
    if (!(x > -23.0)) return 0;
    double n = floor(__dadd_rn(__dmul_rn(x, 1.4426950408889634), 0.5));
    double r = __dsub_rn(x, __dmul_rn(n, 0.6931471805599453)), p = 1.0 / 362880.0;
    const double factors[9] = {1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0};
#pragma unroll
    for (int i = 0; i < 9; i++) p = __dadd_rn(__dmul_rn(p, r), factors[i]);
    double scale = __longlong_as_double((1023LL + 32 + (long long)n) << 52);
    return (Mass)__dadd_rn(__dmul_rn(p, scale), 0.5);
}

// A number that sorts as scaled logits do.
DEVICE unsigned sample_key(float x) {
    unsigned bits = __float_as_uint(x);
    return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

// Never a negative zero, which would sort behind its equals.
DEVICE float sample_scaled(float logit, float best, float temperature) {
    return __fadd_rn(fmaxf(__fdiv_rn(__fsub_rn(logit, best), temperature), -3.402823466e38f), 0.0f);
}

// Calls `of` with whether there is one more logit, it, and its place. A warp has a part of the row of its own and its lanes call
// together, by rising place; a lane's loads do not wait for what is done with the values before.
template <class F> DEVICE void sample_each(const float *logits, unsigned width, F of) {
    constexpr unsigned AT_ONCE = 8;
    unsigned each = (width + SAMPLE_THREADS - 1) / SAMPLE_THREADS * 32;
    unsigned begin = min(warp_id() * each, width), end = min(begin + each, width);
    for (unsigned first = begin; first < end; first += AT_ONCE * 32) {
        float values[AT_ONCE];
#pragma unroll
        for (unsigned u = 0; u < AT_ONCE; u++) {
            unsigned i = first + u * 32 + lane_id();
            values[u] = i < end ? logits[i] : -HOTSEAM_INFINITY;
        }
#pragma unroll
        for (unsigned u = 0; u < AT_ONCE; u++) {
            unsigned i = first + u * 32 + lane_id();
            of(i < end, values[u], i);
        }
    }
}

// The threads of the block share this; they wait for each other before and behind.
DEVICE void sample_clear(SampleBins &bins) {
    for (unsigned i = threadIdx.x; i < SAMPLE_BINS; i += SAMPLE_THREADS) bins.low[i] = bins.high[i] = 0;
}

DEVICE void sample_add(SampleBins &bins, unsigned bin, Mass mass) {
    unsigned low = (unsigned)mass, carry = (unsigned)(mass >> 32);
    if (low != 0 && atomicAdd(&bins.low[bin], low) > ~low) carry++;
    if (carry != 0) atomicAdd(&bins.high[bin], carry);
}

// The bin, from the highest on, with which `passed` and the sum pass `above`; `passed` becomes the sum before it.
DEVICE unsigned sample_bin(const SampleBins &bins, Mass above, Mass &passed, SampleShared &shared) {
    constexpr unsigned EACH = SAMPLE_BINS / SAMPLE_THREADS;
    unsigned highest = SAMPLE_BINS - 1 - threadIdx.x * EACH;
    Mass masses[EACH], mine = 0, total;
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < EACH; i++) {
        masses[i] = (Mass)bins.high[highest - i] << 32 | bins.low[highest - i];
        mine += masses[i];
    }
    Mass sum = passed + block_scan(mine, shared.sums, total);
#pragma unroll
    for (unsigned i = 0; i < EACH; i++) {
        if (sum <= above && above < sum + masses[i]) {
            shared.bin = highest - i;
            shared.passed = sum;
        }
        sum += masses[i];
    }
    __syncthreads();
    passed = shared.passed;
    return shared.bin;
}

// The first token with which the sum of masses passes `above`, by its key; `passed` is the sum before the tokens of that key.
DEVICE unsigned sample_cross(
    const float *logits, unsigned width, float best, float temperature, Mass above, Mass &passed, SampleShared &shared
) {
    passed = 0;
    unsigned key = sample_bin(shared.first, above, passed, shared);
    for (int level = 0; level < 2; level++) {
        unsigned shift = level == 0 ? 10 : 0, bits = level == 0 ? 11 : 10;
        sample_clear(shared.next);
        __syncthreads();
        sample_each(logits, width, [&](bool there, float logit, unsigned) {
            float scaled = sample_scaled(logit, best, temperature);
            unsigned of = sample_key(scaled);
            if (!there || of >> (shift + bits) != key) return;
            sample_add(shared.next, of >> shift & ((1u << bits) - 1), sample_mass(scaled));
        });
        key = key << bits | sample_bin(shared.next, above, passed, shared);
    }
    return key;
}

// The token of number `n`, from 0, of those of this key by rising id.
DEVICE int sample_nth(
    const float *logits, unsigned width, float best, float temperature, unsigned key, Mass n, SampleShared &shared
) {
    auto equals = [&](bool there, float logit) {
        bool equal = there && sample_key(sample_scaled(logit, best, temperature)) == key;
        return __ballot_sync(ALL_LANES, equal);
    };
    int mine = 0, total;
    sample_each(logits, width, [&](bool there, float logit, unsigned) { mine += __popc(equals(there, logit)); });
    // All lanes of a warp have its number.
    int before = block_scan(lane_id() == 0 ? mine : 0, shared.counts, total);
    before = __shfl_sync(ALL_LANES, before, 0);
    if ((Mass)before <= n && n < (Mass)(before + mine)) {
        sample_each(logits, width, [&](bool there, float logit, unsigned i) {
            unsigned equal = equals(there, logit), below = equal & ((1u << lane_id()) - 1);
            if ((equal >> lane_id() & 1) != 0 && (Mass)(before + __popc(below)) == n) shared.id = (int)i;
            before += __popc(equal);
        });
    }
    __syncthreads();
    return shared.id;
}

// Place and value of the largest logit, the lowest of equals; whether the sampler can go on.
DEVICE bool sample_best(const float *x, unsigned width, float &best, int &at, SampleShared &shared) {
    int nan = 0;
    best = -HOTSEAM_INFINITY;
    at = -1;
    sample_each(x, width, [&](bool, float value, unsigned i) {
        nan |= value != value;
        if (value > best) {
            best = value;
            at = (int)i;
        }
    });
    nan = __syncthreads_or(nan);
    for (int round = 0; round < 2; round++) {
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) {
            float other = __shfl_xor_sync(ALL_LANES, best, step);
            int other_at = __shfl_xor_sync(ALL_LANES, at, step);
            if (other > best || (other == best && other_at >= 0 && (at < 0 || other_at < at))) {
                best = other;
                at = other_at;
            }
        }
        if (round == 1) break;
        if (lane_id() == 0) {
            shared.values[warp_id()] = best;
            shared.places[warp_id()] = at;
        }
        __syncthreads();
        bool there = lane_id() < (int)(blockDim.x >> 5);
        best = there ? shared.values[lane_id()] : -HOTSEAM_INFINITY;
        at = there ? shared.places[lane_id()] : -1;
    }
    return !nan && at >= 0 && best != HOTSEAM_INFINITY;
}

// A row for each block.
DEVICE void sample_row(const SampleParams &p, SampleShared &shared) {
    const float *logits = p.logits + (long long)blockIdx.x * p.width;
    Draw draw = p.draws[blockIdx.x];
    Chosen *chosen = p.chosen + blockIdx.x;
    float best;
    int id;
    if (!sample_best(logits, p.width, best, id, shared)) {
        if (threadIdx.x == 0) *chosen = Chosen{-1, 0.0f};
        return;
    }
    bool drawn = draw.temperature > 0.0f;
    sample_clear(shared.first);
    __syncthreads();
    // Masses at temperature 1, and those of the draw.
    Mass all = 0, total = 0;
    sample_each(logits, p.width, [&](bool there, float logit, unsigned) {
        if (!there) return;
        Mass plain = sample_mass(__fsub_rn(logit, best));
        all += plain;
        if (!drawn) return;
        float scaled = sample_scaled(logit, best, draw.temperature);
        // Division by 1 changes nothing.
        Mass mass = draw.temperature == 1.0f ? plain : sample_mass(scaled);
        total += mass;
        sample_add(shared.first, sample_key(scaled) >> 21, mass);
    });
    all = block_sum(all, shared.sums);
    if (drawn) {
        total = block_sum(total, shared.sums);
        double limit = ceil(__dmul_rn((double)total, (double)draw.top_p));
        Mass wanted = limit < 1.0 ? 1 : limit < (double)total ? (Mass)limit : total, kept = total, passed;
        if (wanted < total) {
            unsigned key = sample_cross(logits, p.width, best, draw.temperature, wanted - 1, passed, shared);
            Mass mass = sample_mass(__uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu)));
            kept = passed + ((wanted - 1 - passed) / mass + 1) * mass;
        }
        double place = floor(__dmul_rn(draw.uniform, (double)kept));
        Mass above = place < (double)kept ? (Mass)place : kept - 1;
        unsigned key = sample_cross(logits, p.width, best, draw.temperature, above, passed, shared);
        Mass mass = sample_mass(__uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu)));
        id = sample_nth(logits, p.width, best, draw.temperature, key, (above - passed) / mass, shared);
    }
    if (threadIdx.x == 0) {
        double sum = (double)all * (1.0 / 4294967296.0);
        *chosen = Chosen{id, (float)((double)__fsub_rn(logits[id], best) - log(sum))};
    }
}
