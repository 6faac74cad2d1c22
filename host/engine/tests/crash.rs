//! kill -9 while a swap is on probation, then a start: the rules before the swap, a notice, and quarantine for the plugin.

mod common;

use common::{add, engine_with, rule, sizes, stock, unchecked};
use hotseam_loader::{Loader, LoaderConfig};
use hotseam_slots::{Probation, SwapMarker, SwapPolicy};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Set in the child: the state directory.
const CHILD: &str = "HOTSEAM_TEST_CRASH";
const OWNER: &str = "127.0.0.1:1";
const FAULTY: &str = "faulty/moe{fault: folded-scale}";

fn loader(state_dir: &Path) -> Loader {
    let config = LoaderConfig {
        dirs: vec![common::plugins()],
        state_dir: Some(state_dir.to_owned()),
        ..LoaderConfig::default()
    };
    Loader::with_config(config).expect("a loader")
}

/// Set in the child that hangs: the state directory.
const HUNG: &str = "HOTSEAM_TEST_HANG";

/// The server that dies: commits a swap whose probation does not end.
fn child(state_dir: &str) {
    let mut config = sizes();
    config.swap.owner = OWNER.to_owned();
    let engine = engine_with(config, loader(state_dir.as_ref()), stock());
    let probation = Probation { steps: u32::MAX, ms: 120_000, ..Probation::default() };
    let policy = SwapPolicy { probation, ..unchecked() };
    let id = engine.swaps().begin(add("moe@decode", FAULTY, policy)).expect("begun");
    engine.swaps().wait(id);
}

#[test]
fn a_process_that_dies_on_probation_is_followed_by_one_on_the_old_variants() {
    if let Ok(state_dir) = std::env::var(CHILD) {
        return child(&state_dir);
    }
    let state = tempfile::tempdir().expect("a directory");
    let name = "a_process_that_dies_on_probation_is_followed_by_one_on_the_old_variants";
    let mut child = Command::new(std::env::current_exe().expect("this executable"))
        .args([name, "--exact"])
        .env(CHILD, state.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("a child");
    let file = SwapMarker::path(state.path(), OWNER);
    let begun = Instant::now();
    while !file.exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no marker");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        SwapMarker::find(state.path(), OWNER).expect("readable"),
        None,
        "a server that still runs is not one that died"
    );
    // SIGKILL.
    child.kill().expect("killed");
    child.wait().expect("ended");

    let loader = loader(state.path());
    assert_eq!(SwapMarker::recover(&loader, "127.0.0.1:2").expect("readable"), None, "another server's");
    let marker = SwapMarker::recover(&loader, OWNER).expect("readable").expect("it died in a swap");
    assert_eq!((marker.pid, marker.assignment.as_str()), (child.id(), "live"));
    let notice = marker.notice();
    for word in
        ["died", "swap 1", "`live`", "faulty/moe{fault: folded-scale}", "in quarantine", "previous variants"]
    {
        assert!(notice.contains(word), "`{word}` is not in: {notice}");
    }
    assert!(!file.exists() && SwapMarker::recover(&loader, OWNER).expect("readable").is_none(), "told once");
    assert_eq!(marker.rules_before, stock());
    let error = loader.open("faulty/moe").expect_err("in quarantine").to_string();
    assert!(error.contains("quarantine") && error.contains("swap 1"), "{error}");

    let mut config = sizes();
    config.swap.owner = OWNER.to_owned();
    let engine = engine_with(config, loader, marker.rules_before);
    let tokens = engine.submit(common::ask(0, 30, 4)).expect("taken").tokens().expect("answered");
    assert_eq!(tokens.len(), 4);
    // It cannot come back by mistake.
    let refused = engine.slots().plan("live", &hotseam_slots::Change::Add(vec![rule("moe@decode", FAULTY)]));
    assert!(refused.expect_err("in quarantine").to_string().contains("quarantine"));
}

#[test]
fn a_file_that_served_before_is_not_put_into_quarantine() {
    let state = tempfile::tempdir().expect("a directory");
    let loader = loader(state.path());
    let mut config = sizes();
    config.swap.owner = OWNER.to_owned();
    let engine = engine_with(config, self::loader(state.path()), stock());
    let change = hotseam_slots::Change::Add(vec![rule("indexer", "indexer/cpu-stock{keys: bf16}")]);
    let plan = engine.swaps().plan("live", &change).expect("a plan");
    let mut marker = SwapMarker::new(7, OWNER, "somebody", 0, &plan);
    marker.pid = u32::MAX;
    marker.write(state.path()).expect("written");
    let found = SwapMarker::recover(&loader, OWNER).expect("readable").expect("a marker");
    assert!(found.notice().contains("its file served before too"), "{}", found.notice());
    loader.open("indexer/cpu-stock").expect("not in quarantine");
}

#[test]
fn a_hang_in_a_step_ends_the_process_and_the_next_starts_on_the_old_variants() {
    if let Ok(state_dir) = std::env::var(HUNG) {
        let mut config = sizes();
        config.swap.owner = OWNER.to_owned();
        config.swap.hang = Duration::from_millis(500);
        config.swap.exit_on_hang = true;
        let engine = engine_with(config, loader(state_dir.as_ref()), stock());
        // Its time is over before the step counts as hung.
        let probation = Probation { ms: 100, idle_ms: 100, ..Probation::default() };
        let policy = SwapPolicy { probation, ..unchecked() };
        let id = engine.swaps().begin(add("attention.core@decode", "faulty/attention{fault: hang}", policy));
        let id = id.expect("begun");
        while engine.swaps().record(id).is_some_and(|record| record.end.is_none()) {
            engine.submit(common::ask(0, 30, 20)).expect("taken").tokens().expect("answered");
        }
        return;
    }
    let state = tempfile::tempdir().expect("a directory");
    let name = "a_hang_in_a_step_ends_the_process_and_the_next_starts_on_the_old_variants";
    let status = Command::new(std::env::current_exe().expect("this executable"))
        .args([name, "--exact"])
        .env(HUNG, state.path())
        .stdout(Stdio::null())
        .status()
        .expect("a child");
    assert_eq!(status.code(), Some(hotseam_engine::SwapSettings::HUNG));
    let marker =
        SwapMarker::recover(&loader(state.path()), OWNER).expect("readable").expect("it hung in a swap");
    assert_eq!(marker.rules_before, stock());
    assert!(marker.notice().contains("faulty/attention{fault: hang}"), "{}", marker.notice());
}
