//! KL divergence between the next-token distributions of two assignments on held-out text.
//!
//! The first part of the text is prefilled, the rest is forced through decode token by token, so both phases are
//! measured; each is judged by its own mean, because a fault of decode would drown among many prefill rows.
//!
//! A [`Baseline`] can be saved and compared with later. [`floor`] measures how far variations that harm nothing move an
//! assignment, so that a bar can be set above that.

mod baseline;
pub mod floor;
mod report;

use hotseam_encoding::{Control, Tokenizer};
use hotseam_engine::{Engine, Request};

use crate::haystack::Haystack;
use crate::logits::{argmax, kl, log_softmax};
use crate::{EvidenceError, ask};
use report::Row;

pub use baseline::Baseline;
pub use report::{DivergenceReport, FirstOver, RowStats, TAIL};

/// Decode rows, unless asked otherwise.
pub const DECODE_TOKENS: usize = 64;

/// The text of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// The tokens that are fed, `<BOS><User>` first, and the one that follows them.
    tokens: Vec<u32>,
    /// How many of them are prefilled.
    prefill: usize,
}

impl Passage {
    /// The first `tokens` tokens of the haystack, the last `decode` of them for decode.
    ///
    /// # Errors
    /// [`EvidenceError::TooFewTokens`].
    pub fn new(
        tokenizer: &Tokenizer,
        haystack: &Haystack,
        tokens: usize,
        decode: usize,
    ) -> Result<Self, EvidenceError> {
        let head = [Control::Bos, Control::User].map(|token| tokenizer.control(token));
        if tokens <= decode + head.len() || decode == 0 {
            return Err(EvidenceError::TooFewTokens { tokens, decode });
        }
        let text = haystack.take(0, tokens + 1 - head.len());
        let all: Vec<u32> = head.iter().chain(text.into_iter().flatten()).copied().collect();
        Ok(Self { prefill: tokens - decode, tokens: all })
    }

    /// Number of tokens fed, which is the number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len() - 1
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens that are prefilled.
    pub fn prefill(&self) -> usize {
        self.prefill
    }

    /// The tokens that are prefilled.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.prefill]
    }

    /// The tokens that are fed, and the one that follows them.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The request that feeds it: the last forced token is not fed, it is what the last row is held against.
    pub(crate) fn request(&self, assignment: &str) -> Request {
        let (prompt, forced) = self.tokens.split_at(self.prefill);
        Request {
            assignment: assignment.to_owned(),
            forced: forced.to_vec(),
            tap_logits: true,
            ..Request::greedy(prompt.to_vec(), forced.len())
        }
    }
}

/// Runs `passage` under `assignment` and compares each row with the baseline as it comes.
///
/// # Errors
/// [`EvidenceError::Submit`].
pub fn compare(
    engine: &Engine,
    passage: &Passage,
    baseline: &Baseline,
    assignment: &str,
    threshold: f64,
) -> Result<DivergenceReport, EvidenceError> {
    compare_request(engine, passage, baseline, passage.request(assignment), threshold)
}

/// As [`compare`], with a request that differs from the passage's own in how it is run.
fn compare_request(
    engine: &Engine,
    passage: &Passage,
    baseline: &Baseline,
    request: Request,
    threshold: f64,
) -> Result<DivergenceReport, EvidenceError> {
    let assignment = request.assignment.clone();
    let handle = engine.submit(request)?;
    let mut rows: Vec<Row> = Vec::new();
    let ended = ask::finish(&handle, |position, mut logits| {
        if let Some(base) = baseline.row(position).filter(|row| row.len() == logits.len()) {
            log_softmax(&mut logits);
            let kl = kl(base, &logits);
            rows.push(Row { position, kl, same_top1: argmax(base) == argmax(&logits) });
        }
    });
    rows.sort_by_key(|row| row.position);
    let is_decode = |row: &Row| row.position >= passage.prefill;
    let first_over = rows.iter().find(|row| row.kl > threshold).map(|row| FirstOver {
        position: row.position,
        decode: is_decode(row),
        kl: row.kl,
    });
    Ok(DivergenceReport {
        assignment,
        prefill: RowStats::of(rows.iter().filter(|row| !is_decode(row))),
        first_token: RowStats::of(rows.iter().filter(|row| row.position + 1 == passage.prefill)),
        decode: RowStats::of(rows.iter().filter(|row| is_decode(row))),
        all: RowStats::of(rows.iter()),
        first_over,
        threshold,
        failure: ended.err(),
    })
}
