//! What authors of plugins are promised: a new crate builds, conforms and is swapped in; so do a plugin in C and a kernel
//! that was compiled against TVM-FFI.

use hotseam_tests::http::{Server, hotseam, run};
use hotseam_tests::{plugins, root, sha256};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const SEAMS: [&str; 5] = ["attention", "indexer", "moe", "mhc", "kv_transport"];

/// Builds with a compiler, or says what failed.
fn compile(command: &mut Command) {
    let (code, out, err) = run(command);
    assert_eq!(code, 0, "{command:?}\n{out}{err}");
}

/// Asserts that the variant, found in `dir` beside the stock plugins, passes every case.
fn conforms(variant: &str, dir: &Path) {
    let mut command = hotseam();
    command.args(["plugin", "check", variant, "--format", "json", "--dir"]).arg(dir);
    let (code, out, err) = run(command.arg("--dir").arg(plugins()));
    assert_eq!(code, 0, "{variant}: {out}{err}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["passed"], true);
    assert!(report["cases"].as_array().is_some_and(|cases| !cases.is_empty()), "{variant}: no case ran");
}

fn server(dir: &Path) -> Server {
    Server::start(&[&format!("plugins.dirs=[{:?}, {dir:?}]", plugins())])
}

/// Eight tokens from a server.
fn answer(server: &Server) -> Value {
    let body = json!({
        "model": "nano-v4", "prompt": (3..200).collect::<Vec<u32>>(), "max_tokens": 8, "temperature": 0, "logprobs": 1
    });
    let answer = server.post("/v1/completions", &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["choices"][0]["logprobs"]["tokens"].clone()
}

/// Asserts that `variant` is swapped in for `select`, runs, and is swapped out again.
fn swaps(server: &Server, select: &str, variant: &str) {
    let want = answer(server);
    let (code, out, err) = server.command(&["swap", select, variant, "--format", "json"]);
    assert_eq!(code, 0, "{variant}: {out}{err}");
    assert_eq!(answer(server).as_array().map(Vec::len), Some(8), "{variant}");
    let name = variant.split('{').next().unwrap();
    let (_, trace, _) = server.command(&["trace", "--format", "json"]);
    let cells = rows(&serde_json::from_str(&trace).expect("JSON"), name);
    assert!(cells.iter().any(|rows| *rows > 0), "{variant} did not run: {trace}");
    let (code, out, err) = server.command(&["rollback"]);
    assert_eq!(code, 0, "{variant}: {out}{err}");
    assert_eq!(answer(server), want, "{variant} left something behind");
}

/// Rows of every cell in a trace that a variant of this name serves.
fn rows(trace: &Value, name: &str) -> Vec<u64> {
    match trace {
        Value::Object(map)
            if map.get("variant").is_some_and(|v| v.as_str().is_some_and(|v| v.starts_with(name))) =>
        {
            map.get("rows").and_then(Value::as_u64).into_iter().collect()
        }
        Value::Object(map) => map.values().flat_map(|value| rows(value, name)).collect(),
        Value::Array(list) => list.iter().flat_map(|value| rows(value, name)).collect(),
        _ => Vec::new(),
    }
}

/// `hotseam plugin new` for every seam: what it writes builds as it is, conforms, and is swapped in.
#[test]
fn a_new_crate_builds_conforms_and_is_swapped_in() {
    let dir = tempfile::tempdir().unwrap();
    // Kept between runs: the SDK is then built once.
    let target = root().join("target/plugin-new");
    for seam in SEAMS {
        let path = dir.path().join(seam);
        let mut command = hotseam();
        command.args(["plugin", "new", seam, "from-template", "--format", "json", "--path"]).arg(&path);
        let (code, out, err) = run(command.args(["--description", "A crate as it comes, unchanged"]));
        assert_eq!(code, 0, "{out}{err}");
        let made: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(made["variant"], format!("{seam}/from-template"));
        let (again, _, err) = run(hotseam().args(["plugin", "new", seam, "other", "--path"]).arg(&path));
        assert!(again == 2 && err.contains("is not empty"), "{err}");

        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let manifest = path.join("Cargo.toml");
        let mut command = Command::new(cargo);
        command.args(["build", "--release", "--offline", "--quiet", "--manifest-path"]).arg(manifest);
        compile(command.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "-D warnings"));
        conforms(&format!("{seam}/from-template"), &target.join("release"));
    }
    let server = server(&target.join("release"));
    for seam in SEAMS.into_iter().filter(|seam| *seam != "kv_transport") {
        swaps(&server, seam, &format!("{seam}/from-template"));
    }
}

/// A plugin in C, built by cc against the generated header.
#[test]
fn a_plugin_in_c_conforms_and_is_swapped_in() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libhotseam_mhc_plain_c.so");
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"]);
    command.arg(root().join("abi/contract/include")).arg("-o").arg(&library);
    compile(command.arg(root().join("plugins/c/mhc_plain_c.c")).arg("-lm"));
    conforms("mhc/plain-c", dir.path());
    swaps(&server(dir.path()), "mhc", "mhc/plain-c");
}

/// A kernel compiled against the headers of `apache-tvm-ffi`, behind the shim. At run time there is no Python.
#[test]
fn a_tvm_ffi_kernel_conforms_and_is_swapped_in() {
    let Some(package) = tvm_ffi() else {
        println!(
            "skipped: the package apache-tvm-ffi is not there; install it under .venv or set HOTSEAM_TVM_FFI"
        );
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("mhc_post.so");
    let mut command = Command::new("c++");
    command.args(["-std=c++17", "-O2", "-shared", "-fPIC", "-o"]).arg(&module);
    command
        .arg(root().join("plugins/mhc/tvm-ffi/kernels/mhc_post.cc"))
        .arg("-I")
        .arg(package.join("include"));
    command.arg("-I").arg(package.join("3rdparty/dlpack/include")).arg("-L").arg(package.join("lib"));
    compile(command.arg("-ltvm_ffi"));
    let runtime = package.join("lib/libtvm_ffi.so");
    let variant = format!(
        "mhc/tvm-ffi{{module: {}, module_sha256: '{}', runtime: {}, runtime_sha256: '{}'}}",
        module.display(),
        sha256(&module),
        runtime.display(),
        sha256(&runtime)
    );
    conforms(&variant, dir.path());
    swaps(&server(dir.path()), "mhc.post", &variant);
}

/// Directory of the package `apache-tvm-ffi`.
fn tvm_ffi() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("HOTSEAM_TVM_FFI") {
        return Some(dir.into());
    }
    let versions = std::fs::read_dir(root().join(".venv/lib")).ok()?.flatten();
    versions.map(|version| version.path().join("site-packages/tvm_ffi")).find(|dir| dir.is_dir())
}
