// `moe.experts`: the pairs of rows and experts, and the tiles that they are grouped into.
#pragma once

#include "gemm.cuh"

struct ExpertsParams {
    HotseamExpertsArgs args;
    HotseamBatch batch;
    // The rows of this call: a chunk of the batch.
    unsigned row_begin;
    unsigned rows;
    // Inner width of an expert.
    unsigned inter;
    // Most pairs of a tile.
    unsigned tile_pairs;
    // `[rows * topk]` pairs, sorted by expert; null if every pair is a tile of its own.
    int *order;
    // Number of tiles, then expert, first place in `order` and number of pairs of each.
    int *tiles;
    // `[rows * topk, inter]`, `[rows * topk, hidden]`, by pair.
    float *inner;
    float *results;
};

DEVICE int expert_of(const ExpertsParams &p, int pair) {
    int id = p.args.ids[(long long)p.row_begin * p.args.topk + pair];
    return id >= 0 && id < (int)p.args.n_experts ? id : -1;
}

// A tile: pairs of one expert.
struct Tile {
    int expert;
    int begin;
    int count;
};

// Tile `i`, without pairs if there is none.
DEVICE Tile tile_at(const ExpertsParams &p, int i) {
    if (p.order == nullptr) {
        int expert = expert_of(p, i);
        return Tile{expert, i, expert >= 0 ? 1 : 0};
    }
    if (i >= p.tiles[0]) return Tile{-1, 0, 0};
    const int *t = p.tiles + 1 + 3 * i;
    return Tile{t[0], t[1], t[2]};
}

DEVICE int pair_at(const ExpertsParams &p, const Tile &tile, int i) {
    return p.order == nullptr ? tile.begin + i : p.order[tile.begin + i];
}

DEVICE const float *pair_input(const ExpertsParams &p, const Tile &tile, int i) {
    if (i >= tile.count) return nullptr;
    long long row = p.row_begin + pair_at(p, tile, i) / p.args.topk;
    return (const float *)p.args.x.data + row * p.args.x.shape[1];
}

DEVICE const float *pair_inner(const ExpertsParams &p, const Tile &tile, int i) {
    return i < tile.count ? p.inner + (long long)pair_at(p, tile, i) * p.inter : nullptr;
}
