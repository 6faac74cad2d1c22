//! Does 95 % mean 95 %? Thousands of hunts with planted culprits, at the rates of the research note, with chance drawn
//! each run and with chance drawn once a launch.
//!
//! 250 seeds a line; all 2,000 if `HOTSEAM_TEST_FULL=1` is set.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use hotseam_bisect::{Options, Word, run};
use hotseam_target::simulated::{Fault, Random, Rates, Simulated, flat};

const CHANGES: usize = 64;
/// Failure rates without and with the culprit.
const PAIRS: [(f64, f64); 8] =
    [(0.0, 1.0), (0.0, 0.75), (0.0, 0.5), (0.0, 0.25), (0.05, 0.75), (0.05, 0.5), (0.1, 0.9), (0.1, 0.4)];

fn seeds() -> u64 {
    if std::env::var_os("HOTSEAM_TEST_FULL").is_some_and(|value| value == "1") { 2000 } else { 250 }
}

/// What came of one hunt.
#[derive(Clone, Copy, PartialEq)]
enum Claim {
    Right,
    Wrong,
    /// No culprit was claimed.
    None,
}

fn hunt(seed: u64, rates: Rates) -> (Claim, usize) {
    let mut random = Random::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
    let culprit = random.below(CHANGES);
    let mut target = Simulated::new(flat(CHANGES), Fault::any([culprit])).noisy(rates, random.bits());
    let options = Options { budget_runs: 1000, seed, ..Options::default() };
    let report = run(&mut target, &options, &mut ());
    let claim = match (report.verdict, &report.culprits[..]) {
        (Word::Found, [only]) if only.seam == format!("seam{culprit}") => Claim::Right,
        (Word::Found, _) => Claim::Wrong,
        _ => Claim::None,
    };
    (claim, report.runs)
}

/// All hunts at one pair of rates, on all cores.
fn hunts(rates: Rates) -> Vec<(Claim, usize)> {
    let next = AtomicU64::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds() {
                return done;
            }
            done.push(hunt(seed, rates));
        }
    };
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a hunt panicked")).collect()
    })
}

fn check(sticky: bool) {
    println!("p0    p1    {}  claims  right   mean runs   p90", if sticky { "sticky" } else { "each  " });
    for (without, with) in PAIRS {
        let all = hunts(Rates { sticky, ..Rates::new(without, with) });
        let claims = all.iter().filter(|(claim, _)| *claim != Claim::None).count();
        let right = all.iter().filter(|(claim, _)| *claim == Claim::Right).count();
        let mut runs: Vec<usize> = all.iter().map(|(_, runs)| *runs).collect();
        runs.sort_unstable();
        let mean = runs.iter().sum::<usize>() as f64 / runs.len() as f64;
        let p90 = runs[runs.len() * 9 / 10];
        let share = right as f64 / claims.max(1) as f64;
        println!(
            "{without:<5} {with:<5} {:>6} {claims:>7} {:>6.1}% {mean:>9.1} {p90:>7}",
            all.len(),
            100.0 * share
        );
        assert!(share >= 0.94, "({without}, {with}): {right} of {claims} claims are right");
        assert!(
            claims * 10 >= all.len() * 8,
            "({without}, {with}): only {claims} of {} hunts end",
            all.len()
        );
    }
}

#[test]
fn claims_at_95_percent_are_right() {
    check(false);
}

#[test]
fn claims_are_right_when_a_launch_is_good_or_bad_as_a_whole() {
    check(true);
}
