// `attention.compress` and `indexer.compress`: one kernel, because only dimension and layout differ.
//
// A block makes one entry: groups of threads go over the sources by turns, each with a softmax of its own over its sources,
// which are then joined in their order; a warp norms, ropes and writes. Blocks past the entries keep the rows that later
// groups need, a warp each.
#pragma once

#include "layouts.cuh"

#define COMPRESS_THREADS 512

struct CompressParams {
    HotseamCompressArgs args;
    HotseamBatch batch;
};

// What a softmax over some sources has come to, for four channels: the largest score, the sum of weights, the weighted sum.
struct Pooled {
    float most[4], weight[4], sum[4];
};

DEVICE float at(const float4 &v, int c) { return c == 0 ? v.x : c == 1 ? v.y : c == 2 ? v.z : v.w; }

// Largest that is subtracted from the scores: 0 where there is none yet, so that infinities never meet.
DEVICE float compress_base(float most) { return most == -HOTSEAM_INFINITY ? 0.0f : most; }

// Takes a source in.
DEVICE void pooled_take(Pooled &pooled, float4 score, float4 kv) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float s = at(score, c), most = fmaxf(pooled.most[c], s), base = compress_base(most);
        float before = expf(pooled.most[c] - base), weight = expf(s - base);
        pooled.most[c] = most;
        pooled.weight[c] = fmaf(pooled.weight[c], before, weight);
        pooled.sum[c] = fmaf(pooled.sum[c], before, weight * at(kv, c));
    }
}

// Where a source's scores and values lie, from `channel` on; `bias` is null where it is in the score already.
struct Source {
    const float *kv, *score, *bias;
};

DEVICE Source compress_source(const CompressParams &p, long long e, unsigned i, unsigned channel) {
    const HotseamCompressArgs &a = p.args;
    unsigned width = a.ratio * (1 + a.overlap);
    long long channels = a.kv.shape[1], source = a.sources[e * width + i];
    // With overlap the closing group gives the second half of its channels.
    if (a.overlap != 0 && i >= a.ratio) channel += a.pool.dim;
    if (source >= 0) {
        if (source >= p.batch.n_rows || p.batch.positions[source] < 0) return Source{nullptr, nullptr, nullptr};
        long long from = source * channels + channel, phase = p.batch.positions[source] % (int)a.ratio;
        return Source{(const float *)a.kv.data + from, (const float *)a.gate.data + from,
                      (const float *)a.ape.data + phase * channels + channel};
    }
    long long row = -(source + 2);
    if (row < 0 || row >= a.state.shape[0]) return Source{nullptr, nullptr, nullptr};
    const float *state = (const float *)a.state.data + 2 * row * channels + channel;
    return Source{state, state + channels, nullptr};
}

DEVICE float4 four_sum(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

// Norm, rope and store of an entry; the whole warp.
template <unsigned N> DEVICE void compress_finish(const CompressParams &p, long long e, const float *pooled, Entry entry) {
    WarpRow<N> row = row_load<N>(pooled, p.args.pool.dim);
    row_norm(row, p.args.pool.dim, (const float *)p.args.norm_weight.data, p.args.norm_eps);
    row_rope(row, p.args.pool.dim, p.args.rope, p.args.entry_positions[e]);
    row_encode(row, p.args.pool, entry);
}

// `shared` has room for a `Pooled` of each thread.
DEVICE void compress_entry(const CompressParams &p, long long e, Pooled *shared) {
    const HotseamCompressArgs &a = p.args;
    unsigned dim = a.pool.dim, quads = dim / 4, groups = COMPRESS_THREADS / quads, width = a.ratio * (1 + a.overlap);
    long long position = a.entry_positions[e];
    Entry entry = pool_entry(a.pool, a.out_slots[e]);
    if (entry.data == nullptr || position < 0 || position >= a.rope.cos.shape[0]) return;
    unsigned quad = threadIdx.x % quads, group = threadIdx.x / quads;
    Pooled pooled;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        pooled.most[c] = -HOTSEAM_INFINITY;
        pooled.weight[c] = pooled.sum[c] = 0.0f;
    }
    // A group takes neighbouring sources, so that joining the groups by their order keeps that of the sources.
    unsigned each = (width + groups - 1) / groups;
    if (group < groups) {
#pragma unroll 4
        for (unsigned i = group * each; i < min((group + 1) * each, width); i++) {
            Source source = compress_source(p, e, i, 4 * quad);
            if (source.kv == nullptr) continue;
            float4 score = load_floats(source.score), kv = load_floats(source.kv);
            if (source.bias != nullptr) score = four_sum(score, load_floats(source.bias));
            pooled_take(pooled, score, kv);
        }
    }
    shared[threadIdx.x] = pooled;
    __syncthreads();
    if (group == 0) {
        for (unsigned g = 1; g < groups; g++) {
            const Pooled &other = shared[g * quads + quad];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                float most = fmaxf(pooled.most[c], other.most[c]), base = compress_base(most);
                float mine = expf(pooled.most[c] - base), theirs = expf(other.most[c] - base);
                pooled.most[c] = most;
                pooled.weight[c] = fmaf(other.weight[c], theirs, pooled.weight[c] * mine);
                pooled.sum[c] = fmaf(other.sum[c], theirs, pooled.sum[c] * mine);
            }
        }
    }
    __syncthreads();
    // What a group wrote is read by itself alone until the barrier, so the values may lie where the sums were.
    float *values = (float *)shared;
    if (group == 0) {
#pragma unroll
        for (int c = 0; c < 4; c++) values[4 * quad + c] = pooled.sum[c] / pooled.weight[c];
    }
    __syncthreads();
    if (warp_id() != 0) return;
    if (dim <= 128) {
        compress_finish<1>(p, e, values, entry);
    } else if (dim <= 512) {
        compress_finish<4>(p, e, values, entry);
    } else {
        compress_finish<8>(p, e, values, entry);
    }
}

// Keeps a row, if it has a state row; the whole warp.
DEVICE void compress_keep(const CompressParams &p, long long row) {
    const HotseamCompressArgs &a = p.args;
    if (row >= p.batch.n_rows) return;
    long long to = a.state_dst[row], position = p.batch.positions[row], channels = a.kv.shape[1];
    if (to < 0 || to >= a.state.shape[0] || position < 0) return;
    const float *kv = (const float *)a.kv.data + row * channels, *gate = (const float *)a.gate.data + row * channels;
    const float *ape = (const float *)a.ape.data + position % a.ratio * channels;
    float *state = (float *)a.state.data + 2 * to * channels;
    for (long long i = 4 * lane_id(); i < channels; i += 128) {
        store_floats(state + i, load_floats(kv + i));
        store_floats(state + channels + i, four_sum(load_floats(gate + i), load_floats(ape + i)));
    }
}

DEVICE void compress_block(const CompressParams &p, Pooled *shared) {
    if (blockIdx.x < p.args.n_entries) {
        compress_entry(p, blockIdx.x, shared);
    } else {
        compress_keep(p, (long long)(blockIdx.x - p.args.n_entries) * (COMPRESS_THREADS / 32) + warp_id());
    }
}
