//! Hand-off over NCCL, between workers on different GPUs: NVLink or PCIe within a machine, the network between machines.
//!
//! Frames, rooms and refusals are those of `kv-wire`, over a TCP connection; the bytes of each frame go between the two ends as
//! one group of `ncclSend` and `ncclRecv`. The receiving side copies them into its pages itself.
//!
//! CUDA and NCCL are opened when an instance is created, so the file loads where neither is, and says there what it misses. The
//! two ends need different GPUs, so one instance cannot put to itself.

mod carrier;
mod comm;

use cudarc::{driver, get_lib_name_candidates, nccl};
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
        // SAFETY: the libraries' constructors run; they are those that the machine's linker is set up to find.
        let present = unsafe { (driver::sys::is_culib_present(), nccl::sys::is_culib_present()) };
        needs(present.0, "cuda", "the NVIDIA driver brings it")?;
        needs(present.1, "nccl", "install NCCL 2.22 or newer, or name its directory in LD_LIBRARY_PATH")?;
        let version = nccl::result::get_nccl_version();
        let version = version.map_err(|error| Error::unsupported(format!("NCCL: {error:?}")))?;
        if version < OLDEST {
            return Err(Error::unsupported(format!(
                "NCCL has version {version}, expected {OLDEST} or more; install NCCL 2.22 or newer"
            )));
        }
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

/// Oldest version of NCCL, as it counts them: that of the declarations.
const OLDEST: i32 = 22_200;

/// Refuses a library that is not there.
fn needs(present: bool, library: &str, next: &str) -> Result<()> {
    if present {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "lib{library}.so is not there, searched {}: {next}. Workers without a GPU use kv_transport/tcp, shm or nixl",
        get_lib_name_candidates(library).join(", ")
    )))
}

export_plugin! {
    seam: kv_transport, plugin: Nccl,
    ops: [register, put, poll, cancel, endpoint, connect, accept, close],
    name: "kv_transport/nccl", description: "Hand-off over NCCL, between workers that have a GPU each",
    options: r#"{"device": {"type": "integer", "default": 0,
        "help": "number of the GPU; the two ends of a connection need different ones"},
        "listen": {"type": "string", "default": "127.0.0.1:0",
        "help": "address that a receiving side listens on for frames; port 0 takes a free one"},
        "advertise": {"type": "string", "default": "",
        "help": "address that sending sides are told, with port 0 for the one in use; empty for that of listen"},
        "patience_ms": {"type": "integer", "default": 5000,
        "help": "how long a receiving side may be out of reach, or one frame may take, before puts fail"}}"#,
    cpu: "[]"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_what_was_searched_and_the_next_step() {
        assert_eq!(needs(true, "cuda", "x"), Ok(()));
        let error = needs(false, "nccl", "install NCCL").unwrap_err();
        for text in ["libnccl.so is not there", "libnccl.so.", "install NCCL", "kv_transport/tcp"] {
            assert!(error.message.contains(text), "{text}: {error}");
        }
    }
}
