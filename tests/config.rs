//! `hotseam config` on every file that is shipped, and on broken ones.
//!
//! Each file in `configs/broken` has one mistake; beside it stands what the command says about it.
//! `HOTSEAM_WRITE_MESSAGES=1` writes those texts anew: read them before they are kept.

use hotseam_tests::http::{hotseam, run};
use hotseam_tests::{plugins, root};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn yaml_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files
}

/// Directory of the emulated device, for files whose variants run on one; `None` without a compiler.
fn emulator() -> Option<&'static Path> {
    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    DIRECTORY.get_or_init(hotseam_tests::cuda::directory).as_deref()
}

/// `hotseam config ...`, with a state directory of its own.
fn config(state: &tempfile::TempDir, args: &[&str]) -> Command {
    let mut command = hotseam();
    command.arg("config").args(args).env("XDG_STATE_HOME", state.path());
    if let Some(libraries) = emulator() {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command
}

#[test]
fn shipped_files_are_valid_and_print_what_they_come_to() {
    let state = tempfile::tempdir().unwrap();
    let files = yaml_files(&root().join("configs"));
    assert!(files.len() >= 3);
    for file in files {
        let name = file.to_str().unwrap();
        if emulator().is_none() && name.ends_with("/cuda.yaml") {
            continue;
        }
        let (code, out, err) = run(&mut config(&state, &["validate", "--format", "json", "-c", name]));
        assert_eq!(code, 0, "{name}: {err}");
        let valid: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(valid["model"], "nano-v4");
        assert_eq!(valid["assignments"]["live"].as_str().unwrap().len(), 64);
        assert!(!valid["plugins"].as_array().unwrap().is_empty());

        // As it stands it is printed byte by byte; the effective form is another file that comes to the same.
        let (_, plain, _) = run(&mut config(&state, &["print", "-c", name]));
        assert_eq!(plain, std::fs::read_to_string(&file).unwrap());
        let (code, effective, err) = run(&mut config(&state, &["print", "--effective", "-c", name]));
        assert_eq!(code, 0, "{name}: {err}");
        let copy = state.path().join("effective.yaml");
        std::fs::write(&copy, &effective).unwrap();
        let copy = copy.to_str().unwrap();
        let (_, again, _) = run(&mut config(&state, &["print", "--effective", "-c", copy]));
        assert_eq!(again, effective, "{name}");
        let (code, out, err) = run(&mut config(&state, &["validate", "--format", "json", "-c", copy]));
        assert_eq!(code, 0, "{name}: {err}");
        let same: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(same["assignments"], valid["assignments"], "{name}");

        // A change is in the effective form, and nowhere else.
        let set = ["print", "--effective", "--set", "engine.max_seqs=3", "-c", name];
        let (_, changed, _) = run(&mut config(&state, &set));
        let differ: Vec<_> = changed.lines().zip(effective.lines()).filter(|(a, b)| a != b).collect();
        let [(after, before)] = differ.as_slice() else { panic!("{name}: {differ:?}") };
        assert!(*after == "  max_seqs: 3" && before.starts_with("  max_seqs: "), "{name}: {differ:?}");
    }
}

#[test]
fn the_schema_is_the_published_one() {
    let state = tempfile::tempdir().unwrap();
    let (code, out, err) = run(&mut config(&state, &["schema"]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out, std::fs::read_to_string(root().join("configs/schema/config.schema.json")).unwrap());
}

/// Directories, keys and policy are looked at by the loader, which knows no file.
#[test]
fn what_the_loader_refuses_has_a_place() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("server.yaml");
    let text = std::fs::read_to_string(root().join("configs/quickstart.yaml")).unwrap();
    let text = text.replace("../assets", root().join("assets").to_str().unwrap());
    let before = "plugins: { dirs: [] }";
    let line = 1 + text.lines().position(|line| line.starts_with(before)).unwrap();
    for (section, column, part) in [
        ("plugins: { dirs: [/none] }", 18, "E-PLUG-110 plugins.dirs: cannot read the directory /none"),
        ("plugins: { keys: [/none] }", 19, "/none: No such file"),
        ("plugins: { state_dir: /proc/none }", 23, "E-PLUG-110 plugins.state_dir: cannot make /proc/none"),
        ("plugins: { policy: signed }", 20, "E-PLUG-103 plugins.policy: plugins.keys: no key is trusted"),
    ] {
        std::fs::write(&file, text.replace(before, section)).unwrap();
        let (code, _, err) = run(&mut config(&state, &["validate", "-c", file.to_str().unwrap()]));
        assert!(code == 2 && err.contains(&format!("server.yaml:{line}:{column}: {part}")), "{code} {err}");
    }
}

#[test]
fn broken_files_are_refused_with_place_and_next_step() {
    let state = tempfile::tempdir().unwrap();
    let dir = root().join("tests/configs/broken");
    let files = yaml_files(&dir);
    assert!(files.len() >= 20, "{} broken files", files.len());
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        // Named as a person would who stands beside it.
        let (code, out, err) = run(config(&state, &["validate", "-c", name]).current_dir(&dir));
        assert_eq!((code, out.as_str()), (2, ""), "{name}: {err}");
        let mut said = err;
        for (path, word) in [(plugins(), "PLUGINS"), (root(), "ROOT")] {
            said = said.replace(path.to_str().unwrap(), word);
        }
        let expected = file.with_extension("txt");
        if std::env::var_os("HOTSEAM_WRITE_MESSAGES").is_some() {
            std::fs::write(&expected, &said).unwrap();
        }
        assert!(said.starts_with(&format!("error: {name}:")), "{name} gives no place: {said}");
        let expected = std::fs::read_to_string(&expected).unwrap_or_default();
        if said != expected {
            wrong.push(format!("{name}\nsays      {said}\nexpected  {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
