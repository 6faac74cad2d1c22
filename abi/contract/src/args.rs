//! Argument structs of the step functions. Shapes are written `[rows, dim]`; all tensors are contiguous row-major
//! unless a field says otherwise, and f32 unless it names another dtype.

use crate::plugin::HostServicesV1;
use crate::{TensorRef, Text, WeightRef};
use abi_stable::StableAbi;
use core::ffi::c_void;

/// Phases of a step. A step has one phase; rows of different phases are never mixed in one call.
pub mod phase {
    /// Prompt tokens, possibly one chunk of several.
    pub const PREFILL: u32 = 0;
    /// One new token a sequence.
    pub const DECODE: u32 = 1;
    /// Several drafted tokens a sequence.
    pub const VERIFY: u32 = 2;
}

/// Classes of layers, by compression ratio.
pub mod layer_class {
    /// Ratio 0: sliding window only.
    pub const WINDOW: u32 = 0;
    /// Ratio 4: window, plus the compressed entries that the indexer selects.
    pub const CSA: u32 = 1;
    /// Ratio 128: window, plus all compressed entries.
    pub const HCA: u32 = 2;
}

/// Bytes of [`StepCtx::workspace`] that every call on a device can count on.
pub const MIN_WORKSPACE: u64 = 32 << 20;

/// What is the same for every call of one layer in one step.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct StepCtx {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// One of [`phase`].
    pub phase: u32,
    /// Layer number in the checkpoint, from 0. `u32::MAX` for calls outside the layers (`mhc.head`, transport).
    pub layer: u32,
    /// One of [`layer_class`].
    pub layer_class: u32,
    /// Tensor-parallel rank of this process and number of ranks.
    pub rank: u32,
    /// Number of ranks; heads and experts in the arguments are this rank's.
    pub world: u32,
    /// Step number of the engine, rising by one; for logs.
    pub step: u64,
    /// Device stream, 0 on the CPU.
    pub stream: u64,
    /// Device memory for the call's own use, aligned to 256 bytes; its content is undefined. Null on the CPU.
    pub workspace: *mut c_void,
    /// Bytes of `workspace`: at least [`MIN_WORKSPACE`] on a device, 0 on the CPU.
    pub workspace_bytes: u64,
    /// Services of the host; valid for the whole process.
    pub host: *const HostServicesV1,
}

/// The rows of one sequence in a batch: `row_count` consecutive rows with consecutive positions.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct SeqSpan {
    /// First row of the sequence.
    pub row_begin: u32,
    /// Number of rows, at least 1.
    pub row_count: u32,
    /// Position of the first row in its sequence, from 0.
    pub position: u32,
    /// Number of the prefill chunk these rows are, from 0; in decode the number of chunks that prefilled it.
    pub chunk: u32,
}

/// A ragged batch: every row is one (sequence, position).
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Batch {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Number of rows; all `[rows, ..]` tensors have this many.
    pub n_rows: u32,
    /// Number of sequences.
    pub n_seqs: u32,
    /// `[rows]` position of each row in its sequence; -1 marks a padded row.
    pub positions: *const i32,
    /// `[rows]` index into `seqs`.
    pub row_seq: *const i32,
    /// `[n_seqs]`.
    pub seqs: *const SeqSpan,
}

/// Rotary tables of one layer, made by the host as `transformers` makes them (f32 products; design decision 9).
/// Interleaved pairs: channel `2i` and `2i+1` of the *last* `2 * shape[1]` channels are rotated by row `position`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct RopeTables {
    /// `[max_positions, rope_dim / 2]` cosines.
    pub cos: TensorRef,
    /// `[max_positions, rope_dim / 2]` sines.
    pub sin: TensorRef,
}

/// A pool of KV entries of one layer and component.
///
/// A page holds the data parts of its `entries_per_page` entries one after another, then their scale parts one after
/// another, then padding that nobody reads or writes. With `slot = page * entries_per_page + i` the parts of an entry are
/// `data_bytes` at `page * page_bytes + i * data_bytes`, and `scale_bytes` at
/// `page * page_bytes + entries_per_page * data_bytes + i * scale_bytes`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct PoolRef {
    /// `[pages, page_bytes]` bytes ([`crate::dtype::U8`]).
    pub bytes: TensorRef,
    /// One of [`crate::layout`]; what the bytes mean.
    pub layout: u32,
    /// Entries in a page.
    pub entries_per_page: u32,
    /// Values of an entry.
    pub dim: u32,
    /// How many of them, the last ones, are roped.
    pub rope_dim: u32,
    /// Bytes of the data part of an entry: that of `layout` at `dim` and `rope_dim`, for those who only move entries.
    pub data_bytes: u32,
    /// Bytes of the scale part of an entry, 0 for layouts without scales.
    pub scale_bytes: u32,
    /// `[n_seqs, table_width]` page of each sequence's n-th page of entries, -1 where none is mapped. Null in calls
    /// that write by explicit slots.
    pub table: *const i32,
    /// Row length of `table`.
    pub table_width: u32,
}

impl PoolRef {
    /// The pool that is not there.
    pub const NONE: Self = Self {
        bytes: TensorRef::NONE,
        layout: 0,
        entries_per_page: 0,
        dim: 0,
        rope_dim: 0,
        data_bytes: 0,
        scale_bytes: 0,
        table: core::ptr::null(),
        table_width: 0,
    };
}

/// `attention.store`: norm, rope and store the window KV of each row.
///
/// `entry = rope(rms_norm(kv) * norm_weight)`, written to `out_slots[row]` of `pool` in the pool's layout. Writes
/// nowhere else. Slots are distinct. Source: transformers `DeepseekV4Attention.forward` (`kv_norm`, rope).
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct StoreArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Epsilon of the norm.
    pub norm_eps: f32,
    /// The rows.
    pub batch: *const Batch,
    /// `[rows, head_dim]` output of `wkv`, before the norm.
    pub kv: TensorRef,
    /// `[head_dim]` weight of `kv_norm`.
    pub norm_weight: TensorRef,
    /// Tables of this layer.
    pub rope: RopeTables,
    /// `[rows]` slot in `pool`; -1 writes nothing.
    pub out_slots: *const i32,
    /// Window pool of this layer.
    pub pool: PoolRef,
}

/// `attention.compress` and `indexer.compress`: close groups of `ratio` tokens into one entry each, and keep the rows
/// that later groups need.
///
/// For entry `e`, source list `s = sources[e * width ..][.. width]`, `width = ratio * (1 + overlap)`:
/// per channel `d < dim`, softmax over the sources' scores and the weighted sum of their kv. With `overlap` the first
/// `ratio` sources are the previous group and give channels `[0, dim)`, the last `ratio` are the closing group and give
/// `[dim, 2 dim)`; without, each source gives `[0, dim)`. Then RMS norm with weight, rope at `entry_positions[e]`, and
/// the store to `out_slots[e]`. A source is: `i >= 0` row `i` of this batch (score = `gate + ape[position % ratio]`);
/// -1 absent (kv 0, score -inf); `i <= -2` state row `-(i + 2)`.
/// Every row with `state_dst[row] >= 0` writes `[kv | gate + ape]` to that state row. State rows that are read are never
/// among those written (design decision 2), so the order of reads and writes is free.
/// Source: transformers `DeepseekV4CSACompressor`, `DeepseekV4HCACompressor`, `DeepseekV4Indexer`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct CompressArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Tokens in a group: 4 or 128.
    pub ratio: u32,
    /// 1 if groups overlap (ratio 4), else 0.
    pub overlap: u32,
    /// Number of entries to write.
    pub n_entries: u32,
    /// Epsilon of the norm.
    pub norm_eps: f32,
    /// The rows.
    pub batch: *const Batch,
    /// `[rows, (1 + overlap) * dim]` projected kv.
    pub kv: TensorRef,
    /// `[rows, (1 + overlap) * dim]` projected gate, without `ape`.
    pub gate: TensorRef,
    /// `[ratio, (1 + overlap) * dim]` added to the gate at `position % ratio`.
    pub ape: TensorRef,
    /// `[dim]` weight of the compressor's norm.
    pub norm_weight: TensorRef,
    /// Tables of this layer.
    pub rope: RopeTables,
    /// `[n_entries, width]` sources.
    pub sources: *const i32,
    /// `[n_entries]` position for rope: the first token of the group.
    pub entry_positions: *const i32,
    /// `[n_entries]` slot in `pool`; on a device -1 marks a padded entry, of which nothing is read or written.
    pub out_slots: *const i32,
    /// `[rows]` state row to write, or -1.
    pub state_dst: *const i32,
    /// `[state_rows, 2 * (1 + overlap) * dim]` rows of `[kv | score]`.
    pub state: TensorRef,
    /// Pool of the entries.
    pub pool: PoolRef,
}

/// `attention.core`: one joint softmax over window, compressed entries and sink.
///
/// Row `r` at position `p` attends window positions `max(0, p - window + 1) ..= p` of its sequence and the compressed
/// entries in `ids[r]` (without -1), or, when `ids` is null and `ratio > 0`, all entries `0 .. (p + 1) / ratio`.
/// K and V are the same entry, shared by all heads. The sink adds `exp(sinks[h])` to the denominator and nothing to the
/// sum. A row with nothing to attend gives zeros. Order of `ids` does not matter; they are distinct and causal.
/// Source: transformers `eager_attention_forward`; SGLang `forward_c4_indexer` for the index form.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct CoreArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Window in tokens, the row itself included.
    pub window: u32,
    /// Compression ratio of the layer; 0 means no compressed entries.
    pub ratio: u32,
    /// Row length of `ids`.
    pub ids_width: u32,
    /// Softmax scale, `head_dim^-1/2`.
    pub scale: f32,
    /// The rows.
    pub batch: *const Batch,
    /// `[rows, heads, head_dim]` queries, normed and roped.
    pub q: TensorRef,
    /// `[heads]` sink logits.
    pub sinks: TensorRef,
    /// Window pool; entry number = position.
    pub swa: PoolRef,
    /// Pool of compressed entries; ignored when `ratio` is 0.
    pub entries: PoolRef,
    /// `[rows, ids_width]` logical entry numbers, -1 padded; null for "all complete entries".
    pub ids: *const i32,
    /// Tables of this layer, for variants that take over the inverse rope.
    pub rope: RopeTables,
    /// `[rows, heads, head_dim]` output.
    pub out: TensorRef,
}

/// `indexer.select`: score all complete entries of each row's sequence and keep the best `topk`.
///
/// `score[j] = sum_h w_h * relu(q_h . key_j) * index_dim^-1/2 * heads^-1/2`, `q = rope(wq_b q_lora)`,
/// `w = weights_proj x`. Entries are `j < (position + 1) / 4`. Weights are signed, so a score of 0 is not "minus
/// infinity". If there are at most `topk` entries, all are returned. Unused places of `ids` are -1, after the used ones.
/// Ties may be broken either way; NaN scores are never selected before a number.
/// Source: transformers `DeepseekV4Indexer`, `DeepseekV4IndexerScorer`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct SelectArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Compression ratio of the layer (4).
    pub ratio: u32,
    /// Number of index heads of this rank.
    pub heads: u32,
    /// Entries to keep a row.
    pub topk: u32,
    /// Row length of `scores`.
    pub scores_width: u32,
    /// The rows.
    pub batch: *const Batch,
    /// `[rows, q_lora_rank]` normed low-rank query.
    pub q_lora: TensorRef,
    /// `[rows, hidden]` input of the attention block.
    pub x: TensorRef,
    /// `[heads * index_dim, q_lora_rank]`.
    pub wq_b: WeightRef,
    /// `[heads, hidden]` f32 or bf16.
    pub weights_proj: TensorRef,
    /// Tables of this layer.
    pub rope: RopeTables,
    /// Pool of index keys.
    pub keys: PoolRef,
    /// `[rows, topk]` logical entry numbers, -1 padded.
    pub ids: *mut i32,
    /// `[rows, scores_width]` all scores, a tap for evidence; null when not wanted. Entries past the last are untouched.
    pub scores: *mut f32,
}

/// `moe.route`: choose experts and weights for each row.
///
/// `s = sqrt(softplus(gate x))` in f32. With `tid2eid`: ids = `tid2eid[input_id]`; else the `topk` largest of
/// `s + bias`. Weights are the un-biased `s` at the ids, divided by their sum (+1e-20), times `routed_scale` only if the
/// variant declares [`crate::capability`] for this kind of layer. Padded rows get ids -1 and weights 0.
/// Source: transformers `DeepseekV4TopKRouter`, `DeepseekV4HashRouter`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct RouteArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Experts to choose a row.
    pub topk: u32,
    /// `routed_scaling_factor` of the checkpoint.
    pub routed_scale: f32,
    /// The rows.
    pub batch: *const Batch,
    /// `[rows, hidden]`.
    pub x: TensorRef,
    /// `[n_experts, hidden]` f32 or bf16.
    pub gate: TensorRef,
    /// `[n_experts]` correction bias; absent in hash layers.
    pub bias: TensorRef,
    /// `[vocab, topk]` i32 expert table; absent in top-k layers.
    pub tid2eid: TensorRef,
    /// `[rows]` token ids.
    pub input_ids: *const i32,
    /// `[rows, topk]` expert numbers.
    pub ids: *mut i32,
    /// `[rows, topk]` weights.
    pub weights: *mut f32,
}

/// One routed expert: `w2( silu(min(w1 x, limit)) * clamp(w3 x, -limit, limit) )`. The three matrices may differ in format
/// and in their factors.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct ExpertRef {
    /// Gate projection `[inter, hidden]`.
    pub w1: WeightRef,
    /// Down projection `[hidden, inter]`.
    pub w2: WeightRef,
    /// Up projection `[inter, hidden]`.
    pub w3: WeightRef,
}

/// `moe.experts`: run the chosen experts and sum them by weight.
///
/// `out[r] = routed_scale * sum_k weights[r,k] * expert(ids[r,k], x[r])`. Ids of -1 are skipped.
/// `routed_scale` is what is left to apply: 1 if `route` applied it already. The result is this rank's partial sum.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct ExpertsArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Experts chosen a row.
    pub topk: u32,
    /// Number of entries in `experts`.
    pub n_experts: u32,
    /// `swiglu_limit` of the checkpoint; infinity for none.
    pub swiglu_limit: f32,
    /// Factor still to be applied.
    pub routed_scale: f32,
    /// The rows.
    pub batch: *const Batch,
    /// `[rows, hidden]`.
    pub x: TensorRef,
    /// `[rows, topk]`.
    pub ids: *const i32,
    /// `[rows, topk]`.
    pub weights: *const f32,
    /// `[n_experts]`, in host memory.
    pub experts: *const ExpertRef,
    /// The same array in device memory; null on the CPU.
    pub experts_device: *const ExpertRef,
    /// `[rows, hidden]` output, overwritten.
    pub out: TensorRef,
}

/// `mhc.pre`: collapse the residual streams into the input of a block, and make the weights of `mhc.post`.
///
/// `m = fn . (flat(streams) * rsqrt(mean(flat^2) + norm_eps))`; `pre = sigmoid(m[..hc] * scale0 + base) + hc_eps`;
/// `post = 2 sigmoid(m[hc..2hc] * scale1 + base)`; `comb = softmax_rows(m[2hc..] * scale2 + base) + hc_eps`, one column
/// normalisation, then `iters - 1` times row and column, each dividing by (sum + hc_eps). `x = sum_i pre_i streams_i`;
/// if the variant declares `NORM_FUSED`, `x` is RMS-normed with `next_norm` as well.
/// Source: transformers `DeepseekV4HyperConnection`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct MhcPreArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Sinkhorn iterations.
    pub iters: u32,
    /// Floor added in the gates and the normalisations.
    pub hc_eps: f32,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
    /// The rows.
    pub batch: *const Batch,
    /// `[rows, hc, hidden]` residual streams.
    pub streams: TensorRef,
    /// `[(2 + hc) * hc, hc * hidden]` f32.
    pub fn_weight: TensorRef,
    /// `[(2 + hc) * hc]`.
    pub base: TensorRef,
    /// `[3]`.
    pub scale: TensorRef,
    /// `[hidden]` weight of the norm that follows; only read by variants that fuse it.
    pub next_norm: TensorRef,
    /// `[rows, hidden]` output.
    pub x: TensorRef,
    /// `[rows, hc]` output.
    pub post: TensorRef,
    /// `[rows, hc, hc]` output.
    pub comb: TensorRef,
}

/// `mhc.post`: `out_k = post_k * f + sum_i comb[i, k] * streams_i` (the first index of `comb` is summed).
///
/// `out` is either exactly `streams` (in place) or disjoint from it. Source: transformers `DeepseekV4DecoderLayer`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct MhcPostArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// The rows.
    pub batch: *const Batch,
    /// `[rows, hidden]` output of the block.
    pub f: TensorRef,
    /// `[rows, hc, hidden]` residual streams.
    pub streams: TensorRef,
    /// `[rows, hc]` from `mhc.pre`.
    pub post: TensorRef,
    /// `[rows, hc, hc]` from `mhc.pre`.
    pub comb: TensorRef,
    /// `[rows, hc, hidden]` output.
    pub out: TensorRef,
}

/// `mhc.head`: the last collapse. `x = sum_i (sigmoid(m_i * scale + base_i) + hc_eps) streams_i`, `m` as in `mhc.pre`.
///
/// Source: transformers `DeepseekV4HyperHead`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct MhcHeadArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Floor added to the gate.
    pub hc_eps: f32,
    /// Epsilon of the RMS norm.
    pub norm_eps: f32,
    /// The rows.
    pub batch: *const Batch,
    /// `[rows, hc, hidden]`.
    pub streams: TensorRef,
    /// `[hc, hc * hidden]` f32.
    pub fn_weight: TensorRef,
    /// `[hc]`.
    pub base: TensorRef,
    /// `[1]`.
    pub scale: TensorRef,
    /// `[rows, hidden]` output.
    pub x: TensorRef,
}

/// Components that a KV hand-off moves.
pub mod component {
    /// Window entries.
    pub const SWA: u32 = 0;
    /// Ratio-4 attention entries.
    pub const C4: u32 = 1;
    /// Ratio-128 attention entries.
    pub const C128: u32 = 2;
    /// Index keys.
    pub const INDEX_KEYS: u32 = 3;
    /// Compressor state rows of ratio-4 attention.
    pub const C4_STATE: u32 = 4;
    /// Compressor state rows of ratio-128 attention.
    pub const C128_STATE: u32 = 5;
    /// Compressor state rows of the indexer.
    pub const INDEX_STATE: u32 = 6;

    /// Names as they are printed, in the order of the numbers above.
    pub const NAMES: &[&str] = &["swa", "c4", "c128", "index_keys", "c4_state", "c128_state", "index_state"];
}

/// A component of one layer: `items` of equal size. Where the two sides are in two processes each registers its own, and
/// the side that is elsewhere is null and has no items.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Region {
    /// One of [`component`].
    pub component: u32,
    /// Layer number in the checkpoint.
    pub layer: u32,
    /// First byte of item 0 on the sending side.
    pub src: *const u8,
    /// First byte of item 0 on the receiving side.
    pub dst: *mut u8,
    /// Bytes of one item (a page of entries, or a state row).
    pub item_bytes: u64,
    /// Items on the sending side.
    pub src_items: u64,
    /// Items on the receiving side.
    pub dst_items: u64,
    /// Byte of `src_fd` at which `src` lies.
    pub src_offset: u64,
    /// File of shared memory that the sending side lies in, for transports that map it into another process; -1 for none.
    /// It stays the host's and open until the next register.
    pub src_fd: i32,
}

/// `kv_transport.register`: names all regions once, before the first put; a second call replaces them.
/// May allocate. The regions stay valid until the next register or the end of the instance.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct RegisterArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Number of regions.
    pub n_regions: u32,
    /// `[n_regions]`.
    pub regions: *const Region,
}

/// `kv_transport.put`: start to move items of one component and layer for one request.
///
/// Item `src_items[i]` is copied to `dst_items[i]`. Completion is seen by `poll`; until then the source must not
/// change and the destination must not be read. Puts of one room may complete in any order. A put that cannot be made
/// because of the other side is no error of the call: its ticket fails.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct PutArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// One of [`component`].
    pub component: u32,
    /// Layer number in the checkpoint.
    pub layer: u32,
    /// Number of items.
    pub n_items: u32,
    /// `bootstrap_room` of the request.
    pub room: u64,
    /// `[n_items]`.
    pub src_items: *const i32,
    /// `[n_items]`.
    pub dst_items: *const i32,
    /// Set to a ticket that is unique for the instance.
    pub ticket: *mut u64,
    /// Number of the receiving side, as `connect` gave it; 0 for the one that is registered with this instance.
    pub peer: u64,
}

/// States of a transfer. A state only rises; `FAILED` is final.
pub mod transfer {
    /// Accepted, not complete.
    pub const PENDING: u32 = 0;
    /// All bytes are in place.
    pub const DONE: u32 = 1;
    /// Given up; the destination holds anything.
    pub const FAILED: u32 = 2;
}

/// `kv_transport.poll`: state of a ticket. Tickets are forgotten after they were reported done or failed. The reason of a
/// failure, if there is one to tell, is given to [`HostServicesV1::error`] in the call that reports it.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct PollArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Set to one of [`transfer`].
    pub state: u32,
    /// The ticket asked for.
    pub ticket: u64,
    /// Set to the bytes moved so far.
    pub bytes: u64,
}

/// `kv_transport.endpoint`: where other instances of the transport reach the receiving side of this one. May allocate, and
/// begins to listen where it did not.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct EndpointArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Bytes that `text` has room for.
    pub capacity: u32,
    /// `[capacity]` set to UTF-8 text that only this transport reads, in one line.
    pub text: *mut u8,
    /// Set to its bytes.
    pub len: u32,
}

/// `kv_transport.connect`: names a receiving side in another instance. Must not wait for it: what cannot be reached fails the
/// tickets of its puts. The same text gives the same number.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct ConnectArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// What the other instance's `endpoint` gave.
    pub endpoint: Text,
    /// Set to the number for [`PutArgs::peer`], at least 1.
    pub peer: u64,
}

/// `kv_transport.accept`: from now on other instances may write these items for a room. Nothing else is ever written.
/// Called once for each component and layer of a room, before the other side learns of them.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct AcceptArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// One of [`component`].
    pub component: u32,
    /// Layer number in the checkpoint.
    pub layer: u32,
    /// Number of items.
    pub n_items: u32,
    /// `bootstrap_room` of the request.
    pub room: u64,
    /// `[n_items]` on the receiving side.
    pub items: *const i32,
}

/// `kv_transport.close`: ends a room on the receiving side. After it returns nothing is written for the room. A room that is
/// not known has no items.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct CloseArgs {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// `bootstrap_room` of the request.
    pub room: u64,
    /// Set to the number of items that were written whole, each counted once.
    pub items: u64,
}
