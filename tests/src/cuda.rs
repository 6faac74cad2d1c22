//! A CUDA device for tests: the one that `scripts/cuda-emulator` makes, or, with `HOTSEAM_CUDA=device`, the machine's own.

use crate::http::run;
use crate::{plugins, root};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Whether the machine's own device was asked for.
pub fn own_device() -> bool {
    std::env::var("HOTSEAM_CUDA").is_ok_and(|v| v == "device")
}

/// Directory of the emulated driver, which is built if need be; `None`, with a printed reason, without a compiler.
pub fn emulator() -> Option<&'static Path> {
    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
        if Command::new(&compiler).arg("--version").output().is_err() {
            println!("skipped: {compiler}, which builds the emulated device, is not installed");
            return None;
        }
        let target = plugins().parent().expect("target above release").to_owned();
        let mut script = Command::new(root().join("scripts/cuda-emulator"));
        let (code, out, err) = run(script.env("CARGO_TARGET_DIR", target));
        assert_eq!(code, 0, "{err}");
        Some(root().join(out.trim()))
    });
    directory.as_deref()
}

/// Makes sure that this process finds a device; false, with a printed reason, if it cannot have one. To be asked before anything
/// asks for CUDA: the emulated driver is opened by its path, and its name then stands for it to whoever looks for a driver.
pub fn device() -> bool {
    static OPENED: OnceLock<bool> = OnceLock::new();
    *OPENED.get_or_init(|| {
        if own_device() {
            return true;
        }
        let Some(directory) = emulator() else { return false };
        let path = directory.join("libcuda.so.1");
        let name = CString::new(path.to_str().expect("UTF-8")).expect("no zero in a path");
        // SAFETY: the library is our own, and its constructors do nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "{} cannot be opened", path.display());
        true
    })
}
