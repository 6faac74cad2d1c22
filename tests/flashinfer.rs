//! FlashInfer's top-k behind the indexer seam: it conforms, is swapped in under load, and is judged by a bisection beside stock and
//! planted faults. On the emulated device a stand-in in C takes its place; with `HOTSEAM_CUDA=device` it is the one that
//! `scripts/get-flashinfer` made, in the directory that `HOTSEAM_FLASHINFER` names (`target/flashinfer` without).

use hotseam_engine::EngineConfig;
use hotseam_tests::cuda::{Load, device, directory, is_real, stock, swapped_under_load};
use hotseam_tests::http::{hotseam, run};
use hotseam_tests::{Checkpoint, config, cuda, full, root, sha256};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Module and runtime.
struct Files {
    module: PathBuf,
    runtime: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

fn compiled(out: &Path, flags: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(out);
    let status = command.arg(root().join("tests/fixtures/flashinfer.c")).args(flags).status();
    assert!(status.expect("cc runs").success(), "the stand-in compiles");
}

impl Files {
    /// `None`, with a printed reason, without a device.
    fn new(flags: &[&str]) -> Option<Self> {
        if !device() {
            return None;
        }
        if is_real() {
            let named = std::env::var_os("HOTSEAM_FLASHINFER").map(PathBuf::from);
            let dir = named.unwrap_or_else(|| root().join("target/flashinfer"));
            let [module, runtime] = ["flashinfer_topk.so", "libtvm_ffi.so"].map(|name| dir.join(name));
            assert!(module.is_file(), "{} is not there; run scripts/get-flashinfer", module.display());
            return Some(Self { module, runtime, _dir: None });
        }
        let dir = tempfile::tempdir().expect("a directory");
        let [module, runtime] = ["module.so", "libruntime.so"].map(|name| dir.path().join(name));
        compiled(&runtime, &["-DRUNTIME", "-Wl,-soname,libruntime.so"]);
        let search = format!("-L{}", dir.path().display());
        compiled(&module, &[&[search.as_str()], flags, &["-lruntime"]].concat());
        Some(Self { module, runtime, _dir: Some(dir) })
    }

    fn variant(&self, keys: &str) -> String {
        let (module, runtime) = (&self.module, &self.runtime);
        format!(
            "indexer/cuda-flashinfer{{keys: {keys}, module: {}, module_sha256: '{}', runtime: {}, runtime_sha256: '{}'}}",
            module.display(),
            sha256(module),
            runtime.display(),
            sha256(runtime)
        )
    }
}

fn command(args: &[&str]) -> (i32, String, String) {
    let state = tempfile::tempdir().expect("a directory");
    let mut command = hotseam();
    command.args(args).env("XDG_STATE_HOME", state.path());
    if let (false, Some(directory)) = (is_real(), directory()) {
        command.env("LD_LIBRARY_PATH", directory);
    }
    run(&mut command)
}

#[test]
fn it_conforms_with_keys_of_every_layout() {
    let Some(files) = Files::new(&[]) else { return };
    for keys in ["f32", "bf16", "fp8", "fp4"] {
        let variant = files.variant(keys);
        let mut args = vec!["plugin", "check", &variant, "--no-probe", "--format", "json"];
        if !full() && !is_real() {
            args.push("--quick");
        }
        let (code, out, err) = command(&args);
        assert_eq!(code, 0, "{keys}: {out}{err}");
        let report: Value = serde_json::from_str(&out).expect("JSON");
        let cases = report["cases"].as_array().expect("cases").len();
        assert!(report["passed"] == true && cases > 5, "{keys}: {out}");
        println!("indexer/cuda-flashinfer{{keys: {keys}}}: {cases} of {cases} cases");
    }
}

/// Another version's arguments are refused by conformance, before a swap, with the words of the module.
#[test]
fn a_module_with_other_arguments_is_refused() {
    if is_real() {
        return;
    }
    let Some(files) = Files::new(&["-DARGUMENTS=9"]) else { return };
    let (code, out, err) = command(&["plugin", "check", &files.variant("bf16"), "--no-probe", "--quick"]);
    assert!(
        code != 0 && format!("{out}{err}").contains("TypeError: Mismatched number of arguments"),
        "{out}{err}"
    );
    let absent = "indexer/cuda-flashinfer{keys: bf16}";
    let (code, out, err) = command(&["plugin", "check", absent, "--no-probe", "--quick"]);
    assert!(code != 0 && format!("{out}{err}").contains("option module is empty"), "{out}{err}");
}

#[test]
fn it_is_swapped_with_stock_under_load() {
    let Some(files) = Files::new(&[]) else { return };
    // The stand-in is a call on the host, which no graph holds.
    let sizes =
        EngineConfig { max_seqs: 8, max_context: 4096, index_topk: Some(16), graphs: is_real(), ..config() };
    let engine = cuda::engine(&Checkpoint::Nano.model(), stock("bf16", "bf16"), sizes);
    let load = Load::of_this_device(if is_real() { 100 } else { 2 });
    let variants = [files.variant("bf16"), "indexer/cuda-stock{keys: bf16}".to_owned()];
    swapped_under_load(&engine, load, |swap| {
        let select = if swap % 3 == 0 { "indexer.select@decode" } else { "indexer.select" };
        (select.to_owned(), variants[swap % 2].clone())
    });
}

/// Beside a planted fault it is cleared and the fault is found; alone, no patch is guilty.
#[test]
fn a_bisection_clears_it() {
    if !is_real() && !full() {
        println!("skipped: the emulated device takes minutes for it; see scripts/test --full");
        return;
    }
    let Some(files) = Files::new(&[]) else { return };
    let config = root().join("configs/cuda.yaml");
    let bad = format!(
        "assignments.bad={{extends: live, rules: [{{select: indexer, use: \"{}\"}}]}}",
        files.variant("f32")
    );
    let oracle = match is_real() {
        true => "bisect.oracle={kind: kl, tokens: 1024, threshold: 1.0e-3}",
        false => {
            "bisect.oracle={kind: exact, max_tokens: 4, prompts: [{prompt: 'The house by the river was old, and'}]}"
        }
    };
    let graphs: &[&str] = if is_real() { &["true", "false"] } else { &["false"] };
    let plants = ["moe@decode:layers=0-2=faulty/cuda-moe{fault: decode-only}", ""];
    for (plant, graphs) in plants.iter().flat_map(|plant| graphs.iter().map(move |graphs| (*plant, *graphs)))
    {
        let start = Instant::now();
        let graphs = format!("engine.graphs={graphs}");
        let mut args = vec!["bisect", "run", config.to_str().expect("UTF-8"), "--format", "json"];
        if !plant.is_empty() {
            args.extend(["--plant", plant]);
        }
        let (context, chunk) = if is_real() { (2048, 128) } else { (512, 16) };
        let sizes = [format!("engine.max_context={context}"), format!("engine.chunk={chunk}")];
        let set = [
            &bad,
            "bisect={good: live, bad: bad, budget_runs: 20}",
            oracle,
            &sizes[0],
            &sizes[1],
            "engine.index_topk=4",
            "engine.max_seqs=2",
            "plugins.probe.enabled=false",
            &graphs,
        ];
        args.extend(set.iter().flat_map(|set| ["--set", set]));
        let (code, out, err) = command(&args);
        let report: Value =
            serde_json::from_str(&out).unwrap_or_else(|e| panic!("{plant}: {e}\n{out}\n{err}"));
        let culprits = report["culprits"].as_array().expect("culprits");
        println!(
            "planted `{plant}`, {graphs}: exit {code}, {} runs, {:.0} s, culprits {}, {}",
            report["runs"],
            start.elapsed().as_secs_f64(),
            report["culprits"],
            report["verdict"]
        );
        let expected = if plant.is_empty() { 0 } else { 1 };
        assert_eq!(culprits.len(), expected, "{report:#}");
        assert!(culprits.iter().all(|c| c["seam"] == "moe"), "{report:#}");
        match plant.is_empty() {
            true => assert_eq!(report["verdict"], "ends_agree_by_oracle", "{report:#}"),
            false => {
                let cleared = report["exonerated"].as_array().expect("a list");
                assert!(cleared.iter().any(|entry| entry["seam"] == "indexer"), "{report:#}");
            }
        }
    }
}
