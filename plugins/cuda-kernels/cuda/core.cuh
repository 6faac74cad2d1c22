// `attention.core` in f32, and what its kernels share.
//
// The keys of a row are numbered: its window by position, then its compressed entries by their place in `ids` or by number.
// They are cut into parts of equal size, which the number of keys alone decides. A block goes over all parts of a row or over
// one of them, with an online softmax for each part; parts are joined in their order, by the same steps in either case, so
// that the bits of a row depend neither on the other rows of the batch nor on how many blocks share the work.
#pragma once

#include "layouts.cuh"

// Keys that are looked up at once; a part is a multiple of it.
#define CORE_STRIDE 64
// Most parts of a row.
#define CORE_PARTS 32

struct CoreParams {
    HotseamCoreArgs args;
    HotseamBatch batch;
    // `[rows, parts, heads, head_dim]` weighted sums, then `[rows, parts, heads, 2]` largest scores and weights; null where
    // a block does all parts of its rows.
    float *partial;
    // First row of this launch, its rows, and the most parts that a row can have.
    unsigned first_row, rows, parts;
};

// What a row attends.
struct CoreRow {
    long long row, seq;
    // First position of the window, its positions, and all keys, of which some may not be there.
    long long first;
    unsigned window, keys;
    // Complete entries, which ids are below.
    long long complete;
    const int *ids;
    unsigned part;      // keys of a part
};

// False for a row that is padding or out of the batch.
DEVICE bool core_row(const CoreParams &p, long long row, CoreRow &r) {
    const HotseamCoreArgs &a = p.args;
    if (row >= p.batch.n_rows) return false;
    long long position = p.batch.positions[row];
    r.row = row;
    r.seq = p.batch.row_seq[row];
    if (position < 0 || position >= a.rope.cos.shape[0] || r.seq < 0 || r.seq >= p.batch.n_seqs) return false;
    r.first = position + 1 > a.window ? position + 1 - a.window : 0;
    r.window = (unsigned)(position + 1 - r.first);
    // No more than the table maps, which is what the launcher has counted parts for.
    long long mapped = (long long)a.entries.table_width * a.entries.entries_per_page;
    r.complete = a.ratio == 0 ? 0 : min((position + 1) / a.ratio, mapped);
    r.ids = a.ratio == 0 || a.ids == nullptr ? nullptr : a.ids + row * a.ids_width;
    r.keys = r.window + (r.ids == nullptr ? (unsigned)r.complete : a.ids_width);
    unsigned strides = max((r.keys + CORE_STRIDE - 1) / CORE_STRIDE, 1u);
    r.part = CORE_STRIDE * ((strides + CORE_PARTS - 1) / CORE_PARTS);
    return true;
}

// The entry of key `k`, and the pool it is of.
DEVICE Entry core_key(const CoreParams &p, const CoreRow &r, unsigned k) {
    if (k >= r.keys) return Entry{nullptr, nullptr};
    if (k < r.window) return pool_lookup(p.args.swa, r.seq, r.first + k);
    long long number = r.ids == nullptr ? k - r.window : r.ids[k - r.window];
    return number < r.complete ? pool_lookup(p.args.entries, r.seq, number) : Entry{nullptr, nullptr};
}

DEVICE const HotseamPoolRef &core_pool(const CoreParams &p, const CoreRow &r, unsigned k) {
    return k < r.window ? p.args.swa : p.args.entries;
}

// Scores are in units of log2, so that their exponentials are powers of two.
#define LOG2_E 1.44269504088896340736f

// What is subtracted from scores: 0 where there is none, so that infinities never meet.
DEVICE float core_base(float most) { return most == -HOTSEAM_INFINITY ? 0.0f : most; }

// Largest score and weight of what was joined so far.
struct CoreState {
    float most, weight;
};

// Takes a part in; its sums are to be joined as `all = fmaf(part, theirs, all * mine)`.
DEVICE void core_take(CoreState &all, CoreState part, float &mine, float &theirs) {
    float most = fmaxf(all.most, part.most), base = core_base(most);
    mine = exp2f(all.most - base);
    theirs = exp2f(part.most - base);
    all.most = most;
    all.weight = fmaf(part.weight, theirs, __fmul_rn(all.weight, mine));
}

DEVICE float core_taken(float all, float part, float mine, float theirs) { return fmaf(part, theirs, __fmul_rn(all, mine)); }

// Factor of the sums that gives the output: with the sink in the denominator, 0 where nothing has weight.
DEVICE float core_factor(CoreState all, float sink) {
    sink *= LOG2_E;
    float base = core_base(fmaxf(all.most, sink)), mine = exp2f(all.most - base);
    float denominator = fmaf(all.weight, mine, exp2f(sink - base));
    return denominator == 0.0f ? 0.0f : mine / denominator;
}

// Where a part's sums and state are kept.
DEVICE float *core_sums(const CoreParams &p, long long row, unsigned part, unsigned head) {
    unsigned heads = (unsigned)p.args.q.shape[1];
    return p.partial + (((row - p.first_row) * p.parts + part) * heads + head) * p.args.q.shape[2];
}

DEVICE CoreState *core_state(const CoreParams &p, long long row, unsigned part, unsigned head) {
    long long heads = p.args.q.shape[1];
    CoreState *states = (CoreState *)(p.partial + p.rows * p.parts * heads * p.args.q.shape[2]);
    return states + ((row - p.first_row) * p.parts + part) * heads + head;
}

// Joining ---------------------------------------------------------------------------------------------------------------

template <unsigned N> DEVICE void core_join_row(const CoreParams &p, const CoreRow &r, unsigned head) {
    unsigned dim = (unsigned)p.args.q.shape[2], parts = (r.keys + r.part - 1) / r.part;
    CoreState all{-HOTSEAM_INFINITY, 0.0f};
    WarpRow<N> sums{};
    for (unsigned part = 0; part < parts; part++) {
        WarpRow<N> other = row_load<N>(core_sums(p, r.row, part, head), dim);
        float mine, theirs;
        core_take(all, *core_state(p, r.row, part, head), mine, theirs);
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
#pragma unroll
            for (unsigned c = 0; c < 4; c++) sums.v[n][c] = core_taken(sums.v[n][c], other.v[n][c], mine, theirs);
        }
    }
    float factor = core_factor(all, ((const float *)p.args.sinks.data)[head]);
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) sums.v[n][c] *= factor;
    }
    row_store(sums, dim, (float *)p.args.out.data + (r.row * p.args.q.shape[1] + head) * dim);
}

DEVICE void core_join(const CoreParams &p) {
    long long unit = (long long)blockIdx.x * (blockDim.x / 32) + warp_id(), heads = p.args.q.shape[1];
    CoreRow r;
    if (unit / heads >= p.rows || !core_row(p, p.first_row + unit / heads, r)) return;
    if (p.args.q.shape[2] <= 128) {
        core_join_row<1>(p, r, unit % heads);
    } else {
        core_join_row<4>(p, r, unit % heads);
    }
}

// In f32 ----------------------------------------------------------------------------------------------------------------

#define CORE_THREADS 256
// Heads of a block: two for each warp.
#define CORE_HEADS 16
// Keys that lie in shared memory at once.
#define CORE_TILE 16
#define CORE_DIM_MOST 512

struct CoreShared {
    float4 keys[CORE_TILE * CORE_DIM_MOST / 4];
    Entry entries[CORE_STRIDE];
    // Weights of a tile of each warp, by key and head.
    float2 weights[CORE_THREADS / 32][CORE_TILE];
};

// Two heads of a warp: queries, and sums over the keys so far.
template <unsigned N> struct CoreHeads {
    WarpRow<N> q[2], sums[2];
    CoreState state;    // of head `lane % 2`
};

// A tile of keys, which lies in shared memory.
template <unsigned N>
DEVICE void core_tile(CoreHeads<N> &heads, const CoreShared &shared, float2 *weights, unsigned first, unsigned dim) {
    unsigned lane = lane_id();
    // Products of this lane's channels, by key and head; then summed so that each lane has those of one key and head.
    float dots[2 * CORE_TILE];
#pragma unroll
    for (unsigned k = 0; k < CORE_TILE; k++) {
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
            if (row_place(n) >= dim) continue;
            float4 key = shared.keys[k * (dim / 4) + row_place(n) / 4];
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                const float *q = heads.q[h].v[n];
                sum[h] = fmaf(q[0], key.x, sum[h]);
                sum[h] = fmaf(q[1], key.y, sum[h]);
                sum[h] = fmaf(q[2], key.z, sum[h]);
                sum[h] = fmaf(q[3], key.w, sum[h]);
            }
        }
        dots[2 * k] = sum[0];
        dots[2 * k + 1] = sum[1];
    }
    bool there = shared.entries[first + lane / 2].data != nullptr;
    float dot = warp_sums(dots), score = there ? dot : -HOTSEAM_INFINITY, most = score;
#pragma unroll
    for (unsigned step = 2; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, step));
    most = fmaxf(most, heads.state.most);
    float base = core_base(most), before = exp2f(heads.state.most - base);
    float weight = there ? exp2f(score - base) : 0.0f, total = weight;
#pragma unroll
    for (unsigned step = 2; step < 32; step *= 2) total += __shfl_xor_sync(ALL_LANES, total, step);
    heads.state.most = most;
    heads.state.weight = fmaf(heads.state.weight, before, total);
    float rescale[2] = {__shfl_sync(ALL_LANES, before, 0), __shfl_sync(ALL_LANES, before, 1)};
    ((float *)weights)[lane] = weight;
    __syncwarp();
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) {
            heads.sums[0].v[n][c] *= rescale[0];
            heads.sums[1].v[n][c] *= rescale[1];
        }
    }
#pragma unroll 4
    for (unsigned k = 0; k < CORE_TILE; k++) {
        float2 w = weights[k];
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
            if (row_place(n) >= dim) continue;
            float4 key = shared.keys[k * (dim / 4) + row_place(n) / 4];
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                float *sums = heads.sums[h].v[n], mine = h == 0 ? w.x : w.y;
                sums[0] = fmaf(mine, key.x, sums[0]);
                sums[1] = fmaf(mine, key.y, sums[1]);
                sums[2] = fmaf(mine, key.z, sums[2]);
                sums[3] = fmaf(mine, key.w, sums[3]);
            }
        }
    }
    __syncwarp();
}

// Keys `from .. to` of a row.
template <unsigned N>
DEVICE void core_part(
    const CoreParams &p, const CoreRow &r, unsigned from, unsigned to, bool idle, CoreShared &shared, CoreHeads<N> &heads
) {
    unsigned dim = (unsigned)p.args.q.shape[2], quads = dim / 4;
    for (unsigned first = from; first < to; first += CORE_STRIDE) {
        __syncthreads();
        if (threadIdx.x < CORE_STRIDE) shared.entries[threadIdx.x] = core_key(p, r, first + threadIdx.x);
        for (unsigned tile = 0; tile < CORE_STRIDE && first + tile < to; tile += CORE_TILE) {
            __syncthreads();
            int some = 0;
            for (unsigned i = threadIdx.x; i < CORE_TILE * quads; i += CORE_THREADS) {
                unsigned k = tile + i / quads;
                Entry entry = shared.entries[k];
                float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (entry.data != nullptr) four = entry_four(core_pool(p, r, first + k), entry, i % quads * 4);
                some |= (int)(entry.data != nullptr);
                shared.keys[i] = four;
            }
            if (__syncthreads_or(some) == 0 || idle) continue;
            core_tile(heads, shared, shared.weights[warp_id()], tile, dim);
        }
    }
}

template <unsigned N> DEVICE void core_heads(const CoreParams &p, const CoreRow &r, CoreShared &shared) {
    unsigned dim = (unsigned)p.args.q.shape[2], n_heads = (unsigned)p.args.q.shape[1];
    unsigned head = blockIdx.x * CORE_HEADS + 2 * warp_id(), parts = (r.keys + r.part - 1) / r.part;
    bool idle = head >= n_heads, second = head + 1 < n_heads;
    CoreHeads<N> heads;
    WarpRow<N> sums[2] = {};
    CoreState all[2] = {{-HOTSEAM_INFINITY, 0.0f}, {-HOTSEAM_INFINITY, 0.0f}};
    float scale = p.args.scale * LOG2_E;
    const float *q = (const float *)p.args.q.data + (r.row * n_heads + head) * dim;
    heads.q[0] = row_load<N>(q, idle ? 0 : dim);
    heads.q[1] = row_load<N>(q + dim, second ? dim : 0);
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) {
            heads.q[0].v[n][c] *= scale;
            heads.q[1].v[n][c] *= scale;
        }
    }
    unsigned begin = p.partial == nullptr ? 0 : blockIdx.y, end = p.partial == nullptr ? parts : min(begin + 1, parts);
    for (unsigned part = begin; part < end; part++) {
        heads.sums[0] = WarpRow<N>{};
        heads.sums[1] = WarpRow<N>{};
        heads.state = CoreState{-HOTSEAM_INFINITY, 0.0f};
        core_part(p, r, part * r.part, min((part + 1) * r.part, r.keys), idle, shared, heads);
#pragma unroll
        for (unsigned h = 0; h < 2; h++) {
            CoreState state{__shfl_sync(ALL_LANES, heads.state.most, h), __shfl_sync(ALL_LANES, heads.state.weight, h)};
            if (p.partial != nullptr) {
                if (idle || (h == 1 && !second)) continue;
                row_store(heads.sums[h], dim, core_sums(p, r.row, part, head + h));
                if (lane_id() == 0) *core_state(p, r.row, part, head + h) = state;
                continue;
            }
            float mine, theirs;
            core_take(all[h], state, mine, theirs);
#pragma unroll
            for (unsigned n = 0; n < N; n++) {
#pragma unroll
                for (unsigned c = 0; c < 4; c++) {
                    sums[h].v[n][c] = core_taken(sums[h].v[n][c], heads.sums[h].v[n][c], mine, theirs);
                }
            }
        }
    }
    if (p.partial != nullptr || idle) return;
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
        if (h == 1 && !second) continue;
        float factor = core_factor(all[h], ((const float *)p.args.sinks.data)[head + h]);
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
#pragma unroll
            for (unsigned c = 0; c < 4; c++) sums[h].v[n][c] *= factor;
        }
        row_store(sums[h], dim, (float *)p.args.out.data + (r.row * n_heads + head + h) * dim);
    }
}

DEVICE void core_block(const CoreParams &p, CoreShared &shared) {
    CoreRow r;
    if (!core_row(p, p.first_row + blockIdx.z, r)) return;
    if (p.args.q.shape[2] <= 128) {
        core_heads<1>(p, r, shared);
    } else {
        core_heads<4>(p, r, shared);
    }
}
