//! Why a needle was lost: what the indexer, the window and the far entries had to say about it, layer by layer, at the
//! rows that must produce the word.
//!
//! The request is run with the right answer forced, so that the rows that must know the word exist whether or not the
//! model would have come to them. Scores are recomputed from the inputs of `indexer.select`, masses from those of
//! `attention.core`; masses are means over heads.

mod look;
mod report;

pub use report::{Carrier, Cause, NeedleEntry, Why};

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use hotseam_encoding::{Control, Tokenizer};
use hotseam_engine::Engine;

use crate::EvidenceError;
use crate::compare::{Workload, observed};
use crate::needle::Probe;
use look::Look;

/// Explains what an assignment makes of a needle.
///
/// # Errors
/// [`EvidenceError::NoNeedle`] if the prompt does not hold the fact in its plain form, [`EvidenceError::Assignment`],
/// [`EvidenceError::Submit`], [`EvidenceError::Baseline`] and [`EvidenceError::Encoding`].
pub fn explain(
    engine: &Engine,
    tokenizer: &Tokenizer,
    assignment: &str,
    probe: &Probe,
) -> Result<Why, EvidenceError> {
    crate::compare::snapshot(engine, assignment)?;
    let Probe { name, value, prompt, .. } = probe;
    let fact = tokenizer.encode(&format!(" The secret word of {name} is {value}."))?;
    let needle = find(prompt, &fact).ok_or_else(|| EvidenceError::NoNeedle { name: name.clone() })?;

    // What the model says by itself.
    let free = Workload::probe(tokenizer, probe);
    let handle = engine.submit(free.request(assignment))?;
    let said = crate::ask::finish(&handle, |_, _| {});
    let said = said.map_err(|f| EvidenceError::Baseline {
        assignment: assignment.to_owned(),
        code: f.code,
        message: f.message,
    })?;
    let answer = tokenizer.decode(&said)?;

    let right = tokenizer.encode(&format!("The secret word of {name} is {value}."))?;
    let lead = tokenizer.encode(&format!("The secret word of {name} is"))?;
    let word = lead.iter().zip(&right).take_while(|(a, b)| a == b).count();
    // The word ends before the full stop; each of its tokens comes out of the row before it.
    let rows: Vec<usize> = (word..right.len() - 1).map(|i| prompt.len() + i - 1).collect();
    let forced = Workload {
        prompt: prompt.clone(),
        max_tokens: right.len(),
        forced: right,
        stop_tokens: vec![tokenizer.control(Control::Eos)],
    };
    let look = Arc::new(Mutex::new(Look::new(rows.clone(), needle.clone())));
    observed(engine, assignment, &forced, Box::new(Arc::clone(&look)))?;
    let mut look = look.lock().unwrap_or_else(PoisonError::into_inner);
    let mut why = Why {
        assignment: assignment.to_owned(),
        length: probe.length,
        depth: probe.depth,
        name: name.clone(),
        value: value.clone(),
        recalled: answer.contains(value.as_str()),
        answer,
        needle: (needle.start, needle.end),
        rows,
        layers: std::mem::take(&mut look.layers).into_values().collect(),
        cause: Cause::Elsewhere,
        advice: String::new(),
    };
    why.conclude();
    Ok(why)
}

/// Where `part` stands in `all`.
fn find(all: &[u32], part: &[u32]) -> Option<Range<usize>> {
    let start = all.windows(part.len().max(1)).position(|window| window == part)?;
    Some(start..start + part.len())
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn a_fact_is_found_where_it_stands() {
        assert_eq!(find(&[1, 2, 3, 4], &[2, 3]), Some(1..3));
        assert_eq!(find(&[1, 2], &[3]), None);
        assert_eq!(find(&[1], &[1, 2]), None);
    }
}
