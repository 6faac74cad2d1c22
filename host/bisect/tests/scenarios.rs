//! Ten bisections that people did by hand (section 6 of the research note), as simulations: what they had to find, the
//! noise they had, and the traps they fell into. Each prints the runs taken beside the count of those made by hand, which
//! is a lower bound, and in most cases led to a conclusion that was withdrawn later.

use hotseam_bisect::{Options, Report, Word, run};
use hotseam_target::simulated::{Condition, Fault, PlanBuilder, Rates, Simulated};
use hotseam_target::{Class, Evidence, Plan, Span, Suspicion};

/// A change outside the layers.
fn switch(builder: &mut PlanBuilder, name: &str) -> usize {
    builder.variant(name, Span::Both, Class::Model, &format!("{name}/new"), &[])
}

fn switches(names: &[&str]) -> Plan {
    let mut builder = PlanBuilder::default();
    for name in names {
        switch(&mut builder, name);
    }
    builder.build()
}

fn hunt(target: &mut Simulated, budget_runs: usize) -> Report {
    run(target, &Options { budget_runs, max_set: 4, ..Options::default() }, &mut ())
}

fn seams(report: &Report) -> Vec<&str> {
    let mut seams: Vec<&str> = report.culprits.iter().map(|culprit| culprit.seam.as_str()).collect();
    seams.sort_unstable();
    seams
}

fn compare(name: &str, report: &Report, by_hand: &str) {
    println!(
        "{name:<40} {:<22} {:>4} runs, {} launches; by hand {by_hand}",
        report.verdict.as_str(),
        report.runs,
        report.launches
    );
}

#[test]
fn s01_fp4_moe_nan() {
    // Eight dead ends were walked before the tactic; two tactics of the MoE are bad, each on its own.
    let plan = switches(&[
        "prefill_graph",
        "attention_backend",
        "routed_variant",
        "deferred_finalize",
        "pdl",
        "allreduce_fusion",
        "barrier",
        "autotune",
        "moe_tactic_192_1",
        "moe_tactic_192_3",
    ]);
    let evidence = |change| Suspicion {
        change,
        weight: 20.0,
        evidence: "NaN in the output on random inputs".to_owned(),
        step: Evidence::E3,
    };
    let mut target = Simulated::new(plan, Fault::any([8, 9]))
        .suspicion(evidence(8))
        .suspicion(evidence(9))
        .signature(Fault::Always, "nan");
    let report = hunt(&mut target, 30);
    compare("1 FP4 MoE NaN", &report, "at least 14 arms");
    assert_eq!(report.verdict, Word::Found);
    assert_eq!(seams(&report), ["moe_tactic_192_1", "moe_tactic_192_3"]);
    assert!(report.runs <= 14, "{}", report.runs);
}

#[test]
fn s02_inverted_verdict() {
    // The ends differ at the kernel, but against the truth it is the good side that is wrong.
    let plan = switches(&["sdpa", "graphs", "moe"]);
    let mut target = Simulated::new(plan, Fault::any([0])).fails_conformance("sdpa/cpu-stock");
    let report = hunt(&mut target, 20);
    compare("2 inverted verdict", &report, "two bisections and up to 48 runs");
    assert_eq!((report.verdict, report.exit_code), (Word::Inconclusive, 3));
    assert!(
        report.notes.iter().any(|note| note.contains("it is the good end that is wrong")),
        "{:?}",
        report.notes
    );
    assert!(report.runs <= 10, "{}", report.runs);
}

#[test]
fn s03_wrong_control() {
    // All six configurations share a fork that loses a quarter of the requests: the good end is no good end.
    let plan = switches(&["topk", "graphs", "pdl", "mhc", "fork_flag", "dtype"]);
    let rates = Rates { draws: 24, ..Rates::new(0.26, 0.26) };
    let mut target = Simulated::new(plan, Fault::Never).noisy(rates, 3);
    let report = hunt(&mut target, 200);
    compare("3 wrong control", &report, "144 requests in 6 arms, wrong conclusion");
    assert_eq!((report.verdict, report.exit_code), (Word::GoodFails, 4), "{:?}", report.notes);
    assert!(report.culprits.is_empty());
}

#[test]
fn s04_sticky_per_launch() {
    // One launch in ten is clean, and stays so. Five mechanisms were cleared by hand, launch by launch.
    let plan = switches(&["sampling", "pdl", "graphs", "eager", "mhc_prenorm", "indexer_gemm"]);
    let rates = Rates { sticky: true, ..Rates::new(0.0, 0.9) };
    let mut found = 0;
    let mut runs = 0;
    for seed in 0..40 {
        let mut target = Simulated::new(plan.clone(), Fault::any([5])).noisy(rates, seed);
        let report = hunt(&mut target, 200);
        assert_eq!((report.verdict, seams(&report)), (Word::Found, vec!["indexer_gemm"]), "seed {seed}");
        found += usize::from(report.launches > 1);
        runs += report.runs;
        if seed == 0 {
            compare("4 sticky per launch", &report, "5 mechanisms x 3 launches, not found");
        }
    }
    println!("  mean of 40 hunts: {:.1} runs; {found} began in a clean launch", runs as f64 / 40.0);
    assert!(found >= 1);
}

#[test]
fn s05_two_factors_moved_at_once() {
    // Neither graphs nor speculation: capture size with graphs on, and a second bug in the speculation.
    let mut builder = PlanBuilder::default();
    let graphs = switch(&mut builder, "graphs");
    let speculation = switch(&mut builder, "speculation");
    let capture = builder.option(graphs, "capture_size");
    let fault = Fault::Either(vec![Fault::any([capture]), Fault::any([speculation])]);
    let report = hunt(&mut Simulated::new(builder.build(), fault), 30);
    compare("5 two factors at once", &report, "3 fleets, `graphs and/or DSpark`");
    assert_eq!(report.verdict, Word::Found);
    assert_eq!(seams(&report), ["graphs", "speculation"]);
    assert!(report.culprits.iter().any(|culprit| culprit.change.starts_with("capture_size")));
    assert!(report.culprits.iter().all(|culprit| culprit.necessary.is_some()));
}

#[test]
fn s06_only_disaggregated() {
    // 1,319 questions a run, 5.6 % wrong on one node and 12 % over the hand-off.
    let mut builder = PlanBuilder::default();
    for name in ["page_size", "decode_backend", "graphs", "arguments"] {
        switch(&mut builder, name);
    }
    let handoff = builder.variant("kv_transport", Span::Handoff, Class::Model, "kv_transport/remote", &[]);
    let fault = Fault::any([handoff]).when(Condition::Is("topology".into(), "paired".into()));
    let rates = Rates { draws: 1319, ..Rates::new(0.056, 0.12) };
    let mut target =
        Simulated::new(builder.build(), fault).axis("topology", "paired", &["single"]).noisy(rates, 6);
    let report = hunt(&mut target, 60);
    compare("6 only disaggregated", &report, "at least 6 arms on two nodes, a false lead");
    assert_eq!((report.verdict, seams(&report)), (Word::Found, vec!["kv_transport"]));
    assert!(report.rates.as_ref().is_some_and(|rates| rates.fisher < 1e-6));
}

#[test]
fn s07_wrong_phase_in_the_title() {
    // "Decode degenerates"; prefill of three chunks and more writes what decode reads.
    let mut builder = PlanBuilder::default();
    let layers: Vec<usize> = (0..43).collect();
    builder.variant("indexer", Span::Decode, Class::Csa, "indexer/persistent", &layers);
    let prefill = builder.variant("indexer", Span::Prefill, Class::Csa, "indexer/persistent", &layers);
    builder.variant("moe", Span::Decode, Class::Topk, "moe/new", &layers);
    let plan = builder.build();
    let atoms = plan.changes[prefill].atoms.iter().map(|atom| atom.id);
    let fault = Fault::any(atoms).when(Condition::AtLeast("chunks".into(), 3));
    let report = hunt(&mut Simulated::new(plan, fault).setting("chunks", "4"), 30);
    compare("7 wrong phase in the title", &report, "24 runs, decode blamed");
    assert_eq!((report.verdict, seams(&report)), (Word::Found, vec!["indexer"]));
    let culprit = &report.culprits[0];
    assert_eq!(culprit.phase, "prefill");
    let phases = culprit.phases.as_ref().expect("the patch could be switched in both phases");
    assert_eq!((phases.writer.as_str(), phases.reader.as_str()), ("prefill", "decode"));
    assert!(report.runs <= 24, "{}", report.runs);
}

#[test]
fn s08_silent_retrieval_loss() {
    // Two real defects, neither of which explains the failure: it takes five changes that add up.
    let names = ["defect_a", "defect_b", "c", "d", "e", "f", "g", "h"];
    let mut target = Simulated::new(switches(&names), Fault::AtLeast(5, (2..8).collect()))
        .fails_conformance("defect_a/new")
        .fails_conformance("defect_b/new");
    let report = hunt(&mut target, 80);
    compare("8 silent retrieval loss", &report, "many, not found");
    assert_eq!((report.verdict, report.exit_code), (Word::Inconclusive, 3));
    assert!(report.culprits.is_empty());
    let open: Vec<&str> = report.open.iter().map(|open| open.place.seam.as_str()).collect();
    assert!(["c", "d", "e", "f", "g", "h"].iter().all(|name| open.contains(name)), "{open:?}");
}

#[test]
fn s09_two_causes_and_a_graded_oracle() {
    // 86.95 to 85.34 of 100 over 1,004 questions: one cause makes up most of it, a second the rest.
    let plan = switches(&["router_gemm", "verify_path", "mask", "cache"]);
    let rates = Rates { draws: 1004, ..Rates::new(0.1305, 0.1466) };
    let mut verdicts = Vec::new();
    for seed in 0..20 {
        let fault = Fault::Either(vec![Fault::any([0]), Fault::Weak(0.3, Box::new(Fault::any([1])))]);
        let mut target = Simulated::new(plan.clone(), fault).noisy(rates, seed);
        let report = hunt(&mut target, 120);
        if seed == 0 {
            compare("9 two causes, graded oracle", &report, "3 evaluations, +-0.40 band");
        }
        // The weak cause is a tenth of what one run can resolve: nobody innocent may be blamed for the difference.
        if report.verdict == Word::Found {
            assert!(!seams(&report).iter().any(|seam| ["mask", "cache"].contains(seam)), "seed {seed}");
        }
        verdicts.push(report.verdict);
    }
    let found = verdicts.iter().filter(|verdict| **verdict == Word::Found).count();
    println!("  of 20 hunts {found} name the strong cause, {} say that the question is open", 20 - found);
}

#[test]
fn s10_ops_pass_and_the_model_fails() {
    // 267 of 267 op tests pass; the flag changes the wiring around the op.
    let mut builder = PlanBuilder::default();
    let layers: Vec<usize> = (0..43).collect();
    let flash = builder.variant("attention", Span::Both, Class::Csa, "attention/flash", &layers);
    builder.variant("moe", Span::Both, Class::Topk, "moe/new", &layers);
    builder.variant("mhc", Span::Both, Class::Csa, "mhc/new", &layers);
    let plan = builder.build();
    let fault = Fault::any(plan.changes[flash].atoms.iter().map(|atom| atom.id));
    let report = hunt(&mut Simulated::new(plan, fault), 30);
    compare("10 ops pass, model fails", &report, "267 op tests and one flag");
    assert_eq!((report.verdict, seams(&report)), (Word::Found, vec!["attention"]));
    let evidence = &report.culprits[0].evidence;
    assert!(
        evidence.iter().any(|line| line.contains("passes conformance: suspect the wiring")),
        "{evidence:?}"
    );
    assert!(evidence.iter().any(|line| line.starts_with("any layer suffices")), "{evidence:?}");
    assert!(report.runs <= 10, "{}", report.runs);
}
