// What `indexer/cuda-flashinfer` calls of FlashInfer's `csrc/topk.cu`, exported for TVM-FFI. FlashInfer's own binding exports more,
// which takes minutes to compile.
#include "tvm_ffi_utils.h"

using tvm::ffi::Optional;

void radix_topk_ragged_transform(TensorView input, TensorView output_indices, TensorView offsets,
                                 TensorView lengths, Optional<TensorView> maybe_row_states_buffer,
                                 int64_t top_k, bool deterministic, int64_t tie_break,
                                 bool dsa_graph_safe, Optional<TensorView> maybe_row_starts);

TVM_FFI_DLL_EXPORT_TYPED_FUNC(radix_topk_ragged_transform, radix_topk_ragged_transform);
