//! Finds the last member of a failing set from draws: asks what is expected to tell most, until one suspect is believed.

use std::collections::{BTreeMap, HashMap};

use hotseam_target::{Arm, Plan};

use super::bayes::{Beliefs, Prior, Question, Seen};
use super::draws::Draws;
use super::hunt::{Hunt, Stop};
use super::locate::{Located, Scene};
use super::stats;
use crate::event::{Belief, Posterior, Progress};

/// Bits below which no question is worth a run.
const WORTHLESS: f64 = 1e-3;

/// Searches the scene; its suspects all together, with what is fixed, are held to fail.
pub(crate) fn infer(hunt: &mut Hunt<'_>, scene: &Scene<'_>) -> Result<Located, Stop> {
    let confidence = hunt.options.confidence;
    // A set is found in several steps, all of which must be right.
    let step = 1.0 - (1.0 - confidence) / 2.0;
    let wanted = if scene.fixed.is_empty() { confidence } else { step };
    let odds = (confidence / (1.0 - confidence)).ln();
    let weights: Vec<f64> = scene.suspects.iter().map(|suspect| suspect.weight).collect();
    let prior = Prior::new(&weights, scene.along(&hunt.plan));
    let titles: Vec<String> =
        scene.suspects.iter().map(|suspect| hunt.plan.changes[suspect.change].title()).collect();
    let mut known = questions(hunt, scene);
    let mut beliefs = prior.update(&seen(&hunt.draws, &known));
    loop {
        hunt.beliefs = vec![None; hunt.plan.changes.len()];
        for (index, suspect) in scene.suspects.iter().enumerate() {
            hunt.beliefs[suspect.change] = Some(beliefs.of(index));
        }
        let Some(&top) = beliefs.likeliest(1).first() else { return Ok(Located::Unclear(0, 0)) };
        if beliefs.last[top] >= step {
            classify(hunt, &known, top, false);
            return Ok(Located::Last(top));
        }
        let believed = beliefs.alone[top] >= wanted;
        if believed {
            classify(hunt, &known, top, true);
            let arm = scene.arm(&hunt.plan, Question::Alone(top));
            let held = hunt.held(&arm)?;
            let digest = hunt.digest(&arm)?;
            let trial = match held.filter(|tested| tested.bad()) {
                Some(tested) => Some(tested.trial),
                None if hunt.draws.ratio(&digest) >= odds => Some(hunt.assume(&arm, true)?.trial),
                None => None,
            };
            if let Some(trial) = trial {
                return Ok(Located::Alone { index: top, trial, probability: beliefs.alone[top] });
            }
            let why = scene.why(&hunt.plan, Question::Alone(top));
            if let std::collections::hash_map::Entry::Vacant(new) = known.entry(digest.clone()) {
                new.insert(Question::Alone(top));
            }
            hunt.inform(&arm, &digest, &why, |draws| {
                beliefs = prior.update(&seen(draws, &known));
                progress(draws, &beliefs, confidence, &titles)
            })?;
            continue;
        }
        let question = match prior.best(&beliefs) {
            Some((question, bits)) if bits * hunt.draws.draws_a_run() >= WORTHLESS => question,
            _ => {
                let (low, high) = beliefs.range();
                return Ok(Located::Unclear(low, high));
            }
        };
        let arm = scene.arm(&hunt.plan, question);
        if !matches!(question, Question::End(_)) {
            known.insert(hunt.digest(&arm)?, question);
        }
        let why = scene.why(&hunt.plan, question);
        hunt.draw(&arm, &[], &why, |draws| {
            beliefs = prior.update(&seen(draws, &known));
            progress(draws, &beliefs, confidence, &titles)
        })?;
    }
}

/// Earlier runs that are answers to questions of this scene.
fn questions(hunt: &Hunt<'_>, scene: &Scene<'_>) -> HashMap<String, Question> {
    let mut known = HashMap::new();
    for (digest, sample) in hunt.draws.blocks.iter().flat_map(|block| &block.samples) {
        if let Some(question) = scene.question(&hunt.plan, &sample.arm) {
            known.insert(digest.clone(), question);
        }
    }
    known
}

/// The draws that speak of the scene, by launch.
fn seen(draws: &Draws, known: &HashMap<String, Question>) -> Vec<Seen> {
    let mut blocks = Vec::with_capacity(draws.blocks.len());
    for block in &draws.blocks {
        let mut seen = Seen::default();
        for (digest, sample) in &block.samples {
            let tally = draws.tally(sample);
            match known.get(digest) {
                Some(Question::Prefix(length)) => seen.prefixes.entry(*length).or_default().add(tally),
                Some(Question::Alone(suspect)) => seen.singles.entry(*suspect).or_default().add(tally),
                Some(Question::End(_)) | None => {
                    if let Some(&fails) = draws.classes.get(digest) {
                        seen.ends[usize::from(fails)].add(tally);
                    }
                }
            }
        }
        // In a launch that did not show the fault, arms say nothing.
        if seen.ends.iter().all(|end| end.total() > 0.0) {
            blocks.push(seen);
        }
    }
    blocks
}

/// From now on the runs of this search count as what they are if `top` is right.
fn classify(hunt: &mut Hunt<'_>, known: &HashMap<String, Question>, top: usize, alone: bool) {
    for (digest, question) in known {
        let fails = match question {
            Question::Prefix(length) => *length > top,
            Question::Alone(suspect) => alone && *suspect == top,
            Question::End(fails) => *fails,
        };
        hunt.draws.classes.insert(digest.clone(), fails);
    }
}

fn progress(draws: &Draws, beliefs: &Beliefs, confidence: f64, titles: &[String]) -> Progress {
    let top = beliefs.likeliest(8);
    let [p0, p1] = beliefs.rates();
    let belief =
        |&suspect: &usize| Belief { change: titles[suspect].clone(), probability: beliefs.of(suspect) };
    let bits = beliefs.bits();
    let runs_left = stats::expected_draws(bits, p0, p1, confidence) / draws.draws_a_run();
    Progress {
        left: Some(beliefs.plausible()),
        runs_left: Some(runs_left),
        posterior: Some(Posterior { entropy: bits, top: top.iter().map(belief).collect() }),
    }
}

impl Scene<'_> {
    /// What runs if `question` is asked.
    pub(crate) fn arm(&self, plan: &Plan, question: Question) -> Arm {
        let asked = match question {
            Question::Prefix(length) => &self.suspects[..length],
            Question::Alone(suspect) => &self.suspects[suspect..=suspect],
            Question::End(false) => return Arm::new(),
            Question::End(true) => return plan.all(),
        };
        self.with_fixed(plan, asked)
    }

    /// The question that `arm` answers, if it does.
    fn question(&self, plan: &Plan, arm: &Arm) -> Option<Question> {
        let on: Vec<usize> =
            (0..self.suspects.len()).filter(|index| self.suspects[*index].atoms.is_subset(arm)).collect();
        let length = on.iter().enumerate().take_while(|(index, suspect)| index == *suspect).count();
        let question = match on[..] {
            [] => return None,
            _ if length == on.len() && length == self.suspects.len() => return None,
            _ if length == on.len() => Question::Prefix(length),
            // A suspect comes after all that it requires.
            [.., last] => Question::Alone(last),
        };
        (self.arm(plan, question) == *arm).then_some(question)
    }

    /// Suspects that run along when another is asked alone.
    fn along(&self, plan: &Plan) -> BTreeMap<usize, Vec<usize>> {
        let needs = |index: &usize| {
            let change = &plan.changes[self.suspects[*index].change];
            change.atoms.iter().any(|atom| !atom.requires.is_empty())
        };
        let run = |index: usize| {
            let arm = self.arm(plan, Question::Alone(index));
            let on = (0..self.suspects.len()).filter(|other| self.suspects[*other].atoms.is_subset(&arm));
            (index, on.collect())
        };
        (0..self.suspects.len()).filter(needs).map(run).collect()
    }
}
