//! Sizes and offsets of the contract's structs, as the Rust compiler lays them out.

use hotseam_abi::*;
use std::mem::offset_of;

/// A struct in memory.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    /// Name and offset of each field.
    pub(crate) fields: Vec<(&'static str, usize)>,
}

macro_rules! layouts {
    ($($name:ident { $($field:ident),+ $(,)? })+) => {
        /// All structs that cross the boundary.
        pub(crate) fn all() -> Vec<Layout> {
            vec![$(Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: vec![$((stringify!($field), offset_of!($name, $field))),+],
            }),+]
        }
    };
}

layouts! {
    TensorRef { data, shape, strides, dtype, ndim, device, device_id }
    WeightRef { format, global_scale, data, scales }
    Text { ptr, len }
    StepCtx { size, phase, layer, layer_class, rank, world, step, stream, workspace, workspace_bytes, host }
    SeqSpan { row_begin, row_count, position, chunk }
    Batch { size, n_rows, n_seqs, positions, row_seq, seqs }
    RopeTables { cos, sin }
    PoolRef { bytes, layout, entries_per_page, dim, rope_dim, data_bytes, scale_bytes, table, table_width }
    StoreArgs { size, norm_eps, batch, kv, norm_weight, rope, out_slots, pool }
    CompressArgs { size, ratio, overlap, n_entries, norm_eps, batch, kv, gate, ape, norm_weight, rope, sources, entry_positions, out_slots, state_dst, state, pool }
    CoreArgs { size, window, ratio, ids_width, scale, batch, q, sinks, swa, entries, ids, rope, out }
    SelectArgs { size, ratio, heads, topk, scores_width, batch, q_lora, x, wq_b, weights_proj, rope, keys, ids, scores }
    RouteArgs { size, topk, routed_scale, batch, x, gate, bias, tid2eid, input_ids, ids, weights }
    ExpertRef { w1, w2, w3 }
    ExpertsArgs { size, topk, n_experts, swiglu_limit, routed_scale, batch, x, ids, weights, experts, experts_device, out }
    MhcPreArgs { size, iters, hc_eps, norm_eps, batch, streams, fn_weight, base, scale, next_norm, x, post, comb }
    MhcPostArgs { size, batch, f, streams, post, comb, out }
    MhcHeadArgs { size, hc_eps, norm_eps, batch, streams, fn_weight, base, scale, x }
    Region { component, layer, src, dst, item_bytes, src_items, dst_items, src_offset, src_fd }
    RegisterArgs { size, n_regions, regions }
    PutArgs { size, component, layer, n_items, room, src_items, dst_items, ticket, peer }
    PollArgs { size, state, ticket, bytes }
    EndpointArgs { size, capacity, text, len }
    ConnectArgs { size, endpoint, peer }
    AcceptArgs { size, component, layer, n_items, room, items }
    CloseArgs { size, room, items }
    HostServicesV1 { size, version, threads, ctx, log, error, parallel_for }
    InfoV1 { size, capabilities, phases, layout, dim, rope_dim, data_bytes, scale_bytes }
    AttentionV1 { store, compress, core }
    IndexerV1 { compress, select }
    MoeV1 { route, experts }
    MhcV1 { pre, post, head }
    KvTransportV1 { register, put, poll, cancel, endpoint, connect, accept, close }
    PluginV1 { size, contract, seam, host_services, manifest, probe, create, info, destroy, attention, indexer, moe, mhc, kv_transport }
}
