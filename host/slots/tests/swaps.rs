//! Changing assignments while they are in use.

mod common;

use common::fixture::{build, manifest, variant};
use common::{no_args, rule, rules, slots, step, stock};
use hotseam_abi::seam;
use hotseam_slots::{Change, LayoutPolicy, Phase, SlotsError, Topology};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

const REFUSE: LayoutPolicy = LayoutPolicy::Refuse;

/// An address that a plugin counts at, as an option value.
fn address(counter: &AtomicI64) -> usize {
    counter.as_ptr() as usize
}

#[test]
fn swap_heal_and_roll_back() {
    let dir = stock();
    variant(dir.path(), "moe/b", seam::MOE, &["CAPABILITIES=4"]);
    let slots = slots(dir.path(), Topology::Single);
    let before = slots.define("live", rules(&[])).expect("defined");

    let report = slots.swap("live", rule("moe.route@decode:layers=2-3", "moe/b"), REFUSE).expect("swapped");
    let cells: Vec<String> = report.changes.iter().map(|c| c.cell.to_string()).collect();
    assert_eq!(cells, ["moe.route@decode:layers=2", "moe.route@decode:layers=3"]);
    assert_eq!(report.changes[0].to.variant.to_string(), "moe/b");
    let after = slots.snapshot("live").expect("there");
    assert_eq!((report.digest_before, report.digest_after), (before.digest(), after.digest()));
    assert_ne!(report.digest_before, report.digest_after);
    assert!(!before.layer(Phase::Decode, 2).route.has(4), "a snapshot that is held does not change");
    assert!(after.layer(Phase::Decode, 2).route.has(4));
    let json = serde_json::to_string(&report).expect("JSON");
    assert_eq!(serde_json::from_str::<hotseam_slots::SwapReport>(&json).expect("a report"), report);

    let back = slots.rollback("live").expect("rolled back");
    assert_eq!((back.digest_after, back.changes.len()), (before.digest(), 2));
    let error = slots.rollback("live").expect_err("one change is kept");
    assert_eq!(error, SlotsError::NothingToRollBack { name: "live".into() });

    slots.swap("live", rule("moe", "moe/b"), REFUSE).expect("swapped");
    slots.swap("live", rule("!moe@prefill", ""), REFUSE).expect("healed");
    let live = slots.snapshot("live").expect("there");
    assert!(live.layer(Phase::Decode, 0).experts.has(4) && !live.layer(Phase::Prefill, 0).experts.has(4));
    slots.swap("live", rule("!moe", ""), REFUSE).expect("healed");
    assert_eq!(slots.snapshot("live").expect("there").digest(), before.digest());
    let text: Vec<String> = slots.rules("live").expect("there").iter().map(ToString::to_string).collect();
    assert_eq!(text.len(), rules(&[]).len() + 1, "rules that decide nothing are gone: {text:?}");
}

#[test]
fn a_plan_is_reverted_also_if_it_went_back() {
    let dir = stock();
    let slots = slots(dir.path(), Topology::Single);
    let first = slots.define("live", rules(&[])).expect("defined");
    let add = Change::Add(vec![rule("moe", "moe/stock{scale: 2}")]);
    let plan = |change: &Change| slots.plan("live", change).expect("a plan");
    let there = plan(&add);
    assert!(!slots.revert(&there), "it was not committed");
    slots.commit(&there).expect("committed");
    let second = slots.snapshot("live").expect("there");
    let list = slots.rules("live");

    let back = plan(&Change::Back);
    slots.commit(&back).expect("committed");
    assert_eq!(slots.snapshot("live").expect("there").digest(), first.digest());
    assert!(slots.revert(&back) && !slots.revert(&back), "once");
    assert!(std::sync::Arc::ptr_eq(&second, &slots.snapshot("live").expect("there")));
    assert_eq!(slots.rules("live"), list);
    let error = slots.rollback("live").expect_err("nothing to take back");
    assert_eq!(error, SlotsError::NothingToRollBack { name: "live".into() });

    let third = plan(&Change::Add(vec![rule("moe", "moe/stock{scale: 3}")]));
    slots.commit(&third).expect("committed");
    slots.swap("live", rule("moe", "moe/stock{scale: 4}"), REFUSE).expect("swapped");
    assert!(!slots.revert(&third), "another change came after it");
}

#[test]
fn a_swap_that_changes_nothing_keeps_counts_and_history() {
    let dir = stock();
    let slots = slots(dir.path(), Topology::Single);
    let live = slots.define("live", rules(&[])).expect("defined");
    live.head(Phase::Decode).call(&step(1), &no_args(), 2).expect("called");
    slots.swap("live", rule("moe", "moe/stock{scale: 2}"), REFUSE).expect("swapped");
    let now = slots.snapshot("live").expect("there");
    assert_eq!(now.head(Phase::Decode).receipt.calls(), 0, "counts are of one snapshot");

    for same in
        [rule("moe", "moe/stock{scale: 2.0}"), rule("kv_transport", "kv_transport/stock"), rule("!mhc", "")]
    {
        let report = slots.swap("live", same, REFUSE).expect("accepted");
        assert_eq!((report.changes.len(), report.digest_before), (0, report.digest_after));
    }
    assert!(std::sync::Arc::ptr_eq(&now, &slots.snapshot("live").expect("there")));
    assert_eq!(slots.rollback("live").expect("rolled back").digest_after, live.digest());
}

#[test]
fn refused_swaps_change_nothing() {
    let dir = stock();
    let slots = slots(dir.path(), Topology::Single);
    let live = slots.define("live", rules(&[])).expect("defined");
    let list = slots.rules("live");
    for (name, selector, variant, words) in [
        ("liv", "moe", "moe/stock", &["no assignment `liv`", "Did you mean `live`?"][..]),
        ("live", "moe", "moe/none", &["E-PLUG-100"]),
        ("live", "moe^paired", "moe/stock", &["`moe^paired`", "the running one is single"]),
        ("live", "indexer:layers=7", "indexer/stock", &["layer 7", "5 layers"]),
        (
            "live",
            "indexer",
            "indexer/stock{keys: bf16}",
            &["E-PLUG-402", "layer 1", "key-f32", "key-bf16", "drain"],
        ),
    ] {
        let error = slots.swap(name, rule(selector, variant), REFUSE).expect_err(selector);
        for word in words {
            assert!(error.to_string().contains(word), "`{word}` is not in: {error}");
        }
    }
    assert!(std::sync::Arc::ptr_eq(&live, &slots.snapshot("live").expect("there")));
    assert_eq!(slots.rules("live"), list);

    let layout =
        slots.swap("live", rule("indexer", "indexer/stock{keys: bf16}"), REFUSE).expect_err("refused");
    assert_eq!(layout.code(), Some(402));
    slots.swap("live", rule("indexer", "indexer/stock{keys: bf16}"), LayoutPolicy::Allow).expect("allowed");
    assert_eq!(slots.snapshot("live").and_then(|s| s.key_layout(3)).map(|l| l.name()), Some("key-bf16"));
    assert_eq!(slots.rollback("live").expect_err("a layout again").code(), Some(402));
    assert!(slots.remove("live") && !slots.remove("live"));
    assert!(slots.snapshot("live").is_none() && slots.names().is_empty());
}

#[test]
fn only_the_named_variant_is_read_from_disk_again() {
    let dir = stock();
    let slots = slots(dir.path(), Topology::Single);
    slots.define("live", rules(&[])).expect("defined");
    variant(dir.path(), "moe/stock", seam::MOE, &["CAPABILITIES=4"]);
    variant(dir.path(), "mhc/stock", seam::MHC, &["CAPABILITIES=2"]);

    let report = slots.swap("live", rule("moe@decode", "moe/stock"), REFUSE).expect("swapped");
    assert_eq!(report.changes.len(), 10, "the file was replaced, so the same name is other code");
    assert!(report.changes.iter().all(|c| c.from.variant == c.to.variant && c.from.hash != c.to.hash));
    let live = slots.snapshot("live").expect("there");
    assert!(live.layer(Phase::Decode, 0).route.has(4) && !live.layer(Phase::Prefill, 0).route.has(4));
    assert!(
        !live.layer(Phase::Decode, 0).mhc_pre.has(2),
        "a file that no rule of the swap names is left alone"
    );

    let loaded = slots.registry().loaded();
    let moe: Vec<_> = loaded.iter().filter(|l| l.name == "moe/stock").map(|l| l.generations).collect();
    assert_eq!(moe, [1, 1], "both are mapped and in use: {loaded:?}");
    assert_eq!(loaded.len(), 6, "the five of the definition, and the new moe: {loaded:?}");
}

#[test]
fn old_generations_retire() {
    let ended = AtomicI64::new(0);
    let dir = stock();
    let slots = slots(dir.path(), Topology::Single);
    slots.define("live", rules(&[])).expect("defined");
    let use_it = |scale: u32| {
        let variant = format!("moe/stock{{destroyed: {}, scale: {scale}}}", address(&ended));
        slots.swap("live", rule("moe", &variant), REFUSE).expect("swapped");
    };
    use_it(2);
    use_it(3);
    assert_eq!(ended.load(Ordering::SeqCst), 0, "the one before is kept for a rollback");
    let held = slots.snapshot("live").expect("there");
    use_it(4);
    assert_eq!(ended.load(Ordering::SeqCst), 1);
    use_it(5);
    assert_eq!(ended.load(Ordering::SeqCst), 1, "a step may still use the second");
    held.layer(Phase::Decode, 0).route.call(&step(1), &no_args(), 1).expect("called");
    assert_eq!(slots.reap(), 1);
    drop(held);
    assert_eq!(ended.load(Ordering::SeqCst), 1, "instances do not end on the thread that steps");
    assert_eq!(slots.reap(), 0);
    assert_eq!(ended.load(Ordering::SeqCst), 2);
    slots.remove("live");
    assert_eq!(ended.load(Ordering::SeqCst), 4);
    assert!(slots.registry().loaded().iter().all(|l| l.generations == 0));
}

#[test]
fn two_hundred_swaps_under_a_stepping_thread() {
    let dir = stock();
    let a = build(dir.path(), "a.so", seam::INDEXER, &manifest("indexer/x"), &[]);
    let b = dir.path().join("b.so");
    std::fs::copy(&a, &b).expect("copied");
    std::fs::OpenOptions::new()
        .append(true)
        .open(&b)
        .and_then(|mut f| f.write_all(b"copy"))
        .expect("appended");
    let ended = AtomicI64::new(0);
    let variants = [&a, &b].map(|p| format!("{}{{destroyed: {}}}", p.display(), address(&ended)));
    let slots = slots(dir.path(), Topology::Single);
    slots.define("live", rules(&[("indexer", &variants[1])])).expect("defined");

    let (stop, steps) = (AtomicBool::new(false), AtomicI64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let snapshot = slots.snapshot("live").expect("always there");
                let ctx = step(steps.fetch_add(1, Ordering::Relaxed) as u64);
                for layer in [1, 3] {
                    let cells = snapshot.layer(Phase::Decode, layer);
                    cells.select.as_ref().expect("csa").call(&ctx, &no_args(), 1).expect("no call fails");
                }
            }
        });
        for i in 0..200 {
            let report =
                slots.swap("live", rule("indexer@decode", &variants[i % 2]), REFUSE).expect("swapped");
            assert_eq!(report.changes.len(), 4, "swap {i}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(steps.load(Ordering::Relaxed) > 0);
    assert_eq!(slots.reap(), 0);
    let live: usize =
        slots.registry().loaded().iter().filter(|l| l.name == "indexer/x").map(|l| l.generations).sum();
    assert_eq!(live, 2, "one in use, one for a rollback");
    assert_eq!(slots.rules("live").expect("there").len(), rules(&[]).len() + 2, "the list does not grow");
}
