/* The plugin contract of Hotseam in C: generated from abi/contract/src by its tests, and checked by them. Do not
 * edit. */
#ifndef HOTSEAM_TENSOR_H
#define HOTSEAM_TENSOR_H

#include <stddef.h>
#include <stdint.h>

typedef struct HotseamTensorRef HotseamTensorRef;
typedef struct HotseamWeightRef HotseamWeightRef;
typedef struct HotseamText HotseamText;
typedef struct HotseamStepCtx HotseamStepCtx;
typedef struct HotseamSeqSpan HotseamSeqSpan;
typedef struct HotseamBatch HotseamBatch;
typedef struct HotseamRopeTables HotseamRopeTables;
typedef struct HotseamPoolRef HotseamPoolRef;
typedef struct HotseamStoreArgs HotseamStoreArgs;
typedef struct HotseamCompressArgs HotseamCompressArgs;
typedef struct HotseamCoreArgs HotseamCoreArgs;
typedef struct HotseamSelectArgs HotseamSelectArgs;
typedef struct HotseamRouteArgs HotseamRouteArgs;
typedef struct HotseamExpertRef HotseamExpertRef;
typedef struct HotseamExpertsArgs HotseamExpertsArgs;
typedef struct HotseamMhcPreArgs HotseamMhcPreArgs;
typedef struct HotseamMhcPostArgs HotseamMhcPostArgs;
typedef struct HotseamMhcHeadArgs HotseamMhcHeadArgs;
typedef struct HotseamRegion HotseamRegion;
typedef struct HotseamRegisterArgs HotseamRegisterArgs;
typedef struct HotseamPutArgs HotseamPutArgs;
typedef struct HotseamPollArgs HotseamPollArgs;
typedef struct HotseamEndpointArgs HotseamEndpointArgs;
typedef struct HotseamConnectArgs HotseamConnectArgs;
typedef struct HotseamAcceptArgs HotseamAcceptArgs;
typedef struct HotseamCloseArgs HotseamCloseArgs;
typedef struct HotseamHostServicesV1 HotseamHostServicesV1;
typedef struct HotseamInfoV1 HotseamInfoV1;
typedef struct HotseamAttentionV1 HotseamAttentionV1;
typedef struct HotseamIndexerV1 HotseamIndexerV1;
typedef struct HotseamMoeV1 HotseamMoeV1;
typedef struct HotseamMhcV1 HotseamMhcV1;
typedef struct HotseamKvTransportV1 HotseamKvTransportV1;
typedef struct HotseamPluginV1 HotseamPluginV1;

#ifdef __cplusplus
extern "C" {
#endif

/** Number of this contract draft. Host and plugin must have the same number. */
#define HOTSEAM_CONTRACT 4u

/** Name of the symbol by which a C or C++ plugin hands over its `PluginV1`:
 *  `const PluginV1 *hotseam_plugin_v1(void)`. */
#define HOTSEAM_C_ENTRY_SYMBOL "hotseam_plugin_v1"

/** Success. */
#define HOTSEAM_OK 0

/** The plugin panicked; the instance is not used again. */
#define HOTSEAM_ERR_PANIC 1

/** An argument is outside what the plugin supports (shape, dtype, layout); nothing was written. */
#define HOTSEAM_ERR_ARGUMENT 2

/** The plugin cannot run on this machine or with these options. */
#define HOTSEAM_ERR_UNSUPPORTED 3

/** Any other failure inside the plugin. */
#define HOTSEAM_ERR_INTERNAL 4

/** Element types. The numbers are stable. */
/** IEEE binary32. */
#define HOTSEAM_DTYPE_F32 1u
/** bfloat16, stored as its 16 bits. */
#define HOTSEAM_DTYPE_BF16 2u
/** OCP e4m3fn, one byte. */
#define HOTSEAM_DTYPE_E4M3 3u
/** Unsigned byte; also "bytes of a layout" in KV pools. */
#define HOTSEAM_DTYPE_U8 4u
/** 32-bit signed integer. */
#define HOTSEAM_DTYPE_I32 5u
/** 64-bit signed integer. */
#define HOTSEAM_DTYPE_I64 6u
/** OCP e8m0, one byte: a power of two, `2^(byte - 127)`; 255 is NaN. The "ue8m0" of DeepSeek's configuration. */
#define HOTSEAM_DTYPE_E8M0 7u

/** Devices, numbered as in DLPack. */
/** Host memory. */
#define HOTSEAM_DEVICE_CPU 1u
/** CUDA device memory. */
#define HOTSEAM_DEVICE_CUDA 2u

/** A borrowed, row-major tensor of at most four dimensions. Valid for the duration of the call it is passed to. */
struct HotseamTensorRef {
    /** First element; null means "not given", where the argument allows it. */
    void *data;
    /** Extent of each dimension in elements; entries at `ndim` and beyond are 1. */
    int64_t shape[4];
    /** Distance between neighbours of each dimension, in elements. */
    int64_t strides[4];
    /** One of `dtype`. */
    uint32_t dtype;
    /** Number of dimensions, 0 to 4. */
    uint32_t ndim;
    /** One of `device`. */
    uint32_t device;
    /** Ordinal of the device. */
    uint32_t device_id;
};

/** How a weight matrix is stored. Codes and scales are as in the official checkpoints. */
/** f32 values. */
#define HOTSEAM_WEIGHT_FORMAT_F32 1u
/** bf16 values. */
#define HOTSEAM_WEIGHT_FORMAT_BF16 2u
/** e4m3 codes, one e8m0 scale for each block of 128 x 128. */
#define HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK 3u
/** e2m1 codes, one e8m0 scale for each 32 inputs. */
#define HOTSEAM_WEIGHT_FORMAT_MXFP4 4u
/** e2m1 codes, one e4m3 scale for each 16 inputs, one f32 factor for the matrix. */
#define HOTSEAM_WEIGHT_FORMAT_NVFP4 5u

/** A borrowed weight matrix of `n` outputs and `k` inputs, row-major, in one of the formats of `weight_format`.
 *
 *  A value is `code * scale`, with e2m1 and e8m0 exact in f32; NVFP4 is `(code * scale) * global_scale`, which rounds
 *  once. Source: `config.json` and tensor names of DeepSeek-V4 and of NVIDIA's NVFP4 checkpoint. */
struct HotseamWeightRef {
    /** One of `weight_format`. */
    uint32_t format;
    /** Factor of the whole matrix in NVFP4 (`weight_scale_2`); 1 in every other format. */
    float global_scale;
    /** f32, bf16 or e4m3 `[n, k]`; or two e2m1 a byte, low nibble first, `[n, k / 2]` of `dtype::U8`. */
    HotseamTensorRef data;
    /** FP8: e8m0 `[ceil(n / 128), ceil(k / 128)]`; MXFP4: e8m0 `[n, k / 32]`; NVFP4: e4m3 `[n, k / 16]`; else absent. */
    HotseamTensorRef scales;
};

/** UTF-8 text that is borrowed from its owner and not terminated. */
struct HotseamText {
    /** First byte; may be dangling when `len` is 0. */
    const uint8_t *ptr;
    /** Number of bytes. */
    size_t len;
};

/** Layout identities of KV entries. A layout names dtype, order of bytes, scales and any rotation; two variants may share
 *  a pool only if their layouts are equal.
 *
 *  An entry has two parts, data and scales (`PoolRef` says where they lie). Numbers of more than one byte are in
 *  the byte order of the machine. Rotated layouts: values are rounded to bf16, multiplied with the Hadamard matrix of
 *  `dim` in natural (Sylvester) order times `dim^-1/2`, and rounded to bf16 again; a query is treated the same way, with
 *  the same quantiser, before it is scored. */
/** Attention entry: `dim` f32 values, rope part last. No scales. */
#define HOTSEAM_LAYOUT_KV_F32 1u
/** Attention entry: `dim` bf16 values (round to nearest even), rope part last. No scales. */
#define HOTSEAM_LAYOUT_KV_BF16 2u
/** Attention entry of the serving engines (`fp8_ds_mla`), 584 bytes at 512/64. Data: the `dim - rope_dim` nope values
 *  as e4m3, then the `rope_dim` rope values as bf16. Scales: a ue8m0 byte for every 64 nope values, then zeros up to a
 *  multiple of 8 bytes. Values are rounded to bf16 first; a scale is `2^ceil(log2(max(amax, 1e-4) / 448))`. The host pads
 *  pages to a multiple of the data bytes of an entry (576 at 512/64).
 *  Source: SGLang `deepseek_v4` `fused_store_cache`; `act_quant` of the official `inference/kernel.py`. */
#define HOTSEAM_LAYOUT_KV_FP8_DS_MLA 3u
/** Index key: `dim` f32 values, rope part last, no rotation. No scales. */
#define HOTSEAM_LAYOUT_KEY_F32 16u
/** Index key: `dim` bf16 values (round to nearest even), rope part last, no rotation. No scales. */
#define HOTSEAM_LAYOUT_KEY_BF16 17u
/** Index key, rotated: `dim` e4m3 values; scale: one f32, `max(amax, 1e-4) / 448`. Codes are of `value * (1 / scale)`.
 *  Source: SGLang `fused_store_indexer_cache`. */
#define HOTSEAM_LAYOUT_KEY_FP8_HADAMARD 18u
/** Index key, rotated: `dim` e2m1 values, two a byte, the even one in the low nibble; scales: a ue8m0 byte for every 32
 *  values, `2^ceil(log2(max(amax, 6 * 2^-126) / 6))`. Source: `fp4_act_quant` of the official `inference/kernel.py`. */
#define HOTSEAM_LAYOUT_KEY_FP4_HADAMARD 19u

#ifdef __cplusplus
}
#endif

#endif
