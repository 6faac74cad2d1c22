//! Plugins with faults of loading (`plugins/faulty/load`, and `layout` of the loader's own tests) are refused with their
//! code and leave the server serving.
//!
//! They are examples: `cargo test --workspace` builds them, and so does
//! `cargo build --release -p hotseam-faulty-load -p hotseam-loader --examples`.

use hotseam_tests::http::{Server, hotseam, run};
use hotseam_tests::plugins;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Files that are no plugins of the build, by example.
fn faulty(dir: &Path, example: &str) -> PathBuf {
    let built = plugins().join("examples").join(format!("libfaulty_{example}.so"));
    let copy = dir.join(format!("libfaulty_{example}.so"));
    std::fs::copy(&built, &copy).unwrap_or_else(|e| panic!("{}: {e}", built.display()));
    copy
}

/// Example, code and words of its refusal.
const FAULTS: &[(&str, u16, &str)] = &[
    ("header", 203, "expected abi_stable 0.11, found 0.10"),
    ("layout", 204, "layout differs: mismatched type, expected PluginModVal, found OtherModVal"),
    ("later", 205, "no version of the entry fits: tried 1, found hotseam_plugin_v2"),
    ("entry_size", 205, "the entry of version 1 is too short: expected "),
    ("contract", 207, "contract differs: expected 4, found 5 in "),
    ("manifest_length", 301, " in stage `manifest`. stderr: `"),
    ("probe_panic", 302, "cannot run on this machine: panicked: told to panic in probe (code 1)"),
    (
        "info_size",
        303,
        "info failed: size: expected the 40 bytes of this host's description, found writes behind them",
    ),
    (
        "entry_bytes",
        303,
        "info failed: data_bytes and scale_bytes: expected 2048 and 0 for an entry of this layout and dimension 512, found 1024 and 0",
    ),
    ("constructor_panic", 301, "told to panic in a constructor"),
    ("create_panic", 301, "was killed by SIGABRT (6) in stage `create`. stderr: `"),
    ("probe_abort", 301, "was killed by SIGABRT (6) in stage `probe`. stderr: `told to abort`"),
    ("probe_overflow", 301, "has overflowed its stack"),
    ("probe_hang", 301, "did not end within 6 s in stage `probe`"),
    ("manifest", 206, "expected attention, as its name says, found mhc"),
    ("services", 209, "needs host services 2, expected at most 1"),
];

#[test]
fn every_one_is_refused_with_its_code_and_the_server_serves_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let dirs = format!("plugins.dirs=['{}', '{}']", plugins().display(), dir.path().display());
    let server = Server::start(&[&dirs, "plugins.probe.timeout_seconds=6"]);
    let request = json!({"model": "nano-v4", "prompt": [0, 3, 100, 200], "max_tokens": 4, "temperature": 0});
    let answer = || {
        let answer = server.post("/v1/completions", &request);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["choices"][0]["text"].clone()
    };
    let want = answer();
    for (example, code, words) in FAULTS {
        let path = faulty(dir.path(), example);
        // Of the two seams that they serve.
        let select = if *example == "entry_bytes" { "attention.core@decode" } else { "mhc.post@decode" };
        let swap = ["swap", select, path.to_str().expect("UTF-8")];
        let (exit, out, err) = server.command(&swap);
        assert_ne!(exit, 0, "{example}: {out}{err}");
        let said = format!("{out}{err}");
        for words in [&format!("E-PLUG-{code} "), *words] {
            assert!(said.contains(words), "{example}: `{words}` is not in: {said}");
        }
        assert_eq!(answer(), want, "after {example}");
        if *code == 301 {
            let (exit, out, err) = server.command(&swap);
            assert_ne!(exit, 0, "{example}: {out}{err}");
            assert!(format!("{out}{err}").contains("is in quarantine: its probe"), "{example}: {out}{err}");
        }
    }
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn the_commands_about_plugins_say_the_same() {
    let (dir, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let command = |args: &[&str]| {
        let mut command = hotseam();
        command.args(args).arg("--dir").arg(dir.path()).arg("--state-dir").arg(state.path());
        run(&mut command)
    };
    let crashing = faulty(dir.path(), "probe_abort");
    // Under the names that `plugin list` looks for.
    std::fs::rename(&crashing, dir.path().join("libhotseam_faulty_probe_abort.so")).expect("renamed");
    std::fs::copy(
        plugins().join("libhotseam_mhc_cpu_stock.so"),
        dir.path().join("libhotseam_mhc_cpu_stock.so"),
    )
    .expect("copied");

    let (code, out, err) = command(&["plugin", "list", "--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let listed: Value = serde_json::from_str(&out).expect("JSON");
    let by_name = |name: &str| {
        let plugins = listed["plugins"].as_array().expect("a list");
        plugins
            .iter()
            .find(|plugin| plugin["name"] == name)
            .unwrap_or_else(|| panic!("{name} in {out}"))
            .clone()
    };
    let (bad, good) = (by_name("faulty/probe-abort"), by_name("mhc/cpu-stock"));
    assert_eq!((&bad["state"], &bad["error"]["code"]), (&json!("quarantined"), &json!(301)));
    assert_eq!(
        (&good["state"], &good["kind"], &good["sidecar"]),
        (&json!("usable"), &json!("mhc"), &json!(false))
    );
    assert_eq!(good["verdict"]["conformance"]["failed"], 0, "{good}");
    assert_eq!(listed["quarantine"][0]["name"], "faulty/probe-abort");
    let file = PathBuf::from(listed["quarantine"][0]["file"].as_str().expect("a path"));
    assert!(file.starts_with(state.path()) && file.is_file());

    let (code, _, err) = command(&["plugin", "inspect", "faulty/probe-abort"]);
    assert_eq!(code, 2);
    assert!(err.contains("E-PLUG-301 faulty/probe-abort: ") && err.contains("is in quarantine"), "{err}");
    let (code, out, err) = command(&["plugin", "inspect", "mhc/cpu-stock"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("quick cases of conformance passed") && out.contains("sidecar   none"), "{out}");

    // Signed, checked by policy, spoilt, refused.
    let key = state.path().join("key");
    let key = key.to_str().expect("UTF-8");
    let trust = format!("{key}.pub");
    let signed = ["--policy", "signed", "--trust", &trust];
    let (code, out, err) = command(&["plugin", "sign", "mhc/cpu-stock", "--new-key", key]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.lines().count(), 2, "{out}");
    let (code, out, err) = command(&[&["plugin", "inspect", "mhc/cpu-stock"][..], &signed].concat());
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("fits, signed by key "), "{out}");
    let (code, _, err) = command(&[&["plugin", "check", "mhc/cpu-stock", "--quick"][..], &signed].concat());
    assert_eq!(code, 0, "{err}");
    let sidecar = dir.path().join("libhotseam_mhc_cpu_stock.so.manifest.yaml");
    let text = std::fs::read_to_string(&sidecar).expect("written");
    std::fs::write(&sidecar, text.replace("host_services: 1", "host_services: 0")).expect("written");
    let (code, _, err) = command(&[&["plugin", "inspect", "mhc/cpu-stock"][..], &signed].concat());
    assert_eq!(code, 2);
    assert!(err.contains("E-PLUG-103 mhc/cpu-stock: ") && err.contains("does not fit the sidecar"), "{err}");
    // Signing anew looks at the binary, not at what is there.
    let (code, _, err) = command(&["plugin", "sign", "mhc/cpu-stock", "--key", key]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(std::fs::read_to_string(&sidecar).expect("written"), text);
}

#[test]
fn bench_times_two_variants_in_turn() {
    let state = tempfile::tempdir().expect("a directory");
    let mut command = hotseam();
    command.args(["plugin", "bench", "mhc/cpu-bf16-gemm", "--against", "mhc/cpu-stock", "--op", "mhc.pre"]);
    command.args(["--milliseconds", "5", "--format", "json", "--state-dir"]).arg(state.path());
    let (code, out, err) = run(&mut command);
    assert_eq!(code, 0, "{err}");
    let timed: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(timed["variants"], json!(["mhc/cpu-bf16-gemm", "mhc/cpu-stock"]));
    let timings = timed["timings"].as_array().expect("a list");
    assert!(timings.len() >= 4, "{out}");
    for pair in timings.chunks(2) {
        assert_eq!(
            (&pair[0]["op"], &pair[0]["subject"], &pair[1]["subject"]),
            (&json!("mhc.pre"), &json!(0), &json!(1))
        );
        assert_eq!((&pair[0]["case"], &pair[0]["calls"]), (&pair[1]["case"], &pair[1]["calls"]));
        for timing in pair {
            let ns = |field: &str| timing[field].as_u64().expect("a number");
            assert!(0 < ns("low_ns") && ns("low_ns") <= ns("median_ns") && ns("median_ns") <= ns("high_ns"));
        }
    }
    let mut wrong = hotseam();
    wrong.args(["plugin", "bench", "mhc/cpu-stock", "--op", "mhc.pree", "--state-dir"]).arg(state.path());
    let (code, _, err) = run(&mut wrong);
    assert_eq!(code, 2);
    assert!(err.contains("unknown op `mhc.pree`. Did you mean `mhc.pre`?"), "{err}");
}
