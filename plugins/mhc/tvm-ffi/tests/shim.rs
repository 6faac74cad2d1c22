//! The shim on a runtime and kernels in C: calls, errors, versions, and that nothing unchecked is loaded.

mod common;

use common::{close, options, run, sha256};
use hotseam_mhc_tvm_ffi::{Options, TvmFfi};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds `name.so` from a fixture.
fn build(dir: &Path, name: &str, fixture: &str, flags: &[&str]) -> PathBuf {
    let out = dir.join(format!("{name}.so"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&out).arg(source);
    let status = command.args(flags).status().expect("cc runs; the tests of plugins need a C compiler");
    assert!(status.success(), "{fixture} compiles");
    out
}

fn fixtures() -> (tempfile::TempDir, Options) {
    let dir = tempfile::tempdir().unwrap();
    let runtime = build(dir.path(), "libfake", "runtime.c", &["-Wl,-soname,libfake.so"]);
    let search = format!("-L{}", dir.path().display());
    let module = build(dir.path(), "kernel", "kernel.c", &[&search, "-lfake"]);
    let options = options(&runtime, &module);
    (dir, options)
}

fn refused(options: Options) -> String {
    TvmFfi::load(&options).expect_err("refused").message
}

#[test]
fn a_kernel_runs_and_its_errors_have_kind_and_message() {
    let (_dir, options) = fixtures();
    let shim = TvmFfi::load(&options).unwrap();
    for hc in [1, 2, 4, 8] {
        assert!(close(&run(&shim, hc).unwrap()), "{hc} streams");
    }
    assert_eq!(run(&shim, 3).unwrap_err().message, "ValueError: three streams");
    assert_eq!(run(&shim, 5).unwrap_err().message, "the kernel returned -1 and raised nothing");
    assert!(close(&run(&shim, 4).unwrap()), "an error leaves nothing behind");
}

#[test]
fn files_of_another_content_are_not_loaded() {
    let (dir, good) = fixtures();
    // Loading this one would end the process.
    let search = format!("-L{}", dir.path().display());
    let trap = build(dir.path(), "trap", "kernel.c", &[&search, "-lfake", "-DCONSTRUCTOR=1"]);
    let module = trap.to_str().unwrap().to_owned();
    let message = refused(Options { module: module.clone(), ..good.clone() });
    for part in [module.as_str(), &sha256(&trap), &good.module_sha256, "module_sha256"] {
        assert!(message.contains(part), "{message}");
    }
    let message = refused(Options { runtime_sha256: "0".repeat(64), ..good.clone() });
    assert!(message.contains("runtime_sha256"), "{message}");
    // A file that was replaced after it was named by hash.
    std::fs::copy(&trap, &good.module).unwrap();
    assert!(refused(good).contains("module_sha256"));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let (dir, good) = fixtures();
    let message = refused(Options { function: "no_such".into(), ..good.clone() });
    assert_eq!(message, "the module has no symbol `__tvm_ffi_no_such`");
    let message = refused(Options { module: "kernel.so".into(), ..good.clone() });
    assert_eq!(message, "option module: expected an absolute path, found `kernel.so`");
    let message = refused(Options { module: String::new(), ..good.clone() });
    assert_eq!(message, "option module is empty, expected an absolute path");
    let message = refused(Options { module: "/no/such.so".into(), ..good.clone() });
    assert!(message.contains("/no/such.so: No such file"), "{message}");

    let text = dir.path().join("text.so");
    std::fs::write(&text, "not a library").unwrap();
    let message = refused(Options {
        module_sha256: sha256(&text),
        module: text.to_str().unwrap().into(),
        ..good.clone()
    });
    assert!(message.contains("text.so: ") && message.contains("file too short"), "{message}");

    let new = build(dir.path(), "new", "runtime.c", &["-DMINOR=2"]);
    let message = refused(Options {
        runtime_sha256: sha256(&new),
        runtime: new.to_str().unwrap().into(),
        ..good.clone()
    });
    assert_eq!(message, "the runtime is TVM-FFI 0.2.16, expected 0.1.x");
    let twin = build(dir.path(), "twin", "runtime.c", &["-Wl,-soname,libtwin.so"]);
    let message = refused(Options {
        runtime_sha256: sha256(&twin),
        runtime: twin.to_str().unwrap().into(),
        ..good.clone()
    });
    assert_eq!(message, "the module is not linked to this runtime; name the one it was built with");
    let other = build(dir.path(), "other", "runtime.c", &["-DTVMFFIGetVersion=renamed"]);
    let (runtime, runtime_sha256) = (other.to_str().unwrap().to_owned(), sha256(&other));
    assert_eq!(
        refused(Options { runtime, runtime_sha256, ..good }),
        "the runtime has no symbol `TVMFFIGetVersion`"
    );
}
