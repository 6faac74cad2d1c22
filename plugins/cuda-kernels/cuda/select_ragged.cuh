// `indexer.select`: lengths of rows for whoever chooses among their scores instead of `topk_block`.
#pragma once

#include "select.cuh"

#define RAGGED_THREADS 256

struct RaggedParams {
    SelectParams select;
    // Each `[rows]`.
    int *lengths, *offsets;
};

// Grid: blocks that share the scores of a row, rows. Others order NaN as its bits say, or not at all; here it is below everything.
DEVICE void ragged_block(const RaggedParams &p) {
    long long row = blockIdx.y;
    long long complete = select_complete(p.select, row);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.lengths[row] = complete < 0 ? 0 : (int)complete;
        p.offsets[row] = 0;
    }
    if (complete <= (long long)p.select.args.topk) return;
    float *scores = p.select.scores + row * p.select.width;
    for (long long i = (long long)blockIdx.x * RAGGED_THREADS + threadIdx.x; i < complete; i += (long long)gridDim.x * RAGGED_THREADS) {
        float score = scores[i];
        if (score != score) scores[i] = -HOTSEAM_INFINITY;
    }
}
