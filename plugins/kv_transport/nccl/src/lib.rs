//! Hand-off over NCCL, between workers with a GPU each: NVLink or PCIe within a machine, the network between machines.
//!
//! Frames, rooms and refusals are those of `kv-wire`, over a TCP connection; the bytes of each frame go between the two ends as
//! one group of `ncclSend` and `ncclRecv`. The receiving side copies them into its pages itself.
//!
//! CUDA and NCCL are opened when an instance is created, so the file loads where neither is, and says there what it misses. The
//! two ends are ranks of their own, on different GPUs unless NCCL is told otherwise, so one instance cannot put to itself.

mod carrier;
mod comm;

use cudarc::driver;
use hotseam_cuda::nccl;
use hotseam_kv_wire::{Carrier, Medium, Settings, Transport, address};
use hotseam_sdk::{Error, Host, Result, export_plugin};
use std::sync::Arc;
use std::time::Duration;

/// Options.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    device: u64,
    listen: String,
    advertise: String,
    patience_ms: u64,
}

/// The variant `kv_transport/nccl`.
pub type Nccl = Transport<Options>;

impl hotseam_kv_wire::Options for Options {
    fn settings(&self) -> Result<Settings> {
        let advertise = match self.advertise.as_str() {
            "" => None,
            text => Some(address("advertise", text)?),
        };
        let (listen, patience) = (address("listen", &self.listen)?, Duration::from_millis(self.patience_ms));
        Ok(Settings { medium: Medium::Tcp, listen, advertise, patience })
    }

    fn carrier(&self, host: Host) -> Result<Option<Arc<dyn Carrier>>> {
        let unsupported =
            |error: String| Error::unsupported(format!("{}. {OTHERWISE}", error.trim_end_matches('.')));
        hotseam_cuda::available().map_err(|error| unsupported(error.to_string()))?;
        nccl::Nccl::open().map_err(|error| unsupported(error.to_string()))?;
        let devices = driver::result::init().and_then(|()| driver::result::device::get_count());
        let devices = devices.map_err(|error| Error::unsupported(format!("CUDA: {error:?}")))?;
        let device = usize::try_from(self.device).ok().filter(|device| *device < devices as usize);
        let device = device.ok_or_else(|| {
            Error::argument(format!("device: {} is not there, the driver knows {devices}", self.device))
        })?;
        let patience = Duration::from_millis(self.patience_ms);
        Ok(Some(Arc::new(carrier::Nccl { device, patience, host })))
    }
}

/// What works without.
const OTHERWISE: &str = "Workers without a GPU use kv_transport/tcp, shm or nixl";

export_plugin! {
    seam: kv_transport, plugin: Nccl,
    ops: [register, put, poll, cancel, endpoint, connect, accept, close],
    name: "kv_transport/nccl", description: "Hand-off over NCCL, between workers that have a GPU each",
    options: r#"{"device": {"type": "integer", "default": 0,
        "help": "number of the GPU; the two ends of a connection need different ones, unless NCCL 2.30 or newer has NCCL_MULTI_RANK_GPU_ENABLE=1"},
        "listen": {"type": "string", "default": "127.0.0.1:0",
        "help": "address that a receiving side listens on for frames; port 0 takes a free one"},
        "advertise": {"type": "string", "default": "",
        "help": "address that sending sides are told, with port 0 for the one in use; empty for that of listen"},
        "patience_ms": {"type": "integer", "default": 5000,
        "help": "how long a receiving side may be out of reach, or one frame may take, before puts fail"}}"#,
    cpu: "[]"
}
