//! Stock scores of the indexer on a CUDA device, and FlashInfer's top-k among them, called through TVM-FFI.
//!
//! The module is FlashInfer's `csrc/topk.cu` (0.7.4) with an export of `radix_topk_ragged_transform`, as
//! `scripts/get-flashinfer` makes it: `(scores [rows, width] f32, ids [rows, topk] i32, offsets [rows] i32, lengths [rows] i32,
//! row states or none, topk, deterministic, which of equal scores, safe for graphs, row starts or none)`. Argument lists are not
//! the same in all versions of FlashInfer; another one raises an error in the first call, which conformance makes before a swap.

use hotseam_cuda_kernels::indexer::{Choose, Indexer as Kernels, Keys, Scored};
use hotseam_sdk::abi::{Batch, CompressArgs, SelectArgs};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Ctx, Error, Host, Info, Plugin, Result, cuda, export_plugin};
use hotseam_tvm_ffi::{Any, DeviceKernel, Element, Files, Place, Tensor};
use std::ffi::c_void;

/// Most entries that its filtering kernel keeps of a row (`FILTERED_TOPK_MAX_K`), the only one that orders equal scores. It takes 128 KiB
/// of shared memory, which sm_120 has not.
const MOST_KEPT: u32 = 2048;
/// `TopKTieBreak::Small`: of equal scores the lower entries, as the stock variant has it.
const LOWER_ENTRIES: i64 = 1;

/// Options of the variant.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    keys: Keys,
    module: String,
    module_sha256: String,
    runtime: String,
    runtime_sha256: String,
}

/// FlashInfer's function.
#[derive(Debug)]
struct Topk(DeviceKernel);

/// The variant `indexer/cuda-flashinfer`.
#[derive(Debug)]
pub struct FlashInfer {
    kernels: Kernels,
    topk: Topk,
    layout: u32,
}

impl Choose for Topk {
    fn choose(&self, ctx: &Ctx, s: &Scored) -> Result<()> {
        let (place, rows) = (Place::Cuda(s.device), s.rows as usize);
        let at = |address: u64| address as *const c_void;
        let mut scores = Tensor::new(place, Element::F32, at(s.scores), [rows, s.width as usize]);
        let mut ids = Tensor::new(place, Element::I32, at(s.ids), [rows, s.topk as usize]);
        let mut offsets = Tensor::new(place, Element::I32, at(s.offsets), [rows]);
        let mut lengths = Tensor::new(place, Element::I32, at(s.lengths), [rows]);
        let args = [
            Any::tensor(&mut scores),
            Any::tensor(&mut ids),
            Any::tensor(&mut offsets),
            Any::tensor(&mut lengths),
            Any::NONE,
            Any::int(i64::from(s.topk)),
            Any::bool(true),
            Any::int(LOWER_ENTRIES),
            // Launches depend on shapes alone in this mode, so a recorded call serves any lengths; the other one is for rows that
            // cannot be read four scores at once, which these can.
            Any::bool(false),
            Any::NONE,
        ];
        // SAFETY: the tensors live to the end of this function and describe device memory of the call, whose context is current.
        unsafe { self.0.call(s.device, ctx.stream(), &args) }
    }
}

impl Plugin for FlashInfer {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        let Options { module, module_sha256, runtime, runtime_sha256, .. } = &options;
        let files = Files { module, module_sha256, runtime, runtime_sha256 };
        let topk = Topk(DeviceKernel::load(&files, "radix_topk_ragged_transform")?);
        Ok(Self { kernels: Kernels::load()?, topk, layout: options.keys.layout() })
    }

    fn info(&self, shape: Shape) -> Info {
        Info::of_layout(self.layout, shape)
    }
}

impl cuda::Indexer for FlashInfer {
    fn compress(&self, ctx: &Ctx, a: &CompressArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.kernels.compress(ctx, a, batch) }
    }

    fn select(&self, ctx: &Ctx, a: &SelectArgs, batch: &Batch) -> Result<()> {
        if a.topk > MOST_KEPT {
            return Err(Error::unsupported(format!(
                "{} entries to keep a row; indexer/cuda-flashinfer keeps up to {MOST_KEPT}. Use indexer/cuda-stock.",
                a.topk
            )));
        }
        // SAFETY: as above.
        unsafe { self.kernels.select_by(ctx, a, batch, Some(&self.topk)) }
    }
}

export_plugin! {
    seam: indexer, plugin: FlashInfer, ops: [compress, select],
    name: "indexer/cuda-flashinfer", description: "Stock scores on a CUDA device, chosen among by FlashInfer's top-k",
    options: r#"{"keys": {"type": "string", "default": "bf16", "values": ["f32", "bf16", "fp8", "fp4"], "help": "how index keys are kept: f32, bf16, or fp8 or fp4 with a Hadamard rotation"}, "module": {"type": "string", "default": "", "help": "absolute path of FlashInfer's compiled top-k (scripts/get-flashinfer)"}, "module_sha256": {"type": "string", "default": "", "help": "sha256 of the module, hexadecimal"}, "runtime": {"type": "string", "default": "", "help": "absolute path of libtvm_ffi.so"}, "runtime_sha256": {"type": "string", "default": "", "help": "sha256 of the runtime, hexadecimal"}}"#,
    driver: "13.0", sm: "[90]"
}
