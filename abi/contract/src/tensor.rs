//! The borrowed tensor descriptor. It holds what a DLPack `DLTensor` holds, with the shape inline, so that the host
//! builds it on the stack; a `DLTensor` view of it needs no copy.

use abi_stable::StableAbi;
use core::ffi::c_void;

/// Element types. The numbers are stable.
pub mod dtype {
    /// IEEE binary32.
    pub const F32: u32 = 1;
    /// bfloat16, stored as its 16 bits.
    pub const BF16: u32 = 2;
    /// OCP e4m3fn, one byte.
    pub const E4M3: u32 = 3;
    /// Unsigned byte; also "bytes of a layout" in KV pools.
    pub const U8: u32 = 4;
    /// 32-bit signed integer.
    pub const I32: u32 = 5;
    /// 64-bit signed integer.
    pub const I64: u32 = 6;
    /// OCP e8m0, one byte: a power of two, `2^(byte - 127)`; 255 is NaN. The "ue8m0" of DeepSeek's configuration.
    pub const E8M0: u32 = 7;
}

/// Devices, numbered as in DLPack.
pub mod device {
    /// Host memory.
    pub const CPU: u32 = 1;
    /// CUDA device memory.
    pub const CUDA: u32 = 2;
}

/// A borrowed, row-major tensor of at most four dimensions. Valid for the duration of the call it is passed to.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct TensorRef {
    /// First element; null means "not given", where the argument allows it.
    pub data: *mut c_void,
    /// Extent of each dimension in elements; entries at `ndim` and beyond are 1.
    pub shape: [i64; 4],
    /// Distance between neighbours of each dimension, in elements.
    pub strides: [i64; 4],
    /// One of [`dtype`].
    pub dtype: u32,
    /// Number of dimensions, 0 to 4.
    pub ndim: u32,
    /// One of [`device`].
    pub device: u32,
    /// Ordinal of the device.
    pub device_id: u32,
}

impl TensorRef {
    /// The tensor that is not there.
    pub const NONE: Self = Self {
        data: core::ptr::null_mut(),
        shape: [0, 1, 1, 1],
        strides: [1; 4],
        dtype: 0,
        ndim: 0,
        device: device::CPU,
        device_id: 0,
    };
}

/// How a weight matrix is stored. Codes and scales are as in the official checkpoints.
pub mod weight_format {
    /// f32 values.
    pub const F32: u32 = 1;
    /// bf16 values.
    pub const BF16: u32 = 2;
    /// e4m3 codes, one e8m0 scale for each block of 128 x 128.
    pub const FP8_BLOCK: u32 = 3;
    /// e2m1 codes, one e8m0 scale for each 32 inputs.
    pub const MXFP4: u32 = 4;
    /// e2m1 codes, one e4m3 scale for each 16 inputs, one f32 factor for the matrix.
    pub const NVFP4: u32 = 5;

    /// Names as they are printed, in the order of the numbers above.
    pub const NAMES: &[(u32, &str)] =
        &[(F32, "f32"), (BF16, "bf16"), (FP8_BLOCK, "fp8"), (MXFP4, "mxfp4"), (NVFP4, "nvfp4")];
}

/// A borrowed weight matrix of `n` outputs and `k` inputs, row-major, in one of the formats of [`weight_format`].
///
/// A value is `code * scale`, with e2m1 and e8m0 exact in f32; NVFP4 is `(code * scale) * global_scale`, which rounds
/// once. Source: `config.json` and tensor names of DeepSeek-V4 and of NVIDIA's NVFP4 checkpoint.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct WeightRef {
    /// One of [`weight_format`].
    pub format: u32,
    /// Factor of the whole matrix in NVFP4 (`weight_scale_2`); 1 in every other format.
    pub global_scale: f32,
    /// f32, bf16 or e4m3 `[n, k]`; or two e2m1 a byte, low nibble first, `[n, k / 2]` of [`dtype::U8`].
    pub data: TensorRef,
    /// FP8: e8m0 `[ceil(n / 128), ceil(k / 128)]`; MXFP4: e8m0 `[n, k / 32]`; NVFP4: e4m3 `[n, k / 16]`; else absent.
    pub scales: TensorRef,
}

impl WeightRef {
    /// A matrix of plain numbers: [`weight_format::F32`] or [`weight_format::BF16`].
    pub const fn plain(format: u32, data: TensorRef) -> Self {
        Self { format, global_scale: 1.0, data, scales: TensorRef::NONE }
    }
}

/// UTF-8 text that is borrowed from its owner and not terminated.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Text {
    /// First byte; may be dangling when `len` is 0.
    pub ptr: *const u8,
    /// Number of bytes.
    pub len: usize,
}

/// Layout identities of KV entries. A layout names dtype, order of bytes, scales and any rotation; two variants may share
/// a pool only if their layouts are equal.
///
/// An entry has two parts, data and scales ([`crate::PoolRef`] says where they lie). Numbers of more than one byte are in
/// the byte order of the machine. Rotated layouts: values are rounded to bf16, multiplied with the Hadamard matrix of
/// `dim` in natural (Sylvester) order times `dim^-1/2`, and rounded to bf16 again; a query is treated the same way, with
/// the same quantiser, before it is scored.
pub mod layout {
    /// Attention entry: `dim` f32 values, rope part last. No scales.
    pub const KV_F32: u32 = 1;
    /// Attention entry: `dim` bf16 values (round to nearest even), rope part last. No scales.
    pub const KV_BF16: u32 = 2;
    /// Attention entry of the serving engines (`fp8_ds_mla`), 584 bytes at 512/64. Data: the `dim - rope_dim` nope values
    /// as e4m3, then the `rope_dim` rope values as bf16. Scales: a ue8m0 byte for every 64 nope values, then zeros up to a
    /// multiple of 8 bytes. Values are rounded to bf16 first; a scale is `2^ceil(log2(max(amax, 1e-4) / 448))`. The host pads
    /// pages to a multiple of the data bytes of an entry (576 at 512/64).
    /// Source: SGLang `deepseek_v4` `fused_store_cache`; `act_quant` of the official `inference/kernel.py`.
    pub const KV_FP8_DS_MLA: u32 = 3;
    /// Index key: `dim` f32 values, rope part last, no rotation. No scales.
    pub const KEY_F32: u32 = 16;
    /// Index key: `dim` bf16 values (round to nearest even), rope part last, no rotation. No scales.
    pub const KEY_BF16: u32 = 17;
    /// Index key, rotated: `dim` e4m3 values; scale: one f32, `max(amax, 1e-4) / 448`. Codes are of `value * (1 / scale)`.
    /// Source: SGLang `fused_store_indexer_cache`.
    pub const KEY_FP8_HADAMARD: u32 = 18;
    /// Index key, rotated: `dim` e2m1 values, two a byte, the even one in the low nibble; scales: a ue8m0 byte for every 32
    /// values, `2^ceil(log2(max(amax, 6 * 2^-126) / 6))`. Source: `fp4_act_quant` of the official `inference/kernel.py`.
    pub const KEY_FP4_HADAMARD: u32 = 19;

    /// Names as they are printed, in the order of the numbers above.
    pub const NAMES: &[(u32, &str)] = &[
        (KV_F32, "kv-f32"),
        (KV_BF16, "kv-bf16"),
        (KV_FP8_DS_MLA, "kv-fp8-ds-mla"),
        (KEY_F32, "key-f32"),
        (KEY_BF16, "key-bf16"),
        (KEY_FP8_HADAMARD, "key-fp8-hadamard"),
        (KEY_FP4_HADAMARD, "key-fp4-hadamard"),
    ];
}
