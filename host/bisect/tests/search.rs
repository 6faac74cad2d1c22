//! The search against targets whose faults are known, runs counted.

mod fake;

use fake::{Builder, Fake, atoms, suspects};
use hotseam_bisect::report::Grade;
use hotseam_bisect::{Options, Word, expected_runs};
use hotseam_target::{Arm, Class, Noise, Span};

const SINGLE: usize = 13;

#[test]
fn one_culprit_everywhere_in_at_most_thirteen_runs() {
    let changes = suspects();
    assert_eq!(changes.len(), 16);
    for index in 0..changes.len() {
        let ids = atoms(&changes, index);
        // Any layer of the change breaks the model.
        let mut any = Fake::new(changes.clone(), move |arm| !arm.is_disjoint(&ids));
        let report = any.run();
        check_single(&report, &changes[index], changes[index].layers());
        // All of them are needed.
        let ids = atoms(&changes, index);
        let report = Fake::new(changes.clone(), move |arm| ids.is_subset(arm)).run();
        check_single(&report, &changes[index], changes[index].layers());
        // Just one layer breaks it.
        for atom in &changes[index].atoms {
            let (id, layer) = (atom.id, atom.layer);
            let report = Fake::new(changes.clone(), move |arm| arm.contains(&id)).run();
            check_single(&report, &changes[index], layer.into_iter().collect());
        }
    }
}

fn check_single(report: &hotseam_bisect::Report, change: &hotseam_target::Change, layers: Vec<usize>) {
    assert_eq!(report.verdict, Word::Found, "{}", change.title());
    assert_eq!(report.exit_code, 0);
    assert_eq!(report.culprits.len(), 1);
    let culprit = &report.culprits[0];
    assert_eq!(culprit.seam, change.seam);
    assert_eq!(culprit.phase, change.phase.to_string());
    assert_eq!(culprit.class, change.class.to_string());
    assert_eq!(culprit.change, change.delta.to_string());
    assert_eq!(culprit.layers, layers, "{}", change.title());
    assert!(culprit.necessary.is_some());
    assert!(report.runs <= SINGLE, "{} runs for {}", report.runs, change.title());
    // Whoever is not guilty is cleared, except what cannot be tested without the culprit.
    let dependents =
        if change.delta.to_string().ends_with("indexer/cpu-sm120") && change.phase == Span::Decode {
            1
        } else {
            0
        };
    assert!(report.open.len() <= dependents, "{:?}", report.open);
    assert_eq!(report.exonerated.len() + report.open.len(), 15 + 1);
    assert!(report.exonerated.iter().any(|e| e.grade == Grade::SameCode && e.place.seam == "kv_transport"));
}

#[test]
fn conformance_points_the_way_and_clears_nobody() {
    let changes = suspects();
    let ids = atoms(&changes, 9);
    let mut target = Fake::new(changes.clone(), move |arm| !arm.is_disjoint(&ids));
    target.flagged = vec!["indexer/cpu-sm120".into()];
    let report = target.run();
    assert_eq!(report.culprits[0].seam, "indexer");
    assert!(report.runs <= 9, "{} runs", report.runs);

    // The flagged variant is not the culprit: still found, and the flagged one is cleared with a remark.
    let ids = atoms(&changes, 1);
    let mut target = Fake::new(changes.clone(), move |arm| !arm.is_disjoint(&ids));
    target.flagged = vec!["moe/cpu-fused-scale".into()];
    let report = target.run();
    assert_eq!(report.culprits[0].seam, "mhc");
    assert!(report.runs <= SINGLE + 2, "{} runs", report.runs);
    let moe = report.exonerated.iter().find(|e| e.place.seam == "moe").unwrap();
    assert!(moe.reason.contains("fails conformance"), "{}", moe.reason);
}

#[test]
fn two_independent_culprits() {
    let changes = suspects();
    let (a, b) = (atoms(&changes, 0), atoms(&changes, 13));
    let mut target = Fake::new(changes.clone(), move |arm| a.is_subset(arm) || b.is_subset(arm));
    let report = target.run_with(&Options { budget_runs: 40, ..Options::default() });
    assert_eq!(report.verdict, Word::Found);
    let mut places: Vec<String> =
        report.culprits.iter().map(|c| format!("{}@{} {}", c.seam, c.phase, c.class)).collect();
    places.sort();
    assert_eq!(places, ["attention@decode window", "moe@prefill hash"]);
    assert!(report.culprits.iter().all(|c| c.necessary.is_some()), "{:?}", report.culprits);
    assert!(report.culprits.iter().all(|c| c.interacts_with.is_empty()));
    assert!(report.runs <= 24, "{} runs", report.runs);
}

#[test]
fn a_culprit_that_another_change_masks() {
    let changes = suspects();
    // 0 breaks unless 3 is there too; 13 always breaks.
    let (a, b, c) = (atoms(&changes, 0), atoms(&changes, 3), atoms(&changes, 13));
    let mut target = Fake::new(changes.clone(), move |arm| {
        (!arm.is_disjoint(&a) && arm.is_disjoint(&b)) || !arm.is_disjoint(&c)
    });
    let report = target.run_with(&Options { budget_runs: 40, ..Options::default() });
    assert_eq!(report.verdict, Word::Found);
    assert!(report.culprits.iter().any(|c| c.seam == "moe" && c.necessary.is_some()));
    for culprit in report.culprits.iter().filter(|c| c.seam != "moe") {
        assert!(culprit.evidence.iter().any(|line| line.starts_with("masked")), "{:?}", culprit.evidence);
    }
}

#[test]
fn interacting_changes() {
    let changes = suspects();
    for (x, y) in [(0, 13), (1, 3), (5, 15), (9, 12), (14, 15)] {
        let (a, b) = (atoms(&changes, x), atoms(&changes, y));
        let mut target = Fake::new(changes.clone(), move |arm| !arm.is_disjoint(&a) && !arm.is_disjoint(&b));
        let report = target.run();
        assert_eq!(report.verdict, Word::Found, "{x} {y}");
        assert_eq!(report.culprits.len(), 2);
        assert!(report.culprits.iter().all(|c| c.interacts_with.len() == 1));
        let titles: Vec<&String> = report.culprits.iter().flat_map(|c| &c.interacts_with).collect();
        assert!(titles.contains(&&changes[x].title()) && titles.contains(&&changes[y].title()));
        assert!(report.runs <= 16, "{} runs", report.runs);
    }
    let sets = [0, 5, 13].map(|index| atoms(&changes, index));
    let mut target = Fake::new(changes, move |arm| sets.iter().all(|set| !arm.is_disjoint(set)));
    let report = target.run_with(&Options { budget_runs: 40, ..Options::default() });
    assert_eq!(report.culprits.len(), 3);
}

#[test]
fn a_set_larger_than_allowed_is_inconclusive() {
    let changes = suspects();
    let sets = [0, 5, 13].map(|index| atoms(&changes, index));
    let mut target = Fake::new(changes, move |arm| sets.iter().all(|set| !arm.is_disjoint(set)));
    let report = target.run_with(&Options { budget_runs: 40, max_set: 2, ..Options::default() });
    assert_eq!((report.verdict, report.exit_code), (Word::Inconclusive, 3));
    assert!(report.culprits.is_empty() && !report.open.is_empty());
}

#[test]
fn a_fault_in_every_phase_and_class_is_one_culprit() {
    let changes = suspects();
    let all: Vec<Arm> = (0..16).filter(|i| changes[*i].seam == "mhc").map(|i| atoms(&changes, i)).collect();
    let ids: Arm = all.into_iter().flatten().collect();
    let mut target = Fake::new(changes, move |arm| !arm.is_disjoint(&ids));
    target.flagged = vec!["mhc/cpu-bf16-gemm".into()];
    let report = target.run();
    assert_eq!(report.verdict, Word::Found);
    assert_eq!(report.culprits.len(), 1);
    let culprit = &report.culprits[0];
    assert_eq!((culprit.seam.as_str(), culprit.phase.as_str()), ("mhc", "decode+prefill"));
    assert_eq!(culprit.class, "window+csa+hca+model");
    assert!(report.runs <= SINGLE, "{} runs", report.runs);
    assert!(report.open.is_empty());
}

#[test]
fn a_fault_in_every_class_of_one_phase() {
    let changes = suspects();
    let ids: Arm = [0, 3, 6].into_iter().flat_map(|i| atoms(&changes, i)).collect();
    let report = Fake::new(changes, move |arm| !arm.is_disjoint(&ids)).run();
    assert_eq!(report.culprits.len(), 1);
    assert_eq!(report.culprits[0].phase, "decode");
    assert_eq!(report.culprits[0].class, "window+csa+hca");
    assert_eq!(report.culprits[0].layers, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_fault_that_adds_up_over_classes_is_one_culprit() {
    let changes = suspects();
    let ids: Vec<usize> = [0, 3, 6].into_iter().flat_map(|i| atoms(&changes, i)).collect();
    let report = Fake::new(changes, move |arm| ids.iter().filter(|id| arm.contains(id)).count() >= 5).run();
    assert_eq!(report.verdict, Word::Found);
    assert_eq!(report.culprits.len(), 1);
    let culprit = &report.culprits[0];
    assert_eq!((culprit.seam.as_str(), culprit.phase.as_str()), ("attention", "decode"));
    assert!(culprit.class.contains('+'), "{}", culprit.class);
    assert!(culprit.interacts_with.is_empty() && culprit.necessary.is_some());
    assert!(culprit.evidence.iter().any(|line| line.starts_with("adds up")), "{:?}", culprit.evidence);
    assert!(report.runs <= SINGLE, "{} runs", report.runs);
}

#[test]
fn a_band_of_layers() {
    let mut b = Builder::default();
    b.variant("mhc", Span::Decode, Class::Csa, "mhc/x", &(0..40).collect::<Vec<_>>());
    b.variant("moe", Span::Decode, Class::Topk, "moe/x", &(0..40).collect::<Vec<_>>());
    // At least the layers 11 to 14 together.
    let mut target = Fake::new(b.changes, |arm| (11..15).all(|id| arm.contains(&id)));
    let report = target.run_with(&Options { budget_runs: 30, ..Options::default() });
    assert_eq!(report.culprits[0].layers, [11, 12, 13, 14]);
    assert!(
        report.culprits[0]
            .evidence
            .iter()
            .any(|e| e.contains("layers 11-14 of layers 0-39 are needed together"))
    );
    assert!(report.runs <= 2 + 1 + 12 + 2, "{} runs", report.runs);
}

#[test]
fn ends_that_agree() {
    let report = Fake::new(vec![], |_| false).run();
    assert_eq!((report.verdict, report.exit_code, report.runs), (Word::SameCode, 1, 0));

    let mut target = Fake::new(suspects(), |_| false);
    target.flagged = vec!["moe/cpu-fused-scale".into()];
    let report = target.run();
    assert_eq!((report.verdict, report.exit_code, report.runs), (Word::OracleAgrees, 1, 2));
    assert_eq!(report.conformance.iter().filter(|c| !c.passed).count(), 1);
    // The bad end passed with every change in it.
    assert_eq!(report.exonerated.len(), 17);
}

#[test]
fn a_good_end_that_fails_blames_nobody() {
    let report = Fake::new(suspects(), |_| true).run();
    assert_eq!((report.verdict, report.exit_code, report.runs), (Word::GoodFails, 4, 1));
    assert!(report.culprits.is_empty());
    assert_eq!(report.open.len(), 16);
}

#[test]
fn changes_that_never_ran_are_dropped() {
    let changes = suspects();
    let dropped = [0, 1, 2, 3, 4, 5, 15];
    let ids = atoms(&changes, 13);
    let mut target = Fake::new(changes.clone(), move |arm| !arm.is_disjoint(&ids));
    target.not_run = dropped.iter().flat_map(|i| atoms(&changes, *i)).collect();
    let report = target.run();
    assert_eq!(report.culprits[0].seam, "moe");
    let not_run: Vec<_> = report.exonerated.iter().filter(|e| e.grade == Grade::DidNotRun).collect();
    assert_eq!(not_run.len(), dropped.len());
    // Only confirmations still hold the dropped changes on the bad side.
    for trial in report.trials.iter().filter(|t| !t.why.starts_with("bad end")) {
        assert!(trial.arm.is_disjoint(&target.not_run), "{}", trial.why);
    }
}

#[test]
fn an_option_is_told_apart_from_its_variant() {
    let changes = suspects();
    assert!(changes[10].title().contains("early_exit"));
    let ids = atoms(&changes, 10);
    let report = Fake::new(changes, move |arm| !arm.is_disjoint(&ids)).run();
    assert_eq!(report.culprits[0].change, "early_exit: false -> true");
    let variant =
        report.exonerated.iter().find(|e| e.place.seam == "indexer" && e.place.phase == "decode").unwrap();
    assert_eq!(variant.grade, Grade::Passes);
}

#[test]
fn a_spent_budget_reports_what_is_known() {
    let changes = suspects();
    let ids = atoms(&changes, 7);
    let mut target = Fake::new(changes, move |arm| !arm.is_disjoint(&ids));
    for budget_runs in 1..8 {
        let report = target.run_with(&Options { budget_runs, ..Options::default() });
        assert_eq!((report.verdict, report.exit_code), (Word::BudgetSpent, 6));
        assert_eq!(report.runs, budget_runs);
    }
}

#[test]
fn a_culprit_that_fails_in_another_way_is_a_second_signature() {
    let changes = suspects();
    let (a, b) = (atoms(&changes, 0), atoms(&changes, 8));
    let only = a.clone();
    let mut target = Fake::new(changes, move |arm| !arm.is_disjoint(&a) || !arm.is_disjoint(&b));
    target.signature =
        Box::new(move |arm| if arm.is_subset(&only) { "error:300".into() } else { "recall".into() });
    let report = target.run_with(&Options { budget_runs: 40, ..Options::default() });
    assert_eq!((report.verdict, report.exit_code), (Word::SecondSignature, 10));
    assert!(report.notes.iter().any(|note| note.contains("error:300")));
}

#[test]
fn the_expectation_holds_for_a_single_culprit() {
    let changes = suspects();
    let plan = Fake::new(changes.clone(), |_| false).plan;
    let expected = expected_runs(&plan, Noise::Exact);
    assert!((9..=SINGLE).contains(&expected), "{expected}");
}
