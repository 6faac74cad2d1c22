//! Planted faults of the indexer seam on a CUDA device: the stock kernels, and a race after them.

use hotseam_cuda_kernels::faulty::Faulty as Wrong;
use hotseam_cuda_kernels::indexer::Indexer as Kernels;
use hotseam_sdk::abi::{Batch, CompressArgs, SelectArgs, layout};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Ctx, Host, Info, Plugin, Result, cuda, export_plugin};

#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    Race,
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
        Info::of_layout(layout::KEY_F32, shape)
    }
}

impl cuda::Indexer for Faulty {
    fn compress(&self, ctx: &Ctx, a: &CompressArgs, batch: &Batch) -> Result<()> {
        // SAFETY: the SDK's shim has checked the arguments.
        unsafe { self.kernels.compress(ctx, a, batch) }
    }

    fn select(&self, ctx: &Ctx, a: &SelectArgs, batch: &Batch) -> Result<()> {
        // SAFETY: as above.
        unsafe {
            self.kernels.select(ctx, a, batch)?;
            match self.fault {
                Fault::Race => self.wrong.rotate(ctx, a.ids, batch.n_rows, a.topk),
            }
        }
    }
}

export_plugin! {
    seam: indexer, plugin: Faulty, ops: [compress, select],
    name: "faulty/cuda-indexer", description: "Planted faults of the indexer seam on a CUDA device",
    options: r#"{"fault": {"type": "string", "default": "race", "values": ["race"], "help": "race: selected ids are turned round without a barrier between reading and writing, so that some get lost, other ones each time"}}"#,
    driver: "13.0", sm: "[90, 120]"
}
