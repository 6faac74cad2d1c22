// `moe.route` and `moe.experts`.
//
// The router: a product with all experts and a choice by each row, or, in hash layers, the few products that the table asks
// for. The experts: pairs `row * topk + k` are grouped by expert into tiles; gate and up of a tile in one pass, down in a
// second, both with their results in the place of the pair; then every row sums its pairs in order, so that no sum depends
// on the grouping.

#include "activation.cuh"
#include "experts.cuh"
#include "stream.cuh"

// Route ----------------------------------------------------------------------------------------------------------------

struct RouteParams {
    HotseamRouteArgs args;
    HotseamBatch batch;
    // `[rows, n_experts]` for rows from `row_begin` on: `gate x`.
    float *scores;
    unsigned row_begin;
    unsigned rows;
};

DEVICE const float *route_row(const RouteParams &p, unsigned row) {
    return (const float *)p.args.x.data + (long long)(p.row_begin + row) * p.args.x.shape[1];
}

// Grid: two outputs a warp, eight rows a block.
KERNEL_BOUNDED(hotseam_moe_scores_few, RouteParams, 256) {
    SHARED float4 shared[FEW_SHARED(FEW_ROWS_MOST) / 4];
    long long n = p.args.gate.shape[0], k = p.args.gate.shape[1];
    int first = blockIdx.y * FEW_ROWS_MOST, rows = min((int)p.rows - first, FEW_ROWS_MOST);
    long long o = ((long long)blockIdx.x * (blockDim.x / 32) + warp_id()) * 2;
    WeightRow w[2] = {o < n ? tensor_row(p.args.gate, o, k) : no_weights(),
                      o + 1 < n ? tensor_row(p.args.gate, o + 1, k) : no_weights()};
    few_outputs(
        rows, [&](int r) { return r < rows ? route_row(p, first + r) : (const float *)nullptr; }, w, k, (float *)shared,
        [&](int r, float one, float two) {
            float *to = p.scores + (first + r) * n + o;
            if (o < n) to[0] = one;
            if (o + 1 < n) to[1] = two;
        }
    );
}

// Grid: tiles of outputs, eight rows a block. A gate in bf16.
KERNEL_BOUNDED(hotseam_moe_scores_stream, RouteParams, STREAM_THREADS) {
    SHARED uint4 memory[STREAM_SHARED / 16];
    SHARED const float *rows[STREAM_ROWS];
    long long n = p.args.gate.shape[0], k = p.args.gate.shape[1], output = (long long)blockIdx.x * STREAM_OUTPUTS;
    unsigned first = blockIdx.y * STREAM_ROWS, count = min(p.rows - first, STREAM_ROWS + 0u);
    if (threadIdx.x < count) rows[threadIdx.x] = route_row(p, first + threadIdx.x);
    __syncthreads();
    StreamRows w[1] = {stream_rows(tensor_row(p.args.gate, output, k), n - output)};
    stream_products<1, false>(
        HOTSEAM_WEIGHT_FORMAT_BF16, w, rows, count, k, (unsigned char *)memory,
        [&](int r, int o, const float (&values)[1]) {
            if (output + o < n) p.scores[(first + r) * n + output + o] = values[0];
        }
    );
}

// Grid: tiles of outputs, tiles of rows.
KERNEL_BOUNDED(hotseam_moe_scores_many, RouteParams, TILE_THREADS) {
    SHARED float4 shared[TILE_SHARED / 4];
    long long n = p.args.gate.shape[0], k = p.args.gate.shape[1];
    long long row = (long long)blockIdx.y * TILE, output = (long long)blockIdx.x * TILE;
    many_rows(
        p.args.gate.dtype == HOTSEAM_DTYPE_BF16,
        [&](int r) { return row + r < p.rows ? route_row(p, row + r) : (const float *)nullptr; },
        [&](int o) { return output + o < n ? tensor_row(p.args.gate, output + o, k) : no_weights(); }, k, (float *)shared,
        [&](int r, int o, float one, float two) {
            if (row + r >= p.rows) return;
            float *to = p.scores + (row + r) * n + output + o;
            if (output + o < n) to[0] = one;
            if (output + o + 1 < n) to[1] = two;
        }
    );
}

// `s / (sum + 1e-20)` of the chosen, whose `s` lie in `weights`; called by a whole warp.
DEVICE void renormalise(float *weights, unsigned topk) {
    float sum = 0.0f;
    for (unsigned k = 0; k < topk; k++) sum += weights[k];
    __syncwarp();
    for (unsigned k = lane_id(); k < topk; k += 32) weights[k] = weights[k] / (sum + 1e-20f);
}

// The `topk` largest of `s + bias`: ties go to the lower expert, NaN comes last. A warp a row, with `n_experts` floats each.
KERNEL_BOUNDED(hotseam_moe_choose, RouteParams, 256) {
    DYNAMIC_SHARED(float, all_keys);
    int n = p.args.gate.shape[0];
    unsigned row = blockIdx.x * (blockDim.x / 32) + warp_id(), topk = p.args.topk;
    if (row >= p.rows) return;
    float *keys = all_keys + warp_id() * n;
    int32_t *ids = p.args.ids + (long long)(p.row_begin + row) * topk;
    float *weights = p.args.weights + (long long)(p.row_begin + row) * topk;
    if (p.batch.positions[p.row_begin + row] < 0) {
        for (unsigned k = lane_id(); k < topk; k += 32) {
            ids[k] = -1;
            weights[k] = 0.0f;
        }
        return;
    }
    const float *scores = p.scores + (long long)row * n, *bias = (const float *)p.args.bias.data;
    for (int e = lane_id(); e < n; e += 32) {
        float key = sqrt_softplus(scores[e]) + (bias != nullptr ? bias[e] : 0.0f);
        keys[e] = key != key ? -HOTSEAM_INFINITY : key;
    }
    for (unsigned k = 0; k < topk; k++) {
        float best = -HOTSEAM_INFINITY;
        int at = n;
        for (int e = lane_id(); e < n; e += 32) {
            // What has been chosen is NaN by now.
            if (keys[e] > best || (keys[e] == best && at == n)) {
                best = keys[e];
                at = e;
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) {
            float other = __shfl_xor_sync(ALL_LANES, best, step);
            int other_at = __shfl_xor_sync(ALL_LANES, at, step);
            if (other_at < n && (at == n || other > best || (other == best && other_at < at))) {
                best = other;
                at = other_at;
            }
        }
        if (lane_id() == 0) {
            ids[k] = at < n ? at : -1;
            weights[k] = at < n ? sqrt_softplus(scores[at]) : 0.0f;
        }
        if (at < n && lane_id() == at % 32) keys[at] = __uint_as_float(0x7fc00000u);
        __syncwarp();
    }
    renormalise(weights, topk);
}

// Experts by the table of token ids. A block a row. A token or an expert that is not there gives -1 and weight 0.
KERNEL_BOUNDED(hotseam_moe_hash, RouteParams, 256) {
    unsigned row = p.row_begin + blockIdx.x, topk = p.args.topk;
    int n = p.args.gate.shape[0];
    long long hidden = p.args.gate.shape[1];
    int32_t *ids = p.args.ids + (long long)row * topk;
    float *weights = p.args.weights + (long long)row * topk;
    int token = p.args.input_ids[row];
    bool known = p.batch.positions[row] >= 0 && token >= 0 && token < p.args.tid2eid.shape[0];
    const float *x = route_row(p, blockIdx.x);
    for (unsigned k = warp_id(); k < topk; k += blockDim.x / 32) {
        int expert = known ? ((const int32_t *)p.args.tid2eid.data)[(long long)token * topk + k] : -1;
        if (expert < 0 || expert >= n) expert = -1;
        float sum = 0.0f;
        if (expert >= 0) {
            WeightRow w = tensor_row(p.args.gate, expert, hidden);
            for (long long col = 16 * lane_id(); col < hidden; col += 512) {
                float v[16];
                weight_values(w, col, hidden, v);
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    if (col + i < hidden) sum = fmaf(x[col + i], v[i], sum);
                }
            }
        }
        sum = warp_sum(sum);
        if (lane_id() == 0) {
            ids[k] = expert;
            weights[k] = expert >= 0 ? sqrt_softplus(sum) : 0.0f;
        }
    }
    __syncthreads();
    if (warp_id() == 0) renormalise(weights, topk);
}

// Experts --------------------------------------------------------------------------------------------------------------

// Makes `order` and `tiles`. One block; each warp has a run of pairs and `n_experts` counters, and its pairs come after
// those of the warps before it, so that the order is that of the pairs.
KERNEL_BOUNDED(hotseam_moe_plan, ExpertsParams, 1024) {
    DYNAMIC_SHARED(int, counters);
    SHARED int scratch[WARPS_MOST];
    int n = p.args.n_experts, warps = blockDim.x / 32, pairs = p.rows * p.args.topk;
    int from = (int)((long long)pairs * warp_id() / warps), to = (int)((long long)pairs * (warp_id() + 1) / warps);
    int *mine = counters + warp_id() * n;
    for (int i = threadIdx.x; i < warps * n; i += blockDim.x) counters[i] = 0;
    __syncthreads();
    for (int base = from; base < to; base += 32) {
        int pair = base + lane_id(), id = pair < to ? expert_of(p, pair) : -1;
        unsigned same = __match_any_sync(ALL_LANES, id);
        if (id >= 0 && lane_id() == __ffs(same) - 1) mine[id] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    int pairs_before = 0, tiles_before = 0;
    for (int base = 0; base < n; base += blockDim.x) {
        int e = base + threadIdx.x, count = 0;
        for (int w = 0; e < n && w < warps; w++) count += counters[w * n + e];
        int tiles = (count + p.tile_pairs - 1) / p.tile_pairs, all_pairs, all_tiles;
        int begin = pairs_before + block_scan(count, scratch, all_pairs);
        int tile = tiles_before + block_scan(tiles, scratch, all_tiles);
        pairs_before += all_pairs;
        tiles_before += all_tiles;
        if (e >= n) continue;
        for (int t = 0; t < tiles; t++) {
            int *to = p.tiles + 1 + 3 * (tile + t), done = t * (int)p.tile_pairs;
            to[0] = e;
            to[1] = begin + done;
            to[2] = min(count - done, (int)p.tile_pairs);
        }
        for (int w = 0; w < warps; w++) {
            int here = counters[w * n + e];
            counters[w * n + e] = begin;
            begin += here;
        }
    }
    if (threadIdx.x == 0) p.tiles[0] = tiles_before;
    __syncthreads();
    for (int base = from; base < to; base += 32) {
        int pair = base + lane_id(), id = pair < to ? expert_of(p, pair) : -1;
        unsigned same = __match_any_sync(ALL_LANES, id);
        if (id >= 0) p.order[mine[id] + __popc(same & ((1u << lane_id()) - 1))] = pair;
        __syncwarp();
        if (id >= 0 && lane_id() == __ffs(same) - 1) mine[id] += __popc(same);
        __syncwarp();
    }
}

// Grid: one inner channel a warp, a tile of at most eight pairs a block.
KERNEL_BOUNDED(hotseam_moe_up_few, ExpertsParams, 256) {
    SHARED float4 shared[FEW_SHARED(FEW_ROWS_MOST) / 4];
    Tile tile = tile_at(p, blockIdx.y);
    if (tile.count == 0) return;
    const HotseamExpertRef &expert = p.args.experts_device[tile.expert];
    long long hidden = p.args.x.shape[1];
    unsigned o = blockIdx.x * (blockDim.x / 32) + warp_id();
    WeightRow w[2] = {o < p.inter ? weight_row(expert.w1, o, hidden) : no_weights(),
                      o < p.inter ? weight_row(expert.w3, o, hidden) : no_weights()};
    few_outputs(
        tile.count, [&](int i) { return pair_input(p, tile, i); }, w, hidden, (float *)shared,
        [&](int i, float gate, float up) {
            if (o < p.inter) {
                p.inner[(long long)pair_at(p, tile, i) * p.inter + o] = swiglu(gate, up, p.args.swiglu_limit);
            }
        }
    );
}

// Grid: 32 inner channels, a tile of at most eight pairs a block. Weights stream; gate and up have one format.
KERNEL_BOUNDED(hotseam_moe_up_stream, ExpertsParams, STREAM_THREADS) {
    SHARED uint4 memory[STREAM_SHARED / 16];
    SHARED const float *rows[STREAM_ROWS];
    Tile tile = tile_at(p, blockIdx.y);
    if (tile.count == 0) return;
    const HotseamExpertRef &expert = p.args.experts_device[tile.expert];
    long long hidden = p.args.x.shape[1];
    unsigned first = blockIdx.x * (2 * STREAM_OUTPUTS);
    if (threadIdx.x < STREAM_ROWS) rows[threadIdx.x] = pair_input(p, tile, threadIdx.x);
    __syncthreads();
    StreamRows w[2] = {stream_rows(weight_row(expert.w1, first, hidden), (long long)p.inter - first),
                       stream_rows(weight_row(expert.w3, first, hidden), (long long)p.inter - first)};
    stream_products<2, false>(
        expert.w1.format, w, rows, tile.count, hidden, (unsigned char *)memory,
        [&](int i, int o, const float (&values)[4]) {
            float *to = p.inner + (long long)pair_at(p, tile, i) * p.inter;
#pragma unroll
            for (unsigned m = 0; m < 2; m++) {
                unsigned channel = first + m * STREAM_OUTPUTS + o;
                if (channel < p.inter) to[channel] = swiglu(values[m], values[m + 2], p.args.swiglu_limit);
            }
        }
    );
}

// Grid: 32 inner channels, whose gates and ups make the 64 outputs of a block; tiles of at most 64 pairs.
KERNEL_BOUNDED(hotseam_moe_up_many, ExpertsParams, TILE_THREADS) {
    SHARED float4 shared[TILE_SHARED / 4];
    Tile tile = tile_at(p, blockIdx.y);
    if (tile.count == 0) return;
    const HotseamExpertRef &expert = p.args.experts_device[tile.expert];
    long long hidden = p.args.x.shape[1];
    unsigned first = blockIdx.x * (TILE / 2);
    // Gates are the even outputs of the tile, their ups the odd ones.
    many_rows(
        expert.w1.format != HOTSEAM_WEIGHT_FORMAT_F32 && expert.w3.format != HOTSEAM_WEIGHT_FORMAT_F32,
        [&](int i) { return pair_input(p, tile, i); },
        [&](int o) {
            unsigned channel = first + o / 2;
            return channel < p.inter ? weight_row(o % 2 == 0 ? expert.w1 : expert.w3, channel, hidden) : no_weights();
        },
        hidden, (float *)shared,
        [&](int i, int o, float gate, float up) {
            unsigned channel = first + o / 2;
            if (i >= tile.count || channel >= p.inter) return;
            p.inner[(long long)pair_at(p, tile, i) * p.inter + channel] = swiglu(gate, up, p.args.swiglu_limit);
        }
    );
}

// Grid: two outputs a warp, a tile of at most eight pairs a block.
KERNEL_BOUNDED(hotseam_moe_down_few, ExpertsParams, 256) {
    SHARED float4 shared[FEW_SHARED(FEW_ROWS_MOST) / 4];
    Tile tile = tile_at(p, blockIdx.y);
    if (tile.count == 0) return;
    const HotseamExpertRef &expert = p.args.experts_device[tile.expert];
    long long hidden = p.args.x.shape[1];
    long long o = ((long long)blockIdx.x * (blockDim.x / 32) + warp_id()) * 2;
    WeightRow w[2] = {o < hidden ? weight_row(expert.w2, o, p.inter) : no_weights(),
                      o + 1 < hidden ? weight_row(expert.w2, o + 1, p.inter) : no_weights()};
    few_outputs(
        tile.count, [&](int i) { return pair_inner(p, tile, i); }, w, p.inter, (float *)shared,
        [&](int i, float one, float two) {
            float *to = p.results + pair_at(p, tile, i) * hidden + o;
            if (o < hidden) to[0] = one;
            if (o + 1 < hidden) to[1] = two;
        }
    );
}

// Grid: 64 outputs, a tile of at most eight pairs a block. Weights stream.
KERNEL_BOUNDED(hotseam_moe_down_stream, ExpertsParams, STREAM_THREADS) {
    SHARED uint4 memory[STREAM_SHARED / 16];
    SHARED const float *rows[STREAM_ROWS];
    Tile tile = tile_at(p, blockIdx.y);
    if (tile.count == 0) return;
    const HotseamExpertRef &expert = p.args.experts_device[tile.expert];
    long long hidden = p.args.x.shape[1], first = (long long)blockIdx.x * (4 * STREAM_OUTPUTS);
    if (threadIdx.x < STREAM_ROWS) rows[threadIdx.x] = pair_inner(p, tile, threadIdx.x);
    __syncthreads();
    StreamRows w[1] = {stream_rows(weight_row(expert.w2, first, p.inter), hidden - first)};
    stream_products<4, false>(
        expert.w2.format, w, rows, tile.count, p.inter, (unsigned char *)memory,
        [&](int i, int o, const float (&values)[4]) {
            float *to = p.results + pair_at(p, tile, i) * hidden;
#pragma unroll
            for (int m = 0; m < 4; m++) {
                long long output = first + m * STREAM_OUTPUTS + o;
                if (output < hidden) to[output] = values[m];
            }
        }
    );
}

// Grid: 64 outputs, tiles of at most 64 pairs.
KERNEL_BOUNDED(hotseam_moe_down_many, ExpertsParams, TILE_THREADS) {
    SHARED float4 shared[TILE_SHARED / 4];
    Tile tile = tile_at(p, blockIdx.y);
    if (tile.count == 0) return;
    const HotseamExpertRef &expert = p.args.experts_device[tile.expert];
    long long hidden = p.args.x.shape[1], first = (long long)blockIdx.x * TILE;
    many_rows(
        expert.w2.format != HOTSEAM_WEIGHT_FORMAT_F32, [&](int i) { return pair_inner(p, tile, i); },
        [&](int o) { return first + o < hidden ? weight_row(expert.w2, first + o, p.inter) : no_weights(); }, p.inter,
        (float *)shared,
        [&](int i, int o, float one, float two) {
            if (i >= tile.count) return;
            float *to = p.results + pair_at(p, tile, i) * hidden + first + o;
            if (first + o < hidden) to[0] = one;
            if (first + o + 1 < hidden) to[1] = two;
        }
    );
}

// Grid: channels, rows. A row without an expert gives zeros.
KERNEL_BOUNDED(hotseam_moe_sum, ExpertsParams, 256) {
    long long hidden = p.args.x.shape[1], d = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (d >= hidden) return;
    const float *weights = p.args.weights + (long long)p.row_begin * p.args.topk;
    int pair = blockIdx.y * p.args.topk;
    float sum = 0.0f;
    for (unsigned k = 0; k < p.args.topk; k++, pair++) {
        if (expert_of(p, pair) < 0) continue;
        sum = fmaf(weights[pair] * p.args.routed_scale, p.results[pair * hidden + d], sum);
    }
    ((float *)p.args.out.data)[(long long)(p.row_begin + blockIdx.y) * hidden + d] = sum;
}
