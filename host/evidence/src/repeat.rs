//! Determinism: the same request several times, compared bit by bit.

use std::hash::{DefaultHasher, Hash, Hasher};

use hotseam_engine::{Engine, Event};
use serde::{Deserialize, Serialize};

use crate::divergence::Passage;
use crate::model::{Model, Question, Reply};
use crate::{EvidenceError, RequestFailure};

/// What repeats gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepeatReport {
    /// Runs, the first included.
    pub times: usize,
    /// Runs whose bits are not those of the first.
    pub differing: usize,
    /// (Run, position) of the first row that differs; runs are counted from 0.
    pub first: Option<(usize, usize)>,
    /// Set if a request failed.
    pub failure: Option<RequestFailure>,
}

/// Feeds `passage` `times` times, one after the other and without reuse of prefill, and compares the logits of every row.
///
/// # Errors
/// [`EvidenceError::Submit`].
pub fn logits(
    engine: &Engine,
    passage: &Passage,
    times: usize,
    assignment: &str,
) -> Result<RepeatReport, EvidenceError> {
    compare(times, || {
        let handle = engine.submit(passage.request(assignment))?;
        let mut rows: Vec<(usize, u64)> = Vec::new();
        loop {
            match handle.recv() {
                Some(Event::Logits { position, logits }) => rows.push((position as usize, bits(&logits))),
                Some(Event::Token { .. } | Event::Prompt { .. }) => {}
                Some(Event::Done { .. }) => break,
                Some(Event::Failed { code, message }) => return Ok(Err(RequestFailure { code, message })),
                None => return Ok(Err(RequestFailure::engine_stopped())),
            }
        }
        rows.sort_unstable();
        Ok(Ok(rows))
    })
}

/// Asks the same question `times` times and compares the tokens and the bits of their log-probabilities: all that a
/// server shows.
///
/// # Errors
/// [`EvidenceError`] if a question could not be put.
pub fn answers(
    model: &dyn Model,
    question: &Question<'_>,
    times: usize,
) -> Result<RepeatReport, EvidenceError> {
    compare(times, || {
        let row = |(at, said): (usize, &crate::model::Said)| {
            let mut hash = DefaultHasher::new();
            said.name.hash(&mut hash);
            said.logprob.to_bits().hash(&mut hash);
            (at, hash.finish())
        };
        let rows = |reply: Reply| reply.tokens.iter().enumerate().map(row).collect();
        Ok(model.ask(question)?.map(rows))
    })
}

type Rows = Vec<(usize, u64)>;

fn compare(
    times: usize,
    mut run: impl FnMut() -> Result<Result<Rows, RequestFailure>, EvidenceError>,
) -> Result<RepeatReport, EvidenceError> {
    let mut report = RepeatReport { times: 0, differing: 0, first: None, failure: None };
    let mut want: Option<Rows> = None;
    for number in 0..times {
        let rows = match run()? {
            Ok(rows) => rows,
            Err(failure) => return Ok(RepeatReport { failure: Some(failure), ..report }),
        };
        report.times += 1;
        let Some(want) = &want else {
            want = Some(rows);
            continue;
        };
        if rows != *want {
            report.differing += 1;
            let shared = rows.iter().zip(want).find(|(a, b)| a != b).map(|(row, _)| row.0);
            let at = shared.unwrap_or(rows.len().min(want.len()));
            report.first.get_or_insert((number, at));
        }
    }
    Ok(report)
}

fn bits(logits: &[f32]) -> u64 {
    let mut hash = DefaultHasher::new();
    logits.iter().for_each(|value| value.to_bits().hash(&mut hash));
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(runs: &[&[u64]]) -> RepeatReport {
        let mut next = runs.iter();
        compare(runs.len(), || Ok(Ok(next.next().unwrap().iter().copied().enumerate().collect()))).unwrap()
    }

    #[test]
    fn the_first_row_that_differs_is_named() {
        let same: &[u64] = &[1, 2, 3];
        assert_eq!(report(&[same, same, same]).differing, 0);
        let found = report(&[same, same, &[1, 9, 3], &[7, 2, 3]]);
        assert_eq!((found.times, found.differing, found.first), (4, 2, Some((2, 1))));
        assert_eq!(report(&[same, &[1, 2]]).first, Some((1, 2)));
    }

    #[test]
    fn a_failure_ends_the_repeats() {
        let failure = RequestFailure { code: "E".into(), message: "m".into() };
        let mut left = 2;
        let found = compare(9, || {
            left -= 1;
            Ok(if left == 0 { Err(failure.clone()) } else { Ok(vec![(0, 1)]) })
        });
        let found = found.unwrap();
        assert_eq!((found.times, found.failure), (1, Some(failure)));
    }

    #[test]
    fn zeros_of_both_signs_and_nans_are_told_apart() {
        assert_ne!(bits(&[0.0]), bits(&[-0.0]));
        assert_eq!(bits(&[f32::NAN]), bits(&[f32::NAN]));
    }
}
