// Products `y[rows, n] = x[rows, k] w[n, k]^T` with weights of any format and f32 sums: one way for few rows, which reads each
// weight once and shares it among the rows, and one for many, in tiles of shared memory. A sum has a fixed order, and no row
// has a part in the sum of another: a NaN stays where it is.
#pragma once

#include "block.cuh"
#include "weights.cuh"

// Few rows -------------------------------------------------------------------------------------------------------------

// Inputs that are staged at once, and what one warp takes of them in a step: 16 for each lane.
#define FEW_STAGE 1024
#define FEW_STEP 512
#define FEW_ROWS_MOST 8
// Floats of shared memory for so many rows.
#define FEW_SHARED(rows) ((rows) * FEW_STAGE)

// Where group `f` of four floats lies: so spread that lanes which are 1, 2, 4 or 8 groups apart meet in no bank.
DEVICE int few_place(int f) { return f ^ (f >> 3 & 7); }

// `acc[o][r] += x_r . w_o` over the inputs `from .. to` (`from` a multiple of 16) of this lane; the lanes of a warp together
// have all. All threads of the block call it with the same rows, and each warp with outputs of its own.
// `row_of(r)` is the f32 row, or null for zeros. `shared` is aligned to 16 bytes.
template <int ROWS, int OUTS, class RowOf>
DEVICE void few_rows(
    const RowOf &row_of, const WeightRow (&w)[OUTS], long long from, long long to, long long k, float *shared,
    float (&acc)[OUTS][ROWS]
) {
    float4 *xs = (float4 *)shared;
    for (long long base = from; base < to; base += FEW_STAGE) {
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * FEW_STAGE / 4; i += blockDim.x) {
            int r = i / (FEW_STAGE / 4), f = i % (FEW_STAGE / 4);
            long long col = base + 4 * f;
            const float *row = row_of(r);
            float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (row != nullptr) four = load_floats_until(row, col, to);
            xs[r * (FEW_STAGE / 4) + few_place(f)] = four;
        }
        __syncthreads();
#pragma unroll 1
        for (int step = 0; step < FEW_STAGE; step += FEW_STEP) {
            int at = step + 16 * lane_id();
            if (base + at >= to) continue;
            float v[OUTS][16];
#pragma unroll
            for (int o = 0; o < OUTS; o++) weight_values(w[o], base + at, k, v[o]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float4 x = xs[r * (FEW_STAGE / 4) + few_place(at / 4 + i)];
#pragma unroll
                    for (int o = 0; o < OUTS; o++) {
                        float sum = fmaf(x.x, v[o][4 * i], acc[o][r]);
                        sum = fmaf(x.y, v[o][4 * i + 1], sum);
                        sum = fmaf(x.z, v[o][4 * i + 2], sum);
                        acc[o][r] = fmaf(x.w, v[o][4 * i + 3], sum);
                    }
                }
            }
        }
    }
}

// As `few_rows` over all inputs; every lane has the sums.
template <int ROWS, int OUTS, class RowOf>
DEVICE void few_products(
    const RowOf &row_of, const WeightRow (&w)[OUTS], long long k, float *shared, float (&acc)[OUTS][ROWS]
) {
#pragma unroll
    for (int o = 0; o < OUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[o][r] = 0.0f;
    }
    few_rows<ROWS, OUTS>(row_of, w, 0, k, k, shared, acc);
#pragma unroll
    for (int o = 0; o < OUTS; o++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[o][r] = warp_sum(acc[o][r]);
    }
}

template <int ROWS, class RowOf, class Store>
DEVICE void few_pair(
    int rows, const RowOf &row_of, const WeightRow (&w)[2], long long k, float *shared, const Store &store
) {
    float acc[2][ROWS];
    few_products<ROWS, 2>(row_of, w, k, shared, acc);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r < rows && lane_id() == r) store(r, acc[0][r], acc[1][r]);
    }
}

// Two outputs of this warp for at most `FEW_ROWS_MOST` rows: calls `store(r, first, second)` once for each row.
template <class RowOf, class Store>
DEVICE void few_outputs(
    int rows, const RowOf &row_of, const WeightRow (&w)[2], long long k, float *shared, const Store &store
) {
    if (rows <= 1) {
        few_pair<1>(rows, row_of, w, k, shared, store);
    } else if (rows == 2) {
        few_pair<2>(rows, row_of, w, k, shared, store);
    } else if (rows <= 4) {
        few_pair<4>(rows, row_of, w, k, shared, store);
    } else {
        few_pair<8>(rows, row_of, w, k, shared, store);
    }
}

// Many rows ------------------------------------------------------------------------------------------------------------

// Rows and outputs of a tile, and the inputs that lie in shared memory at once. A thread has 8 rows and 4 outputs.
#define TILE 64
#define TILE_DEPTH 32
#define TILE_THREADS 128
// Floats of shared memory.
#define TILE_SHARED (2 * TILE_DEPTH * TILE)

// First row and first output of this thread in the tile.
DEVICE int tile_row() { return threadIdx.x / 16 * 8; }
DEVICE int tile_output() { return threadIdx.x % 16 * 4; }

// `acc[i][j] = x_(tile_row() + i) . w_(tile_output() + j)`, by a block of `TILE_THREADS`.
// `row_of(r)` is the f32 row, or null for zeros; `weight_of(o)` the row of weights. `shared` is aligned to 16 bytes.
template <class RowOf, class WeightOf>
DEVICE void many_rows(
    const RowOf &row_of, const WeightOf &weight_of, long long k, float *shared, float (&acc)[8][4]
) {
    float *xs = shared, *ws = shared + TILE_DEPTH * TILE;
    int mine = threadIdx.x % TILE, half = threadIdx.x / TILE * 16;
    const float *x = row_of(mine);
    WeightRow w = weight_of(mine);
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] = 0.0f;
    }
    for (long long base = 0; base < k; base += TILE_DEPTH) {
        long long col = base + half;
        float v[16];
        weight_values(w, col, k, v);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) ws[(half + i) * TILE + mine] = v[i];
        if (x != nullptr && col + 16 <= k) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float4 four = load_floats(x + col + 4 * i);
                float *to = xs + (half + 4 * i) * TILE + mine;
                to[0] = four.x;
                to[TILE] = four.y;
                to[2 * TILE] = four.z;
                to[3 * TILE] = four.w;
            }
        } else {
            for (int i = 0; i < 16; i++) xs[(half + i) * TILE + mine] = x != nullptr && col + i < k ? x[col + i] : 0.0f;
        }
        __syncthreads();
#pragma unroll 8
        for (int d = 0; d < TILE_DEPTH; d++) {
            const float4 *rows = (const float4 *)(xs + d * TILE + tile_row());
            float4 low = rows[0], high = rows[1], four = *(const float4 *)(ws + d * TILE + tile_output());
            float a[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            float b[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 8; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
            }
        }
    }
}
