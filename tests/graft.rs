//! Grafts show through which tensor a planted fault does its harm.

use hotseam_encoding::Tokenizer;
use hotseam_engine::{Engine, EngineConfig, Topology};
use hotseam_evidence::divergence::{DECODE_TOKENS, Passage};
use hotseam_evidence::graft::{self, Engines, Graft, GraftPlan, GraftReport, GraftRow, Oracle, Word};
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::needle::{NeedlePlan, Probe};
use hotseam_model::LayerClass;
use hotseam_tests::{Checkpoint, all, config, engine, full, root, rule};
use std::collections::BTreeSet;

const TOKENS: usize = 1024;

struct Bench {
    engine: Engine,
    tokenizer: Tokenizer,
    passage: Passage,
    probes: Vec<Probe>,
}

impl Bench {
    fn new(topology: Topology) -> Self {
        let engine =
            engine(Checkpoint::Nano, all("cpu-stock"), EngineConfig { topology, chunk: 256, ..config() });
        let tokenizer = Tokenizer::load(&root().join("assets/nano-v4/tokenizer.json")).unwrap();
        let file = root().join("assets/haystack/log-school-house.txt");
        let haystack = Haystack::read(&tokenizer, &[file]).unwrap();
        let passage = Passage::new(&tokenizer, &haystack, TOKENS, DECODE_TOKENS).unwrap();
        let plan = NeedlePlan { lengths: vec![TOKENS], probes: 4, seed: 1 };
        let probes = plan.probes(&tokenizer, &haystack).unwrap();
        Self { engine, tokenizer, passage, probes }
    }

    /// Grafts between the stock variants and `rules` over them, judged by divergence.
    fn graft(&self, rules: &[(&str, &str)], grafts: &[&str], layers: bool) -> GraftReport {
        self.ask(Oracle::Kl(&self.passage, 1e-2), rules, grafts, layers)
    }

    fn ask(&self, oracle: Oracle<'_>, rules: &[(&str, &str)], grafts: &[&str], layers: bool) -> GraftReport {
        let mut bad = all("cpu-stock");
        bad.extend(rules.iter().map(|(select, variant)| rule(select, variant)));
        self.engine.slots().remove("bad");
        self.engine.slots().define("bad", bad).unwrap_or_else(|e| panic!("{e}"));
        let plan = GraftPlan {
            good: "live".into(),
            bad: "bad".into(),
            grafts: grafts.iter().map(|text| text.parse().unwrap()).collect(),
            kv: false,
            cases: 2,
            reverse: true,
            layers,
        };
        let report = graft::run(&self.engine, &self.tokenizer, oracle, &plan, |_| {}).unwrap();
        println!("{report}");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<GraftReport>(&json).unwrap().rows.len(), report.rows.len());
        report
    }
}

fn row<'a>(report: &'a GraftReport, graft: &str) -> &'a GraftRow {
    let found = report.rows.iter().find(|row| row.graft.to_string() == graft);
    found.unwrap_or_else(|| panic!("no row {graft}"))
}

fn healing(report: &GraftReport) -> Vec<String> {
    report.rows.iter().filter(|row| row.healed).map(|row| row.graft.to_string()).collect()
}

#[test]
fn a_hand_off_fault_is_healed_by_kv_and_its_component_is_named() {
    let bench = Bench::new(Topology::Paired);
    let report = bench.graft(&[("kv_transport", "faulty/kv_transport{fault: next-layer}")], &[], false);
    assert_eq!((report.verdict, report.exit_code()), (Word::Healed, 0));
    assert_eq!(healing(&report), ["kv", "kv.c4"]);
    let c4 = row(&report, "kv.c4");
    assert!(c4.broke && c4.replaced > 0, "{c4:?}");
    // All of the right bytes in decode: nothing is left of the fault.
    assert_eq!(row(&report, "kv").heal.as_ref().unwrap().metric, 0.0);
    let corrupted: BTreeSet<&str> = report.corrupted.iter().map(|c| c.component.as_str()).collect();
    assert_eq!(corrupted, BTreeSet::from(["c4"]));
    let text = report.to_string();
    assert!(text.contains("Its carrier: kv.c4.") && text.contains("kv_transport writes them"), "{text}");
}

/// The good prefill is that of one pool, its KV goes into the decode of a pair whose transport forgets a component, and back.
#[test]
fn kv_of_one_pool_heals_a_pair_component_by_component() {
    let (single, paired) = (Bench::new(Topology::Single), Bench::new(Topology::Paired));
    let mut bad = all("cpu-stock");
    let fault = "faulty/kv_transport{fault: component-dropped, component: index_keys}";
    bad.push(rule("kv_transport", fault));
    paired.engine.slots().define("bad", bad).unwrap_or_else(|e| panic!("{e}"));
    let plan = GraftPlan {
        good: "live".into(),
        bad: "bad".into(),
        kv: true,
        cases: 1,
        reverse: true,
        ..GraftPlan::default()
    };
    let engines = Engines { good: &single.engine, bad: &paired.engine };
    let oracle = Oracle::Kl(&single.passage, 4e-4);
    let report = graft::run(engines, &single.tokenizer, oracle, &plan, |_| {}).unwrap();
    println!("{report}");
    assert_eq!(
        (report.good.as_str(), report.bad.as_str()),
        ("live at topology single", "bad at topology paired")
    );
    // Every component has its row, whatever heals.
    assert_eq!(report.rows.len(), 8);
    assert_eq!(healing(&report), ["kv", "kv.index_keys"]);
    assert_eq!(row(&report, "kv").heal.as_ref().unwrap().metric, 0.0);
    for graft in ["kv.swa", "kv.c4", "kv.c128", "kv.c4_state", "kv.c128_state", "kv.index_state"] {
        let own = row(&report, graft);
        assert!(own.replaced > 0 && !own.healed && !own.broke && own.refused.is_none(), "{own:?}");
    }
    let keys = row(&report, "kv.index_keys");
    assert!(keys.broke && row(&report, "kv").broke, "{keys:?}");
}

#[test]
fn a_fault_of_prefill_is_told_from_one_of_decode() {
    let bench = Bench::new(Topology::Single);
    let grafts = ["kv", "kv.index_keys", "kv.c4", "indexer.compress@prefill"];
    let rules = [("indexer@prefill", "faulty/indexer{fault: wrong-slot}")];
    let report = bench.graft(&rules, if full() { &[] } else { &grafts }, full());
    let healed = healing(&report);
    for graft in ["kv", "kv.index_keys", "indexer.compress@prefill"] {
        assert!(healed.contains(&graft.to_owned()), "{graft}: {healed:?}");
    }
    assert!(!healed.contains(&"kv.c4".to_owned()), "{healed:?}");
    assert_eq!(row(&report, "kv").heal.as_ref().unwrap().metric, 0.0);
    assert!(report.corrupted.is_empty());
    assert!(report.to_string().contains("the KV is written wrongly in prefill"));
    // Layer by layer: no layer alone, but every one of them is a row.
    let config = &Checkpoint::Nano.model().config;
    let csa = (0..config.num_hidden_layers).filter(|l| config.class(*l) == LayerClass::Csa).count();
    let by_layer =
        report.rows.iter().filter(|row| row.graft.to_string().starts_with("kv.index_keys:layers="));
    assert_eq!(by_layer.count(), if full() { csa } else { 0 });

    let report = bench.graft(&[("attention@decode", "faulty/attention{fault: half-scale}")], &[], false);
    assert_eq!(healing(&report), ["attention.core@decode"], "{report}");
    let kv = row(&report, "kv");
    assert!(!kv.broke && kv.heal.as_ref().unwrap().metric > 1e-2);
    let narrow = report.rows.iter().filter(|row| row.graft.to_string().starts_with("kv."));
    assert_eq!(narrow.count(), 0, "components of KV that does not heal");
}

#[test]
fn ends_that_agree_leave_nothing_to_heal() {
    let bench = Bench::new(Topology::Single);
    let report = bench.graft(&[("mhc", "mhc/cpu-bf16-gemm")], &["kv"], false);
    assert_eq!((report.verdict, report.exit_code(), report.rows.len()), (Word::NothingToHeal, 1, 0));
}

#[test]
fn what_cannot_be_grafted_is_refused_with_the_reason() {
    let bench = Bench::new(Topology::Single);
    let rules = [
        ("attention@decode", "faulty/attention{fault: half-scale}"),
        ("indexer", "indexer/cpu-stock{keys: bf16}"),
    ];
    let grafts =
        ["kv", "kv.index_keys", "indexer.compress", "kv_transport", "kv.swa", "attention.core@decode"];
    let report = bench.graft(&rules, &grafts, false);
    let refused = |graft: &str| row(&report, graft).refused.clone().unwrap_or_default();
    assert!(refused("kv.index_keys").contains("differ in size"), "{report}");
    assert_eq!(row(&report, "kv").without, ["index_keys"]);
    assert!(row(&report, "kv").replaced > 0 && !row(&report, "kv").healed);
    assert!(refused("indexer.compress").contains("differ in size"), "{report}");
    assert!(refused("kv_transport").contains("`kv`"), "{report}");
    assert!(!row(&report, "kv.swa").healed && row(&report, "attention.core@decode").healed);
}

#[test]
fn a_lost_needle_comes_back() {
    if !full() {
        return;
    }
    let bench = Bench::new(Topology::Paired);
    let rules = [("kv_transport", "faulty/kv_transport{fault: next-layer}")];
    let report = bench.ask(Oracle::Needle(&bench.probes), &rules, &[], false);
    assert_eq!(report.verdict, Word::Healed, "{report}");
    assert!(healing(&report).contains(&"kv.c4".to_owned()), "{report}");
    let graft: Graft = "kv.c4".parse().unwrap();
    let found = report.rows.iter().find(|row| row.graft == graft).unwrap();
    assert!(found.heal.as_ref().unwrap().passed == report.cases);
}
