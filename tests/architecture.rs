//! The invariants of docs/architecture.md that can be read off the tree.

use hotseam_tests::root;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What each crate may depend on, of Hotseam's own; plugins are checked apart.
const ARROWS: &[(&str, &[&str])] = &[
    ("abi/contract", &[]),
    ("abi/sdk", &["abi", "ops"]),
    ("abi/cuda", &[]),
    ("abi/conformance", &["abi", "cuda", "sdk", "ops"]),
    ("host/ops", &[]),
    ("host/model", &["ops"]),
    ("host/checkpoint", &["model"]),
    ("host/checkpoint/fuzz", &["checkpoint"]),
    ("host/kv", &["abi", "cuda", "model"]),
    ("host/pd", &["ops"]),
    ("host/ranks", &["cuda"]),
    ("host/loader", &["abi", "cuda", "ops"]),
    ("host/slots", &["abi", "conformance", "loader", "model"]),
    ("host/engine", &["abi", "cuda", "cuda-kernels", "kv", "loader", "model", "ops", "pd", "ranks", "slots"]),
    ("host/encoding", &[]),
    ("host/config", &[]),
    ("host/evidence", &["abi", "conformance", "encoding", "engine", "loader", "model", "slots"]),
    ("host/server", &["config", "encoding", "engine", "loader", "pd", "slots"]),
    ("host/target", &["checkpoint", "config", "encoding", "engine", "evidence", "loader", "model", "slots"]),
    ("host/bisect", &["target"]),
    (
        "host/cli",
        &[
            "bisect",
            "checkpoint",
            "config",
            "encoding",
            "engine",
            "evidence",
            "loader",
            "model",
            "server",
            "slots",
            "target",
        ],
    ),
];

fn dependencies(manifest: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(manifest).unwrap_or_else(|e| panic!("{}: {e}", manifest.display()));
    let section = text.split("\n[").find(|s| s.starts_with("dependencies]")).unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter_map(|name| name.strip_prefix("hotseam-")).map(str::to_owned).collect()
}

#[test]
fn arrows_between_crates_go_one_way() {
    for (dir, allowed) in ARROWS {
        let found = dependencies(&root().join(dir).join("Cargo.toml"));
        let extra: Vec<_> = found.iter().filter(|name| !allowed.contains(&name.as_str())).collect();
        assert!(extra.is_empty(), "{dir} depends on {extra:?}, allowed are {allowed:?}");
    }
    for manifest in ["abi", "host"].into_iter().flat_map(|top| files(&root().join(top), "Cargo.toml")) {
        let dir = manifest.strip_prefix(root()).unwrap().parent().unwrap();
        assert!(ARROWS.iter().any(|(known, _)| Path::new(known) == dir), "{} has no row", dir.display());
    }
}

#[test]
fn plugins_never_see_the_host() {
    let allowed = [
        "abi",
        "sdk",
        "cuda",
        "ops",
        "conformance",
        "cpu-kernels",
        "cuda-kernels",
        "kv-wire",
        "tvm-ffi",
        "faulty-common",
    ];
    let mut seen = 0;
    for manifest in files(&root().join("plugins"), "Cargo.toml") {
        seen += 1;
        let found = dependencies(&manifest);
        let extra: Vec<_> = found.iter().filter(|name| !allowed.contains(&name.as_str())).collect();
        assert!(extra.is_empty(), "{} depends on {extra:?}", manifest.display());
    }
    assert!(seen >= 15, "{seen} plugin crates");
}

fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path, ending)),
            false if path.to_string_lossy().ends_with(ending) => found.push(path),
            false => {}
        }
    }
    found
}

/// Asserts that `word` stands in Rust sources below `host`, `abi` and `plugins`, tests aside, only in `crates`.
fn only_in(word: &str, crates: &[&str]) {
    for top in ["abi", "host", "plugins"] {
        for file in files(&root().join(top), ".rs") {
            let name = file.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            let test = name.ends_with("tests.rs") || name.contains("/tests/");
            let here = !test && std::fs::read_to_string(&file).unwrap().contains(word);
            assert!(
                !here || crates.iter().any(|c| name.starts_with(c)),
                "{name} knows `{word}`, only {crates:?} may"
            );
        }
    }
    let home = files(&root().join(crates[0]), ".rs");
    assert!(
        home.iter().any(|f| std::fs::read_to_string(f).unwrap().contains(word)),
        "{} lost `{word}`",
        crates[0]
    );
}

#[test]
fn knowledge_stays_in_its_crate() {
    only_in("RTLD_NODELETE", &["host/loader", "plugins/tvm-ffi"]);
    only_in(
        "libloading",
        &["host/loader", "abi/cuda", "plugins/kv_transport/nixl", "plugins/cuda-kernels/build.rs"],
    );
    only_in("warp::", &["host/server"]);
    only_in("attn.wq_a", &["host/checkpoint"]);
    only_in("tid2eid.", &["host/checkpoint", "plugins", "host/engine", "host/evidence", "abi"]);
    only_in("<｜User｜>", &["host/encoding"]);
}

/// What runs in every step takes no lock and reads no environment. (That it allocates nothing is counted in
/// `tests/allocations.rs`.) The pool has a lock, for threads that sleep; the shadow of a swap has one, for its result.
#[test]
fn the_step_loop_takes_no_lock() {
    let step = [
        "host/engine/src/forward",
        "host/engine/src/scheduler",
        "host/engine/src/sequence.rs",
        "host/engine/src/sampler.rs",
        "host/engine/src/handoff.rs",
        "host/engine/src/watch.rs",
        "host/engine/src/disagg",
        "host/kv/src",
        "host/slots/src/bound.rs",
        "host/slots/src/receipt.rs",
        "abi/sdk/src/shims.rs",
        "abi/sdk/src/tensor.rs",
        "abi/sdk/src/views",
    ];
    let words = ["Mutex", "RwLock", "Condvar", ".lock()", "env::var", "sleep("];
    for place in step {
        let path = root().join(place);
        let sources = if path.is_dir() { files(&path, ".rs") } else { vec![path] };
        assert!(!sources.is_empty(), "{place} is empty");
        let of_tests = |file: &&PathBuf| {
            let inside =
                file.strip_prefix(root().join(place)).is_ok_and(|f| f.iter().any(|part| part == "tests"));
            inside || file.ends_with("tests.rs")
        };
        for file in sources.iter().filter(|file| !of_tests(file)) {
            let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for (number, line) in
                code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
            {
                let found = words.iter().find(|word| line.contains(**word));
                assert!(found.is_none(), "{}:{}: {line}", file.display(), number + 1);
            }
        }
    }
}

#[test]
fn the_contract_has_no_logic() {
    for file in files(&root().join("abi/contract/src"), ".rs") {
        let text = std::fs::read_to_string(&file).unwrap();
        for line in text.lines().filter(|l| !l.trim_start().starts_with("//")) {
            let logic = [" fn ", "if ", "for ", "while ", "match "]
                .iter()
                .any(|w| line.trim_start().starts_with(w.trim_start()));
            assert!(!logic, "{}: `{line}`", file.display());
        }
    }
}
