//! Cells of several ranks: which there are, what rules say of them, and that every rank holds the tables that the first one builds.

mod common;

use common::fixture::variant;
use common::{geometry, rule, rules, stock};
use hotseam_abi::seam;
use hotseam_loader::Loader;
use hotseam_slots::{
    Cell, Change, Counted, Digest, Geometry, LayoutPolicy, Peers, Registry, Rule, Selector, Slots,
    SlotsError, Topology,
};
use std::path::Path;
use std::sync::{Arc, Mutex};

fn of_rank(rank: u32, ranks: u32) -> Geometry {
    geometry(Topology::Single).of_rank(rank, ranks)
}

fn slots(dir: &Path, rank: u32) -> Slots {
    let loader = Loader::new(vec![dir.to_owned()]).expect("a loader");
    Slots::new(Registry::new(loader, of_rank(rank, 3)))
}

#[test]
fn every_rank_has_all_cells_and_each_has_a_name_of_its_own() {
    let one = geometry(Topology::Single).cells();
    assert!(one.iter().all(|cell| cell.id.rank.is_none()));
    let all = of_rank(1, 3).cells();
    assert_eq!(all.len(), 3 * one.len());
    // Those that the process calls come first.
    assert!(all[..one.len()].iter().all(|cell| cell.id.rank == Some(1)));
    for cell in &all {
        let text = cell.id.to_string();
        let selector: Selector = text.parse().expect("a selector");
        let matching: Vec<&Cell> = all.iter().filter(|c| selector.matches(c)).collect();
        assert_eq!(matching, [cell], "{text}");
        assert!(text.ends_with(&format!("/ranks={}", cell.id.rank.expect("a rank"))), "{text}");
    }
    let count = |text: &str| {
        let selector: Selector = text.parse().expect("a selector");
        all.iter().filter(|c| selector.matches(c)).count()
    };
    assert_eq!((count("moe"), count("moe/ranks=0,2"), count("moe/ranks=3")), (60, 40, 0));
}

#[test]
fn a_table_has_one_digest_on_all_ranks_and_each_calls_its_own_cells() {
    let dir = stock();
    variant(dir.path(), "moe/other", seam::MOE, &[]);
    let table = rules(&[("moe@decode:layers=2/ranks=1", "moe/other")]);
    let built: Vec<_> =
        (0..3).map(|rank| slots(dir.path(), rank).define("live", table.clone()).expect("a table")).collect();
    assert!(built.iter().all(|table| table.digest() == built[0].digest()));
    assert!(built.iter().all(|table| table.prefill_digest() == built[0].prefill_digest()));
    let plain = slots(dir.path(), 0).define("live", rules(&[])).expect("a table");
    assert_ne!(plain.digest(), built[0].digest(), "what another rank runs counts");
    assert_eq!(plain.prefill_digest(), built[0].prefill_digest());
    for (rank, table) in built.iter().enumerate() {
        let others = table.own_cells().filter(|view| view.generation.spec.to_string() == "moe/other").count();
        assert_eq!(others, if rank == 1 { 2 } else { 0 }, "rank {rank}");
        let all = table.cells().filter(|view| view.generation.spec.to_string() == "moe/other").count();
        assert_eq!(all, 2, "rank {rank}");
    }
}

#[test]
fn a_change_of_another_rank_is_a_change() {
    let dir = stock();
    variant(dir.path(), "moe/other", seam::MOE, &[]);
    let slots = slots(dir.path(), 0);
    slots.define("live", rules(&[])).expect("a table");
    let change = Change::Add(vec![rule("moe/ranks=2", "moe/other")]);
    let plan = slots.plan("live", &change).expect("a plan");
    assert_eq!(plan.changes.len(), 20);
    assert!(plan.changes.iter().all(|change| change.cell.rank == Some(2)), "{:?}", plan.changes);
    let report = slots.swap("live", rule("moe/ranks=2", "moe/other"), LayoutPolicy::Refuse).expect("a swap");
    assert_eq!(report.changes, plan.changes);
    let error = slots
        .swap("live", rule("moe/ranks=3-5", "moe/other"), LayoutPolicy::Refuse)
        .expect_err("no such rank");
    assert!(error.to_string().contains("ranks 3-5 do not exist here, there are 0 to 2"), "{error}");
}

/// What the other ranks were told; rank 2 refuses a table that is called `bad`.
#[derive(Debug, Default)]
struct Heard(Mutex<Vec<String>>);

impl Peers for Heard {
    fn build(&self, number: u64, name: &str, rules: &[Rule], digest: Digest) -> Result<(), SlotsError> {
        let _ = (number, digest);
        self.0.lock().unwrap().push(format!("build {name} of {} rules", rules.len()));
        match name {
            "bad" => Err(SlotsError::Rank { rank: 2, message: "it has no such file".to_owned() }),
            _ => Ok(()),
        }
    }

    fn forget(&self, number: u64) {
        let _ = number;
        self.0.lock().unwrap().push("forget".to_owned());
    }

    fn counts(&self, number: u64) -> Result<Vec<Counted>, SlotsError> {
        let _ = number;
        let cells = of_rank(0, 3).cells();
        Ok(cells.iter().filter(|cell| cell.id.rank == Some(1)).map(|cell| (cell.id, 7, 70)).collect())
    }
}

#[test]
fn ranks_are_told_of_every_table_and_of_its_end() {
    let dir = stock();
    let heard = Arc::new(Heard::default());
    let slots = slots(dir.path(), 0).with_peers(Some(Arc::clone(&heard)));
    let said = || std::mem::take(&mut *heard.0.lock().unwrap());
    let table = slots.define("live", rules(&[])).expect("a table");
    assert_eq!(said(), ["build live of 5 rules"]);
    let error = slots.define("bad", rules(&[])).expect_err("a rank refuses");
    assert_eq!(error.to_string(), "E-PLUG-406 rank 2: it has no such file");
    assert_eq!(said(), ["build bad of 5 rules", "forget"], "those that have built it forget it");
    assert_eq!(slots.names(), ["live"]);

    table.count_elsewhere();
    let calls = |rank| table.cells().filter(|view| view.cell.rank == Some(rank)).map(|view| view.calls).max();
    assert_eq!((calls(0), calls(1), calls(2)), (Some(0), Some(7), Some(0)));
    assert!(table.number() > 0);

    slots.remove("live");
    assert_eq!(said(), Vec::<String>::new(), "somebody holds it still");
    drop(table);
    slots.reap();
    assert_eq!(said(), ["forget"]);
}
