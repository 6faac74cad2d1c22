// Products `y[rows, n] = x[rows, k] w[n, k]^T` with weights of any format and f32 sums: one way for few rows, which reads each
// weight once and shares it among the rows, and one for many, in tiles of shared memory. A sum has a fixed order, and no row
// has a part in the sum of another: a NaN stays where it is.
#pragma once

#include "block.cuh"
#include "mma.cuh"
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

// Rows and outputs of a tile, and the inputs that lie in shared memory at once.
#define TILE 64
#define TILE_DEPTH 32
#define TILE_THREADS 128
// Words of a row of bf16 in shared memory: so many that the eight rows which a warp reads at once meet in no bank.
#define TILE_PITCH (TILE_DEPTH / 2 + 4)
// Floats of shared memory.
#define TILE_SHARED (4 * TILE * TILE_PITCH)

// Sixteen inputs of an f32 row from `col` on, zeros from `k` on and for a row that is not there.
DEVICE void inputs_of(const float *x, long long col, long long k, float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (x != nullptr) four = load_floats_until(x, col + 4 * i, k);
        v[4 * i] = four.x;
        v[4 * i + 1] = four.y;
        v[4 * i + 2] = four.z;
        v[4 * i + 3] = four.w;
    }
}

// With multiply-adds: a thread has 8 rows and 4 outputs.
template <class RowOf, class WeightOf, class Store>
DEVICE void many_rows_f32(const RowOf &row_of, const WeightOf &weight_of, long long k, float *shared, const Store &store) {
    float *xs = shared, *ws = shared + TILE_DEPTH * TILE;
    int mine = threadIdx.x % TILE, half = threadIdx.x / TILE * 16, row = threadIdx.x / 16 * 8, output = threadIdx.x % 16 * 4;
    const float *x = row_of(mine);
    WeightRow w = weight_of(mine);
    float acc[8][4];
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] = 0.0f;
    }
    for (long long base = 0; base < k; base += TILE_DEPTH) {
        float v[16];
        weight_values(w, base + half, k, v);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; i++) ws[(half + i) * TILE + mine] = v[i];
        inputs_of(x, base + half, k, v);
#pragma unroll
        for (int i = 0; i < 16; i++) xs[(half + i) * TILE + mine] = v[i];
        __syncthreads();
#pragma unroll 8
        for (int d = 0; d < TILE_DEPTH; d++) {
            const float4 *rows = (const float4 *)(xs + d * TILE + row);
            float4 low = rows[0], high = rows[1], four = *(const float4 *)(ws + d * TILE + output);
            float a[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            float b[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 8; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        store(row + i, output, acc[i][0], acc[i][1]);
        store(row + i, output + 2, acc[i][2], acc[i][3]);
    }
}

// Sixteen floats as bf16, the lower halves dropped.
DEVICE void store_bf16(unsigned *to, const float (&v)[16]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        unsigned words[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            words[j] = __byte_perm(__float_as_uint(v[8 * i + 2 * j]), __float_as_uint(v[8 * i + 2 * j + 1]), 0x7632);
        }
        ((uint4 *)to)[i] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// With tensor cores, as exact as f32: weights of 8 bits or fewer and their scales are bf16 as they are, NVFP4's factor is left
// to the end; an input is the sum of three bf16, 8 bits of it each; and what the cores sum of 32 inputs is added up in f32.
// (An infinite input gives NaN.) A warp has 32 rows and 32 outputs.
template <class RowOf, class WeightOf, class Store>
DEVICE void many_rows_narrow(const RowOf &row_of, const WeightOf &weight_of, long long k, float *shared, const Store &store) {
    unsigned *xs = (unsigned *)shared, *ws = xs + 3 * TILE * TILE_PITCH;
    int mine = threadIdx.x % TILE, half = threadIdx.x / TILE * 16, place = mine * TILE_PITCH + half / 2;
    int g = lane_id() / 4, t = lane_id() % 4, row = warp_id() / 2 * 32, output = warp_id() % 2 * 32;
    const float *x = row_of(mine);
    WeightRow w = weight_of(mine);
    w.global = 1.0f;
    float acc[2][4][4];
#pragma unroll
    for (int i = 0; i < 32; i++) acc[i / 16][i / 4 % 4][i % 4] = 0.0f;
    for (long long base = 0; base < k; base += TILE_DEPTH) {
        float v[16];
        weight_values(w, base + half, k, v);
        __syncthreads();
        store_bf16(ws + place, v);
        inputs_of(x, base + half, k, v);
#pragma unroll
        for (int part = 0; part < 3; part++) {
            store_bf16(xs + part * TILE * TILE_PITCH + place, v);
#pragma unroll
            for (int i = 0; i < 16; i++) v[i] -= __uint_as_float(__float_as_uint(v[i]) & 0xffff0000u);
        }
        __syncthreads();
        float sum[2][4][4];
#pragma unroll
        for (int i = 0; i < 32; i++) sum[i / 16][i / 4 % 4][i % 4] = 0.0f;
#pragma unroll
        for (int step = 0; step < TILE_DEPTH / 2; step += 8) {
            unsigned b[4][2];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const unsigned *from = ws + (output + 8 * n + g) * TILE_PITCH + step + t;
                b[n][0] = from[0];
                b[n][1] = from[4];
            }
            // The smallest first.
#pragma unroll
            for (int part = 2; part >= 0; part--) {
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    const unsigned *from = xs + (part * TILE + row + 16 * m + g) * TILE_PITCH + step + t;
                    unsigned a[4] = {from[0], from[8 * TILE_PITCH], from[4], from[8 * TILE_PITCH + 4]};
#pragma unroll
                    for (int n = 0; n < 4; n++) mma_m16n8k16_bf16(sum[m][n], a, b[n], sum[m][n]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 32; i++) acc[i / 16][i / 4 % 4][i % 4] += sum[i / 16][i / 4 % 4][i % 4];
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int o = output + 8 * n + 2 * t;
        float one = weight_of(o).global, two = weight_of(o + 1).global;
#pragma unroll
        for (int m = 0; m < 2; m++) {
            store(row + 16 * m + g, o, acc[m][n][0] * one, acc[m][n][1] * two);
            store(row + 16 * m + g + 8, o, acc[m][n][2] * one, acc[m][n][3] * two);
        }
    }
}

// A tile of 64 rows and 64 outputs by a block of `TILE_THREADS`: calls `store(r, o, first, second)` once for each row `r` and
// even `o`, with the values of outputs `o` and `o + 1`. `row_of(r)` is the f32 row, or null for zeros; `weight_of(o)` the row
// of weights. `narrow`, the same for the whole block, says that none of them is of f32. `shared` is aligned to 16 bytes.
template <class RowOf, class WeightOf, class Store>
DEVICE void many_rows(
    bool narrow, const RowOf &row_of, const WeightOf &weight_of, long long k, float *shared, const Store &store
) {
    if (narrow) {
        many_rows_narrow(row_of, weight_of, k, shared, store);
    } else {
        many_rows_f32(row_of, weight_of, k, shared, store);
    }
}
