//! Plugins that take a process down take down the probe's child, and nothing else.

mod common;

use common::{build, example, manifest, refused};
use hotseam_loader::{Loader, LoaderConfig, Probe, Sidecars};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const FILE: &str = "libhotseam_attention_x.so";
const NAME: &str = "attention/x";

fn probe() -> Probe {
    let mut probe = Probe::new(example("probe_child"), Vec::new());
    probe.timeout = Duration::from_secs(20);
    probe
}

fn loader(dir: &Path, probe: Probe, state: &Path) -> Loader {
    let state_dir = Some(state.to_owned());
    Loader::with_config(LoaderConfig {
        dirs: vec![dir.to_owned()],
        probe: Some(probe),
        state_dir,
        ..Default::default()
    })
    .expect("a loader")
}

struct Place {
    plugins: TempDir,
    state: TempDir,
}

impl Place {
    fn with(defines: &[&str]) -> Self {
        let plugins = tempfile::tempdir().expect("a directory");
        build(plugins.path(), FILE, 0, &manifest(NAME), defines);
        Self { plugins, state: tempfile::tempdir().expect("a directory") }
    }

    fn loader(&self, probe: Probe) -> Loader {
        loader(self.plugins.path(), probe, self.state.path())
    }

    /// Files in a directory of the state.
    fn remembered(&self, kind: &str) -> usize {
        self.state.path().join(kind).read_dir().expect("a directory").count()
    }
}

/// Opens a plugin that takes its child down, and asserts what is said and remembered.
#[track_caller]
fn crashes(defines: &[&str], probe: Probe, words: &[&str]) {
    let place = Place::with(defines);
    let error = refused(place.loader(probe.clone()).open(NAME), 301);
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    // Another loader, as after a restart, does not try the hash again.
    let started = Instant::now();
    let loader = place.loader(probe.clone());
    let again = refused(loader.open(NAME), 301);
    assert!(started.elapsed() < Duration::from_secs(2), "no second child");
    assert!(again.contains("is in quarantine: its probe ") && again.contains(words[0]), "{again}");
    let [entry] = &loader.quarantined()[..] else { panic!("one hash in quarantine") };
    assert_eq!(entry.name, NAME);
    assert!(again.contains(&entry.sha256));
    // A name for the same bytes is no way out.
    fs::copy(place.plugins.path().join(FILE), place.plugins.path().join("other.so")).expect("copied");
    refused(loader.open("other.so"), 301);
    assert_eq!(place.remembered("verdicts"), 0);
    // What the message says helps: with the file gone the hash is tried again.
    let file = entry.file.as_ref().expect("a file");
    assert!(again.contains(&format!("remove {} to try again.", file.display())), "{again}");
    fs::remove_file(file).expect("removed");
    assert!(refused(loader.open(NAME), 301).contains("the probe child"));
}

#[test]
fn abort() {
    crashes(
        &["PROBE_DOES=die"],
        probe(),
        &["was killed by SIGABRT (6) in stage `probe`", "stderr: `the fixture aborts`", FILE],
    );
}

#[test]
fn segmentation_fault_in_a_constructor() {
    crashes(
        &["CONSTRUCTOR_DOES=segv"],
        probe(),
        &["was killed by SIGSEGV (11) in stage `open`", "stderr: empty"],
    );
}

#[test]
fn stack_overflow() {
    crashes(
        &["PROBE_DOES=overflow"],
        probe(),
        &["was killed by SIGABRT (6) in stage `probe`", "thread 'main'", "has overflowed its stack"],
    );
}

#[test]
fn hang_in_probe_and_constructor() {
    let short = || Probe { timeout: Duration::from_millis(700), ..probe() };
    crashes(&["PROBE_DOES=hang"], short(), &["did not end within 0.7 s in stage `probe`"]);
    crashes(&["CONSTRUCTOR_DOES=hang"], short(), &["did not end within 0.7 s in stage `open`"]);
}

#[test]
fn out_of_memory() {
    let small = Probe { memory: 1 << 29, ..probe() };
    crashes(
        &["CREATE_DOES=eat"],
        small,
        &["was killed by SIGABRT (6) in stage `create`", "out of memory after "],
    );
}

#[test]
fn exit_without_a_verdict() {
    crashes(
        &["CREATE_DOES=leave"],
        probe(),
        &["ended without a verdict, with exit code 7, in stage `create`"],
    );
}

#[test]
fn a_good_one_is_probed_once() {
    // What it prints to stdout does not reach the host as a message.
    let place = Place::with(&["PROBE_DOES=print"]);
    let described = place.loader(probe()).describe(NAME, Sidecars::Check).expect("described");
    let verdict = described.verdict.expect("a verdict");
    assert_eq!(verdict.conformance.map(|c| (c.cases, c.failed)), Some((1, 0)));
    assert_eq!((verdict.mirror.manifest.name.as_str(), verdict.create_error), (NAME, None));
    assert_eq!((place.remembered("verdicts"), place.remembered("quarantine")), (1, 0));

    // A remembered verdict needs no child: here the program is gone. A verdict of another program is not taken over.
    let copy = place.state.path().join("probe_child");
    fs::copy(example("probe_child"), &copy).expect("copied");
    let by_copy = Probe { program: copy.clone(), ..probe() };
    place.loader(by_copy.clone()).open(NAME).expect("opened");
    assert_eq!(place.remembered("verdicts"), 2, "each build of the host has its own");
    place.loader(probe()).open(NAME).expect("opened");
    assert_eq!(place.remembered("verdicts"), 2);
    let missing = Probe { program: place.state.path().join("missing"), ..probe() };
    let error = refused(place.loader(missing).open(NAME), 110);
    assert!(error.contains("cannot start the probe"), "{error}");
}

#[test]
fn orderly_refusals_of_the_child_keep_their_code() {
    for (defines, code, words) in [
        (&["PROBE_CODE=3"][..], 302, "there is no such device here"),
        (&["CONTRACT=9"], 207, "expected 4, found 9"),
        (&["HOST_SERVICES=4"], 209, "needs host services 4, expected at most 1"),
        (&["UNRESOLVED"], 201, "not_defined_anywhere"),
        (&["NO_ENTRY"], 202, "hotseam_plugin_v1"),
        (&["TABLE_AT=2"], 206, "found moe"),
        (&["ENTRY_SIZE=24"], 205, "versions tried: 1"),
    ] {
        let place = Place::with(defines);
        let error = refused(place.loader(probe()).open(NAME), code);
        assert!(error.contains(words), "{error}");
        assert_eq!(place.remembered("quarantine"), 0, "an orderly refusal is no crash");
    }
}

#[test]
fn options_decide_whether_an_instance_can_be_made() {
    // That the default options make none is told, not held against the plugin.
    let place = Place::with(&["CREATE_CODE=4"]);
    let verdict =
        place.loader(probe()).describe(NAME, Sidecars::Check).expect("described").verdict.expect("a verdict");
    assert!(verdict.create_error.is_some_and(|e| e.contains("the kernel does not compile")));
    place.loader(probe()).open(NAME).expect("opened");
}

#[test]
fn quarantine_by_the_host() {
    let place = Place::with(&[]);
    let loader = place.loader(probe());
    let plugin = loader.open(NAME).expect("opened");
    loader.quarantine(NAME, plugin.sha256(), "NaN in step 12").expect("written");
    assert!(refused(loader.open(NAME), 301).contains("is in quarantine: NaN in step 12"));
    refused(loader.again().expect("a loader").open(NAME), 301);
    assert!(loader.forgive(plugin.sha256()).expect("lifted"));
    loader.open(NAME).expect("opened again");
}
