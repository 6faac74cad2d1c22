/* The plugin contract of Hotseam in C: generated from abi/contract/src by its tests, and checked by them. Do not
 * edit. */
#ifndef HOTSEAM_ARGS_H
#define HOTSEAM_ARGS_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Phases of a step. A step has one phase; rows of different phases are never mixed in one call. */
/** Prompt tokens, possibly one chunk of several. */
#define HOTSEAM_PHASE_PREFILL 0u
/** One new token a sequence. */
#define HOTSEAM_PHASE_DECODE 1u
/** Several drafted tokens a sequence. */
#define HOTSEAM_PHASE_VERIFY 2u

/** Classes of layers, by compression ratio. */
/** Ratio 0: sliding window only. */
#define HOTSEAM_LAYER_CLASS_WINDOW 0u
/** Ratio 4: window, plus the compressed entries that the indexer selects. */
#define HOTSEAM_LAYER_CLASS_CSA 1u
/** Ratio 128: window, plus all compressed entries. */
#define HOTSEAM_LAYER_CLASS_HCA 2u

/** Bytes of `StepCtx::workspace` that every call on a device can count on. */
#define HOTSEAM_MIN_WORKSPACE ((uint64_t)32 << 20)

/** What is the same for every call of one layer in one step. */
struct HotseamStepCtx {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** One of `phase`. */
    uint32_t phase;
    /** Layer number in the checkpoint, from 0. `u32::MAX` for calls outside the layers (`mhc.head`, transport). */
    uint32_t layer;
    /** One of `layer_class`. */
    uint32_t layer_class;
    /** Tensor-parallel rank of this process and number of ranks. */
    uint32_t rank;
    /** Number of ranks; heads and experts in the arguments are this rank's. */
    uint32_t world;
    /** Step number of the engine, rising by one; for logs. */
    uint64_t step;
    /** Device stream, 0 on the CPU. */
    uint64_t stream;
    /** Device memory for the call's own use, aligned to 256 bytes; its content is undefined. Null on the CPU. */
    void *workspace;
    /** Bytes of `workspace`: at least `MIN_WORKSPACE` on a device, 0 on the CPU. */
    uint64_t workspace_bytes;
    /** Services of the host; valid for the whole process. */
    const HotseamHostServicesV1 *host;
};

/** The rows of one sequence in a batch: `row_count` consecutive rows with consecutive positions. */
struct HotseamSeqSpan {
    /** First row of the sequence. */
    uint32_t row_begin;
    /** Number of rows, at least 1. */
    uint32_t row_count;
    /** Position of the first row in its sequence, from 0. */
    uint32_t position;
    /** Number of the prefill chunk these rows are, from 0; in decode the number of chunks that prefilled it. */
    uint32_t chunk;
};

/** A ragged batch: every row is one (sequence, position). */
struct HotseamBatch {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Number of rows; all `[rows, ..]` tensors have this many. */
    uint32_t n_rows;
    /** Number of sequences. */
    uint32_t n_seqs;
    /** `[rows]` position of each row in its sequence; -1 marks a padded row. */
    const int32_t *positions;
    /** `[rows]` index into `seqs`. */
    const int32_t *row_seq;
    /** `[n_seqs]`. */
    const HotseamSeqSpan *seqs;
};

/** Rotary tables of one layer, made by the host as `transformers` makes them (f32 products; design decision 9).
 *  Interleaved pairs: channel `2i` and `2i+1` of the *last* `2 * shape[1]` channels are rotated by row `position`. */
struct HotseamRopeTables {
    /** `[max_positions, rope_dim / 2]` cosines. */
    HotseamTensorRef cos;
    /** `[max_positions, rope_dim / 2]` sines. */
    HotseamTensorRef sin;
};

/** A pool of KV entries of one layer and component.
 *
 *  A page holds the data parts of its `entries_per_page` entries one after another, then their scale parts one after
 *  another, then padding that nobody reads or writes. With `slot = page * entries_per_page + i` the parts of an entry are
 *  `data_bytes` at `page * page_bytes + i * data_bytes`, and `scale_bytes` at
 *  `page * page_bytes + entries_per_page * data_bytes + i * scale_bytes`. */
struct HotseamPoolRef {
    /** `[pages, page_bytes]` bytes (`dtype::U8`). */
    HotseamTensorRef bytes;
    /** One of `layout`; what the bytes mean. */
    uint32_t layout;
    /** Entries in a page. */
    uint32_t entries_per_page;
    /** Values of an entry. */
    uint32_t dim;
    /** How many of them, the last ones, are roped. */
    uint32_t rope_dim;
    /** Bytes of the data part of an entry: that of `layout` at `dim` and `rope_dim`, for those who only move entries. */
    uint32_t data_bytes;
    /** Bytes of the scale part of an entry, 0 for layouts without scales. */
    uint32_t scale_bytes;
    /** `[n_seqs, table_width]` page of each sequence's n-th page of entries, -1 where none is mapped. Null in calls
     *  that write by explicit slots. */
    const int32_t *table;
    /** Row length of `table`. */
    uint32_t table_width;
};

/** `attention.store`: norm, rope and store the window KV of each row.
 *
 *  `entry = rope(rms_norm(kv) * norm_weight)`, written to `out_slots[row]` of `pool` in the pool's layout. Writes
 *  nowhere else. Slots are distinct. Source: transformers `DeepseekV4Attention.forward` (`kv_norm`, rope). */
struct HotseamStoreArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Epsilon of the norm. */
    float norm_eps;
    /** The rows. */
    const HotseamBatch *batch;
    /** `[rows, head_dim]` output of `wkv`, before the norm. */
    HotseamTensorRef kv;
    /** `[head_dim]` weight of `kv_norm`. */
    HotseamTensorRef norm_weight;
    /** Tables of this layer. */
    HotseamRopeTables rope;
    /** `[rows]` slot in `pool`; -1 writes nothing. */
    const int32_t *out_slots;
    /** Window pool of this layer. */
    HotseamPoolRef pool;
};

/** `attention.compress` and `indexer.compress`: close groups of `ratio` tokens into one entry each, and keep the rows
 *  that later groups need.
 *
 *  For entry `e`, source list `s = sources[e * width ..][.. width]`, `width = ratio * (1 + overlap)`:
 *  per channel `d < dim`, softmax over the sources' scores and the weighted sum of their kv. With `overlap` the first
 *  `ratio` sources are the previous group and give channels `[0, dim)`, the last `ratio` are the closing group and give
 *  `[dim, 2 dim)`; without, each source gives `[0, dim)`. Then RMS norm with weight, rope at `entry_positions[e]`, and
 *  the store to `out_slots[e]`. A source is: `i >= 0` row `i` of this batch (score = `gate + ape[position % ratio]`);
 *  -1 absent (kv 0, score -inf); `i <= -2` state row `-(i + 2)`.
 *  Every row with `state_dst[row] >= 0` writes `[kv | gate + ape]` to that state row. State rows that are read are never
 *  among those written (design decision 2), so the order of reads and writes is free.
 *  Source: transformers `DeepseekV4CSACompressor`, `DeepseekV4HCACompressor`, `DeepseekV4Indexer`. */
struct HotseamCompressArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Tokens in a group: 4 or 128. */
    uint32_t ratio;
    /** 1 if groups overlap (ratio 4), else 0. */
    uint32_t overlap;
    /** Number of entries to write. */
    uint32_t n_entries;
    /** Epsilon of the norm. */
    float norm_eps;
    /** The rows. */
    const HotseamBatch *batch;
    /** `[rows, (1 + overlap) * dim]` projected kv. */
    HotseamTensorRef kv;
    /** `[rows, (1 + overlap) * dim]` projected gate, without `ape`. */
    HotseamTensorRef gate;
    /** `[ratio, (1 + overlap) * dim]` added to the gate at `position % ratio`. */
    HotseamTensorRef ape;
    /** `[dim]` weight of the compressor's norm. */
    HotseamTensorRef norm_weight;
    /** Tables of this layer. */
    HotseamRopeTables rope;
    /** `[n_entries, width]` sources. */
    const int32_t *sources;
    /** `[n_entries]` position for rope: the first token of the group. */
    const int32_t *entry_positions;
    /** `[n_entries]` slot in `pool`; on a device -1 marks a padded entry, of which nothing is read or written. */
    const int32_t *out_slots;
    /** `[rows]` state row to write, or -1. */
    const int32_t *state_dst;
    /** `[state_rows, 2 * (1 + overlap) * dim]` rows of `[kv | score]`. */
    HotseamTensorRef state;
    /** Pool of the entries. */
    HotseamPoolRef pool;
};

/** `attention.core`: one joint softmax over window, compressed entries and sink.
 *
 *  Row `r` at position `p` attends window positions `max(0, p - window + 1) ..= p` of its sequence and the compressed
 *  entries in `ids[r]` (without -1), or, when `ids` is null and `ratio > 0`, all entries `0 .. (p + 1) / ratio`.
 *  K and V are the same entry, shared by all heads. The sink adds `exp(sinks[h])` to the denominator and nothing to the
 *  sum. A row with nothing to attend gives zeros. Order of `ids` does not matter; they are distinct and causal.
 *  Source: transformers `eager_attention_forward`; SGLang `forward_c4_indexer` for the index form. */
struct HotseamCoreArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Window in tokens, the row itself included. */
    uint32_t window;
    /** Compression ratio of the layer; 0 means no compressed entries. */
    uint32_t ratio;
    /** Row length of `ids`. */
    uint32_t ids_width;
    /** Softmax scale, `head_dim^-1/2`. */
    float scale;
    /** The rows. */
    const HotseamBatch *batch;
    /** `[rows, heads, head_dim]` queries, normed and roped. */
    HotseamTensorRef q;
    /** `[heads]` sink logits. */
    HotseamTensorRef sinks;
    /** Window pool; entry number = position. */
    HotseamPoolRef swa;
    /** Pool of compressed entries; ignored when `ratio` is 0. */
    HotseamPoolRef entries;
    /** `[rows, ids_width]` logical entry numbers, -1 padded; null for "all complete entries". */
    const int32_t *ids;
    /** Tables of this layer, for variants that take over the inverse rope. */
    HotseamRopeTables rope;
    /** `[rows, heads, head_dim]` output. */
    HotseamTensorRef out;
};

/** `indexer.select`: score all complete entries of each row's sequence and keep the best `topk`.
 *
 *  `score[j] = sum_h w_h * relu(q_h . key_j) * index_dim^-1/2 * heads^-1/2`, `q = rope(wq_b q_lora)`,
 *  `w = weights_proj x`. Entries are `j < (position + 1) / 4`. Weights are signed, so a score of 0 is not "minus
 *  infinity". If there are at most `topk` entries, all are returned. Unused places of `ids` are -1, after the used ones.
 *  Ties may be broken either way; NaN scores are never selected before a number.
 *  Source: transformers `DeepseekV4Indexer`, `DeepseekV4IndexerScorer`. */
struct HotseamSelectArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Compression ratio of the layer (4). */
    uint32_t ratio;
    /** Number of index heads of this rank. */
    uint32_t heads;
    /** Entries to keep a row. */
    uint32_t topk;
    /** Row length of `scores`. */
    uint32_t scores_width;
    /** The rows. */
    const HotseamBatch *batch;
    /** `[rows, q_lora_rank]` normed low-rank query. */
    HotseamTensorRef q_lora;
    /** `[rows, hidden]` input of the attention block. */
    HotseamTensorRef x;
    /** `[heads * index_dim, q_lora_rank]`. */
    HotseamWeightRef wq_b;
    /** `[heads, hidden]` f32 or bf16. */
    HotseamTensorRef weights_proj;
    /** Tables of this layer. */
    HotseamRopeTables rope;
    /** Pool of index keys. */
    HotseamPoolRef keys;
    /** `[rows, topk]` logical entry numbers, -1 padded. */
    int32_t *ids;
    /** `[rows, scores_width]` all scores, a tap for evidence; null when not wanted. Entries past the last are untouched. */
    float *scores;
};

/** `moe.route`: choose experts and weights for each row.
 *
 *  `s = sqrt(softplus(gate x))` in f32. With `tid2eid`: ids = `tid2eid[input_id]`; else the `topk` largest of
 *  `s + bias`. Weights are the un-biased `s` at the ids, divided by their sum (+1e-20), times `routed_scale` only if the
 *  variant declares `capability` for this kind of layer. Padded rows get ids -1 and weights 0.
 *  Source: transformers `DeepseekV4TopKRouter`, `DeepseekV4HashRouter`. */
struct HotseamRouteArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Experts to choose a row. */
    uint32_t topk;
    /** `routed_scaling_factor` of the checkpoint. */
    float routed_scale;
    /** The rows. */
    const HotseamBatch *batch;
    /** `[rows, hidden]`. */
    HotseamTensorRef x;
    /** `[n_experts, hidden]` f32 or bf16. */
    HotseamTensorRef gate;
    /** `[n_experts]` correction bias; absent in hash layers. */
    HotseamTensorRef bias;
    /** `[vocab, topk]` i32 expert table; absent in top-k layers. */
    HotseamTensorRef tid2eid;
    /** `[rows]` token ids. */
    const int32_t *input_ids;
    /** `[rows, topk]` expert numbers. */
    int32_t *ids;
    /** `[rows, topk]` weights. */
    float *weights;
};

/** One routed expert: `w2( silu(min(w1 x, limit)) * clamp(w3 x, -limit, limit) )`. The three matrices may differ in format
 *  and in their factors. */
struct HotseamExpertRef {
    /** Gate projection `[inter, hidden]`. */
    HotseamWeightRef w1;
    /** Down projection `[hidden, inter]`. */
    HotseamWeightRef w2;
    /** Up projection `[inter, hidden]`. */
    HotseamWeightRef w3;
};

/** `moe.experts`: run the chosen experts and sum them by weight.
 *
 *  `out[r] = routed_scale * sum_k weights[r,k] * expert(ids[r,k], x[r])`. Ids of -1 are skipped.
 *  `routed_scale` is what is left to apply: 1 if `route` applied it already. The result is this rank's partial sum. */
struct HotseamExpertsArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Experts chosen a row. */
    uint32_t topk;
    /** Number of entries in `experts`. */
    uint32_t n_experts;
    /** `swiglu_limit` of the checkpoint; infinity for none. */
    float swiglu_limit;
    /** Factor still to be applied. */
    float routed_scale;
    /** The rows. */
    const HotseamBatch *batch;
    /** `[rows, hidden]`. */
    HotseamTensorRef x;
    /** `[rows, topk]`. */
    const int32_t *ids;
    /** `[rows, topk]`. */
    const float *weights;
    /** `[n_experts]`, in host memory. */
    const HotseamExpertRef *experts;
    /** The same array in device memory; null on the CPU. */
    const HotseamExpertRef *experts_device;
    /** `[rows, hidden]` output, overwritten. */
    HotseamTensorRef out;
};

/** `mhc.pre`: collapse the residual streams into the input of a block, and make the weights of `mhc.post`.
 *
 *  `m = fn . (flat(streams) * rsqrt(mean(flat^2) + norm_eps))`; `pre = sigmoid(m[..hc] * scale0 + base) + hc_eps`;
 *  `post = 2 sigmoid(m[hc..2hc] * scale1 + base)`; `comb = softmax_rows(m[2hc..] * scale2 + base) + hc_eps`, one column
 *  normalisation, then `iters - 1` times row and column, each dividing by (sum + hc_eps). `x = sum_i pre_i streams_i`;
 *  if the variant declares `NORM_FUSED`, `x` is RMS-normed with `next_norm` as well.
 *  Source: transformers `DeepseekV4HyperConnection`. */
struct HotseamMhcPreArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Sinkhorn iterations. */
    uint32_t iters;
    /** Floor added in the gates and the normalisations. */
    float hc_eps;
    /** Epsilon of the RMS norms. */
    float norm_eps;
    /** The rows. */
    const HotseamBatch *batch;
    /** `[rows, hc, hidden]` residual streams. */
    HotseamTensorRef streams;
    /** `[(2 + hc) * hc, hc * hidden]` f32. */
    HotseamTensorRef fn_weight;
    /** `[(2 + hc) * hc]`. */
    HotseamTensorRef base;
    /** `[3]`. */
    HotseamTensorRef scale;
    /** `[hidden]` weight of the norm that follows; only read by variants that fuse it. */
    HotseamTensorRef next_norm;
    /** `[rows, hidden]` output. */
    HotseamTensorRef x;
    /** `[rows, hc]` output. */
    HotseamTensorRef post;
    /** `[rows, hc, hc]` output. */
    HotseamTensorRef comb;
};

/** `mhc.post`: `out_k = post_k * f + sum_i comb[i, k] * streams_i` (the first index of `comb` is summed).
 *
 *  `out` is either exactly `streams` (in place) or disjoint from it. Source: transformers `DeepseekV4DecoderLayer`. */
struct HotseamMhcPostArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** The rows. */
    const HotseamBatch *batch;
    /** `[rows, hidden]` output of the block. */
    HotseamTensorRef f;
    /** `[rows, hc, hidden]` residual streams. */
    HotseamTensorRef streams;
    /** `[rows, hc]` from `mhc.pre`. */
    HotseamTensorRef post;
    /** `[rows, hc, hc]` from `mhc.pre`. */
    HotseamTensorRef comb;
    /** `[rows, hc, hidden]` output. */
    HotseamTensorRef out;
};

/** `mhc.head`: the last collapse. `x = sum_i (sigmoid(m_i * scale + base_i) + hc_eps) streams_i`, `m` as in `mhc.pre`.
 *
 *  Source: transformers `DeepseekV4HyperHead`. */
struct HotseamMhcHeadArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Floor added to the gate. */
    float hc_eps;
    /** Epsilon of the RMS norm. */
    float norm_eps;
    /** The rows. */
    const HotseamBatch *batch;
    /** `[rows, hc, hidden]`. */
    HotseamTensorRef streams;
    /** `[hc, hc * hidden]` f32. */
    HotseamTensorRef fn_weight;
    /** `[hc]`. */
    HotseamTensorRef base;
    /** `[1]`. */
    HotseamTensorRef scale;
    /** `[rows, hidden]` output. */
    HotseamTensorRef x;
};

/** Components that a KV hand-off moves. */
/** Window entries. */
#define HOTSEAM_COMPONENT_SWA 0u
/** Ratio-4 attention entries. */
#define HOTSEAM_COMPONENT_C4 1u
/** Ratio-128 attention entries. */
#define HOTSEAM_COMPONENT_C128 2u
/** Index keys. */
#define HOTSEAM_COMPONENT_INDEX_KEYS 3u
/** Compressor state rows of ratio-4 attention. */
#define HOTSEAM_COMPONENT_C4_STATE 4u
/** Compressor state rows of ratio-128 attention. */
#define HOTSEAM_COMPONENT_C128_STATE 5u
/** Compressor state rows of the indexer. */
#define HOTSEAM_COMPONENT_INDEX_STATE 6u

/** A component of one layer: `items` of equal size. Where the two sides are in two processes each registers its own, and
 *  the side that is elsewhere is null and has no items. */
struct HotseamRegion {
    /** One of `component`. */
    uint32_t component;
    /** Layer number in the checkpoint. */
    uint32_t layer;
    /** First byte of item 0 on the sending side. */
    const uint8_t *src;
    /** First byte of item 0 on the receiving side. */
    uint8_t *dst;
    /** Bytes of one item (a page of entries, or a state row). */
    uint64_t item_bytes;
    /** Items on the sending side. */
    uint64_t src_items;
    /** Items on the receiving side. */
    uint64_t dst_items;
    /** Byte of `src_fd` at which `src` lies. */
    uint64_t src_offset;
    /** File of shared memory that the sending side lies in, for transports that map it into another process; -1 for none.
     *  It stays the host's and open until the next register. */
    int32_t src_fd;
};

/** `kv_transport.register`: names all regions once, before the first put; a second call replaces them.
 *  May allocate. The regions stay valid until the next register or the end of the instance. */
struct HotseamRegisterArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Number of regions. */
    uint32_t n_regions;
    /** `[n_regions]`. */
    const HotseamRegion *regions;
};

/** `kv_transport.put`: start to move items of one component and layer for one request.
 *
 *  Item `src_items[i]` is copied to `dst_items[i]`. Completion is seen by `poll`; until then the source must not
 *  change and the destination must not be read. Puts of one room may complete in any order. A put that cannot be made
 *  because of the other side is no error of the call: its ticket fails. */
struct HotseamPutArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** One of `component`. */
    uint32_t component;
    /** Layer number in the checkpoint. */
    uint32_t layer;
    /** Number of items. */
    uint32_t n_items;
    /** `bootstrap_room` of the request. */
    uint64_t room;
    /** `[n_items]`. */
    const int32_t *src_items;
    /** `[n_items]`. */
    const int32_t *dst_items;
    /** Set to a ticket that is unique for the instance. */
    uint64_t *ticket;
    /** Number of the receiving side, as `connect` gave it; 0 for the one that is registered with this instance. */
    uint64_t peer;
};

/** States of a transfer. A state only rises; `FAILED` is final. */
/** Accepted, not complete. */
#define HOTSEAM_TRANSFER_PENDING 0u
/** All bytes are in place. */
#define HOTSEAM_TRANSFER_DONE 1u
/** Given up; the destination holds anything. */
#define HOTSEAM_TRANSFER_FAILED 2u

/** `kv_transport.poll`: state of a ticket. Tickets are forgotten after they were reported done or failed. The reason of a
 *  failure, if there is one to tell, is given to `HostServicesV1::error` in the call that reports it. */
struct HotseamPollArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Set to one of `transfer`. */
    uint32_t state;
    /** The ticket asked for. */
    uint64_t ticket;
    /** Set to the bytes moved so far. */
    uint64_t bytes;
};

/** `kv_transport.endpoint`: where other instances of the transport reach the receiving side of this one. May allocate, and
 *  begins to listen where it did not. */
struct HotseamEndpointArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** Bytes that `text` has room for. */
    uint32_t capacity;
    /** `[capacity]` set to UTF-8 text that only this transport reads, in one line. */
    uint8_t *text;
    /** Set to its bytes. */
    uint32_t len;
};

/** `kv_transport.connect`: names a receiving side in another instance. Must not wait for it: what cannot be reached fails the
 *  tickets of its puts. The same text gives the same number. */
struct HotseamConnectArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** What the other instance's `endpoint` gave. */
    HotseamText endpoint;
    /** Set to the number for `PutArgs::peer`, at least 1. */
    uint64_t peer;
};

/** `kv_transport.accept`: from now on other instances may write these items for a room. Nothing else is ever written.
 *  Called once for each component and layer of a room, before the other side learns of them. */
struct HotseamAcceptArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** One of `component`. */
    uint32_t component;
    /** Layer number in the checkpoint. */
    uint32_t layer;
    /** Number of items. */
    uint32_t n_items;
    /** `bootstrap_room` of the request. */
    uint64_t room;
    /** `[n_items]` on the receiving side. */
    const int32_t *items;
};

/** `kv_transport.close`: ends a room on the receiving side. After it returns nothing is written for the room. A room that is
 *  not known has no items. */
struct HotseamCloseArgs {
    /** Bytes of this struct known to the host. */
    uint32_t size;
    /** `bootstrap_room` of the request. */
    uint64_t room;
    /** Set to the number of items that were written whole, each counted once. */
    uint64_t items;
};

#ifdef __cplusplus
}
#endif

#endif
