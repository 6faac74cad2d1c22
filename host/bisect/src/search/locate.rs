//! Finds the last member of a failing set: by halving if a run is a verdict, by beliefs if it is a number of draws.

use hotseam_target::{Arm, Plan};

use super::bayes::Question;
use super::hunt::{Answer, Hunt, Stop, Tested};
use super::infer;
use super::options::Strategy;
use super::order::{self, Suspect};
use super::prefix::{self, Boundary};

/// A suspect this many times as suspicious as the least one is asked alone, where that splits as well as a prefix.
const ACCUSED: f64 = 4.0;

/// Suspects in order, and what is on in every question.
pub(crate) struct Scene<'s> {
    /// Members of the set found so far.
    pub(crate) fixed: &'s [Suspect],
    /// Those among which the next one is.
    pub(crate) suspects: &'s [Suspect],
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Located {
    /// This suspect, with what is fixed, fails.
    Alone {
        /// Among the suspects.
        index: usize,
        /// Failing trial.
        trial: usize,
        /// Belief in it; 1 if the oracle is exact.
        probability: f64,
    },
    /// This suspect is the last of a set: without it what comes before passes, with it fails, alone it passes.
    Last(usize),
    /// It is one of these, and no run tells which.
    Unclear(usize, usize),
}

impl Scene<'_> {
    /// `asked` with what is fixed and required.
    pub(crate) fn with_fixed(&self, plan: &Plan, asked: &[Suspect]) -> Arm {
        plan.with_required(&order::union(self.fixed.iter().chain(asked)))
    }

    /// Why a question is asked, in words.
    pub(crate) fn why(&self, plan: &Plan, question: Question) -> String {
        let place = |index: usize| plan.changes[self.suspects[index].change].place();
        match (question, self.fixed.len()) {
            (Question::Prefix(1), 0) => place(0),
            (Question::Prefix(length), 0) => format!("first {length} of {} suspects", self.suspects.len()),
            (Question::Prefix(length), fixed) => format!("fixed {fixed} + first {length} suspects"),
            (Question::Alone(index), 0) => format!("{} alone", place(index)),
            (Question::Alone(_), fixed) => format!("{} changes together", fixed + 1),
            (Question::End(false), _) => "good end".to_owned(),
            (Question::End(true), _) => "bad end".to_owned(),
        }
    }
}

/// Searches the scene; its suspects all together, with what is fixed, are held to fail.
pub(crate) fn locate(hunt: &mut Hunt<'_>, scene: &Scene<'_>) -> Result<Located, Stop> {
    if hunt.counted && hunt.options.strategy != Strategy::Prefix {
        return infer::infer(hunt, scene);
    }
    match halve(hunt, scene, true)? {
        Some(located) => Ok(located),
        // A suspect that passed alone was taken to pass with what comes before it, and does not.
        None => halve(hunt, scene, false)
            .map(|located| located.unwrap_or(Located::Unclear(0, scene.suspects.len()))),
    }
}

/// A suspect that was met to fail alone ends a search early.
enum Break {
    Stop(Stop),
    Found(Located),
}

impl From<Stop> for Break {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

/// Halves the scene. With `guess`, a suspicious suspect that a question would split off is asked alone instead of with
/// all before it: if it fails, it needs no second run. `None` if that misled.
fn halve(hunt: &mut Hunt<'_>, scene: &Scene<'_>, guess: bool) -> Result<Option<Located>, Stop> {
    let weights: Vec<f64> = scene.suspects.iter().map(|suspect| suspect.weight).collect();
    let least = weights.iter().copied().fold(f64::INFINITY, f64::min);
    let jobs = hunt.options.jobs;
    let mut guessed = false;
    let boundary = prefix::smallest_failing(&weights, jobs, |asked| {
        if let [(length, [_, 1])] = asked
            && guess
            && *length > 1
            && weights[length - 1] >= ACCUSED * least
        {
            let tested = alone(hunt, scene, length - 1)?;
            match tested.answer {
                Answer::Bad => return Err(Break::Found(found(length - 1, tested))),
                Answer::Good => {
                    guessed = true;
                    return Ok(vec![Some(false)]);
                }
                Answer::Skip => {}
            }
        }
        let questions: Vec<_> = asked
            .iter()
            .map(|(length, left)| {
                let question = Question::Prefix(*length);
                (scene.arm(&hunt.plan, question), scene.why(&hunt.plan, question), Some(*left))
            })
            .collect();
        let answers = if hunt.counted {
            questions.iter().map(|(arm, why, left)| hunt.test(arm, why, *left)).collect::<Result<Vec<_>, _>>()
        } else {
            hunt.test_all(&questions)
        };
        Ok(answers?.into_iter().map(Tested::fails).collect())
    });
    let length = match boundary {
        Ok(Boundary::At(length)) => length,
        Ok(Boundary::Between(passes, fails)) => return between(hunt, scene, passes, fails).map(Some),
        Err(Break::Found(located)) => return Ok(Some(located)),
        Err(Break::Stop(stop)) => return Err(stop),
    };
    let tested = alone(hunt, scene, length - 1)?;
    Ok(match tested.answer {
        Answer::Bad => Some(found(length - 1, tested)),
        Answer::Good if guessed => None,
        Answer::Good => Some(Located::Last(length - 1)),
        Answer::Skip => Some(Located::Unclear(length - 1, length)),
    })
}

/// No prefix between two lengths can be judged: perhaps a suspect there can.
fn between(hunt: &mut Hunt<'_>, scene: &Scene<'_>, passes: usize, fails: usize) -> Result<Located, Stop> {
    for index in passes..fails {
        let tested = alone(hunt, scene, index)?;
        if tested.bad() {
            return Ok(found(index, tested));
        }
    }
    Ok(Located::Unclear(passes, fails))
}

fn alone(hunt: &mut Hunt<'_>, scene: &Scene<'_>, index: usize) -> Result<Tested, Stop> {
    let question = Question::Alone(index);
    let arm = scene.arm(&hunt.plan, question);
    let why = scene.why(&hunt.plan, question);
    hunt.test(&arm, &why, None)
}

fn found(index: usize, tested: Tested) -> Located {
    Located::Alone { index, trial: tested.trial, probability: 1.0 }
}
