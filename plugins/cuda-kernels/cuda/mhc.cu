// `mhc.pre`, `mhc.post` and `mhc.head`, all in f32.
//
// Before a block: `mix` makes the products with `fn` and the sum of squares of a slice of the streams, for a few rows; the
// slices of a row are added in a fixed order by `pre` or `head`, which turn them into gates and collapse the streams. Rows at
// position -1 are left alone.

#include "activation.cuh"
#include "block.cuh"
#include "weights.cuh"

// Most streams.
#define STREAMS_MOST 16
#define OUTPUTS_MOST ((2 + STREAMS_MOST) * STREAMS_MOST)
// Values that a warp of `mix` sums at a time: outputs, and in the first round the sum of squares as the last.
#define MIX_ROUND 31
// Rows of a block of `mix`, if there are many.
#define MIX_ROWS 4
#define MIX_THREADS 256
// Channels that a block of `pre` and `head` collapses; one of `mix` takes four for each of its threads in a step.
#define SLICE (4 * MIX_THREADS)

struct MixParams {
    // `[rows, width]`, `[outputs, width]`.
    const float *streams;
    const float *weight;
    // `[rows, splits, outputs + 1]`; the last is the sum of squares.
    float *partials;
    long long width;
    unsigned rows;
    unsigned outputs;
    unsigned splits;
    // Rows of a block: 1 or `MIX_ROWS`.
    unsigned block_rows;
};

template <int ROWS> DEVICE void mix(const MixParams &p, float (*shared)[MIX_ROWS][32]) {
    unsigned slice = 4 * blockDim.x;
    long long steps = (p.width + slice - 1) / slice;
    long long from = steps * blockIdx.x / p.splits * slice, to = steps * (blockIdx.x + 1) / p.splits * slice;
    to = to < p.width ? to : p.width;
    unsigned first = blockIdx.y * ROWS;
    for (unsigned out = 0; out < p.outputs; out += MIX_ROUND) {
        float acc[ROWS][32];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int o = 0; o < 32; o++) acc[r][o] = 0.0f;
        }
        for (long long col = from + 4 * (int)threadIdx.x; col < to; col += slice) {
            float4 x[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                x[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (first + r < p.rows) x[r] = load_floats_until(p.streams + (first + r) * p.width, col, to);
                float sum = fmaf(x[r].x, x[r].x, acc[r][MIX_ROUND]);
                sum = fmaf(x[r].y, x[r].y, sum);
                sum = fmaf(x[r].z, x[r].z, sum);
                acc[r][MIX_ROUND] = fmaf(x[r].w, x[r].w, sum);
            }
#pragma unroll
            for (int o = 0; o < MIX_ROUND; o++) {
                float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (out + o < p.outputs) w = load_floats_until(p.weight + (out + o) * p.width, col, to);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float sum = fmaf(x[r].x, w.x, acc[r][o]);
                    sum = fmaf(x[r].y, w.y, sum);
                    sum = fmaf(x[r].z, w.z, sum);
                    acc[r][o] = fmaf(x[r].w, w.w, sum);
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) shared[warp_id()][r][lane_id()] = warp_sums(acc[r]);
        __syncthreads();
        int warps = blockDim.x / 32;
        for (int r = warp_id(); r < ROWS && first + r < p.rows; r += warps) {
            float sum = 0.0f;
            for (int w = 0; w < warps; w++) sum += shared[w][r][lane_id()];
            float *to_row = p.partials + ((long long)(first + r) * p.splits + blockIdx.x) * (p.outputs + 1);
            if (lane_id() < MIX_ROUND && out + lane_id() < p.outputs) to_row[out + lane_id()] = sum;
            if (lane_id() == MIX_ROUND && out == 0) to_row[p.outputs] = sum;
        }
    }
}

// Grid: splits, groups of `block_rows` rows.
KERNEL_BOUNDED(hotseam_mhc_mix, MixParams, MIX_THREADS) {
    SHARED float shared[MIX_THREADS / 32][MIX_ROWS][32];
    if (p.block_rows == 1) {
        mix<1>(p, shared);
    } else {
        mix<MIX_ROWS>(p, shared);
    }
}

// Threads that add up the slices of a value, each every such slice.
#define MIXED 8

// What `mix` left of a row, its slices added up: the values, and as the last the sum of squares. All threads of the block call
// it.
DEVICE void mixed(const float *partials, unsigned splits, unsigned outputs, float *values) {
    for (unsigned first = 0; first <= outputs; first += blockDim.x / MIXED) {
        unsigned o = first + threadIdx.x / MIXED;
        float sum = 0.0f;
#pragma unroll 8
        for (unsigned s = threadIdx.x % MIXED; o <= outputs && s < splits; s += MIXED) sum += partials[s * (outputs + 1) + o];
#pragma unroll
        for (int step = MIXED / 2; step > 0; step >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        if (o <= outputs && threadIdx.x % MIXED == 0) values[o] = sum;
    }
    __syncthreads();
}

// `out = sum_i pre_i streams_i` for the channels of this block's slice.
DEVICE void collapse(const float *streams, const float *pre, int hc, long long hidden, long long first, float *out) {
    long long d = first + 4 * (int)threadIdx.x;
    if (d >= hidden) return;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int i = 0; i < hc; i++) {
        float4 v = load_floats_until(streams + i * hidden, d, hidden);
        sum.x = fmaf(pre[i], v.x, sum.x);
        sum.y = fmaf(pre[i], v.y, sum.y);
        sum.z = fmaf(pre[i], v.z, sum.z);
        sum.w = fmaf(pre[i], v.w, sum.w);
    }
    store_floats_until(out, d, hidden, sum);
}

// Divides each row (or column) of the square by (its sum + `eps`), by one warp.
DEVICE void normalise(float *square, int hc, bool columns, float eps) {
    float mine[STREAMS_MOST * STREAMS_MOST / 32];
#pragma unroll
    for (int s = 0; s < STREAMS_MOST * STREAMS_MOST / 32; s++) {
        int e = lane_id() + 32 * s;
        if (e >= hc * hc) break;
        float sum = 0.0f;
        for (int i = 0; i < hc; i++) sum += columns ? square[i * hc + e % hc] : square[e / hc * hc + i];
        mine[s] = square[e] / (sum + eps);
    }
    __syncwarp();
#pragma unroll
    for (int s = 0; s < STREAMS_MOST * STREAMS_MOST / 32; s++) {
        int e = lane_id() + 32 * s;
        if (e >= hc * hc) break;
        square[e] = mine[s];
    }
    __syncwarp();
}

// Softmax of each row plus `eps`, then columns, then `iters - 1` times rows and columns; by one warp.
DEVICE void sinkhorn(float *square, int hc, int iters, float eps) {
    for (int i = lane_id(); i < hc; i += 32) {
        float most = -HOTSEAM_INFINITY;
        for (int j = 0; j < hc; j++) most = fmaxf(most, square[i * hc + j]);
        for (int j = 0; j < hc; j++) square[i * hc + j] = expf(square[i * hc + j] - most);
    }
    __syncwarp();
    normalise(square, hc, false, 0.0f);
    for (int e = lane_id(); e < hc * hc; e += 32) square[e] += eps;
    __syncwarp();
    for (int n = 0; n < iters; n++) {
        if (n > 0) normalise(square, hc, false, eps);
        normalise(square, hc, true, eps);
    }
}

// The same of four streams, by one warp with a value a lane and in each half of it.
DEVICE void sinkhorn_of_four(float *square, int iters, float eps) {
    float v = square[lane_id() % 16];
    // Some lanes write what others read.
    __syncwarp();
    auto sum = [&](int step) {
        float two = v + __shfl_xor_sync(ALL_LANES, v, step);
        return two + __shfl_xor_sync(ALL_LANES, two, 2 * step);
    };
    float most = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 1));
    v = expf(v - fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2)));
    v = v / sum(1) + eps;
    for (int n = 0; n < iters; n++) {
        if (n > 0) v = v / (sum(1) + eps);
        v = v / (sum(4) + eps);
    }
    if (lane_id() < 16) square[lane_id()] = v;
    __syncwarp();
}

struct PreParams {
    HotseamMhcPreArgs args;
    HotseamBatch batch;
    // Of `mix`, for the rows from `row_begin` on.
    const float *partials;
    unsigned row_begin;
    unsigned splits;
};

// Grid: one block for `post` and `comb` and one for each slice of channels of `x`, rows.
KERNEL_BOUNDED(hotseam_mhc_pre, PreParams, MIX_THREADS) {
    SHARED float m[OUTPUTS_MOST + 1];
    long long row = p.row_begin + blockIdx.y;
    if (p.batch.positions[row] < 0) return;
    int hc = p.args.streams.shape[1], outputs = (2 + hc) * hc;
    long long hidden = p.args.streams.shape[2];
    const float *partials = p.partials + (long long)blockIdx.y * p.splits * (outputs + 1);
    const float *base = (const float *)p.args.base.data, *scale = (const float *)p.args.scale.data;
    mixed(partials, p.splits, outputs, m);
    float inverse = 1.0f / sqrtf(m[outputs] / (hc * hidden) + p.args.norm_eps);
    for (int o = threadIdx.x; o < outputs; o += blockDim.x) {
        float gate = fmaf(m[o] * inverse, scale[o < hc ? 0 : o < 2 * hc ? 1 : 2], base[o]);
        m[o] = o < hc ? sigmoid(gate) + p.args.hc_eps : o < 2 * hc ? 2.0f * sigmoid(gate) : gate;
    }
    __syncthreads();
    if (blockIdx.x != 0) {
        collapse((const float *)p.args.streams.data + row * hc * hidden, m, hc, hidden, (blockIdx.x - 1) * (long long)SLICE,
                 (float *)p.args.x.data + row * hidden);
        return;
    }
    if (warp_id() != 0) return;
    float *post = (float *)p.args.post.data + row * hc, *comb = (float *)p.args.comb.data + row * hc * hc;
    for (int i = lane_id(); i < hc; i += 32) post[i] = m[hc + i];
    if (hc == 4) {
        sinkhorn_of_four(m + 2 * hc, p.args.iters, p.args.hc_eps);
    } else {
        sinkhorn(m + 2 * hc, hc, p.args.iters, p.args.hc_eps);
    }
    for (int e = lane_id(); e < hc * hc; e += 32) comb[e] = m[2 * hc + e];
}

struct HeadParams {
    HotseamMhcHeadArgs args;
    HotseamBatch batch;
    // Of `mix`, for the rows from `row_begin` on.
    const float *partials;
    unsigned row_begin;
    unsigned splits;
};

// Grid: slices of channels, rows.
KERNEL_BOUNDED(hotseam_mhc_head, HeadParams, MIX_THREADS) {
    SHARED float pre[STREAMS_MOST + 1];
    long long row = p.row_begin + blockIdx.y;
    if (p.batch.positions[row] < 0) return;
    int hc = p.args.streams.shape[1];
    long long hidden = p.args.streams.shape[2];
    const float *partials = p.partials + (long long)blockIdx.y * p.splits * (hc + 1);
    mixed(partials, p.splits, hc, pre);
    if ((int)threadIdx.x < hc) {
        int o = threadIdx.x;
        float inverse = 1.0f / sqrtf(pre[hc] / (hc * hidden) + p.args.norm_eps);
        float scale = ((const float *)p.args.scale.data)[0], base = ((const float *)p.args.base.data)[o];
        pre[o] = sigmoid(fmaf(pre[o] * inverse, scale, base)) + p.args.hc_eps;
    }
    __syncthreads();
    collapse((const float *)p.args.streams.data + row * hc * hidden, pre, hc, hidden, blockIdx.x * (long long)SLICE,
             (float *)p.args.x.data + row * hidden);
}

struct PostParams {
    HotseamMhcPostArgs args;
    HotseamBatch batch;
};

// All streams of four channels are read before one is written, so `out` may be `streams`.
template <int MOST> DEVICE void expand(const PostParams &p, long long row, long long d) {
    int hc = p.args.streams.shape[1];
    long long hidden = p.args.streams.shape[2];
    const float *streams = (const float *)p.args.streams.data + row * hc * hidden;
    const float *post = (const float *)p.args.post.data + row * hc, *comb = (const float *)p.args.comb.data + row * hc * hc;
    float4 f = load_floats_until((const float *)p.args.f.data + row * hidden, d, hidden), before[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        if (i < hc) before[i] = load_floats_until(streams + i * hidden, d, hidden);
    }
    for (int k = 0; k < hc; k++) {
        float4 sum = make_float4(post[k] * f.x, post[k] * f.y, post[k] * f.z, post[k] * f.w);
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (i >= hc) break;
            float c = comb[i * hc + k];
            sum.x = fmaf(c, before[i].x, sum.x);
            sum.y = fmaf(c, before[i].y, sum.y);
            sum.z = fmaf(c, before[i].z, sum.z);
            sum.w = fmaf(c, before[i].w, sum.w);
        }
        store_floats_until((float *)p.args.out.data + (row * hc + k) * hidden, d, hidden, sum);
    }
}

// Grid: slices of channels, rows.
KERNEL_BOUNDED(hotseam_mhc_post, PostParams, MIX_THREADS) {
    long long row = blockIdx.y, d = blockIdx.x * (long long)SLICE + 4 * (int)threadIdx.x;
    if (p.batch.positions[row] < 0 || d >= p.args.streams.shape[2]) return;
    if (p.args.streams.shape[1] <= 4) {
        expand<4>(p, row, d);
    } else {
        expand<STREAMS_MOST>(p, row, d);
    }
}
