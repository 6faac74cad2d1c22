//! Makes the emulated CUDA device that of this process; `README.md` beside this says what it is.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Makes device 0 of this process the emulated one, or, with `HOTSEAM_CUDA=device`, leaves it the machine's own. For the start of a
/// test, before anything asks for CUDA. `false`, with a printed reason, if the emulated one cannot be built.
///
/// # Panics
/// If it is built and does not open, or does not build where there is a compiler.
pub fn device() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    *THERE.get_or_init(|| is_real() || directory().is_some_and(|directory| open(&directory)))
}

/// Whether tests run on the machine's own device, where they take the sizes that an emulated one is too slow for.
pub fn is_real() -> bool {
    std::env::var("HOTSEAM_CUDA").is_ok_and(|v| v == "device")
}

/// Directory of the emulated `libcuda.so.1`, built if it is out of date; `None`, with a printed reason, without a compiler.
///
/// # Panics
/// If it does not build.
pub fn directory() -> Option<PathBuf> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    if Command::new(&compiler).arg("--version").output().is_err() {
        println!("skipped: {compiler}, which builds the emulated device, is not installed");
        return None;
    }
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/cuda-emulator is two deep");
    let executable = std::env::current_exe().expect("the path of this executable");
    let target = executable.ancestors().nth(3).expect("target/release/deps/test");
    let out = Command::new(root.join("scripts/cuda-emulator")).env("CARGO_TARGET_DIR", target).output();
    let out = out.expect("scripts/cuda-emulator starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(root.join(String::from_utf8_lossy(&out.stdout).trim()))
}

/// Opens it; whoever opens `libcuda.so.1` from now on gets the library of that name that is open already.
fn open(directory: &Path) -> bool {
    let path = directory.join("libcuda.so.1");
    let text = CString::new(path.as_os_str().as_bytes()).expect("a path without zeros");
    // SAFETY: the library is the project's own, and stays open.
    let opened = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!opened.is_null(), "{} does not open", path.display());
    true
}
