//! Searches where single runs are not to be trusted, and outcomes that are no verdicts.

use hotseam_bisect::{Options, Report, Strategy, Word, run};
use hotseam_target::simulated::{Condition, Fault, Mishap, Rates, Simulated, flash, flat};
use hotseam_target::{Arm, Conformance, HANG, Noise, Outcome, Plan, Target, TargetError, Verdict};

fn options() -> Options {
    Options { budget_runs: 600, max_set: 4, ..Options::default() }
}

fn hunt(target: &mut dyn Target) -> Report {
    run(target, &options(), &mut ())
}

fn seams(report: &Report) -> Vec<String> {
    let mut seams: Vec<String> = report.culprits.iter().map(|culprit| culprit.seam.clone()).collect();
    seams.sort();
    seams
}

/// Hunts with seeds 0 to 19 that find just `expected`.
fn right(expected: &[&str], mut make: impl FnMut(u64) -> Simulated) -> usize {
    let mut right = 0;
    let mut runs = 0;
    for seed in 0..20 {
        let report = hunt(&mut make(seed));
        right += usize::from(report.verdict == Word::Found && seams(&report) == expected);
        runs += report.runs;
    }
    println!("{expected:?}: {right} of 20, mean {:.1} runs", f64::from(runs as u32) / 20.0);
    right
}

#[test]
fn a_pair_is_found_under_noise() {
    let make = |seed| Simulated::new(flat(24), Fault::all([5, 17])).noisy(Rates::new(0.05, 0.9), seed);
    assert!(right(&["seam17", "seam5"], make) >= 18);
}

#[test]
fn two_independent_culprits_are_found_under_noise() {
    let make = |seed| Simulated::new(flat(24), Fault::any([5, 17])).noisy(Rates::new(0.05, 0.9), seed);
    assert!(right(&["seam17", "seam5"], make) >= 18);
}

#[test]
fn many_draws_a_run_take_few_runs() {
    let rates = Rates { draws: 24, ..Rates::new(0.1, 0.6) };
    let make = |seed| Simulated::new(flat(64), Fault::any([40])).noisy(rates, seed);
    assert!(right(&["seam40"], make) >= 19);
    let report = hunt(&mut make(0));
    assert!(report.runs <= 16, "{} runs", report.runs);
}

#[test]
fn layers_are_narrowed_under_noise() {
    let plan = flash();
    let indexer = plan.changes.iter().position(|change| change.seam == "indexer").unwrap();
    let atom = plan.changes[indexer].atoms[9].clone();
    let rates = Rates { draws: 8, ..Rates::new(0.02, 0.8) };
    let mut exact = 0;
    for seed in 0..10 {
        let mut target = Simulated::new(plan.clone(), Fault::any([atom.id])).noisy(rates, seed);
        let report = hunt(&mut target);
        assert_eq!(report.verdict, Word::Found, "seed {seed}");
        exact +=
            usize::from(report.culprits.len() == 1 && report.culprits[0].layers == [atom.layer.unwrap()]);
    }
    assert!(exact >= 9, "{exact} of 10");
}

#[test]
fn beliefs_and_rates_are_reported() {
    let mut target = Simulated::new(flat(16), Fault::any([3])).noisy(Rates::new(0.1, 0.8), 5);
    let report = hunt(&mut target);
    assert_eq!(report.verdict, Word::Found);
    let posteriors: Vec<_> =
        report.trials.iter().filter_map(|trial| trial.after.posterior.as_ref()).collect();
    assert!(posteriors.len() >= 4);
    assert!(posteriors.iter().all(|posterior| posterior.top.len() <= 8 && posterior.entropy <= 4.0 + 1e-9));
    let last = posteriors.last().unwrap();
    assert!(last.top[0].change.starts_with("seam3.") && last.top[0].probability >= 0.95);
    let rates = report.rates.as_ref().unwrap();
    assert!(rates.good.low <= 0.1 && 0.1 <= rates.good.high && rates.bad.low <= 0.8 && 0.8 <= rates.bad.high);
    assert!(report.culprits[0].probability.unwrap() >= 0.95);
    assert!(report.culprits[0].with.total > 0 && report.culprits[0].without.total > 0);
}

#[test]
fn a_launch_that_does_not_show_the_fault_is_left() {
    let rates = Rates { sticky: true, ..Rates::new(0.0, 0.3) };
    let mut relaunched = 0;
    for seed in 0..20 {
        let mut target = Simulated::new(flat(32), Fault::any([9])).noisy(rates, seed);
        let report = hunt(&mut target);
        relaunched += target.relaunches();
        if report.verdict == Word::Found {
            assert_eq!(seams(&report), ["seam9"]);
            let last = report.trials.last().unwrap().outcome.launch;
            assert!(
                report
                    .trials
                    .iter()
                    .filter(|t| t.after.posterior.is_some())
                    .all(|t| t.outcome.launch == last)
            );
        } else {
            assert_eq!(report.verdict, Word::OracleAgrees);
        }
    }
    assert!(relaunched >= 20, "{relaunched}");
}

#[test]
fn ends_that_do_not_differ_are_no_culprit() {
    for seed in 0..20 {
        let mut target = Simulated::new(flat(8), Fault::any([2])).noisy(Rates::new(0.0, 0.0), seed);
        let report = hunt(&mut target);
        assert_eq!((report.verdict, report.exit_code), (Word::OracleAgrees, 1));
        let mut target =
            Simulated::new(flat(8), Fault::any([2])).noisy(Rates::new(0.5, 0.5), seed).one_launch();
        let report = hunt(&mut target);
        assert_ne!(report.verdict, Word::Found, "seed {seed}");
    }
}

#[test]
fn an_exact_oracle_may_be_searched_by_beliefs_and_draws_by_halving() {
    let mut target = Simulated::new(flat(32), Fault::any([20]));
    let report = run(&mut target, &Options { strategy: Strategy::Bayes, ..options() }, &mut ());
    assert_eq!((report.verdict, seams(&report)), (Word::Found, vec!["seam20".to_owned()]));
    let mut target = Simulated::new(flat(32), Fault::any([20])).noisy(Rates::new(0.0, 0.9), 1);
    let report = run(&mut target, &Options { strategy: Strategy::Prefix, ..options() }, &mut ());
    assert_eq!((report.verdict, seams(&report)), (Word::Found, vec!["seam20".to_owned()]));
}

#[test]
fn the_same_answers_make_the_same_report() {
    let make = || Simulated::new(flat(24), Fault::all([5, 17])).noisy(Rates::new(0.05, 0.8), 11);
    assert_eq!(hunt(&mut make()), hunt(&mut make()));
}

#[test]
fn arms_that_cannot_be_judged_are_gone_around() {
    // Any arm with 7 but without 8 is skipped.
    let skip = Fault::any([7]).masked_by([8]);
    for culprit in [3, 7, 8, 12] {
        let mut target = Simulated::new(flat(16), Fault::any([culprit])).mishap(skip.clone(), Mishap::Skip);
        let report = hunt(&mut target);
        match report.verdict {
            Word::Found => {
                assert!(seams(&report).contains(&format!("seam{culprit}")), "{culprit}: {:?}", seams(&report))
            }
            other => {
                assert!(other == Word::Inconclusive && [7, 8].contains(&culprit), "{culprit}: {other:?}")
            }
        }
        let skipped = report.trials.iter().filter(|trial| trial.outcome.verdict == Verdict::Skip);
        println!("culprit {culprit}: {} runs, {} skipped", report.runs, skipped.count());
    }
    let mut target = Simulated::new(flat(4), Fault::any([1])).mishap(Fault::all(0..4), Mishap::Skip);
    assert_eq!(hunt(&mut target).verdict, Word::Inconclusive);
}

#[test]
fn a_hang_is_a_failure_of_its_own_and_a_broken_oracle_ends_the_search() {
    let mut target = Simulated::new(flat(8), Fault::Never).mishap(Fault::any([6]), Mishap::Hang);
    let report = hunt(&mut target);
    assert_eq!((report.verdict, seams(&report)), (Word::Found, vec!["seam6".to_owned()]));
    assert!(report.trials.iter().any(|trial| trial.outcome.signature == HANG));

    let mut target = Simulated::new(flat(8), Fault::any([1, 6])).mishap(Fault::any([6]), Mishap::Crash(300));
    let report = hunt(&mut target);
    assert_eq!((report.verdict, report.exit_code), (Word::SecondSignature, 10));

    let mut target = Simulated::new(flat(8), Fault::any([1])).mishap(Fault::all(0..8), Mishap::Oracle);
    let report = hunt(&mut target);
    assert_eq!((report.verdict, report.exit_code), (Word::OracleBroken, 5));
    assert!(report.notes.iter().any(|note| note.contains("127")));
}

#[test]
fn a_change_that_heals_another_is_said_to() {
    // 2 breaks unless 9 is there; 12 always breaks.
    let fault = Fault::Either(vec![Fault::any([2]).masked_by([9]), Fault::any([12])]);
    let report = hunt(&mut Simulated::new(flat(16), fault));
    assert_eq!(report.verdict, Word::Found);
    assert!(seams(&report).contains(&"seam12".to_owned()));
    // A pair that is 1-minimal though a third change heals it.
    let fault = Fault::all([1, 6]).masked_by([3]);
    let fault = Fault::Either(vec![fault, Fault::all([3, 10])]);
    let report = hunt(&mut Simulated::new(flat(16), fault));
    assert_eq!(report.verdict, Word::Found, "{:?}", report.notes);
}

#[test]
fn the_time_of_runs_is_bounded() {
    let mut target = Simulated::new(flat(64), Fault::any([20]));
    let report = run(&mut target, &Options { budget_seconds: Some(5), ..options() }, &mut ());
    assert_eq!((report.verdict, report.exit_code, report.runs), (Word::BudgetSpent, 6, 5));
}

#[test]
fn a_setting_that_heals_the_good_end_is_the_answer() {
    let fault = || Fault::Always.when(Condition::Below("index_topk".into(), 128));
    let axes = |target: Simulated| {
        target.axis("kv_dtype", "f32", &["bf16"]).axis("index_topk", "32", &["64", "128", "256"]).axis(
            "chunk",
            "512",
            &["256"],
        )
    };
    let mut target = axes(Simulated::new(flat(6), fault()));
    let report = hunt(&mut target);
    assert_eq!((report.verdict, report.exit_code), (Word::NoPatch, 0));
    let answer = report.what_if.iter().find(|tried| tried.heals).unwrap();
    assert_eq!(answer.settings.len(), 1);
    assert_eq!((answer.settings[0].name.as_str(), answer.settings[0].to.as_str()), ("index_topk", "128"));
    assert!(report.notes.iter().any(|note| note.contains("the patches are cleared")));
    assert!(report.culprits.is_empty() && report.open.is_empty(), "{:?}", report.open);
    let reasons = report.exonerated.iter().map(|cleared| cleared.reason.as_str());
    assert_eq!(reasons.filter(|reason| reason.contains("once index_topk 32 -> 128")).count(), 6);

    let mut noisy =
        axes(Simulated::new(flat(6), fault())).noisy(Rates { draws: 4, ..Rates::new(0.02, 0.7) }, 2);
    let report = hunt(&mut noisy);
    assert_eq!(report.verdict, Word::NoPatch, "{:?}", report.notes);
    assert!(report.what_if.iter().any(|tried| tried.heals && tried.settings[0].to == "128"));

    // Two settings at once.
    let both = Fault::Not(Box::new(Fault::Together(vec![
        Fault::Always.when(Condition::AtLeast("index_topk".into(), 64)),
        Fault::Always.when(Condition::Is("chunk".into(), "256".into())),
    ])));
    let report = hunt(&mut axes(Simulated::new(flat(6), both)));
    let answer = report.what_if.iter().find(|tried| tried.heals).unwrap();
    assert_eq!(answer.settings.len(), 2);

    let report = hunt(&mut axes(Simulated::new(flat(6), Fault::Always)));
    assert_eq!((report.verdict, report.exit_code), (Word::GoodFails, 4));
    let report =
        run(&mut axes(Simulated::new(flat(6), fault())), &Options { axes: false, ..options() }, &mut ());
    assert_eq!((report.verdict, report.what_if.len()), (Word::GoodFails, 0));
}

/// A target whose server dies and comes back after some runs.
struct Dying {
    inner: Simulated,
    runs: usize,
    dies_after: usize,
}

impl Target for Dying {
    fn plan(&self) -> &Plan {
        self.inner.plan()
    }

    fn digest(&mut self, arm: &Arm) -> Result<String, TargetError> {
        self.inner.digest(arm)
    }

    fn measure(&mut self, arm: &Arm) -> Result<Outcome, TargetError> {
        self.runs += 1;
        if self.runs == self.dies_after {
            self.inner.relaunch()?;
        }
        self.inner.measure(arm)
    }

    fn not_run(&self) -> Arm {
        self.inner.not_run()
    }

    fn conformance(&mut self, variant: &str) -> Result<Conformance, TargetError> {
        self.inner.conformance(variant)
    }

    fn oracle(&self) -> String {
        self.inner.oracle()
    }

    fn noise(&self) -> Noise {
        self.inner.noise()
    }

    fn relaunch(&mut self) -> Result<u64, TargetError> {
        self.inner.relaunch()
    }
}

#[test]
fn a_launch_that_ends_in_the_middle_is_not_mixed_with_the_next() {
    let rates = Rates { sticky: true, ..Rates::new(0.0, 0.5) };
    let mut found = 0;
    for seed in 0..20 {
        let inner = Simulated::new(flat(32), Fault::any([21])).noisy(rates, seed);
        let mut target = Dying { inner, runs: 0, dies_after: 9 };
        let report = hunt(&mut target);
        if report.verdict == Word::Found {
            assert_eq!(seams(&report), ["seam21"], "seed {seed}");
            found += 1;
        } else {
            assert_eq!(report.verdict, Word::OracleAgrees, "seed {seed}: {:?}", report.notes);
        }
        // In every launch in which arms were asked, both ends had been told apart before.
        for launch in 0..=target.inner.relaunches() {
            let own: Vec<&str> = report
                .trials
                .iter()
                .filter(|trial| trial.outcome.launch == launch)
                .map(|trial| trial.why.as_str())
                .collect();
            let asked = own.iter().skip(1).position(|why| !why.ends_with(" end"));
            if let Some(asked) = asked {
                assert!(own[..=asked].contains(&"bad end"), "launch {launch}: {own:?}");
            }
        }
    }
    assert!(found >= 18, "{found} of 20");
}
