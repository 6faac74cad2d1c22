//! Recall of hidden facts.

use hotseam_config::{NeedleOracle, NeedleTask};
use hotseam_evidence::EvidenceError;
use hotseam_evidence::needle::{self, NEEDLES, NeedlePlan, NeedleReport, Sweep, TURNS, Task};

use super::{Kind, Material, NoVerdict, Report, Subject, counts, failed, outcome};
use crate::{Outcome, Probe, Progress};

/// Recall that the good end must reach to be called good, unless the oracle says.
const LEAST_GOOD_RECALL: f64 = 0.75;

/// Probes that an arm may lose against the good end and still be good: one, or an eighth of more than eight.
fn usual_tolerance(probes: usize) -> usize {
    (probes / 8).max(1)
}

pub(super) struct Needle {
    probes: Vec<needle::Probe>,
    lengths: Vec<usize>,
    task: Task,
    tolerance: usize,
    least_good: f64,
    concurrent: Option<usize>,
    /// Hits of the good end.
    bar: Option<usize>,
}

impl Needle {
    pub(super) fn new(oracle: &NeedleOracle, material: &Material<'_>) -> Result<Self, EvidenceError> {
        let task = match oracle.task {
            NeedleTask::Single => Task::Single,
            NeedleTask::Multi => Task::Multi { needles: oracle.needles.unwrap_or(NEEDLES) },
            NeedleTask::MultiTurn => Task::MultiTurn { turns: oracle.turns.unwrap_or(TURNS) },
            NeedleTask::Passphrase => Task::Passphrase,
        };
        let plan = NeedlePlan { lengths: oracle.lengths.clone(), probes: oracle.depths, seed: material.seed };
        let probes = plan.probes_of(task, material.tokenizer, material.haystack)?;
        let tolerance = oracle.tolerance.unwrap_or_else(|| usual_tolerance(probes.len()));
        let least_good = oracle.least_good.unwrap_or(LEAST_GOOD_RECALL);
        let (lengths, concurrent) = (oracle.lengths.clone(), oracle.concurrent);
        Ok(Self { probes, lengths, task, tolerance, least_good, concurrent, bar: None })
    }

    fn run(&self, subject: &Subject<'_>, report: Report<'_>) -> Result<NeedleReport, NoVerdict> {
        let total = self.probes.len();
        let in_flight = self.concurrent.unwrap_or(subject.in_flight);
        if self.task == Task::Passphrase && in_flight.min(subject.in_flight) < 2 {
            let text = "passphrases are told apart between requests that run together, and this engine runs one at a \
                        time; raise engine.max_seqs or use task: single";
            return Err(NoVerdict::Unsupported(text.to_owned()));
        }
        let sweep = Sweep { assignment: subject.assignment.to_owned(), in_flight, reuse_prefill: true };
        report(Progress { done: 0, total });
        let done = |done, _: &needle::ProbeResult| report(Progress { done, total });
        Ok(needle::run_on(subject.model, subject.digest, &self.probes, &sweep, done)?)
    }
}

impl Kind for Needle {
    fn describe(&self) -> String {
        let at: Vec<String> = self.lengths.iter().map(ToString::to_string).collect();
        let task = match self.task {
            Task::Single => "needle".to_owned(),
            Task::Multi { needles } => format!("one of {needles} needles"),
            Task::MultiTurn { turns } => format!("needle of the first of {turns} turns"),
            Task::Passphrase => "passphrase per request".to_owned(),
        };
        format!(
            "{task} at {} tokens, {} probes; bad if {} or more are lost",
            at.join(", "),
            self.probes.len(),
            self.tolerance + 1
        )
    }

    fn base(&mut self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        let found = self.run(subject, report)?;
        self.bar = Some(found.hits());
        Ok(judge(&found, found.recall < self.least_good))
    }

    fn arm(&self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        let found = self.run(subject, report)?;
        let bad = match self.bar {
            None => found.recall < self.least_good,
            Some(bar) => found.hits() + self.tolerance < bar,
        };
        Ok(judge(&found, bad))
    }
}

fn judge(report: &NeedleReport, lost: bool) -> Outcome {
    if let Some(failure) = report.failure() {
        return failed(failure);
    }
    let (hits, total, foreign) = (report.hits(), report.probes.len(), report.foreign());
    let (signature, summary) = match foreign {
        0 => ("recall", format!("{hits}/{total} recalled")),
        _ => ("bleed", format!("{hits}/{total} recalled, {foreign} foreign")),
    };
    let grid = report.probes.iter();
    Outcome {
        counts: counts(total - hits, total),
        grid: grid
            .map(|probe| Probe { length: probe.length, depth: probe.depth, passed: probe.hit })
            .collect(),
        ..outcome(lost || foreign > 0, signature, report.recall, summary, report.marks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lost_probe_of_eight_is_tolerated() {
        assert_eq!([4, 8, 16, 24].map(usual_tolerance), [1, 1, 2, 3]);
    }
}
