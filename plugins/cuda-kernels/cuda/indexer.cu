// The stock indexer seam: `compress` and `select`. Selecting goes by kernels over some rows at a time: queries and head
// weights, scores of all complete entries, and the choice among them.
#include "compress.cuh"
#include "select.cuh"
#include "select_ragged.cuh"
#include "select_scores.cuh"
#include "select_topk.cuh"

KERNEL_BOUNDED(hotseam_indexer_compress, CompressParams, COMPRESS_THREADS) {
    SHARED Pooled shared[COMPRESS_THREADS];
    compress_block(p, shared);
}

// Grid: outputs of blocks, rows by `FEW_ROWS_MOST`.
KERNEL_BOUNDED(hotseam_indexer_project_few, SelectParams, PROJECT_FEW_THREADS) {
    SHARED float4 shared[FEW_SHARED(FEW_ROWS_MOST) / 4];
    project_few(p, (float *)shared);
}

// Grid: tiles of outputs, rows by `STREAM_ROWS`.
KERNEL_BOUNDED(hotseam_indexer_project_stream, SelectParams, STREAM_THREADS) {
    SHARED uint4 memory[STREAM_SHARED / 16];
    SHARED const float *rows[STREAM_ROWS];
    project_stream(p, (unsigned char *)memory, rows);
}

// Grid: tiles of outputs, tiles of rows.
KERNEL_BOUNDED(hotseam_indexer_project_many, SelectParams, TILE_THREADS) {
    SHARED float4 shared[TILE_SHARED / 4];
    project_many(p, (float *)shared);
}

// A warp for each row and head.
KERNEL_BOUNDED(hotseam_indexer_queries, SelectParams, 128) { select_queries(p); }

// Grid: blocks that share the tiles of entries, rows.
KERNEL_BOUNDED(hotseam_indexer_scores, SelectParams, SCORES_THREADS) {
    SHARED float4 shared[SCORES_SHARED / 4];
    scores_block(p, (float *)shared);
}

// As `hotseam_indexer_scores`, on tensor cores.
KERNEL_BOUNDED(hotseam_indexer_scores_mma, SelectParams, SCORES_THREADS) {
    DYNAMIC_SHARED(unsigned, words);
    scores_mma_block(p, words);
}

// A block for each row.
KERNEL_BOUNDED(hotseam_indexer_choose, SelectParams, TOPK_THREADS) {
    SHARED TopkShared shared;
    topk_block(p, shared);
}

// Grid: blocks that share the scores of a row, rows.
KERNEL_BOUNDED(hotseam_indexer_ragged, RaggedParams, RAGGED_THREADS) { ragged_block(p); }
