//! Seeded faults on the simulated engine, a patch of every seam on a model shaped as DeepSeek-V4-Flash: the right set is
//! found and confirmed, and everything else is cleared with evidence.
//!
//! `tests/acceptance.rs` plants the same kinds of faults in real plugins on the embedded checkpoint.

use hotseam_bisect::report::Grade;
use hotseam_bisect::{Options, Report, Word, run};
use hotseam_target::simulated::{Condition, Fault, Simulated, flash};
use hotseam_target::{Class, Delta, Evidence, Plan, Span, Suspicion, Target as _};

/// Runs that one culprit may take among about 300 atoms.
const ONE: usize = 18;

/// Seam, phase and class of a change of the plan.
type At = (&'static str, Span, Class);

/// A change of each seam to plant a fault in.
const SEAMS: [At; 5] = [
    ("attention", Span::Decode, Class::Csa),
    ("indexer", Span::Prefill, Class::Csa),
    ("moe", Span::Decode, Class::Topk),
    ("mhc", Span::Prefill, Class::Hca),
    ("kv_transport", Span::Handoff, Class::Model),
];

fn index(plan: &Plan, at: At) -> usize {
    let same = |change: &hotseam_target::Change| (change.seam.as_str(), change.phase, change.class) == at;
    plan.changes.iter().position(same).unwrap_or_else(|| panic!("no change at {at:?}"))
}

fn atoms(plan: &Plan, at: At) -> Vec<usize> {
    plan.changes[index(plan, at)].atoms.iter().map(|atom| atom.id).collect()
}

/// Any layer of the change breaks the model.
fn any(plan: &Plan, at: At) -> Fault {
    Fault::any(atoms(plan, at))
}

fn search(kind: &str, target: &mut Simulated) -> Report {
    let options = Options { budget_runs: 120, ..Options::default() };
    let report = run(target, &options, &mut ());
    let named: Vec<String> = report
        .culprits
        .iter()
        .map(|c| format!("{}@{} {} {:?}", c.seam, c.phase, c.class, c.layers))
        .collect();
    println!("| {kind} | {} | {} | {} |", report.runs, report.verdict.as_str(), named.join("; "));
    report
}

/// Searches, and checks that exactly the changes at `guilty` are named, each sufficient and necessary, and that every
/// other change is cleared.
fn find(kind: &str, mut target: Simulated, guilty: &[At], together: bool, most_runs: usize) -> Report {
    let report = search(kind, &mut target);
    assert_eq!(report.verdict, Word::Found, "{kind}: {report:#?}");
    let named = |at: &At| {
        let (seam, phase, class) = *at;
        let same = |c: &&hotseam_bisect::report::Culprit| {
            c.seam == seam && c.phase == phase.to_string() && c.class == class.to_string()
        };
        report.culprits.iter().find(same)
    };
    for at in guilty {
        let culprit =
            named(at).unwrap_or_else(|| panic!("{kind}: {at:?} is not named: {:#?}", report.culprits));
        assert!(culprit.sufficient > 0 && culprit.necessary.is_some(), "{kind}: {culprit:#?}");
        let partners = if together { guilty.len() - 1 } else { 0 };
        assert_eq!(culprit.interacts_with.len(), partners, "{kind}: {culprit:#?}");
    }
    let blamed = report.culprits.iter().filter(|culprit| culprit.masked.is_none()).count();
    assert_eq!(blamed, guilty.len(), "{kind}: {:#?}", report.culprits);
    assert!(report.open.is_empty(), "{kind}: open: {:#?}", report.open);
    assert!(report.exonerated.iter().all(|cleared| !cleared.reason.is_empty()), "{:#?}", report.exonerated);
    let changes = target.plan().changes.len();
    assert_eq!(report.exonerated.len() + report.culprits.len(), changes, "{kind}: {:#?}", report.exonerated);
    assert!(report.runs <= most_runs, "{kind}: {} runs", report.runs);
    report
}

/// The whole change is to blame, all its layers.
fn blames_all_layers(report: &Report, plan: &Plan, at: At) {
    assert_eq!(report.culprits[0].layers, plan.changes[index(plan, at)].layers(), "{at:?}");
}

#[test]
fn a_wrong_scale_in_every_seam() {
    for at in SEAMS {
        let plan = flash();
        let target =
            Simulated::new(plan.clone(), any(&plan, at)).fails_conformance(&format!("{}/patched", at.0));
        let report = find("scale", target, &[at], false, ONE);
        blames_all_layers(&report, &plan, at);
    }
}

#[test]
fn a_dropped_tail_that_shows_from_the_third_chunk_on() {
    for at in SEAMS {
        let plan = flash();
        let fault = any(&plan, at).when(Condition::AtLeast("chunks".into(), 3));
        find(
            "dropped tail",
            Simulated::new(plan.clone(), fault.clone()).setting("chunks", "4"),
            &[at],
            false,
            ONE,
        );
        let mut short = Simulated::new(plan, fault).setting("chunks", "2");
        assert_eq!(search("dropped tail, 2 chunks", &mut short).verdict, Word::OracleAgrees);
    }
}

#[test]
fn a_race_is_accused_by_the_repeat_and_found_sooner() {
    for at in SEAMS {
        let plan = flash();
        let plain = find("race", Simulated::new(plan.clone(), any(&plan, at)), &[at], false, ONE).runs;
        let evidence = "E2 determinism: 20 equal calls gave 7 answers".to_owned();
        let suspicion = Suspicion { change: index(&plan, at), weight: 50.0, evidence, step: Evidence::E2 };
        let accused = Simulated::new(plan.clone(), any(&plan, at)).suspicion(suspicion);
        let report = find("race, repeated", accused, &[at], false, ONE);
        assert!(report.runs <= plain, "{at:?}: {} runs with evidence, {plain} without", report.runs);
    }
}

#[test]
fn a_benign_difference_that_evidence_accuses_is_cleared() {
    for (i, benign) in SEAMS.into_iter().enumerate() {
        let (plan, guilty) = (flash(), SEAMS[(i + 2) % SEAMS.len()]);
        let evidence = "E3 shadow: 3 entries moved past the cut at a gap of 0".to_owned();
        let suspicion =
            Suspicion { change: index(&plan, benign), weight: 20.0, evidence, step: Evidence::E3 };
        let target = Simulated::new(plan.clone(), any(&plan, guilty))
            .suspicion(suspicion)
            .fails_conformance(&format!("{}/patched", benign.0));
        let report = find("benign", target, &[guilty], false, ONE + 4);
        let title = plan.changes[index(&plan, benign)].title();
        let cleared = report.exonerated.iter().find(|cleared| cleared.change == title);
        let cleared = cleared.unwrap_or_else(|| panic!("{title} is not cleared"));
        assert_eq!(cleared.grade, Grade::Passes, "{cleared:#?}");
        assert!(cleared.trial.is_some());
    }
    // And alone: nothing to find.
    let mut target = Simulated::new(flash(), Fault::Never);
    let report = search("benign alone", &mut target);
    assert_eq!((report.verdict, report.runs, report.culprits.len()), (Word::OracleAgrees, 2, 0));
}

#[test]
fn a_broken_contract_that_no_comparison_sees() {
    for at in SEAMS {
        let plan = flash();
        // Equal numbers on equal inputs: evidence that speaks for the culprit and must not clear it.
        let evidence = "E3 shadow: equal bit for bit".to_owned();
        let suspicion = Suspicion { change: index(&plan, at), weight: 0.05, evidence, step: Evidence::E3 };
        let target = Simulated::new(plan.clone(), any(&plan, at)).suspicion(suspicion);
        find("contract", target, &[at], false, ONE + 6);
    }
}

#[test]
fn pairs_that_fail_only_together() {
    let writer_reader = [("attention", Span::Prefill, Class::Csa), ("attention", Span::Decode, Class::Csa)];
    let two_seams = [("indexer", Span::Decode, Class::Csa), ("attention", Span::Decode, Class::Csa)];
    let far = [("mhc", Span::Prefill, Class::Window), ("kv_transport", Span::Handoff, Class::Model)];
    for pair in [writer_reader, two_seams, far] {
        let mut plan = flash();
        // Two patches, also where the seam is one.
        for (at, to) in pair.iter().zip(["patches/writer", "patches/reader"]) {
            let change = index(&plan, *at);
            let from = format!("{}/cpu-stock", at.0);
            plan.changes[change].delta = Delta::Variant { from, to: to.to_owned() };
            plan.changes[change].variants = vec![to.to_owned()];
        }
        let fault = Fault::Together(pair.iter().map(|at| any(&plan, *at)).collect());
        find("pair", Simulated::new(plan, fault), &pair, true, 26);
    }
}

/// One patch that is wrong only if both phases have it: a whole that no part explains.
#[test]
fn a_patch_that_fails_in_both_phases_together_is_named_in_both() {
    let plan = flash();
    let (writer, reader) =
        (("attention", Span::Prefill, Class::Csa), ("attention", Span::Decode, Class::Csa));
    let mut target =
        Simulated::new(plan.clone(), Fault::Together(vec![any(&plan, writer), any(&plan, reader)]));
    let report = search("both phases", &mut target);
    assert_eq!(report.verdict, Word::Found, "{report:#?}");
    for phase in ["prefill", "decode"] {
        let names = |c: &hotseam_bisect::report::Culprit| c.phase.contains(phase) && c.class.contains("csa");
        assert!(report.culprits.iter().any(names), "{phase}: {:#?}", report.culprits);
    }
    assert!(report.culprits.iter().all(|c| c.seam == "attention" && c.necessary.is_some()));
}

#[test]
fn independent_culprits_are_all_found() {
    for (a, b) in [(0, 1), (2, 4), (1, 3)] {
        let (plan, guilty) = (flash(), [SEAMS[a], SEAMS[b]]);
        let fault = Fault::Either(guilty.iter().map(|at| any(&plan, *at)).collect());
        find("two independent", Simulated::new(plan, fault), &guilty, false, 32);
    }
}

#[test]
fn a_culprit_that_another_patch_heals_is_not_necessary() {
    let plan = flash();
    let (writer, reader) = (("indexer", Span::Prefill, Class::Csa), ("indexer", Span::Decode, Class::Csa));
    let guilty = ("moe", Span::Decode, Class::Topk);
    // Whole changes, so that each heals the other only as a whole.
    let on = |at| Fault::all(atoms(&plan, at));
    let not = |fault| Fault::Not(Box::new(fault));
    let mismatch = Fault::Either(vec![
        Fault::Together(vec![on(writer), not(any(&plan, reader))]),
        Fault::Together(vec![on(reader), not(any(&plan, writer))]),
    ]);
    let fault = Fault::Either(vec![mismatch, any(&plan, guilty)]);
    let mut target = Simulated::new(plan.clone(), fault);
    let report = search("masked", &mut target);
    assert_eq!(report.verdict, Word::Found, "{report:#?}");
    let moe: Vec<_> = report.culprits.iter().filter(|culprit| culprit.seam == "moe").collect();
    assert_eq!(moe.len(), 1, "{:#?}", report.culprits);
    assert!(moe[0].necessary.is_some() && moe[0].masked.is_none(), "{:#?}", moe[0]);
    for other in report.culprits.iter().filter(|culprit| culprit.seam != "moe") {
        assert_eq!(other.seam, "indexer");
        assert!(other.masked.is_some() && other.necessary.is_none(), "{other:#?}");
    }
}

#[test]
fn rows_past_64_show_with_enough_rows_only() {
    for at in SEAMS.into_iter().filter(|at| at.1 == Span::Prefill) {
        let plan = flash();
        let fault = any(&plan, at).when(Condition::AtLeast("rows".into(), 65));
        find(
            "rows past 64",
            Simulated::new(plan.clone(), fault.clone()).setting("rows", "512"),
            &[at],
            false,
            ONE,
        );
        let mut few = Simulated::new(plan, fault).setting("rows", "64");
        assert_eq!(search("rows past 64, 64 rows", &mut few).verdict, Word::OracleAgrees);
    }
}

#[test]
fn guilty_only_when_disaggregated() {
    for at in SEAMS {
        let plan = flash();
        let fault = any(&plan, at).when(Condition::Is("topology".into(), "paired".into()));
        let target = |now: &str| {
            Simulated::new(plan.clone(), fault.clone()).axis("topology", now, &["single", "paired"])
        };
        find("disaggregated", target("paired"), &[at], false, ONE);
        let mut single = target("single");
        assert_eq!(search("disaggregated, one pool", &mut single).verdict, Word::OracleAgrees);
    }
}
