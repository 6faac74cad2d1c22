//! Runs of the oracle: counted, bounded, and made into answers about arms.

use std::collections::HashMap;

use hotseam_target::{Arm, Atom, Change, Counts, HANG, Noise, Outcome, Plan, Target, TargetError, Verdict};

use super::draws::{Draws, Wanted};
use super::options::{Options, Strategy};
use crate::event::{Event, Observer, Progress, Trial};
use crate::report::layers;

/// Runs after which an arm that still fits both ends is given up.
const MOST_RUNS_OF_AN_ARM: usize = 80;

/// Why a search ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// No run, or no time, is left.
    Budget,
    /// The target gave no verdict.
    Target(TargetError),
    /// The target is in a launch in which the ends were not run yet.
    Relaunched,
}

/// What is held of an arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Passes.
    Good,
    /// Fails.
    Bad,
    /// Cannot be judged.
    Skip,
}

/// An answer and the last trial it stands on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tested {
    pub(crate) answer: Answer,
    /// Number of the trial, from 1.
    pub(crate) trial: usize,
}

impl Tested {
    pub(crate) fn bad(self) -> bool {
        self.answer == Answer::Bad
    }

    pub(crate) fn good(self) -> bool {
        self.answer == Answer::Good
    }

    /// Bad or good; `None` if it cannot be judged.
    pub(crate) fn fails(self) -> Option<bool> {
        (self.answer != Answer::Skip).then_some(self.bad())
    }
}

/// The target with the record of what was asked.
pub(crate) struct Hunt<'a> {
    pub(crate) target: &'a mut dyn Target,
    pub(crate) plan: Plan,
    pub(crate) trials: Vec<Trial>,
    pub(crate) draws: Draws,
    pub(crate) options: Options,
    pub(crate) counted: bool,
    /// Launch in which both ends were last told apart, if outcomes are draws.
    pub(crate) verified: Option<u64>,
    /// Belief in each change by the last search that kept beliefs.
    pub(crate) beliefs: Vec<Option<f64>>,
    observer: &'a mut dyn Observer,
    titles: Vec<String>,
    seconds: f64,
    decided: HashMap<String, Tested>,
}

impl<'a> Hunt<'a> {
    pub(crate) fn new(target: &'a mut dyn Target, observer: &'a mut dyn Observer, options: &Options) -> Self {
        let plan = target.plan().clone();
        let titles = plan.changes.iter().map(Change::title).collect();
        let counted = target.noise() == Noise::Counted || options.strategy == Strategy::Bayes;
        Self {
            target,
            plan,
            trials: Vec::new(),
            draws: Draws::default(),
            options: *options,
            counted,
            verified: None,
            beliefs: Vec::new(),
            observer,
            titles,
            seconds: 0.0,
            decided: HashMap::new(),
        }
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.observer.event(&Event::Note(text));
    }

    /// Judges `arm`, by earlier runs if they ran the same code. `left` is the number of suspects that a good and a bad
    /// verdict leave.
    pub(crate) fn test(&mut self, arm: &Arm, why: &str, left: Option<[usize; 2]>) -> Result<Tested, Stop> {
        self.test_at(arm, why, left, [self.options.confidence; 2])
    }

    /// [`Hunt::test`] with confidences of its own for a good and a bad verdict, if outcomes are draws.
    pub(crate) fn test_at(
        &mut self,
        arm: &Arm,
        why: &str,
        left: Option<[usize; 2]>,
        confidence: [f64; 2],
    ) -> Result<Tested, Stop> {
        if self.counted {
            return self.decide(arm, why, confidence);
        }
        let tested = self.test_all(&[(arm.clone(), why.to_owned(), left)])?;
        tested.first().copied().ok_or(Stop::Budget)
    }

    /// Judges several arms of an exact oracle, at the same time if the target can.
    pub(crate) fn test_all(
        &mut self,
        asked: &[(Arm, String, Option<[usize; 2]>)],
    ) -> Result<Vec<Tested>, Stop> {
        let mut digests = Vec::new();
        for (arm, _, _) in asked {
            digests.push(self.digest(arm)?);
        }
        let mut fresh: Vec<usize> = Vec::new();
        for (index, digest) in digests.iter().enumerate() {
            if !self.decided.contains_key(digest) && !fresh.iter().any(|&other| digests[other] == *digest) {
                fresh.push(index);
            }
        }
        fresh.truncate(self.runs_left());
        let arms: Vec<Arm> = fresh.iter().map(|&index| asked[index].0.clone()).collect();
        let first = self.trials.len() + 1;
        let mut changes = Vec::new();
        for (offset, &index) in fresh.iter().enumerate() {
            let (arm, why, _) = &asked[index];
            changes.push(self.begin(first + offset, arm, &[], why, &digests[index]));
        }
        let answers = match &arms[..] {
            [] => Vec::new(),
            [one] => vec![self.target.measure(one)],
            several => self.target.measure_many(several),
        };
        for ((&index, changes), answer) in fresh.iter().zip(changes).zip(answers) {
            let (arm, why, left) = &asked[index];
            let outcome = self.settle(answer)?;
            let tested = Tested { answer: word(outcome.verdict), trial: self.trials.len() + 1 };
            let left = left.filter(|_| tested.answer != Answer::Skip).map(|l| l[usize::from(tested.bad())]);
            let after = Progress { left, ..Progress::default() };
            self.end(Asked { arm, axes: &[], why, digest: &digests[index], changes }, outcome, after);
            self.decided.insert(digests[index].clone(), tested);
        }
        let tested: Vec<Tested> =
            digests.iter().map_while(|digest| self.decided.get(digest).copied()).collect();
        if tested.len() < asked.len() { Err(Stop::Budget) } else { Ok(tested) }
    }

    /// Repeats `arm` until it is as good as certain that it fails or passes at the rates of the ends: Wald's sequential
    /// test, the rates integrated out.
    fn decide(&mut self, arm: &Arm, why: &str, confidence: [f64; 2]) -> Result<Tested, Stop> {
        let digest = self.digest(arm)?;
        let [good, bad] = confidence.map(|confidence| (confidence / (1.0 - confidence)).ln());
        loop {
            if let Some(&tested) = self.decided.get(&digest) {
                return Ok(tested);
            }
            let ratio = self.draws.ratio(&digest);
            let (_, runs) = self.draws.counts(&digest);
            let answer = match ratio {
                _ if ratio >= bad => Answer::Bad,
                _ if ratio <= -good => Answer::Good,
                _ if runs >= MOST_RUNS_OF_AN_ARM => Answer::Skip,
                _ => {
                    let trial = self.inform(arm, &digest, why, |_| Progress::default())?;
                    let trial = &self.trials[trial - 1];
                    if trial.outcome.verdict == Verdict::Skip && trial.digest == digest {
                        let trial = trial.number;
                        self.decided.insert(digest.clone(), Tested { answer: Answer::Skip, trial });
                    }
                    continue;
                }
            };
            let trial = self.last_trial(&digest);
            if answer != Answer::Skip {
                self.draws.classes.entry(digest.clone()).or_insert(answer == Answer::Bad);
            }
            self.decided.insert(digest.clone(), Tested { answer, trial });
        }
    }

    /// What is held of `arm`, if anything.
    pub(crate) fn held(&mut self, arm: &Arm) -> Result<Option<Tested>, Stop> {
        let digest = self.digest(arm)?;
        Ok(self.decided.get(&digest).copied())
    }

    /// The run that tells most about whether `arm` fails: of it, or of an end.
    pub(crate) fn inform(
        &mut self,
        arm: &Arm,
        digest: &str,
        why: &str,
        after: impl FnOnce(&Draws) -> Progress,
    ) -> Result<usize, Stop> {
        match self.draws.wanted(digest) {
            Wanted::Arm => self.draw(arm, &[], why, after),
            Wanted::Good => self.draw(&Arm::new(), &[], "good end", after),
            Wanted::Bad => self.draw(&self.plan.all(), &[], "bad end", after),
        }
    }

    /// Forgets what was held of `arm`; its runs stay.
    pub(crate) fn reopen(&mut self, arm: &Arm) -> Result<(), Stop> {
        let digest = self.digest(arm)?;
        self.decided.remove(&digest);
        self.draws.classes.remove(&digest);
        Ok(())
    }

    /// Holds that `arm` fails or passes without more runs.
    pub(crate) fn assume(&mut self, arm: &Arm, bad: bool) -> Result<Tested, Stop> {
        let digest = self.digest(arm)?;
        let answer = if bad { Answer::Bad } else { Answer::Good };
        let tested = Tested { answer, trial: self.last_trial(&digest) };
        self.draws.classes.insert(digest.clone(), bad);
        self.decided.insert(digest, tested);
        Ok(tested)
    }

    fn last_trial(&self, digest: &str) -> usize {
        let samples = self.draws.blocks.iter().rev().filter_map(|block| block.samples.get(digest));
        samples.map(|sample| sample.trial).next().unwrap_or(0)
    }

    /// One run of `arm`, with `axes` set to other values. `after` says how the search stands after it. Returns the
    /// number of the trial.
    pub(crate) fn draw(
        &mut self,
        arm: &Arm,
        axes: &[(String, String)],
        why: &str,
        after: impl FnOnce(&Draws) -> Progress,
    ) -> Result<usize, Stop> {
        if self.runs_left() == 0 {
            return Err(Stop::Budget);
        }
        let digest = self.digest(arm)?;
        let number = self.trials.len() + 1;
        let changes = self.begin(number, arm, axes, why, &digest);
        let answer =
            if axes.is_empty() { self.target.measure(arm) } else { self.target.measure_axes(axes, arm) };
        let outcome = self.settle(answer)?;
        let launch = outcome.launch;
        if axes.is_empty() && self.counted {
            let counts = counts_of(&outcome);
            self.draws.add(launch, &digest, arm, counts, number);
        }
        let after = after(&self.draws);
        self.end(Asked { arm, axes, why, digest: &digest, changes }, outcome, after);
        // Settings are measured in a launch of their own.
        if axes.is_empty() && self.verified.is_some_and(|verified| verified != launch) {
            self.verified = None;
            return Err(Stop::Relaunched);
        }
        Ok(number)
    }

    /// Digest of what `arm` runs; an arm that is refused has one of its own, and is skipped when it is run.
    pub(crate) fn digest(&mut self, arm: &Arm) -> Result<String, Stop> {
        match self.target.digest(arm) {
            Ok(digest) => Ok(digest),
            Err(TargetError::Arm { .. }) => Ok(format!("refused {arm:?}")),
            Err(error) => Err(Stop::Target(error)),
        }
    }

    /// What is held of the arm of `trial`; `None` if it is undecided, or other settings were tried.
    pub(crate) fn answer_of(&self, trial: &Trial) -> Option<Answer> {
        if !trial.axes.is_empty() {
            return None;
        }
        self.decided.get(&trial.digest).map(|tested| tested.answer)
    }

    /// A failing trial and a passing one that contains it, if there are any: failing is not monotone then.
    pub(crate) fn contradiction(&self) -> Option<(usize, usize)> {
        let with = |answer| self.trials.iter().filter(move |trial| self.answer_of(trial) == Some(answer));
        let pairs = with(Answer::Bad).flat_map(|bad| with(Answer::Good).map(move |good| (bad, good)));
        pairs
            .filter(|(bad, good)| bad.arm.is_subset(&good.arm))
            .map(|(bad, good)| (bad.number, good.number))
            .next()
    }

    /// Runs that may still be made; none if the time is over.
    pub(crate) fn runs_left(&self) -> usize {
        let over = self.options.budget_seconds.is_some_and(|most| self.seconds >= most as f64);
        if over { 0 } else { self.options.budget_runs.saturating_sub(self.trials.len()) }
    }

    /// Wall time of all runs, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Says that a run begins; returns the changes of `arm` in words.
    fn begin(
        &mut self,
        number: usize,
        arm: &Arm,
        axes: &[(String, String)],
        why: &str,
        digest: &str,
    ) -> Vec<String> {
        let changes = self.describe(arm);
        let mut said = changes.clone();
        said.extend(axes.iter().map(|(name, value)| format!("{name} = {value}")));
        self.observer.event(&Event::Start { number, why, changes: &said, digest });
        changes
    }

    /// The changes of `arm` in words; partly switched ones with their layers.
    fn describe(&self, arm: &Arm) -> Vec<String> {
        let mut lines = Vec::new();
        for (change, title) in self.plan.changes.iter().zip(&self.titles) {
            let on: Vec<&Atom> = change.atoms.iter().filter(|atom| arm.contains(&atom.id)).collect();
            if on.len() == change.atoms.len() {
                lines.push(title.clone());
            } else if !on.is_empty() {
                let some: Vec<usize> = on.iter().filter_map(|atom| atom.layer).collect();
                lines.push(format!("{} {}: {}", change.place(), layers(&some), change.delta));
            }
        }
        lines
    }

    fn end(&mut self, asked: Asked<'_>, outcome: Outcome, after: Progress) {
        self.seconds += outcome.seconds;
        let trial = Trial {
            number: self.trials.len() + 1,
            why: asked.why.to_owned(),
            changes: asked.changes,
            axes: asked.axes.to_vec(),
            digest: asked.digest.to_owned(),
            arm: asked.arm.clone(),
            outcome,
            after,
        };
        self.observer.event(&Event::End { trial: &trial });
        self.trials.push(trial);
    }

    /// A run that hangs is bad in its own way, an arm that is refused cannot be judged, any other error ends the search.
    fn settle(&self, answer: Result<Outcome, TargetError>) -> Result<Outcome, Stop> {
        let without = |verdict, signature: &str, seconds, error: &TargetError| Outcome {
            verdict,
            signature: signature.to_owned(),
            metric: 0.0,
            summary: signature.to_owned(),
            detail: error.to_string(),
            seconds,
            counts: Counts::once(verdict),
            launch: self.draws.blocks.last().map_or(0, |block| block.launch),
            grid: Vec::new(),
        };
        match answer {
            Err(error @ TargetError::Hang { seconds, .. }) => {
                Ok(without(Verdict::Bad, HANG, seconds, &error))
            }
            Err(error @ TargetError::Arm { .. }) => Ok(without(Verdict::Skip, "refused", 0.0, &error)),
            other => other.map_err(Stop::Target),
        }
    }
}

/// What a run was asked.
struct Asked<'q> {
    arm: &'q Arm,
    axes: &'q [(String, String)],
    why: &'q str,
    digest: &'q str,
    changes: Vec<String>,
}

/// Draws of a run; of a crash or a hang, which has no probes, one that failed.
pub(crate) fn counts_of(outcome: &Outcome) -> Counts {
    if outcome.counts.total == 0 { Counts::once(outcome.verdict) } else { outcome.counts }
}

fn word(verdict: Verdict) -> Answer {
    match verdict {
        Verdict::Good => Answer::Good,
        Verdict::Bad => Answer::Bad,
        Verdict::Skip => Answer::Skip,
    }
}
