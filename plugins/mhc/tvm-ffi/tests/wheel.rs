//! The shim on the real runtime and on a kernel that its headers compiled. The package `apache-tvm-ffi` is only needed to
//! build the kernel: HOTSEAM_TVM_FFI names its directory, else `.venv` is looked through.

mod common;

use common::{close, options, run};
use hotseam_mhc_tvm_ffi::TvmFfi;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory of the package.
fn package() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("HOTSEAM_TVM_FFI") {
        return Some(dir.into());
    }
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.venv/lib");
    let versions = std::fs::read_dir(lib).ok()?.flatten();
    versions.map(|version| version.path().join("site-packages/tvm_ffi")).find(|dir| dir.is_dir())
}

#[test]
fn a_compiled_kernel_runs_and_raises() {
    let Some(package) = package() else {
        println!(
            "skipped: the package apache-tvm-ffi is not there; install it under .venv or set HOTSEAM_TVM_FFI"
        );
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("mhc_post.so");
    let status = Command::new("c++")
        .args(["-std=c++17", "-O2", "-shared", "-fPIC", "-o"])
        .arg(&module)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/mhc_post.cc"))
        .arg("-I")
        .arg(package.join("include"))
        .arg("-I")
        .arg(package.join("3rdparty/dlpack/include"))
        .arg("-L")
        .arg(package.join("lib"))
        .arg("-ltvm_ffi")
        .status()
        .expect("c++ runs");
    assert!(status.success(), "the kernel compiles");
    let shim = TvmFfi::load(&options(&package.join("lib/libtvm_ffi.so"), &module)).unwrap();
    for hc in [1, 4, 16] {
        assert!(close(&run(&shim, hc).unwrap()), "{hc} streams");
    }
    let error = run(&shim, 17).unwrap_err().message;
    assert_eq!(error, "ValueError: streams: expected 1 to 16 of them, found 17");
    assert!(close(&run(&shim, 4).unwrap()), "an error leaves nothing behind");
}
