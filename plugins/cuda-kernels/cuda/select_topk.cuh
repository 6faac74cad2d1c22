// `indexer.select`: the best entries of a row by its scores. The k-th best score is found by its bits, a few at a time from
// the highest on; then entries above it are taken, and of those that equal it the lowest. Ids come in rising order.
#pragma once

#include "select.cuh"

#define TOPK_THREADS 512
#define TOPK_BINS 2048

struct TopkShared {
    unsigned counts[TOPK_BINS];
    int scratch[WARPS_MOST];
    unsigned bin, wanted;
};

// A number that sorts as scores should; NaN below everything.
DEVICE unsigned topk_key(float score) {
    unsigned bits = __float_as_uint(score);
    return score != score ? 0u : bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

// Counts the keys whose bits above `shift + bits` are those of `found`, by their next `bits`; then the bin of the
// `wanted`-th largest, and how many are wanted of that bin.
DEVICE void topk_pass(
    const float *scores, unsigned n, unsigned shift, unsigned bits, unsigned &found, unsigned &wanted, TopkShared &shared
) {
    for (unsigned i = threadIdx.x; i < TOPK_BINS; i += TOPK_THREADS) shared.counts[i] = 0;
    __syncthreads();
    unsigned top = shift + bits;
    for (unsigned i = threadIdx.x; i < n; i += TOPK_THREADS) {
        unsigned key = topk_key(scores[i]);
        bool of = top == 32 || key >> (top & 31u) == found;
        if (of) atomicAdd(&shared.counts[key >> shift & ((1u << bits) - 1)], 1u);
    }
    __syncthreads();
    constexpr unsigned EACH = TOPK_BINS / TOPK_THREADS;
    unsigned highest = TOPK_BINS - 1 - threadIdx.x * EACH;
    int mine = 0, total;
#pragma unroll
    for (unsigned i = 0; i < EACH; i++) mine += (int)shared.counts[highest - i];
    unsigned before = (unsigned)block_scan(mine, shared.scratch, total);
    if (before < wanted && wanted <= before + (unsigned)mine) {
        for (unsigned i = 0; i < EACH; i++) {
            unsigned count = shared.counts[highest - i];
            if (wanted <= before + count) {
                shared.bin = highest - i;
                shared.wanted = wanted - before;
                break;
            }
            before += count;
        }
    }
    __syncthreads();
    found = found << bits | shared.bin;
    wanted = shared.wanted;
    __syncthreads();
}

DEVICE void topk_block(const SelectParams &p, TopkShared &shared) {
    long long row = blockIdx.x;
    if (row >= p.rows || p.first_row + row >= p.batch.n_rows) return;
    unsigned topk = p.args.topk;
    long long complete = select_complete(p, row);
    unsigned n = complete < 0 ? 0 : (unsigned)complete;
    int *ids = p.args.ids + (p.first_row + row) * topk;
    if (n <= topk) {
        for (unsigned i = threadIdx.x; i < topk; i += TOPK_THREADS) ids[i] = i < n ? (int)i : -1;
        return;
    }
    const float *scores = p.scores + row * p.width;
    unsigned least = 0, ties = topk;
    if (topk == 0) return;
    topk_pass(scores, n, 21, 11, least, ties, shared);
    topk_pass(scores, n, 10, 11, least, ties, shared);
    topk_pass(scores, n, 0, 10, least, ties, shared);
    // Entries above the least key, and entries that equal it, of all threads before; the latter count up to `ties`.
    unsigned above = 0, equal = 0;
    for (unsigned base = 0; base < n; base += 4 * TOPK_THREADS) {
        unsigned first = base + 4 * threadIdx.x, keys[4];
        int mine = 0, total;
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            bool there = first + i < n;
            keys[i] = there ? topk_key(scores[first + i]) : 0;
            // Both counts in one word: a block has no more than 2048 of either at once.
            mine += (there && keys[i] > least ? 1 : 0) + (there && keys[i] == least ? 1 << 16 : 0);
        }
        unsigned before = (unsigned)block_scan(mine, shared.scratch, total);
        unsigned my_above = above + (before & 0xffffu), my_equal = equal + (before >> 16);
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            if (first + i >= n) continue;
            if (keys[i] > least || (keys[i] == least && my_equal < ties)) {
                ids[my_above + min(my_equal, ties)] = (int)(first + i);
            }
            my_above += (unsigned)(keys[i] > least);
            my_equal += (unsigned)(keys[i] == least);
        }
        above += (unsigned)total & 0xffffu;
        equal += (unsigned)total >> 16;
    }
}
