/* The plugin contract of Hotseam in C: generated from abi/contract/src by its tests, and checked by them. Do not
 * edit. */
#ifndef HOTSEAM_LAYOUT_H
#define HOTSEAM_LAYOUT_H

#include "plugin.h"

#ifdef __cplusplus
#define HOTSEAM_LAYOUT(what) static_assert(what, #what)
#else
#define HOTSEAM_LAYOUT(what) _Static_assert(what, #what)
#endif

HOTSEAM_LAYOUT(sizeof(HotseamTensorRef) == 88 && offsetof(HotseamTensorRef, data) == 0
               && offsetof(HotseamTensorRef, shape) == 8 && offsetof(HotseamTensorRef, strides) == 40
               && offsetof(HotseamTensorRef, dtype) == 72 && offsetof(HotseamTensorRef, ndim) == 76
               && offsetof(HotseamTensorRef, device) == 80 && offsetof(HotseamTensorRef, device_id) == 84);
HOTSEAM_LAYOUT(sizeof(HotseamWeightRef) == 184 && offsetof(HotseamWeightRef, format) == 0
               && offsetof(HotseamWeightRef, global_scale) == 4 && offsetof(HotseamWeightRef, data) == 8
               && offsetof(HotseamWeightRef, scales) == 96);
HOTSEAM_LAYOUT(sizeof(HotseamText) == 16 && offsetof(HotseamText, ptr) == 0 && offsetof(HotseamText, len) == 8);
HOTSEAM_LAYOUT(sizeof(HotseamStepCtx) == 64 && offsetof(HotseamStepCtx, size) == 0
               && offsetof(HotseamStepCtx, phase) == 4 && offsetof(HotseamStepCtx, layer) == 8
               && offsetof(HotseamStepCtx, layer_class) == 12 && offsetof(HotseamStepCtx, rank) == 16
               && offsetof(HotseamStepCtx, world) == 20 && offsetof(HotseamStepCtx, step) == 24
               && offsetof(HotseamStepCtx, stream) == 32 && offsetof(HotseamStepCtx, workspace) == 40
               && offsetof(HotseamStepCtx, workspace_bytes) == 48 && offsetof(HotseamStepCtx, host) == 56);
HOTSEAM_LAYOUT(sizeof(HotseamSeqSpan) == 16 && offsetof(HotseamSeqSpan, row_begin) == 0
               && offsetof(HotseamSeqSpan, row_count) == 4 && offsetof(HotseamSeqSpan, position) == 8
               && offsetof(HotseamSeqSpan, chunk) == 12);
HOTSEAM_LAYOUT(sizeof(HotseamBatch) == 40 && offsetof(HotseamBatch, size) == 0
               && offsetof(HotseamBatch, n_rows) == 4 && offsetof(HotseamBatch, n_seqs) == 8
               && offsetof(HotseamBatch, positions) == 16 && offsetof(HotseamBatch, row_seq) == 24
               && offsetof(HotseamBatch, seqs) == 32);
HOTSEAM_LAYOUT(sizeof(HotseamRopeTables) == 176 && offsetof(HotseamRopeTables, cos) == 0
               && offsetof(HotseamRopeTables, sin) == 88);
HOTSEAM_LAYOUT(sizeof(HotseamPoolRef) == 128 && offsetof(HotseamPoolRef, bytes) == 0
               && offsetof(HotseamPoolRef, layout) == 88 && offsetof(HotseamPoolRef, entries_per_page) == 92
               && offsetof(HotseamPoolRef, dim) == 96 && offsetof(HotseamPoolRef, rope_dim) == 100
               && offsetof(HotseamPoolRef, data_bytes) == 104 && offsetof(HotseamPoolRef, scale_bytes) == 108
               && offsetof(HotseamPoolRef, table) == 112 && offsetof(HotseamPoolRef, table_width) == 120);
HOTSEAM_LAYOUT(sizeof(HotseamStoreArgs) == 504 && offsetof(HotseamStoreArgs, size) == 0
               && offsetof(HotseamStoreArgs, norm_eps) == 4 && offsetof(HotseamStoreArgs, batch) == 8
               && offsetof(HotseamStoreArgs, kv) == 16 && offsetof(HotseamStoreArgs, norm_weight) == 104
               && offsetof(HotseamStoreArgs, rope) == 192 && offsetof(HotseamStoreArgs, out_slots) == 368
               && offsetof(HotseamStoreArgs, pool) == 376);
HOTSEAM_LAYOUT(sizeof(HotseamCompressArgs) == 808 && offsetof(HotseamCompressArgs, size) == 0
               && offsetof(HotseamCompressArgs, ratio) == 4 && offsetof(HotseamCompressArgs, overlap) == 8
               && offsetof(HotseamCompressArgs, n_entries) == 12 && offsetof(HotseamCompressArgs, norm_eps) == 16
               && offsetof(HotseamCompressArgs, batch) == 24 && offsetof(HotseamCompressArgs, kv) == 32
               && offsetof(HotseamCompressArgs, gate) == 120 && offsetof(HotseamCompressArgs, ape) == 208
               && offsetof(HotseamCompressArgs, norm_weight) == 296 && offsetof(HotseamCompressArgs, rope) == 384
               && offsetof(HotseamCompressArgs, sources) == 560
               && offsetof(HotseamCompressArgs, entry_positions) == 568
               && offsetof(HotseamCompressArgs, out_slots) == 576
               && offsetof(HotseamCompressArgs, state_dst) == 584 && offsetof(HotseamCompressArgs, state) == 592
               && offsetof(HotseamCompressArgs, pool) == 680);
HOTSEAM_LAYOUT(sizeof(HotseamCoreArgs) == 736 && offsetof(HotseamCoreArgs, size) == 0
               && offsetof(HotseamCoreArgs, window) == 4 && offsetof(HotseamCoreArgs, ratio) == 8
               && offsetof(HotseamCoreArgs, ids_width) == 12 && offsetof(HotseamCoreArgs, scale) == 16
               && offsetof(HotseamCoreArgs, batch) == 24 && offsetof(HotseamCoreArgs, q) == 32
               && offsetof(HotseamCoreArgs, sinks) == 120 && offsetof(HotseamCoreArgs, swa) == 208
               && offsetof(HotseamCoreArgs, entries) == 336 && offsetof(HotseamCoreArgs, ids) == 464
               && offsetof(HotseamCoreArgs, rope) == 472 && offsetof(HotseamCoreArgs, out) == 648);
HOTSEAM_LAYOUT(sizeof(HotseamSelectArgs) == 800 && offsetof(HotseamSelectArgs, size) == 0
               && offsetof(HotseamSelectArgs, ratio) == 4 && offsetof(HotseamSelectArgs, heads) == 8
               && offsetof(HotseamSelectArgs, topk) == 12 && offsetof(HotseamSelectArgs, scores_width) == 16
               && offsetof(HotseamSelectArgs, batch) == 24 && offsetof(HotseamSelectArgs, q_lora) == 32
               && offsetof(HotseamSelectArgs, x) == 120 && offsetof(HotseamSelectArgs, wq_b) == 208
               && offsetof(HotseamSelectArgs, weights_proj) == 392 && offsetof(HotseamSelectArgs, rope) == 480
               && offsetof(HotseamSelectArgs, keys) == 656 && offsetof(HotseamSelectArgs, ids) == 784
               && offsetof(HotseamSelectArgs, scores) == 792);
HOTSEAM_LAYOUT(sizeof(HotseamRouteArgs) == 400 && offsetof(HotseamRouteArgs, size) == 0
               && offsetof(HotseamRouteArgs, topk) == 4 && offsetof(HotseamRouteArgs, routed_scale) == 8
               && offsetof(HotseamRouteArgs, batch) == 16 && offsetof(HotseamRouteArgs, x) == 24
               && offsetof(HotseamRouteArgs, gate) == 112 && offsetof(HotseamRouteArgs, bias) == 200
               && offsetof(HotseamRouteArgs, tid2eid) == 288 && offsetof(HotseamRouteArgs, input_ids) == 376
               && offsetof(HotseamRouteArgs, ids) == 384 && offsetof(HotseamRouteArgs, weights) == 392);
HOTSEAM_LAYOUT(sizeof(HotseamExpertRef) == 552 && offsetof(HotseamExpertRef, w1) == 0
               && offsetof(HotseamExpertRef, w2) == 184 && offsetof(HotseamExpertRef, w3) == 368);
HOTSEAM_LAYOUT(sizeof(HotseamExpertsArgs) == 240 && offsetof(HotseamExpertsArgs, size) == 0
               && offsetof(HotseamExpertsArgs, topk) == 4 && offsetof(HotseamExpertsArgs, n_experts) == 8
               && offsetof(HotseamExpertsArgs, swiglu_limit) == 12
               && offsetof(HotseamExpertsArgs, routed_scale) == 16 && offsetof(HotseamExpertsArgs, batch) == 24
               && offsetof(HotseamExpertsArgs, x) == 32 && offsetof(HotseamExpertsArgs, ids) == 120
               && offsetof(HotseamExpertsArgs, weights) == 128 && offsetof(HotseamExpertsArgs, experts) == 136
               && offsetof(HotseamExpertsArgs, experts_device) == 144 && offsetof(HotseamExpertsArgs, out) == 152);
HOTSEAM_LAYOUT(sizeof(HotseamMhcPreArgs) == 728 && offsetof(HotseamMhcPreArgs, size) == 0
               && offsetof(HotseamMhcPreArgs, iters) == 4 && offsetof(HotseamMhcPreArgs, hc_eps) == 8
               && offsetof(HotseamMhcPreArgs, norm_eps) == 12 && offsetof(HotseamMhcPreArgs, batch) == 16
               && offsetof(HotseamMhcPreArgs, streams) == 24 && offsetof(HotseamMhcPreArgs, fn_weight) == 112
               && offsetof(HotseamMhcPreArgs, base) == 200 && offsetof(HotseamMhcPreArgs, scale) == 288
               && offsetof(HotseamMhcPreArgs, next_norm) == 376 && offsetof(HotseamMhcPreArgs, x) == 464
               && offsetof(HotseamMhcPreArgs, post) == 552 && offsetof(HotseamMhcPreArgs, comb) == 640);
HOTSEAM_LAYOUT(sizeof(HotseamMhcPostArgs) == 456 && offsetof(HotseamMhcPostArgs, size) == 0
               && offsetof(HotseamMhcPostArgs, batch) == 8 && offsetof(HotseamMhcPostArgs, f) == 16
               && offsetof(HotseamMhcPostArgs, streams) == 104 && offsetof(HotseamMhcPostArgs, post) == 192
               && offsetof(HotseamMhcPostArgs, comb) == 280 && offsetof(HotseamMhcPostArgs, out) == 368);
HOTSEAM_LAYOUT(sizeof(HotseamMhcHeadArgs) == 464 && offsetof(HotseamMhcHeadArgs, size) == 0
               && offsetof(HotseamMhcHeadArgs, hc_eps) == 4 && offsetof(HotseamMhcHeadArgs, norm_eps) == 8
               && offsetof(HotseamMhcHeadArgs, batch) == 16 && offsetof(HotseamMhcHeadArgs, streams) == 24
               && offsetof(HotseamMhcHeadArgs, fn_weight) == 112 && offsetof(HotseamMhcHeadArgs, base) == 200
               && offsetof(HotseamMhcHeadArgs, scale) == 288 && offsetof(HotseamMhcHeadArgs, x) == 376);
HOTSEAM_LAYOUT(sizeof(HotseamRegion) == 64 && offsetof(HotseamRegion, component) == 0
               && offsetof(HotseamRegion, layer) == 4 && offsetof(HotseamRegion, src) == 8
               && offsetof(HotseamRegion, dst) == 16 && offsetof(HotseamRegion, item_bytes) == 24
               && offsetof(HotseamRegion, src_items) == 32 && offsetof(HotseamRegion, dst_items) == 40
               && offsetof(HotseamRegion, src_offset) == 48 && offsetof(HotseamRegion, src_fd) == 56);
HOTSEAM_LAYOUT(sizeof(HotseamRegisterArgs) == 16 && offsetof(HotseamRegisterArgs, size) == 0
               && offsetof(HotseamRegisterArgs, n_regions) == 4 && offsetof(HotseamRegisterArgs, regions) == 8);
HOTSEAM_LAYOUT(sizeof(HotseamPutArgs) == 56 && offsetof(HotseamPutArgs, size) == 0
               && offsetof(HotseamPutArgs, component) == 4 && offsetof(HotseamPutArgs, layer) == 8
               && offsetof(HotseamPutArgs, n_items) == 12 && offsetof(HotseamPutArgs, room) == 16
               && offsetof(HotseamPutArgs, src_items) == 24 && offsetof(HotseamPutArgs, dst_items) == 32
               && offsetof(HotseamPutArgs, ticket) == 40 && offsetof(HotseamPutArgs, peer) == 48);
HOTSEAM_LAYOUT(sizeof(HotseamPollArgs) == 24 && offsetof(HotseamPollArgs, size) == 0
               && offsetof(HotseamPollArgs, state) == 4 && offsetof(HotseamPollArgs, ticket) == 8
               && offsetof(HotseamPollArgs, bytes) == 16);
HOTSEAM_LAYOUT(sizeof(HotseamEndpointArgs) == 24 && offsetof(HotseamEndpointArgs, size) == 0
               && offsetof(HotseamEndpointArgs, capacity) == 4 && offsetof(HotseamEndpointArgs, text) == 8
               && offsetof(HotseamEndpointArgs, len) == 16);
HOTSEAM_LAYOUT(sizeof(HotseamConnectArgs) == 32 && offsetof(HotseamConnectArgs, size) == 0
               && offsetof(HotseamConnectArgs, endpoint) == 8 && offsetof(HotseamConnectArgs, peer) == 24);
HOTSEAM_LAYOUT(sizeof(HotseamAcceptArgs) == 32 && offsetof(HotseamAcceptArgs, size) == 0
               && offsetof(HotseamAcceptArgs, component) == 4 && offsetof(HotseamAcceptArgs, layer) == 8
               && offsetof(HotseamAcceptArgs, n_items) == 12 && offsetof(HotseamAcceptArgs, room) == 16
               && offsetof(HotseamAcceptArgs, items) == 24);
HOTSEAM_LAYOUT(sizeof(HotseamCloseArgs) == 24 && offsetof(HotseamCloseArgs, size) == 0
               && offsetof(HotseamCloseArgs, room) == 8 && offsetof(HotseamCloseArgs, items) == 16);
HOTSEAM_LAYOUT(sizeof(HotseamHostServicesV1) == 48 && offsetof(HotseamHostServicesV1, size) == 0
               && offsetof(HotseamHostServicesV1, version) == 4 && offsetof(HotseamHostServicesV1, threads) == 8
               && offsetof(HotseamHostServicesV1, ctx) == 16 && offsetof(HotseamHostServicesV1, log) == 24
               && offsetof(HotseamHostServicesV1, error) == 32
               && offsetof(HotseamHostServicesV1, parallel_for) == 40);
HOTSEAM_LAYOUT(sizeof(HotseamInfoV1) == 40 && offsetof(HotseamInfoV1, size) == 0
               && offsetof(HotseamInfoV1, capabilities) == 8 && offsetof(HotseamInfoV1, phases) == 16
               && offsetof(HotseamInfoV1, layout) == 20 && offsetof(HotseamInfoV1, dim) == 24
               && offsetof(HotseamInfoV1, rope_dim) == 28 && offsetof(HotseamInfoV1, data_bytes) == 32
               && offsetof(HotseamInfoV1, scale_bytes) == 36);
HOTSEAM_LAYOUT(sizeof(HotseamAttentionV1) == 24 && offsetof(HotseamAttentionV1, store) == 0
               && offsetof(HotseamAttentionV1, compress) == 8 && offsetof(HotseamAttentionV1, core) == 16);
HOTSEAM_LAYOUT(sizeof(HotseamIndexerV1) == 16 && offsetof(HotseamIndexerV1, compress) == 0
               && offsetof(HotseamIndexerV1, select) == 8);
HOTSEAM_LAYOUT(sizeof(HotseamMoeV1) == 16 && offsetof(HotseamMoeV1, route) == 0
               && offsetof(HotseamMoeV1, experts) == 8);
HOTSEAM_LAYOUT(sizeof(HotseamMhcV1) == 24 && offsetof(HotseamMhcV1, pre) == 0 && offsetof(HotseamMhcV1, post) == 8
               && offsetof(HotseamMhcV1, head) == 16);
HOTSEAM_LAYOUT(sizeof(HotseamKvTransportV1) == 64 && offsetof(HotseamKvTransportV1, register_) == 0
               && offsetof(HotseamKvTransportV1, put) == 8 && offsetof(HotseamKvTransportV1, poll) == 16
               && offsetof(HotseamKvTransportV1, cancel) == 24 && offsetof(HotseamKvTransportV1, endpoint) == 32
               && offsetof(HotseamKvTransportV1, connect) == 40 && offsetof(HotseamKvTransportV1, accept) == 48
               && offsetof(HotseamKvTransportV1, close) == 56);
HOTSEAM_LAYOUT(sizeof(HotseamPluginV1) == 104 && offsetof(HotseamPluginV1, size) == 0
               && offsetof(HotseamPluginV1, contract) == 4 && offsetof(HotseamPluginV1, seam) == 8
               && offsetof(HotseamPluginV1, host_services) == 12 && offsetof(HotseamPluginV1, manifest) == 16
               && offsetof(HotseamPluginV1, probe) == 32 && offsetof(HotseamPluginV1, create) == 40
               && offsetof(HotseamPluginV1, info) == 48 && offsetof(HotseamPluginV1, destroy) == 56
               && offsetof(HotseamPluginV1, attention) == 64 && offsetof(HotseamPluginV1, indexer) == 72
               && offsetof(HotseamPluginV1, moe) == 80 && offsetof(HotseamPluginV1, mhc) == 88
               && offsetof(HotseamPluginV1, kv_transport) == 96);

#endif
