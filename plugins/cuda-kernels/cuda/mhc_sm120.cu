// The patched `mhc.pre` and `mhc.post` of SM120, for 1, 2 or 4 streams.
//
// The product with `fn` has its operands rounded to bf16, on tensor cores: 16 rows against 8 outputs, the channels split among
// blocks and warps. The sum of squares is of the streams as they are, taken while they are rounded. Gates and the Sinkhorn
// iterations are f32, a row of the square in one lane, so that a row of it sums without a shuffle and a column with one or
// two. Rows at position -1 are left alone.
//
// A split has a fixed number of channels, so that the bits of a row do not depend on the other rows.

#include "activation.cuh"
#include "block.cuh"
#include "layouts.cuh"
#include "mma.cuh"

#define MIX_THREADS 128
// Rows of a block, and channels of a warp and of a block, which is a split.
#define MIX_ROWS 16
#define MIX_WARP 64
#define MIX_SPLIT (MIX_WARP * MIX_THREADS / 32)
#define PRE_THREADS 128
// Channels that a block collapses or expands.
#define SLICE (4 * PRE_THREADS)

struct MixParams {
    // `[rows, width]`, `[outputs, width]`.
    const float *streams;
    const float *weight;
    // `[rows, splits, outputs + 1]`; the last is the sum of squares.
    float *partials;
    long long width;
    unsigned rows;
    unsigned splits;
};

// Four values as two pairs of bf16.
DEVICE void mix_round(float4 v, unsigned &low, unsigned &high) {
    low = bf16_bits(v.x) | bf16_bits(v.y) << 16;
    high = bf16_bits(v.z) | bf16_bits(v.w) << 16;
}

DEVICE float mix_squares(float4 v, float sum) { return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum)))); }

// `OUTPUTS` products of 16 rows over one split of the channels. Products do not ask for the order of channels, so a lane takes
// four that lie side by side, of streams and weights alike.
template <unsigned OUTPUTS> DEVICE void mix(const MixParams &p, float *shared) {
    constexpr unsigned TILES = (OUTPUTS + 7) / 8, COLUMNS = 8 * TILES + 1;
    unsigned g = lane_id() / 4, t = lane_id() % 4;
    long long first = (long long)blockIdx.y * MIX_ROWS, from = blockIdx.x * (long long)MIX_SPLIT + warp_id() * MIX_WARP;
    const float *low = p.streams + (first + g) * p.width, *high = low + 8 * p.width;
    bool has_low = first + g < p.rows, has_high = first + g + 8 < p.rows;
    float acc[TILES][4] = {}, squares[2] = {0.0f, 0.0f};
#pragma unroll
    for (unsigned step = 0; step < MIX_WARP / 16; step++) {
        long long col = from + 16 * step + 4 * t;
        float4 one = make_float4(0.0f, 0.0f, 0.0f, 0.0f), two = one;
        if (has_low) one = load_floats_until(low, col, p.width);
        if (has_high) two = load_floats_until(high, col, p.width);
        squares[0] = mix_squares(one, squares[0]);
        squares[1] = mix_squares(two, squares[1]);
        unsigned a[4];
        mix_round(one, a[0], a[2]);
        mix_round(two, a[1], a[3]);
#pragma unroll
        for (unsigned n = 0; n < TILES; n++) {
            float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (8 * n + g < OUTPUTS) w = load_floats_until(p.weight + (8 * n + g) * p.width, col, p.width);
            unsigned b[2];
            mix_round(w, b[0], b[1]);
            mma_m16n8k16_bf16(acc[n], a, b, acc[n]);
        }
    }
    float *mine = shared + warp_id() * MIX_ROWS * COLUMNS;
#pragma unroll
    for (unsigned n = 0; n < TILES; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) mine[(g + c / 2 * 8) * COLUMNS + 8 * n + 2 * t + c % 2] = acc[n][c];
    }
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        float sum = squares[half];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if (t == 0) mine[(g + 8 * half) * COLUMNS + 8 * TILES] = sum;
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < MIX_ROWS * (OUTPUTS + 1); i += MIX_THREADS) {
        unsigned row = i / (OUTPUTS + 1), o = i % (OUTPUTS + 1);
        if (first + row >= p.rows) continue;
        const float *of = shared + row * COLUMNS + (o < OUTPUTS ? o : 8 * TILES);
        float sum = 0.0f;
#pragma unroll
        for (unsigned w = 0; w < MIX_THREADS / 32; w++) sum += of[w * MIX_ROWS * COLUMNS];
        p.partials[((first + row) * p.splits + blockIdx.x) * (OUTPUTS + 1) + o] = sum;
    }
}

// Floats of shared memory for so many streams.
#define MIX_SHARED(outputs) (MIX_THREADS / 32 * MIX_ROWS * (((outputs) + 7) / 8 * 8 + 1))

// Grid: splits, groups of `MIX_ROWS` rows.
KERNEL_BOUNDED(hotseam_mhc_sm120_mix_1, MixParams, MIX_THREADS) {
    SHARED float shared[MIX_SHARED(3)];
    mix<3>(p, shared);
}
KERNEL_BOUNDED(hotseam_mhc_sm120_mix_2, MixParams, MIX_THREADS) {
    SHARED float shared[MIX_SHARED(8)];
    mix<8>(p, shared);
}
KERNEL_BOUNDED(hotseam_mhc_sm120_mix_4, MixParams, MIX_THREADS) {
    SHARED float shared[MIX_SHARED(24)];
    mix<24>(p, shared);
}

// Gates ---------------------------------------------------------------------------------------------------------------

struct PreParams {
    HotseamMhcPreArgs args;
    HotseamBatch batch;
    // Of `mix`, for the rows from `row_begin` on.
    const float *partials;
    unsigned row_begin;
    unsigned splits;
};

// The sums over the splits of a row, of which a warp has one lane each: lane `o` gets output `o`, lane `OUTPUTS` the squares.
template <unsigned OUTPUTS> DEVICE float pre_mixed(const float *partials, unsigned splits) {
    float sum = 0.0f;
    if (lane_id() > (int)OUTPUTS) return sum;
#pragma unroll 8
    for (unsigned s = 0; s < splits; s++) sum += partials[s * (OUTPUTS + 1) + lane_id()];
    return sum;
}

// Divides by (the sum of a row, or of a column, plus `eps`). Lane `i` of each group of `HC` has row `i`.
template <int HC> DEVICE void sinkhorn_rows(float (&row)[HC], float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < HC; j++) sum += row[j];
#pragma unroll
    for (int j = 0; j < HC; j++) row[j] = row[j] / (sum + eps);
}

template <int HC> DEVICE void sinkhorn_columns(float (&row)[HC], float eps) {
#pragma unroll
    for (int j = 0; j < HC; j++) {
        float sum = row[j];
#pragma unroll
        for (int step = 1; step < HC; step *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        row[j] = row[j] / (sum + eps);
    }
}

// Softmax of each row plus `eps`, then columns, then `iters - 1` times rows and columns.
template <int HC> DEVICE void sinkhorn(float (&row)[HC], unsigned iters, float eps) {
    float most = row[0];
#pragma unroll
    for (int j = 1; j < HC; j++) most = fmaxf(most, row[j]);
#pragma unroll
    for (int j = 0; j < HC; j++) row[j] = expf(row[j] - most);
    sinkhorn_rows(row, 0.0f);
#pragma unroll
    for (int j = 0; j < HC; j++) row[j] += eps;
    for (unsigned n = 0; n < iters; n++) {
        if (n > 0) sinkhorn_rows(row, eps);
        sinkhorn_columns(row, eps);
    }
}

// `post` and `comb` of a row by the warp that has its gates, one a lane.
template <int HC> DEVICE void pre_square(const PreParams &p, long long row, float gate) {
    int of = lane_id() % HC;
    float square[HC];
#pragma unroll
    for (int j = 0; j < HC; j++) square[j] = __shfl_sync(ALL_LANES, gate, 2 * HC + of * HC + j);
    sinkhorn(square, p.args.iters, p.args.hc_eps);
    float post = __shfl_sync(ALL_LANES, gate, HC + of);
    if (lane_id() >= HC) return;
    ((float *)p.args.post.data)[row * HC + of] = post;
#pragma unroll
    for (int j = 0; j < HC; j++) ((float *)p.args.comb.data)[(row * HC + of) * HC + j] = square[j];
}

template <int HC> DEVICE void pre(const PreParams &p, float *shared) {
    constexpr int OUTPUTS = (2 + HC) * HC;
    long long row = p.row_begin + blockIdx.y, hidden = p.args.streams.shape[2];
    if (p.batch.positions[row] < 0) return;
    if (warp_id() == 0) {
        float mixed = pre_mixed<OUTPUTS>(p.partials + (long long)blockIdx.y * p.splits * (OUTPUTS + 1), p.splits);
        float inverse = 1.0f / sqrtf(__shfl_sync(ALL_LANES, mixed, OUTPUTS) / (HC * hidden) + p.args.norm_eps), gate = 0.0f;
        int o = lane_id();
        if (o < OUTPUTS) {
            float scale = ((const float *)p.args.scale.data)[o < HC ? 0 : o < 2 * HC ? 1 : 2];
            gate = fmaf(mixed * inverse, scale, ((const float *)p.args.base.data)[o]);
            gate = o < HC ? sigmoid(gate) + p.args.hc_eps : o < 2 * HC ? 2.0f * sigmoid(gate) : gate;
        }
        if (o < HC) shared[o] = gate;
        if (blockIdx.x == 0) pre_square<HC>(p, row, gate);
    }
    if (blockIdx.x == 0) return;
    __syncthreads();
    long long d = (blockIdx.x - 1) * (long long)SLICE + 4 * (int)threadIdx.x;
    if (d >= hidden) return;
    const float *streams = (const float *)p.args.streams.data + row * HC * hidden;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < HC; i++) {
        float4 v = load_floats_until(streams + i * hidden, d, hidden);
        sum.x = fmaf(shared[i], v.x, sum.x);
        sum.y = fmaf(shared[i], v.y, sum.y);
        sum.z = fmaf(shared[i], v.z, sum.z);
        sum.w = fmaf(shared[i], v.w, sum.w);
    }
    store_floats_until((float *)p.args.x.data + row * hidden, d, hidden, sum);
}

// Grid: one block for `post` and `comb` and one for each slice of channels of `x`, rows.
KERNEL_BOUNDED(hotseam_mhc_sm120_pre_1, PreParams, PRE_THREADS) {
    SHARED float shared[1];
    pre<1>(p, shared);
}
KERNEL_BOUNDED(hotseam_mhc_sm120_pre_2, PreParams, PRE_THREADS) {
    SHARED float shared[2];
    pre<2>(p, shared);
}
KERNEL_BOUNDED(hotseam_mhc_sm120_pre_4, PreParams, PRE_THREADS) {
    SHARED float shared[4];
    pre<4>(p, shared);
}

// Streams -------------------------------------------------------------------------------------------------------------

struct PostParams {
    HotseamMhcPostArgs args;
    HotseamBatch batch;
};

// All streams of four channels are read before one is written, so `out` may be `streams`.
template <int HC> DEVICE void post(const PostParams &p) {
    long long row = blockIdx.y, d = blockIdx.x * (long long)SLICE + 4 * (int)threadIdx.x, hidden = p.args.streams.shape[2];
    if (p.batch.positions[row] < 0 || d >= hidden) return;
    const float *streams = (const float *)p.args.streams.data + row * HC * hidden;
    const float *gates = (const float *)p.args.post.data + row * HC, *comb = (const float *)p.args.comb.data + row * HC * HC;
    float4 f = load_floats_until((const float *)p.args.f.data + row * hidden, d, hidden), before[HC];
#pragma unroll
    for (int i = 0; i < HC; i++) before[i] = load_floats_until(streams + i * hidden, d, hidden);
#pragma unroll
    for (int k = 0; k < HC; k++) {
        float gate = gates[k];
        float4 sum = make_float4(gate * f.x, gate * f.y, gate * f.z, gate * f.w);
#pragma unroll
        for (int i = 0; i < HC; i++) {
            float c = comb[i * HC + k];
            sum.x = fmaf(c, before[i].x, sum.x);
            sum.y = fmaf(c, before[i].y, sum.y);
            sum.z = fmaf(c, before[i].z, sum.z);
            sum.w = fmaf(c, before[i].w, sum.w);
        }
        store_floats_until((float *)p.args.out.data + (row * HC + k) * hidden, d, hidden, sum);
    }
}

// Grid: slices of channels, rows.
KERNEL_BOUNDED(hotseam_mhc_sm120_post_1, PostParams, PRE_THREADS) { post<1>(p); }
KERNEL_BOUNDED(hotseam_mhc_sm120_post_2, PostParams, PRE_THREADS) { post<2>(p); }
KERNEL_BOUNDED(hotseam_mhc_sm120_post_4, PostParams, PRE_THREADS) { post<4>(p); }
