//! How far an assignment is from a baseline.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::RequestFailure;

/// How far an assignment is from the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DivergenceReport {
    /// Assignment that was compared.
    pub assignment: String,
    /// Prefill rows.
    pub prefill: RowStats,
    /// The last of them, which decides the first token: a fault born in prefill shows here, a drift of decode does not.
    pub first_token: RowStats,
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

/// How many times the bar of a mean the 99th percentile of all rows may reach: a fault may change few rows much and the mean
/// little. The sound patches of the embedded checkpoint reach 1.7e-4 by this figure, under a bar of some 4e-4.
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

pub(super) struct Row {
    pub(super) position: usize,
    pub(super) kl: f64,
    pub(super) same_top1: bool,
}

impl RowStats {
    pub(super) fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
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
        let all = [
            ("prefill", &self.prefill),
            ("token 1", &self.first_token),
            ("later", &self.decode),
            ("all", &self.all),
        ];
        for (name, stats) in all {
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
            first_token: stats(0.0, 0.0),
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
