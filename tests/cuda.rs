//! Variants that run on a CUDA device, through the command line: on the device that `scripts/cuda-emulator` makes, and on
//! machines that have none or a broken one.
//!
//! The plugins are the files that `cargo build --release --workspace` left beside this test.

use hotseam_tests::http::{hotseam, run};
use hotseam_tests::{full, plugins, root};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Every variant for a device, with each of its layouts.
const VARIANTS: [&str; 15] = [
    "attention/cuda-stock{kv: f32}",
    "attention/cuda-stock{kv: bf16}",
    "attention/cuda-stock{kv: fp8}",
    "indexer/cuda-stock{keys: f32}",
    "indexer/cuda-stock{keys: bf16}",
    "indexer/cuda-stock{keys: fp8}",
    "indexer/cuda-stock{keys: fp4}",
    "moe/cuda-stock",
    "mhc/cuda-stock",
    "attention/cuda-sm120{kv: bf16}",
    "attention/cuda-sm120{kv: fp8, splits: 3}",
    "indexer/cuda-sm120{keys: fp8}",
    "indexer/cuda-sm120{keys: fp4, early_exit: false}",
    "moe/cuda-sm120",
    "mhc/cuda-sm120",
];

/// Directory of the emulated driver; `None`, with a printed reason, without a compiler.
fn emulator() -> Option<&'static Path> {
    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    DIRECTORY.get_or_init(hotseam_tests::cuda::directory).as_deref()
}

/// A command on the plugins with a state of its own; `libraries` is searched for the driver.
fn command(args: &[&str], libraries: Option<&Path>, set: &[(&str, &str)]) -> (i32, String, String) {
    let state = tempfile::tempdir().expect("a directory");
    let mut command = hotseam();
    command.args(args).env("XDG_STATE_HOME", state.path()).env_remove("LD_LIBRARY_PATH");
    command.env("HOTSEAM_EMULATOR_STRICT", "1").envs(set.iter().copied());
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    run(&mut command)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("not JSON ({e}): {text}"))
}

#[test]
fn every_variant_for_a_device_conforms() {
    let Some(emulator) = emulator() else { return };
    for variant in VARIANTS {
        let name = variant.split('{').next().expect("a name").replace(['/', '-'], "_");
        let file = plugins().join(format!("libhotseam_{name}.so"));
        let next = "run scripts/get-nvrtc, then cargo build --release --workspace";
        assert!(file.is_file(), "{} is not built: {next}", file.display());
    }
    for variant in VARIANTS {
        let mut args = vec!["plugin", "check", variant, "--no-probe", "--format", "json"];
        // All cases, each made twenty times, take minutes where threads are emulated.
        if !full() && variant != "mhc/cuda-stock" {
            args.push("--quick");
        }
        let (code, out, err) = command(&args, Some(emulator), &[]);
        assert_eq!(code, 0, "{variant}: {out}{err}");
        let report = json(&out);
        let cases = report["cases"].as_array().expect("cases");
        assert!(cases.len() > 5 && report["passed"] == true, "{variant}: {out}");
        println!("{variant}: {} cases", cases.len());
    }
}

#[test]
fn other_orders_of_threads_and_the_other_architecture_conform() {
    let Some(emulator) = emulator() else { return };
    for variant in VARIANTS {
        let set = [("HOTSEAM_EMULATOR_SEED", "7"), ("HOTSEAM_EMULATOR_SM", "120")];
        let args = ["plugin", "check", variant, "--no-probe", "--quick"];
        let (code, out, err) = command(&args, Some(emulator), &set);
        assert_eq!(code, 0, "{variant}: {out}{err}");
    }
}

#[test]
fn the_probe_listing_and_timing_know_the_device() {
    let Some(emulator) = emulator() else { return };
    let (code, out, err) = command(&["plugin", "inspect", "mhc/cuda-stock"], Some(emulator), &[]);
    assert_eq!(code, 0, "{err}");
    for words in ["device    cuda", "quick cases of conformance passed", "a driver for CUDA 13.0 or later"] {
        assert!(out.contains(words), "`{words}` is not in: {out}");
    }
    let args = ["plugin", "bench", "mhc/cuda-stock", "--op", "mhc.post", "--milliseconds", "1", "--no-probe"];
    let (code, out, err) = command(&[&args[..], &["--format", "json"]].concat(), Some(emulator), &[]);
    assert_eq!(code, 0, "{err}");
    let timings = json(&out)["timings"].as_array().expect("timings").clone();
    assert!(!timings.is_empty() && timings.iter().all(|t| t["median_ns"].as_u64() > Some(0)), "{out}");
}

/// `scripts/cuda-sanitizer` asks for the same variants, and says what to do without the tool.
#[test]
fn the_sanitizer_is_run_on_every_variant() {
    let script = |args: &[&str]| {
        let mut command = Command::new(root().join("scripts/cuda-sanitizer"));
        run(command.args(args).env("HOTSEAM_SANITIZER", "/nowhere/compute-sanitizer"))
    };
    let (code, out, err) = script(&["--list"]);
    assert_eq!((code, out.lines().collect::<Vec<_>>()), (0, VARIANTS.to_vec()), "{err}");
    let (code, out, err) = script(&["--tool", "memcheck"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("/nowhere/compute-sanitizer") && err.contains("nvidia-cuda-sanitizer-api"), "{err}");
    let (code, _, err) = script(&["--tool", "leakcheck"]);
    assert!(code == 2 && err.contains("leakcheck"), "{err}");
}

/// The steps of a server run where its configuration says; a variant of another device is refused before it is made.
#[test]
fn a_configuration_does_not_mix_devices() {
    let Some(emulator) = emulator() else { return };
    let config = root().join("configs/quickstart.yaml");
    let args = ["config", "validate", "-c", config.to_str().expect("UTF-8"), "--set"];
    let rule = "assignments.live=[{select: moe, use: moe/cuda-stock}]";
    let (code, out, err) = command(&[&args[..], &[rule]].concat(), Some(emulator), &[]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    let words = ["E-PLUG-210 variant `moe/cuda-stock`", "expected cpu, found cuda", "`engine.device`"];
    assert!(words.iter().all(|words| err.contains(words)), "{err}");
}

/// A server that must have cuBLASLt and has it not, or something else of its name, or runs where it is of no use, does not start.
#[test]
fn what_cublaslt_needs_is_told() {
    let Some(emulator) = emulator() else { return };
    let refused = |config: &str, libraries: &Path, words: &[&str]| {
        let config = root().join("configs").join(config);
        let args = ["needle", "-c", config.to_str().expect("UTF-8"), "--set", "engine.cublaslt=required"];
        let (code, out, err) = command(&args, Some(libraries), &[]);
        assert!(code != 0 && words.iter().all(|words| err.contains(words)), "{code} {out}{err}");
        assert!(!err.contains("panicked"), "{err}");
    };
    refused("cuda.yaml", emulator, &["cuBLASLt is not there, searched libcublasLt.so.13", "LD_LIBRARY_PATH"]);
    refused("quickstart.yaml", emulator, &["engine.cublaslt", "auto or off where steps run on the CPU"]);
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("other.c");
    std::fs::write(&source, "int other;").expect("writable");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(dir.path().join("libcublasLt.so.13")).arg(&source);
    assert!(cc.status().expect("cc runs").success());
    let driver = dir.path().join("libcuda.so.1");
    std::os::unix::fs::symlink(emulator.canonicalize().expect("there").join("libcuda.so.1"), driver)
        .expect("a link");
    refused("cuda.yaml", dir.path(), &["libcublasLt.so.13 is not cuBLASLt: it has no cublasLtCreate"]);
}

/// What is wrong with the device, and what must be said of it. Nothing of it is a panic.
#[test]
fn without_a_usable_device_the_reason_and_a_next_step_are_told() {
    let Some(emulator) = emulator() else { return };
    let check = ["plugin", "check", "mhc/cuda-stock", "--quick", "--no-probe"];
    let probed = ["plugin", "inspect", "mhc/cuda-stock"];
    let said = |args: &[&str], libraries: Option<&Path>, set: &[(&str, &str)], code: i32, words: &[&str]| {
        let (found, out, err) = command(args, libraries, set);
        let text = format!("{out}{err}");
        assert_eq!(found, code, "{set:?}: {text}");
        for words in words {
            assert!(text.contains(words), "{set:?}: `{words}` is not in: {text}");
        }
        assert!(!text.contains("panicked") && !text.contains("stack backtrace"), "{text}");
    };
    let stub = emulator.join("stub");
    let fault = |fault| [("HOTSEAM_EMULATOR_FAULT", fault)];
    for args in [&check[..], &probed[..]] {
        let (code, ..) = command(args, None, &[]);
        match code {
            0 => println!("not tried: a machine without a driver, since this one has one"),
            _ => {
                let words = ["E-PLUG-106 mhc/cuda-stock", " for libcuda.so, ", "Install it, or add its"];
                said(args, None, &[], 2, &words);
            }
        }
        let words = [
            "E-PLUG-105 mhc/cuda-stock",
            "stub/libcuda.so.1, which is no working CUDA driver",
            "LD_LIBRARY_PATH",
        ];
        said(args, Some(&stub), &[], 2, &words);
        said(
            args,
            Some(emulator),
            &fault("stub"),
            2,
            &["E-PLUG-105", "which is no working CUDA driver", "LD_LIBRARY_PATH"],
        );
        let words = ["E-PLUG-105", "a driver without a device", "Look at nvidia-smi"];
        said(args, Some(emulator), &fault("no-device"), 2, &words);
        let words = ["E-PLUG-105", "found CUDA 12.2 and sm_90", "Install a newer driver."];
        said(args, Some(emulator), &fault("old-driver"), 2, &words);
        let words = ["E-PLUG-105", "a device of sm_90, sm_120", "found CUDA 13.", "sm_80. Choose a variant"];
        said(args, Some(emulator), &fault("other-sm"), 2, &words);
    }
    let small = [("HOTSEAM_EMULATOR_MEMORY", "1000000")];
    let words = ["E-PLUG-305 mhc/cuda-stock", "out of device memory", "are free. "];
    said(&check, Some(emulator), &small, 2, &words);
    said(&probed, Some(emulator), &small, 0, &["out of device memory"]);
    let words = ["does not conform", "cuLaunchKernel", "Run it under compute-sanitizer"];
    said(&check, Some(emulator), &fault("launch"), 1, &words);
    said(
        &probed,
        Some(emulator),
        &fault("launch"),
        0,
        &["quick cases of conformance failed", "cuLaunchKernel"],
    );
}
