//! Grafts: values of a good run put into a bad run, to see through which tensor a symptom goes.
//!
//! Either outputs of cells, call by call, or the KV that decode begins with, whole or by component. A graft that heals
//! shows a causal link from that tensor to the symptom, given the wiring behind it; the reverse graft, bad values in a
//! good run, shows that the tensor is enough. Both runs decode the same tokens, the good end's answer, so that every
//! value is that of the same call.

mod case;
mod ladder;
mod observer;
mod report;
mod what;

pub use observer::Corrupted;
pub use report::{GraftReport, GraftRow, Score, Word};
pub use what::{Graft, GraftError, KvPart};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use hotseam_encoding::Tokenizer;
use hotseam_engine::Engine;
use hotseam_slots::CellId;

use crate::divergence::Passage;
use crate::needle::Probe;
use crate::{EvidenceError, RequestFailure};
use case::{Case, CaseScore};
use observer::{Donor, Recipient, Recorded};

/// What tells the ends apart.
#[derive(Debug, Clone, Copy)]
pub enum Oracle<'a> {
    /// Needle prompts; a case passes if the word is said.
    Needle(&'a [Probe]),
    /// Held-out text; it passes if the divergence from the good end is at most the threshold, in nats.
    Kl(&'a Passage, f64),
}

/// Where the two ends run: one engine for both, or one each, such as one pool for both phases and two with a hand-off.
#[derive(Clone, Copy)]
pub struct Engines<'a> {
    /// That of the good end.
    pub good: &'a Engine,
    /// That of the bad end.
    pub bad: &'a Engine,
}

impl<'a> From<&'a Engine> for Engines<'a> {
    fn from(engine: &'a Engine) -> Self {
        Self { good: engine, bad: engine }
    }
}

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Good,
    Bad,
}

/// What to graft.
#[derive(Debug, Clone, Default)]
pub struct GraftPlan {
    /// Assignment that gives values.
    pub good: String,
    /// Assignment that fails.
    pub bad: String,
    /// Grafts; the ladder (all KV, each component if that heals, outputs of the cells that differ) if empty.
    pub grafts: Vec<Graft>,
    /// Whether the ladder is all KV and each component of it, whatever heals.
    pub kv: bool,
    /// Failing cases to try each graft on, at most.
    pub cases: usize,
    /// Whether the reverse of each graft is tried as well.
    pub reverse: bool,
    /// Whether what heals is tried layer by layer.
    pub layers: bool,
}

/// Tries grafts. `progress` is told what is being done.
///
/// # Errors
/// If an assignment is missing, the engine takes no request, or the good end of a divergence fails. A bad end that fails
/// is a result.
pub fn run<'a>(
    engines: impl Into<Engines<'a>>,
    tokenizer: &'a Tokenizer,
    oracle: Oracle<'_>,
    plan: &'a GraftPlan,
    mut progress: impl FnMut(&str),
) -> Result<GraftReport, EvidenceError> {
    let begin = Instant::now();
    let engines = engines.into();
    for (engine, name) in [(engines.good, &plan.good), (engines.bad, &plan.bad)] {
        if engine.slots().snapshot(name).is_none() {
            let known = engine.slots().names().join(", ");
            return Err(EvidenceError::Assignment { name: name.clone(), known });
        }
    }
    let (mut grafter, mut report) = Grafter::begin(engines, tokenizer, oracle, plan, &mut progress)?;
    if report.verdict == Word::NotHealed {
        grafter.climb(&mut report, &mut progress)?;
        report.conclude();
    }
    report.seconds = begin.elapsed().as_secs_f64();
    Ok(report)
}

struct Grafter<'a> {
    engines: Engines<'a>,
    tokenizer: &'a Tokenizer,
    plan: &'a GraftPlan,
    cases: Vec<Case>,
    /// KV that decode began with, once it was needed: by case and end.
    kv: BTreeMap<(usize, End), Arc<Recorded>>,
}

impl<'a> Grafter<'a> {
    /// Engine and assignment of an end.
    fn end(&self, end: End) -> (&'a Engine, &'a str) {
        match end {
            End::Good => (self.engines.good, &self.plan.good),
            End::Bad => (self.engines.bad, &self.plan.bad),
        }
    }

    /// Finds the cases that the good end passes and the bad end fails.
    fn begin(
        engines: Engines<'a>,
        tokenizer: &'a Tokenizer,
        oracle: Oracle<'_>,
        plan: &'a GraftPlan,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(Self, GraftReport), EvidenceError> {
        let mut this = Self { engines, tokenizer, plan, cases: Vec::new(), kv: BTreeMap::new() };
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let mut corrupted: Vec<Corrupted> = Vec::new();
        let mut consider = |this: &mut Self, case: Case| -> Result<(), EvidenceError> {
            let watch = Donor::new(BTreeSet::new(), false);
            let (score, watch) = case.run(engines.bad, tokenizer, &plan.bad, watch, false)?;
            if !score.passed {
                this.cases.push(case);
                for new in watch.corrupted() {
                    let known =
                        corrupted.iter().any(|c| (&c.component, c.layer) == (&new.component, new.layer));
                    if !known {
                        corrupted.push(new.clone());
                    }
                }
            }
            bad.push(score);
            Ok(())
        };
        match oracle {
            Oracle::Needle(probes) => {
                for probe in probes {
                    progress(&format!("probe {} of {}", good.len() + 1, probes.len()));
                    let case = Case::needle(engines.good, tokenizer, probe, &plan.good)?;
                    good.push(CaseScore { passed: case.is_some(), metric: 0.0, failure: None });
                    if let Some(case) = case {
                        consider(&mut this, case)?;
                    }
                    if this.cases.len() == plan.cases.max(1) {
                        break;
                    }
                }
            }
            Oracle::Kl(passage, threshold) => {
                progress("both ends");
                good.push(CaseScore { passed: true, metric: 0.0, failure: None });
                consider(&mut this, Case::passage(engines.good, passage, &plan.good, threshold)?)?;
            }
        }
        let passed = good.iter().filter(|score| score.passed).count();
        let report = GraftReport {
            good: named(engines, engines.good, &plan.good),
            bad: named(engines, engines.bad, &plan.bad),
            oracle: describe(oracle),
            metric: match oracle {
                Oracle::Needle(_) => "log-probability".to_owned(),
                Oracle::Kl(..) => "divergence".to_owned(),
            },
            good_end: score(&good),
            bad_end: score(&bad),
            cases: this.cases.len(),
            corrupted,
            rows: Vec::new(),
            verdict: match this.cases.is_empty() {
                _ if passed * 2 < good.len() || good.is_empty() => Word::GoodFails,
                true => Word::NothingToHeal,
                false => Word::NotHealed,
            },
            conclusions: Vec::new(),
            seconds: 0.0,
        };
        Ok((this, report))
    }

    /// Tries the grafts of the plan, or the ladder.
    fn climb(
        &mut self,
        report: &mut GraftReport,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), EvidenceError> {
        let chosen = self.plan.grafts.clone();
        let (wide, narrow) = match chosen.is_empty() {
            true if self.plan.kv => (ladder::kv(self.engines.bad), Vec::new()),
            true => (ladder::first(self.engines, self.plan), ladder::components(self.engines.bad)),
            false => (chosen, Vec::new()),
        };
        for graft in wide {
            let row = self.graft(graft, progress)?;
            let kv_heals = row.healed && row.graft == Graft::Kv(KvPart::ALL);
            report.rows.push(row);
            if kv_heals {
                for part in narrow.clone() {
                    report.rows.push(self.graft(part, progress)?);
                }
            }
        }
        if self.plan.layers {
            let healing: Vec<Graft> =
                report.rows.iter().filter(|row| row.healed).map(|row| row.graft.clone()).collect();
            for graft in healing.iter().flat_map(|graft| ladder::layers(self.engines.bad, graft)) {
                report.rows.push(self.graft(graft, progress)?);
            }
        }
        if report.rows.iter().any(|row| row.healed) {
            report.verdict = Word::Healed;
        }
        Ok(())
    }

    /// One graft on all cases, in both directions.
    fn graft(&mut self, graft: Graft, progress: &mut dyn FnMut(&str)) -> Result<GraftRow, EvidenceError> {
        progress(&graft.to_string());
        let mut row = GraftRow {
            graft,
            replaced: 0,
            without: Vec::new(),
            heal: None,
            healed: false,
            harm: None,
            broke: false,
            refused: None,
        };
        let cells = ladder::cells(self.engines.bad, &row.graft);
        if matches!(row.graft, Graft::Outputs(_)) && cells.is_empty() {
            row.refused = Some("no step calls these cells; the hand-off is `kv`".to_owned());
            return Ok(row);
        }
        let heal = self.direction(&mut row, &cells, End::Good, End::Bad)?;
        if row.refused.is_some() {
            return Ok(row);
        }
        row.healed = most(heal.passed, heal.total);
        row.heal = Some(heal);
        if self.plan.reverse {
            let before = row.replaced;
            let harm = self.direction(&mut row, &cells, End::Bad, End::Good)?;
            row.replaced = before;
            if row.refused.is_none() {
                row.broke = most(harm.total - harm.passed, harm.total);
                row.harm = Some(harm);
            }
        }
        Ok(row)
    }

    /// Values of `from` in runs of `to`.
    fn direction(
        &mut self,
        row: &mut GraftRow,
        cells: &BTreeSet<CellId>,
        from: End,
        to: End,
    ) -> Result<Score, EvidenceError> {
        let part = match &row.graft {
            Graft::Kv(part) => Some(part.clone()),
            Graft::Outputs(_) => None,
        };
        let mut scores = Vec::new();
        for index in 0..self.cases.len() {
            let recorded = match part {
                Some(_) => self.kv_of(index, from)?,
                None => Arc::new(self.record(index, cells, false, from)?),
            };
            let recipient = Recipient::new(cells.clone(), part.clone(), recorded);
            let (engine, name) = self.end(to);
            let (score, recipient) =
                self.cases[index].run(engine, self.tokenizer, name, recipient, part.is_some())?;
            row.replaced += recipient.replaced;
            row.without = recipient.without.iter().map(|name| (*name).to_owned()).collect();
            if let Some(why) = recipient.refused {
                row.refused = Some(why);
                break;
            }
            scores.push(score);
        }
        Ok(score(&scores))
    }

    fn record(
        &self,
        index: usize,
        cells: &BTreeSet<CellId>,
        kv: bool,
        of: End,
    ) -> Result<Recorded, EvidenceError> {
        let donor = Donor::new(cells.clone(), kv);
        let (engine, name) = self.end(of);
        let (score, mut donor) = self.cases[index].run(engine, self.tokenizer, name, donor, false)?;
        match score.failure {
            // An end that fails in the middle still gives what it has.
            Some(RequestFailure { code, message }) if of == End::Good => {
                Err(EvidenceError::Baseline { assignment: name.to_owned(), code, message })
            }
            _ => Ok(donor.take()),
        }
    }

    fn kv_of(&mut self, index: usize, of: End) -> Result<Arc<Recorded>, EvidenceError> {
        let key = (index, of);
        if let Some(known) = self.kv.get(&key) {
            return Ok(Arc::clone(known));
        }
        let recorded = Arc::new(self.record(index, &BTreeSet::new(), true, of)?);
        self.kv.insert(key, Arc::clone(&recorded));
        Ok(recorded)
    }
}

/// Name of an end, with its topology where the two differ in it.
fn named(engines: Engines<'_>, engine: &Engine, name: &str) -> String {
    let topology = |engine: &Engine| engine.config().topology;
    match topology(engines.good) == topology(engines.bad) {
        true => name.to_owned(),
        false => format!("{name} at topology {}", topology(engine)),
    }
}

/// Whether `some` are nearly all of `of`.
fn most(some: usize, of: usize) -> bool {
    of > 0 && some * 4 >= of * 3
}

fn score(cases: &[CaseScore]) -> Score {
    let metrics: Vec<f64> = cases.iter().map(|case| case.metric).collect();
    Score {
        passed: cases.iter().filter(|case| case.passed).count(),
        total: cases.len(),
        metric: metrics.iter().sum::<f64>() / metrics.len().max(1) as f64,
        failure: cases.iter().find_map(|case| case.failure.clone()),
    }
}

fn describe(oracle: Oracle<'_>) -> String {
    match oracle {
        Oracle::Needle(probes) => {
            let mut lengths: Vec<usize> = probes.iter().map(|probe| probe.length).collect();
            lengths.dedup();
            let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
            format!("needle at {} tokens, up to {} probes", lengths.join(", "), probes.len())
        }
        Oracle::Kl(passage, threshold) => {
            format!("divergence on {} tokens, passes up to {threshold:.1e} nats", passage.len())
        }
    }
}
