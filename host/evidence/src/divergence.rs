//! KL divergence between the next-token distributions of two assignments on held-out text.
//!
//! The first part of the text is prefilled, the rest is forced through decode token by token, so both phases are
//! measured; each is judged by its own mean, because a fault of decode would drown among many prefill rows.

use std::fmt;

use hotseam_encoding::{Control, Tokenizer};
use hotseam_engine::{Engine, Request};
use serde::{Deserialize, Serialize};

use crate::haystack::Haystack;
use crate::{EvidenceError, RequestFailure, ask};

/// Decode rows, unless asked otherwise.
pub const DECODE_TOKENS: usize = 64;

/// The text of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// All tokens, `<BOS><User>` first.
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
        let text = haystack.take(0, tokens - head.len());
        let tokens: Vec<u32> = head.iter().chain(text.into_iter().flatten()).copied().collect();
        Ok(Self { prefill: tokens.len() - decode, tokens })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Never true.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    fn request(&self, assignment: &str) -> Request {
        let (prompt, forced) = self.tokens.split_at(self.prefill);
        Request {
            assignment: assignment.to_owned(),
            forced: forced.to_vec(),
            tap_logits: true,
            ..Request::greedy(prompt.to_vec(), forced.len())
        }
    }
}

/// Log-probabilities of every row of the baseline.
#[derive(Debug)]
pub struct Baseline {
    /// By position; `[vocab]` each. Rows the engine did not report are empty.
    rows: Vec<Vec<f32>>,
    /// Mean negative log-likelihood of the text, in nats per token.
    pub nll: f64,
}

impl Baseline {
    /// Runs `passage` under `assignment` and keeps the distributions: 4 bytes a token and vocabulary entry.
    ///
    /// # Errors
    /// [`EvidenceError::Submit`], or [`EvidenceError::Baseline`] if the request fails.
    pub fn capture(engine: &Engine, passage: &Passage, assignment: &str) -> Result<Self, EvidenceError> {
        let handle = engine.submit(passage.request(assignment))?;
        let mut rows = vec![Vec::new(); passage.len()];
        ask::finish(&handle, |position, mut logits| {
            log_softmax(&mut logits);
            if let Some(row) = rows.get_mut(position) {
                *row = logits;
            }
        })
        .map_err(|RequestFailure { code, message }| EvidenceError::Baseline {
            assignment: assignment.to_owned(),
            code,
            message,
        })?;
        let next = passage.tokens.iter().skip(1);
        let losses: Vec<f64> = rows
            .iter()
            .zip(next)
            .filter_map(|(row, token)| row.get(*token as usize).map(|logp| -f64::from(*logp)))
            .collect();
        let nll = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
        Ok(Self { rows, nll })
    }
}

/// How far an assignment is from the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DivergenceReport {
    /// Assignment that was compared.
    pub assignment: String,
    /// Prefill rows.
    pub prefill: RowStats,
    /// Decode rows.
    pub decode: RowStats,
    /// All rows.
    pub all: RowStats,
    /// First row whose KL is above the threshold.
    pub first_over: Option<FirstOver>,
    /// Threshold, in nats.
    pub threshold: f64,
    /// Set if the request failed; rows until then are counted.
    pub failure: Option<RequestFailure>,
}

/// KL of a set of rows, in nats per token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RowStats {
    /// Rows.
    pub rows: usize,
    /// Mean KL(baseline, arm). Infinite if a row of the arm is not finite.
    #[serde(with = "finite")]
    pub mean: f64,
    /// 99th percentile.
    #[serde(with = "finite")]
    pub p99: f64,
    /// Largest.
    #[serde(with = "finite")]
    pub max: f64,
    /// Share of rows with the same most likely token.
    pub same_top1: f64,
}

/// A row above the threshold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FirstOver {
    /// Position in the text.
    pub position: usize,
    /// Whether the row was decoded.
    pub decode: bool,
    /// Its KL in nats.
    #[serde(with = "finite")]
    pub kl: f64,
}

/// How many times the bar of a mean the 99th percentile of all rows may reach. With the default bar of 1e-2, the sound
/// patches of the embedded checkpoint reach 2 together, and lost sinks, which change few rows much and the mean little, 8.
pub const TAIL: f64 = 5.0;

impl DivergenceReport {
    /// What a threshold is held against, and where it was found: the larger of the two phases' mean KL (`prefill`,
    /// `decode`), or the 99th percentile of all rows over [`TAIL`] (`tail`).
    pub fn worst(&self) -> (f64, &'static str) {
        let places =
            [(self.prefill.mean, "prefill"), (self.decode.mean, "decode"), (self.all.p99 / TAIL, "tail")];
        places.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
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
    let handle = engine.submit(passage.request(assignment))?;
    let mut rows: Vec<Row> = Vec::new();
    let ended = ask::finish(&handle, |position, mut logits| {
        if let Some(base) = baseline.rows.get(position).filter(|row| row.len() == logits.len()) {
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
        assignment: assignment.to_owned(),
        prefill: RowStats::of(rows.iter().filter(|row| !is_decode(row))),
        decode: RowStats::of(rows.iter().filter(|row| is_decode(row))),
        all: RowStats::of(rows.iter()),
        first_over,
        threshold,
        failure: ended.err(),
    })
}

struct Row {
    position: usize,
    kl: f64,
    same_top1: bool,
}

impl RowStats {
    fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        let mut values = Vec::new();
        let mut same = 0;
        for row in rows {
            values.push(row.kl);
            same += usize::from(row.same_top1);
        }
        let count = values.len();
        if count == 0 {
            return Self::default();
        }
        values.sort_by(f64::total_cmp);
        Self {
            rows: count,
            mean: values.iter().sum::<f64>() / count as f64,
            p99: values[(count * 99).div_ceil(100) - 1],
            max: values[count - 1],
            same_top1: same as f64 / count as f64,
        }
    }
}

/// Turns logits into log-probabilities. Anything not finite among them makes every entry NaN.
fn log_softmax(logits: &mut [f32]) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    let shift = f64::from(max) + sum.ln();
    for x in logits {
        *x = (f64::from(*x) - shift) as f32;
    }
}

/// KL(base, arm) of two rows of log-probabilities, in nats; infinite if the arm is not finite.
fn kl(base: &[f32], arm: &[f32]) -> f64 {
    let sum: f64 =
        base.iter().zip(arm).map(|(p, q)| f64::from(*p).exp() * (f64::from(*p) - f64::from(*q))).sum();
    if sum.is_nan() { f64::INFINITY } else { sum.max(0.0) }
}

fn argmax(row: &[f32]) -> Option<usize> {
    row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(index, _)| index)
}

/// JSON has no infinity: it is written as null.
mod finite {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.serialize_none() }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
    }
}

impl fmt::Display for RowStats {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, mean, p99, max, same_top1 } = self;
        write!(out, "{rows} rows, mean {mean:.2e}, p99 {p99:.2e}, max {max:.2e}, same top-1 {same_top1:.4}")
    }
}

impl fmt::Display for DivergenceReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "divergence  assignment {}  nats per token", self.assignment)?;
        writeln!(out, "  {:<8} {:>6} {:>10} {:>10} {:>10}  same top-1", "rows", "", "mean", "p99", "max")?;
        for (name, stats) in [("prefill", &self.prefill), ("decode", &self.decode), ("all", &self.all)] {
            let RowStats { rows, mean, p99, max, same_top1 } = stats;
            writeln!(
                out,
                "  {name:<8} {rows:>6} {mean:>10.2e} {p99:>10.2e} {max:>10.2e}  {:>8.2} %",
                same_top1 * 100.0
            )?;
        }
        match self.first_over {
            Some(first) => writeln!(
                out,
                "  first row above {:.1e}: position {} ({}), {:.2e}",
                self.threshold,
                first.position,
                if first.decode { "decode" } else { "prefill" },
                first.kl
            ),
            None => writeln!(out, "  no row above {:.1e}", self.threshold),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kl_of_known_distributions() {
        let mut p = [0.0_f32, 2.0_f32.ln()];
        log_softmax(&mut p);
        assert!((p[0] - (1.0_f32 / 3.0).ln()).abs() < 1e-6);
        let mut q = [0.0_f32, 0.0];
        log_softmax(&mut q);
        let want = (1.0 / 3.0) * (2.0_f64 / 3.0).ln() + (2.0 / 3.0) * (4.0_f64 / 3.0).ln();
        assert!((kl(&p, &q) - want).abs() < 1e-6);
        assert_eq!(kl(&p, &p), 0.0);
        assert_eq!((argmax(&p), argmax(&[3.0, 1.0])), (Some(1), Some(0)));
    }

    #[test]
    fn rows_that_are_not_finite_are_infinitely_far() {
        let mut p = [0.0_f32, 1.0];
        log_softmax(&mut p);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut q = [0.0, bad];
            log_softmax(&mut q);
            assert_eq!(kl(&p, &q), f64::INFINITY);
        }
    }

    #[test]
    fn statistics_of_rows() {
        let rows: Vec<Row> =
            (0..200).map(|i| Row { position: i, kl: i as f64, same_top1: i % 4 != 0 }).collect();
        let stats = RowStats::of(rows.iter());
        assert_eq!((stats.rows, stats.mean, stats.p99, stats.max), (200, 99.5, 197.0, 199.0));
        assert_eq!(stats.same_top1, 0.75);
        assert_eq!(RowStats::of([].iter()), RowStats::default());
    }

    #[test]
    fn the_worst_place_is_named() {
        let stats = |mean, p99| RowStats { rows: 1, mean, p99, max: p99, same_top1: 1.0 };
        let mut report = DivergenceReport {
            assignment: "arm".into(),
            prefill: stats(1e-3, 0.0),
            decode: stats(2e-3, 0.0),
            all: stats(1e-3, 5e-3),
            first_over: None,
            threshold: 1e-2,
            failure: None,
        };
        assert_eq!(report.worst(), (2e-3, "decode"));
        report.all.p99 = 5e-2;
        assert_eq!(report.worst(), (1e-2, "tail"));
        report.prefill.mean = f64::INFINITY;
        assert_eq!(report.worst(), (f64::INFINITY, "prefill"));
    }

    #[test]
    fn infinity_survives_json() {
        let stats = RowStats { rows: 1, mean: f64::INFINITY, p99: 1.0, max: f64::INFINITY, same_top1: 0.0 };
        let json = serde_json::to_string(&stats).unwrap();
        assert!(json.contains("\"mean\":null"));
        assert_eq!(serde_json::from_str::<RowStats>(&json).unwrap(), stats);
    }
}
