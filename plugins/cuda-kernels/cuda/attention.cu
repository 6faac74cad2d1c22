// The stock attention seam: `store`, `compress` and `core`.
#include "compress.cuh"
#include "core.cuh"
#include "core_mma.cuh"

struct StoreParams {
    HotseamStoreArgs args;
    HotseamBatch batch;
};

template <unsigned N> DEVICE void store_row(const StoreParams &p, long long row, long long position, Entry entry) {
    unsigned dim = p.args.pool.dim;
    WarpRow<N> values = row_load<N>((const float *)p.args.kv.data + row * dim, dim);
    row_norm(values, dim, (const float *)p.args.norm_weight.data, p.args.norm_eps);
    row_rope(values, dim, p.args.rope, position);
    row_encode(values, p.args.pool, entry);
}

// A warp for each row.
KERNEL_BOUNDED(hotseam_attention_store, StoreParams, 128) {
    long long row = (long long)blockIdx.x * (blockDim.x / 32) + warp_id();
    if (row >= p.batch.n_rows) return;
    long long position = p.batch.positions[row];
    Entry entry = pool_entry(p.args.pool, p.args.out_slots[row]);
    if (entry.data == nullptr || position < 0 || position >= p.args.rope.cos.shape[0]) return;
    if (p.args.pool.dim <= 128) {
        store_row<1>(p, row, position, entry);
    } else if (p.args.pool.dim <= 512) {
        store_row<4>(p, row, position, entry);
    } else {
        store_row<8>(p, row, position, entry);
    }
}

KERNEL_BOUNDED(hotseam_attention_compress, CompressParams, COMPRESS_THREADS) {
    SHARED Pooled shared[COMPRESS_THREADS];
    compress_block(p, shared);
}

// Grid: tiles of heads, parts, rows. One part of the keys for each block, or all of them where `partial` is null.
KERNEL_BOUNDED(hotseam_attention_core, CoreParams, CORE_THREADS) {
    SHARED CoreShared shared;
    core_block(p, shared);
}

KERNEL_BOUNDED(hotseam_attention_core_mma, CoreParams, MMA_THREADS_MOST) {
    DYNAMIC_SHARED(unsigned char, bytes);
    mma_block(p, bytes);
}

// Joins the parts of a row and head; a warp for each.
KERNEL_BOUNDED(hotseam_attention_core_join, CoreParams, 128) { core_join(p); }
