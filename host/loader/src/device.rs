//! The CUDA device of this process, for instances of plugins that run on one.

use crate::error::LoadError;
use hotseam_cuda::{CudaError, Device};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Which of the driver's devices; CUDA_VISIBLE_DEVICES decides what that is.
static ORDINAL: AtomicU32 = AtomicU32::new(0);

/// Says which of the driver's devices instances run on from now on, if it is not the first. Once a device is open, it stays.
pub fn init_device(ordinal: u32) {
    ORDINAL.store(ordinal, Ordering::Relaxed);
}

/// The device, its context current on this thread. It is opened by the first question that succeeds, for the life of the
/// process: code that plugins have loaded into the context outlasts their instances.
pub(crate) fn open(name: &str) -> Result<Arc<Device>, LoadError> {
    static OPENED: Mutex<Option<Arc<Device>>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let device = match &*opened {
        Some(device) => device.make_current().map(|()| Arc::clone(device)),
        None => Device::open(ORDINAL.load(Ordering::Relaxed))
            .map(|device| Arc::clone(opened.insert(Arc::new(device)))),
    };
    device.map_err(|error| LoadError::device(name, error))
}

/// Number among the `E-PLUG` numbers.
pub(crate) fn code(error: &CudaError) -> u16 {
    match error {
        CudaError::NoDriver { .. } | CudaError::NotADriver { .. } => 106,
        CudaError::OldDriver { .. } | CudaError::NoDevice { .. } | CudaError::NoImage { .. } => 105,
        CudaError::Memory { .. } | CudaError::Call { .. } | CudaError::NoKernel { .. } => 305,
    }
}

/// What to do, where the text does not say it.
pub(crate) fn next(error: &CudaError) -> &'static str {
    match error {
        CudaError::Call { .. } => ". Look at the device with nvidia-smi, and at the kernel's log.",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_the_driver_has_a_number_and_a_next_step() {
        let call =
            CudaError::Call { call: "cuInit", code: 999, name: "UNKNOWN".into(), text: "unknown".into() };
        let memory = CudaError::Memory { what: "weights".into(), wanted: 2, free: 1, total: 1 };
        for (error, number, words) in [
            (CudaError::NoDriver { searched: vec!["libcuda.so".into()] }, 106, "Install the NVIDIA driver"),
            (CudaError::NoDevice { ordinal: 0, count: 0 }, 105, "Look at nvidia-smi"),
            (memory, 305, "out of device memory: weights takes 2 bytes"),
            (call, 305, "(UNKNOWN: unknown). Look at the device with nvidia-smi"),
        ] {
            let error = LoadError::device("moe/x", error);
            assert_eq!(error.code(), number);
            assert!(error.to_string().starts_with(&format!("E-PLUG-{number} moe/x: ")), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
