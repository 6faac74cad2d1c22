//! `moe.route` and `moe.experts`.

mod experts;
mod route;
pub mod sm120;

use crate::failed;
use crate::images::MOE;
use hotseam_cuda::{Kernel, Module};
use hotseam_sdk::Result;

/// Dynamic shared memory that kernels are content with.
const SHARED_BYTES: u32 = 40 * 1024;

/// The kernels of the seam, loaded into the current context.
#[derive(Debug)]
pub struct Moe {
    scores_few: Kernel,
    scores_stream: Kernel,
    scores_many: Kernel,
    choose: Kernel,
    hash: Kernel,
    plan: Kernel,
    up_few: Kernel,
    up_stream: Kernel,
    up_many: Kernel,
    down_few: Kernel,
    down_stream: Kernel,
    down_many: Kernel,
    sum: Kernel,
}

impl Moe {
    /// Loads them. May synchronise the device.
    ///
    /// # Errors
    /// If there is no machine code for the device, or the driver refuses it.
    pub fn load() -> Result<Self> {
        let module = Module::load(MOE).map_err(failed)?;
        let kernel = |name: &str| module.kernel(&format!("hotseam_moe_{name}")).map_err(failed);
        Ok(Self {
            scores_few: kernel("scores_few")?,
            scores_stream: kernel("scores_stream")?,
            scores_many: kernel("scores_many")?,
            choose: kernel("choose")?,
            hash: kernel("hash")?,
            plan: kernel("plan")?,
            up_few: kernel("up_few")?,
            up_stream: kernel("up_stream")?,
            up_many: kernel("up_many")?,
            down_few: kernel("down_few")?,
            down_stream: kernel("down_stream")?,
            down_many: kernel("down_many")?,
            sum: kernel("sum")?,
        })
    }
}
