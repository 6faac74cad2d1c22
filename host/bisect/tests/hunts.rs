//! Runs that searches take, against the simulations of the research note and against delta debugging.
//!
//! A run is counted as in the note: every question once, the bad end among them, without the good end and without the
//! confirmation that the bad end passes when the culprit is taken out.

use std::collections::HashSet;

use hotseam_bisect::report::Grade;
use hotseam_bisect::{Options, Report, Word, run};
use hotseam_target::simulated::{Fault, Random, Simulated, flat};
use hotseam_target::{Arm, Evidence, Suspicion};

const HUNTS: u64 = 200;

fn options() -> Options {
    Options { budget_runs: 10_000, max_set: 8, ..Options::default() }
}

/// Runs of a report as the note counts them.
fn runs(report: &Report) -> usize {
    let confirmations =
        report.culprits.iter().filter_map(|culprit| culprit.necessary).collect::<HashSet<_>>();
    report.runs - 1 - confirmations.len()
}

/// Culprits of a hunt over `count` changes, and its runs.
fn hunt(count: usize, planted: &[usize], suspicions: &[Suspicion]) -> usize {
    let fault = Fault::all(planted.iter().copied());
    let mut target = Simulated::new(flat(count), fault);
    for suspicion in suspicions {
        target = target.suspicion(suspicion.clone());
    }
    let report = run(&mut target, &options(), &mut ());
    assert_eq!(report.verdict, Word::Found);
    let mut found: Vec<String> = report.culprits.iter().map(|culprit| culprit.seam.clone()).collect();
    found.sort();
    let mut expected: Vec<String> = planted.iter().map(|index| format!("seam{index}")).collect();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(report.exonerated.len(), count - planted.len());
    assert!(report.exonerated.iter().all(|cleared| cleared.grade == Grade::Passes));
    runs(&report)
}

/// Delta debugging (Zeller and Hildebrandt), every subset asked once; returns the number of questions, the whole set
/// among them.
fn ddmin(count: usize, planted: &[usize]) -> usize {
    let mut asked: HashSet<Arm> = HashSet::from([(0..count).collect()]);
    let mut fails = |set: &[usize]| {
        asked.insert(set.iter().copied().collect());
        planted.iter().all(|item| set.contains(item))
    };
    let mut items: Vec<usize> = (0..count).collect();
    let mut parts = 2;
    while items.len() >= 2 {
        let size = items.len().div_ceil(parts);
        let chunks: Vec<Vec<usize>> = items.chunks(size).map(<[usize]>::to_vec).collect();
        let rest = |chunk: &Vec<usize>| -> Vec<usize> {
            items.iter().copied().filter(|item| !chunk.contains(item)).collect()
        };
        if let Some(chunk) = chunks.iter().find(|chunk| fails(chunk)) {
            (items, parts) = (chunk.clone(), 2);
        } else if let Some(complement) = chunks.iter().map(rest).find(|set| fails(set)) {
            (items, parts) = (complement, parts.max(3) - 1);
        } else if parts >= items.len() {
            break;
        } else {
            parts = (parts * 2).min(items.len());
        }
    }
    assert_eq!(items, planted);
    asked.len()
}

fn mean(values: impl Iterator<Item = usize>) -> f64 {
    let (sum, count) = values.fold((0, 0), |(sum, count), value| (sum + value, count + 1));
    sum as f64 / f64::from(count)
}

#[test]
fn runs_are_those_of_the_research_note() {
    // Changes, culprits, mean runs of prefix search and of ddmin in the note.
    let points = [
        (64, 1, 8.0, 9.0),
        (64, 2, 14.2, 32.4),
        (64, 3, 20.5, 60.4),
        (256, 2, 18.2, 45.7),
        (1464, 2, 23.4, 68.5),
        (1464, 5, 55.0, 276.7),
    ];
    println!("changes culprits   runs  note  ratio    ddmin  note");
    for (count, culprits, expected, note) in points {
        let hunts = if count > 1000 { HUNTS / 4 } else { HUNTS };
        let planted = |seed| Random::new(seed).distinct(culprits, count);
        let own = mean((0..hunts).map(|seed| hunt(count, &planted(seed), &[])));
        let other = mean((0..hunts).map(|seed| ddmin(count, &planted(seed))));
        let ratio = own / expected;
        println!("{count:7} {culprits:8} {own:6.1} {expected:5.1} {ratio:6.2} {other:8.1} {note:5.1}");
        assert!((0.85..=1.15).contains(&ratio), "({count}; {culprits}): {own} runs, the note has {expected}");
        assert!(own < other, "({count}; {culprits}): {own} runs, ddmin {other}");
    }
}

#[test]
fn suspicion_saves_two_runs_in_five() {
    // Three of 64 cells hold 80 % of the suspicion; culprits are as likely as they are suspicious.
    let accused = [11, 30, 52];
    let share = |cell: usize| if accused.contains(&cell) { 0.8 / 3.0 } else { 0.2 / 61.0 };
    let evidence = |cell: usize| Suspicion {
        change: cell,
        weight: share(accused[0]) / share(0),
        evidence: "rms 3.1x stock's error".to_owned(),
        step: Evidence::E3,
    };
    let suspicions: Vec<Suspicion> = accused.into_iter().map(evidence).collect();
    let expected = |suspicions: &[Suspicion]| -> f64 {
        (0..64).map(|cell| share(cell) * hunt(64, &[cell], suspicions) as f64).sum()
    };
    let (with, without) = (expected(&suspicions), expected(&[]));
    println!("64 changes, one culprit: {without:.2} runs, with suspicion {with:.2}: {:.2}", with / without);
    assert!(with <= 0.6 * without, "{with} runs with suspicion, {without} without");
}

#[test]
fn misplaced_suspicion_costs_little() {
    let suspicion = Suspicion { change: 11, weight: 80.0, evidence: String::new(), step: Evidence::E3 };
    let plain = mean((0..64).filter(|cell| *cell != 11).map(|cell| hunt(64, &[cell], &[])));
    let misled = mean(
        (0..64).filter(|cell| *cell != 11).map(|cell| hunt(64, &[cell], std::slice::from_ref(&suspicion))),
    );
    println!("64 changes, one culprit, another one suspected: {plain:.2} runs, {misled:.2}");
    assert!(misled <= plain + 2.0, "{misled} runs, {plain} without the suspicion");
}

#[test]
fn several_at_once_take_fewer_rounds() {
    for culprit in [0, 17, 63] {
        let mut target = Simulated::new(flat(64), Fault::any([culprit]));
        let report = run(&mut target, &Options { jobs: 3, ..options() }, &mut ());
        assert_eq!(report.verdict, Word::Found);
        assert_eq!(report.culprits[0].seam, format!("seam{culprit}"));
        // log4 64 = 3 rounds of three, the ends, and both confirmations.
        assert!(report.runs <= 2 + 9 + 2, "{} runs", report.runs);
    }
}
