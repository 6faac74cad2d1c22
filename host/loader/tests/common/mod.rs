//! Builds plugins for tests from `fixtures/plugin.c`. The tests of slots use it too.
#![allow(dead_code, reason = "no test uses all of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A manifest with the options that the fixture knows.
pub(crate) fn manifest(name: &str) -> String {
    manifest_with(name, "null", "")
}

/// A manifest with a base (JSON) and more top-level fields (JSON, with a comma in front).
pub(crate) fn manifest_with(name: &str, base: &str, more: &str) -> String {
    format!(
        r#"{{"name": "{name}", "version": "1.2.3", "description": "a fixture", "base": {base}, "options": {{
            "keys": {{"type": "string", "default": "f32", "values": ["f32", "bf16"], "help": "key format"}},
            "fail": {{"type": "boolean", "default": false, "help": "ops fail"}},
            "scale": {{"type": "number", "default": 1, "help": "unused"}},
            "seen": {{"type": "integer", "default": 0, "help": "address"}},
            "destroyed": {{"type": "integer", "default": 0, "help": "address"}}}}{more}}}"#
    )
}

/// Builds `dir/file` from the fixture. `defines` are `NAME=value` or `NAME`.
pub(crate) fn build(dir: &Path, file: &str, seam: u32, manifest: &str, defines: &[&str]) -> PathBuf {
    let out = dir.join(file);
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O0", "-Wall", "-Wno-unused-function", "-o"])
        .arg(&out)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../loader/tests/fixtures/plugin.c"))
        .arg(format!("-DSEAM={seam}"))
        .arg(format!("-DMANIFEST={manifest:?}"))
        .args(defines.iter().map(|d| format!("-D{d}")))
        .status()
        .expect("cc runs; the tests of plugins need a C compiler");
    assert!(status.success(), "the fixture {file} compiles");
    out
}

/// Builds a variant under the file name that belongs to its name.
pub(crate) fn variant(dir: &Path, name: &str, seam: u32, defines: &[&str]) -> PathBuf {
    let file = hotseam_loader::file_name(name).expect("a variant name");
    build(dir, &file, seam, &manifest(name), defines)
}

/// Asserts that `result` is a refusal of this code whose text begins with the code and ends with a sentence; the text.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T, hotseam_loader::LoadError>, code: u16) -> String {
    let error = result.err().expect("refused");
    let text = error.to_string();
    assert_eq!(error.code(), code, "{text}");
    assert!(text.starts_with(&format!("E-PLUG-{code} ")), "{text}");
    assert!(text.ends_with(['.', '?']), "{text}");
    text
}

/// A program or library that cargo has built as an example of the loader.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.parent().and_then(Path::parent).expect("target/release").join("examples").join(name)
}
