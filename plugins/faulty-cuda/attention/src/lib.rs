//! Planted faults of the attention seam on a CUDA device: the stock kernels with one thing wrong, chosen by the option `fault`.

use hotseam_cuda_kernels::attention::Attention as Kernels;
use hotseam_cuda_kernels::faulty::Faulty as Wrong;
use hotseam_sdk::abi::{Batch, CompressArgs, CoreArgs, StoreArgs, layout};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Ctx, Host, Info, Plugin, Result, cuda, export_plugin};

/// Words that `past-end` writes.
const PAST: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    HalfScale,
    DroppedTail,
    PastEnd,
    Nan,
}

#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    fault: Fault,
}

struct Faulty {
    kernels: Kernels,
    wrong: Wrong,
    fault: Fault,
}

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        Ok(Self { kernels: Kernels::load()?, wrong: Wrong::load()?, fault: options.fault })
    }

    fn info(&self, shape: Shape) -> Info {
        Info::of_layout(layout::KV_BF16, shape)
    }
}

impl cuda::Attention for Faulty {
    fn store(&self, ctx: &Ctx, a: &StoreArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.kernels.store(ctx, a, batch) }
    }

    fn compress(&self, ctx: &Ctx, a: &CompressArgs, batch: &Batch) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.kernels.compress(ctx, a, batch) }
    }

    fn core(&self, ctx: &Ctx, a: &CoreArgs, batch: &Batch) -> Result<()> {
        let mut a = *a;
        match self.fault {
            Fault::HalfScale => a.scale *= 0.5,
            Fault::DroppedTail if a.ratio > 0 && !a.ids.is_null() => {
                // SAFETY: as above.
                a.ids = unsafe { self.wrong.cut(ctx, a.ids, batch.n_rows, a.ids_width)? };
            }
            Fault::DroppedTail | Fault::PastEnd | Fault::Nan => {}
        }
        // SAFETY: as above.
        unsafe { self.kernels.core(ctx, &a, batch)? };
        let row = (a.out.shape[1] * a.out.shape[2]) as usize;
        let out: *mut f32 = a.out.data.cast();
        // SAFETY: as above; what lies past the output is what the fault is about.
        unsafe {
            match self.fault {
                Fault::PastEnd if ctx.is_decode() => {
                    self.wrong.fill(ctx, out.wrapping_add(batch.n_rows as usize * row), PAST, 1.0)
                }
                Fault::Nan if batch.n_rows > 0 => self.wrong.fill(ctx, out, row as u32, f32::NAN),
                _ => Ok(()),
            }
        }
    }
}

export_plugin! {
    seam: attention, plugin: Faulty, ops: [store, compress, core],
    name: "faulty/cuda-attention", description: "Planted faults of the attention seam on a CUDA device",
    options: r#"{"fault": {"type": "string", "default": "half-scale", "values": ["half-scale", "dropped-tail", "past-end", "nan"], "help": "half-scale: softmax scale halved; dropped-tail: the last half of each row's list of entries is not read; past-end: 16 words written past the output, in decode; nan: the first row is NaN"}}"#,
    driver: "13.0", sm: "[90, 120]"
}
