//! What was drawn in which launch, and what it says about one arm.
//!
//! Noise may be drawn once a launch and not once a run: a launch is then good or bad as a whole. So rates are never
//! shared between launches; each has its own, unknown, and only runs of one launch are compared with each other.

use std::collections::BTreeMap;

use hotseam_target::{Arm, Counts};

use super::stats::{Tally, entropy};

/// A run that may be made to decide about an arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Of the arm itself.
    Arm,
    /// Of the good end.
    Good,
    /// Of the bad end.
    Bad,
}

/// All runs of one arm in one launch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) arm: Arm,
    pub(crate) runs: Vec<Counts>,
    /// Last trial.
    pub(crate) trial: usize,
}

impl Sample {
    fn counts(&self) -> Counts {
        let sum = |part: fn(&Counts) -> u32| self.runs.iter().map(part).sum();
        Counts { fail: sum(|c| c.fail), total: sum(|c| c.total) }
    }
}

/// The runs of one launch, by digest of what ran.
#[derive(Debug, Clone, Default)]
pub(crate) struct Block {
    pub(crate) launch: u64,
    pub(crate) samples: BTreeMap<String, Sample>,
}

/// The runs of all launches.
#[derive(Debug, Default)]
pub(crate) struct Draws {
    pub(crate) blocks: Vec<Block>,
    /// Arms that are taken to fail (true) or pass at the rates of the ends, by digest; first of all the ends.
    pub(crate) classes: BTreeMap<String, bool>,
    /// Draws of one run that count as one, since they fail together more often than chance would have it.
    dispersion: f64,
    /// Some run was more than one draw.
    many: bool,
}

impl Draws {
    /// Adds a run; it opens a block if its launch is new.
    pub(crate) fn add(&mut self, launch: u64, digest: &str, arm: &Arm, counts: Counts, trial: usize) {
        if self.blocks.last().is_none_or(|block| block.launch != launch) {
            self.blocks.push(Block { launch, samples: BTreeMap::new() });
        }
        if let Some(block) = self.blocks.last_mut() {
            let sample = block.samples.entry(digest.to_owned()).or_default();
            sample.arm = arm.clone();
            sample.runs.push(counts);
            sample.trial = trial;
        }
        self.many |= counts.total > 1;
        if self.many {
            self.dispersion = self.dispersed();
        }
    }

    /// Draws of `sample` as independent ones.
    pub(crate) fn tally(&self, sample: &Sample) -> Tally {
        let tally = Tally::from(sample.counts());
        let factor = self.dispersion.max(1.0);
        Tally { fail: tally.fail / factor, pass: tally.pass / factor }
    }

    /// Draws of `block` that pass (first) or fail (second) at the rates of the ends, without those of `except`.
    pub(crate) fn rates(&self, block: &Block, except: &str) -> [Tally; 2] {
        let mut rates = [Tally::default(); 2];
        for (digest, sample) in block.samples.iter().filter(|(digest, _)| *digest != except) {
            if let Some(&fails) = self.classes.get(digest) {
                rates[usize::from(fails)].add(self.tally(sample));
            }
        }
        rates
    }

    /// Runs of `digest` in all launches, as they were counted, and their number.
    pub(crate) fn counts(&self, digest: &str) -> (Counts, usize) {
        let mut sum = Counts::default();
        let mut runs = 0;
        for sample in self.blocks.iter().filter_map(|block| block.samples.get(digest)) {
            let counts = sample.counts();
            sum.fail += counts.fail;
            sum.total += counts.total;
            runs += sample.runs.len();
        }
        (sum, runs)
    }

    /// Logarithm of how much better the runs of `digest` fit an arm that fails than one that passes.
    pub(crate) fn ratio(&self, digest: &str) -> f64 {
        let mut sum = 0.0;
        for block in &self.blocks {
            let Some(sample) = block.samples.get(digest) else { continue };
            let [passes, fails] = self.rates(block, digest);
            // A launch in which an end was not run says nothing.
            if passes.total() > 0.0 && fails.total() > 0.0 {
                let tally = self.tally(sample);
                sum += fails.predicts(tally) - passes.predicts(tally);
            }
        }
        sum
    }

    /// Which run is expected to tell most about whether `digest` fails: one of its own, or one of an end, whose rate
    /// may be what is not known well enough.
    pub(crate) fn wanted(&self, digest: &str) -> Wanted {
        let Some(block) = self.blocks.last() else { return Wanted::Arm };
        let Some(sample) = block.samples.get(digest) else { return Wanted::Arm };
        let [passes, fails] = self.rates(block, digest);
        let own = self.tally(sample);
        let belief = 1.0 / (1.0 + (-self.ratio(digest)).exp());
        // Chance that a draw fails if the arm passes, and if it fails.
        let bits = |[passing, failing]: [f64; 2]| {
            let mixed = (1.0 - belief) * passing + belief * failing;
            entropy(mixed) - (1.0 - belief) * entropy(passing) - belief * entropy(failing)
        };
        let arm = bits([passes.plus(own).mean(), fails.plus(own).mean()]);
        let good = bits([passes.plus(own).mean(), passes.mean()]);
        let bad = bits([fails.mean(), fails.plus(own).mean()]);
        match (good > arm, bad > arm) {
            (true, _) if good >= bad => Wanted::Good,
            (_, true) => Wanted::Bad,
            _ => Wanted::Arm,
        }
    }

    /// Independent draws of one run of the present launch, on average.
    pub(crate) fn draws_a_run(&self) -> f64 {
        let samples = self.blocks.iter().rev().take(1).flat_map(|block| block.samples.values());
        let (draws, runs) = samples.fold((0.0, 0), |(draws, runs), sample| {
            (draws + self.tally(sample).total(), runs + sample.runs.len())
        });
        if runs == 0 { 1.0 } else { draws / runs as f64 }
    }

    /// Pearson's statistic over repeats of one arm in one launch, by its degrees of freedom, with one degree more that
    /// finds nothing, so that two runs do not decide. 1 if a run is one draw.
    fn dispersed(&self) -> f64 {
        let (mut statistic, mut freedom) = (0.0, 0.0);
        for sample in self.blocks.iter().flat_map(|block| block.samples.values()) {
            let counts = sample.counts();
            let rate = f64::from(counts.fail) / f64::from(counts.total.max(1));
            if sample.runs.len() < 2 || sample.runs.iter().all(|run| run.total <= 1) {
                continue;
            }
            freedom += sample.runs.len() as f64 - 1.0;
            if rate <= 0.0 || rate >= 1.0 {
                continue;
            }
            for run in &sample.runs {
                let expected = f64::from(run.total) * rate;
                let variance = (expected * (1.0 - rate)).max(1e-9);
                statistic += (f64::from(run.fail) - expected).powi(2) / variance;
            }
        }
        if freedom == 0.0 { 1.0 } else { (statistic + 1.0) / (freedom + 1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(fail: u32, total: u32) -> Counts {
        Counts { fail, total }
    }

    fn draws(runs: &[(u64, &str, Counts)]) -> Draws {
        let classes = [("good".to_owned(), false), ("bad".to_owned(), true)].into();
        let mut draws = Draws { classes, ..Draws::default() };
        for (trial, (launch, digest, counts)) in runs.iter().enumerate() {
            draws.add(*launch, digest, &Arm::new(), *counts, trial + 1);
        }
        draws
    }

    #[test]
    fn an_arm_is_compared_with_the_ends_of_its_own_launch() {
        let mut runs = vec![(0, "good", counts(0, 8)), (0, "bad", counts(8, 8)), (0, "x", counts(2, 2))];
        assert!(draws(&runs).ratio("x") > 2.0);
        // A clean launch: the bad end passes as well, so a pass there clears nobody.
        runs.extend([(1, "good", counts(0, 8)), (1, "bad", counts(0, 8)), (1, "x", counts(0, 8))]);
        let both = draws(&runs);
        assert!(both.ratio("x") > 2.0, "{}", both.ratio("x"));
        assert_eq!(both.counts("x"), (counts(2, 10), 2));
        // A launch without the ends says nothing.
        runs.push((2, "x", counts(0, 50)));
        assert!((draws(&runs).ratio("x") - both.ratio("x")).abs() < 1e-9);
    }

    #[test]
    fn an_end_is_run_again_if_its_rate_is_what_is_not_known() {
        let few = [(0, "good", counts(0, 1)), (0, "good", counts(0, 1)), (0, "bad", counts(1, 1))];
        let arm = |fail: u32, pass: u32| {
            let run = move |index| (0, "x", counts(u32::from(index < fail), 1));
            let runs: Vec<_> = few.iter().copied().chain((0..fail + pass).map(run)).collect();
            draws(&runs).wanted("x")
        };
        assert_eq!(arm(0, 0), Wanted::Arm);
        assert_eq!(arm(6, 3), Wanted::Good);
        assert_eq!(arm(0, 9), Wanted::Bad);
    }

    #[test]
    fn draws_that_fail_together_count_as_fewer() {
        let even =
            draws(&[(0, "bad", counts(12, 24)), (0, "bad", counts(11, 24)), (0, "bad", counts(13, 24))]);
        let lumped =
            draws(&[(0, "bad", counts(24, 24)), (0, "bad", counts(0, 24)), (0, "bad", counts(24, 24))]);
        let total = |draws: &Draws| draws.tally(&draws.blocks[0].samples["bad"]).total();
        assert!(total(&even) > 60.0, "{}", total(&even));
        assert!(total(&lumped) < 10.0, "{}", total(&lumped));
    }
}
