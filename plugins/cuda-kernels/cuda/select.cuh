// `indexer.select`: what its kernels share, and the queries and head weights.
#pragma once

#include "gemm.cuh"
#include "layouts.cuh"
#include "stream.cuh"

struct SelectParams {
    HotseamSelectArgs args;
    HotseamBatch batch;
    // Of the rows of this launch: `[rows, heads, dim]` queries, `[rows, heads]` weights, `[rows, width]` scores.
    float *q, *weights, *scores;
    // First row of this launch, its rows, and the most entries that a row can have.
    unsigned first_row, rows, width;
};

// Complete entries of a row of this launch; -1 for padding.
DEVICE long long select_complete(const SelectParams &p, long long row) {
    row += p.first_row;
    if (row >= p.batch.n_rows) return -1;
    long long position = p.batch.positions[row], seq = p.batch.row_seq[row];
    if (position < 0 || position >= p.args.rope.cos.shape[0] || seq < 0 || seq >= p.batch.n_seqs) return -1;
    long long complete = (position + 1) / p.args.ratio;
    return complete < p.width ? complete : p.width;
}

// Whether scores of a row are wanted: a row that keeps all its entries has none but for the tap.
DEVICE bool select_scored(const SelectParams &p, long long row) {
    long long complete = select_complete(p, row);
    return p.args.scores != nullptr ? complete > 0 : complete > (long long)p.args.topk;
}

// Queries and head weights ----------------------------------------------------------------------------------------------

// Most threads of a block of the way for few rows.
#define PROJECT_FEW_THREADS 256

// A block's product: of the rows of `wq_b`, or past them of those of `weights_proj`.
struct Projection {
    const float *x;
    float *y;
    long long n, k;
    bool weights;
};

DEVICE Projection project(const SelectParams &p, bool weights) {
    const HotseamTensorRef &x = weights ? p.args.x : p.args.q_lora;
    long long n = weights ? p.args.heads : (long long)p.args.heads * p.args.keys.dim, k = x.shape[1];
    return Projection{(const float *)x.data + p.first_row * k, weights ? p.weights : p.q, n, k, weights};
}

DEVICE WeightRow project_row(const SelectParams &p, const Projection &of, long long n) {
    if (n >= of.n) return no_weights();
    return of.weights ? tensor_row(p.args.weights_proj, n, of.k) : weight_row(p.args.wq_b, n, of.k);
}

DEVICE void project_few(const SelectParams &p, float *shared) {
    long long first = (long long)blockIdx.y * FEW_ROWS_MOST;
    int rows = (int)min((long long)p.rows - first, (long long)FEW_ROWS_MOST), each = blockDim.x / 32 * 2;
    if (__syncthreads_or((int)threadIdx.x < rows && select_scored(p, first + threadIdx.x)) == 0) return;
    Projection of = project(p, false);
    long long block = blockIdx.x, blocks = (of.n + each - 1) / each;
    if (block >= blocks) {
        of = project(p, true);
        block -= blocks;
    }
    long long n = block * each + warp_id() * 2;
    WeightRow weights[2] = {project_row(p, of, n), project_row(p, of, n + 1)};
    few_outputs(
        rows,
        [&](int r) -> const float * {
            return r < rows && select_scored(p, first + r) ? of.x + (first + r) * of.k : nullptr;
        },
        weights, of.k, shared, [&](int r, float low, float high) {
            float *y = of.y + (first + r) * of.n + n;
            if (n < of.n) y[0] = low;
            if (n + 1 < of.n) y[1] = high;
        });
}

// Grid: tiles of outputs of `wq_b`, then of `weights_proj`; rows by `STREAM_ROWS`. Weights stream.
DEVICE void project_stream(const SelectParams &p, unsigned char *memory, const float **rows) {
    long long first = (long long)blockIdx.y * STREAM_ROWS;
    int count = (int)min((long long)p.rows - first, (long long)STREAM_ROWS);
    if (__syncthreads_or((int)threadIdx.x < count && select_scored(p, first + threadIdx.x)) == 0) return;
    Projection of = project(p, false);
    long long block = blockIdx.x, blocks = (of.n + STREAM_OUTPUTS - 1) / STREAM_OUTPUTS;
    if (block >= blocks) {
        of = project(p, true);
        block -= blocks;
    }
    long long n = block * STREAM_OUTPUTS;
    if ((int)threadIdx.x < count) rows[threadIdx.x] = of.x + (first + threadIdx.x) * of.k;
    __syncthreads();
    StreamRows w[1] = {stream_rows(project_row(p, of, n), of.n - n)};
    stream_products<1, false>(
        of.weights ? (unsigned)HOTSEAM_WEIGHT_FORMAT_BF16 : p.args.wq_b.format, w, rows, count, of.k, memory,
        [&](int r, int o, const float (&values)[1]) {
            if (n + o < of.n) of.y[(first + r) * of.n + n + o] = values[0];
        });
}

DEVICE void project_many(const SelectParams &p, float *shared) {
    long long first = (long long)blockIdx.y * TILE;
    if (__syncthreads_or(threadIdx.x < TILE && first + threadIdx.x < p.rows && select_scored(p, first + threadIdx.x)) == 0) {
        return;
    }
    Projection of = project(p, false);
    long long block = blockIdx.x, blocks = (of.n + TILE - 1) / TILE;
    if (block >= blocks) {
        of = project(p, true);
        block -= blocks;
    }
    bool narrow = of.weights ? p.args.weights_proj.dtype == HOTSEAM_DTYPE_BF16
                             : p.args.wq_b.format != HOTSEAM_WEIGHT_FORMAT_F32;
    many_rows(
        narrow, [&](int r) -> const float * { return first + r < p.rows ? of.x + (first + r) * of.k : nullptr; },
        [&](int o) { return project_row(p, of, block * TILE + o); }, of.k, shared,
        [&](int r, int o, float low, float high) {
            long long n = block * TILE + o;
            if (first + r >= p.rows) return;
            float *y = of.y + (first + r) * of.n + n;
            if (n < of.n) y[0] = low;
            if (n + 1 < of.n) y[1] = high;
        });
}

// Ropes a query and rounds it as keys are rounded; what the rounding leaves as a factor goes to the head's weight, and with it
// the factors of the score. Weights times relu allow that: such factors are positive.
template <unsigned N> DEVICE void select_query(const SelectParams &p, long long row, unsigned head) {
    unsigned dim = p.args.keys.dim;
    long long unit = row * p.args.heads + head;
    WarpRow<N> q = row_load<N>(p.q + unit * dim, dim);
    row_rope(q, dim, p.args.rope, p.batch.positions[p.first_row + row]);
    float factor = row_as_key(q, p.args.keys.layout, dim);
    row_store(q, dim, p.q + unit * dim);
    float scale = 1.0f / sqrtf((float)p.args.heads) * (1.0f / sqrtf((float)dim));
    if (lane_id() == 0) p.weights[unit] = p.weights[unit] * scale * factor;
}

DEVICE void select_queries(const SelectParams &p) {
    long long unit = (long long)blockIdx.x * (blockDim.x / 32) + warp_id(), row = unit / p.args.heads;
    if (row >= p.rows || !select_scored(p, row)) return;
    if (p.args.keys.dim <= 128) {
        select_query<1>(p, row, unit % p.args.heads);
    } else if (p.args.keys.dim <= 512) {
        select_query<4>(p, row, unit % p.args.heads);
    } else {
        select_query<8>(p, row, unit % p.args.heads);
    }
}
