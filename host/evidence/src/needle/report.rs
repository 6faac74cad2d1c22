//! Result of a sweep.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::plan::Probe;
use crate::RequestFailure;

/// A depth x length table of hits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeedleReport {
    /// Assignment that answered.
    pub assignment: String,
    /// Digest of its cells.
    pub digest: String,
    /// Hits of all probes, as a share.
    pub recall: f64,
    /// Recall by length.
    pub lengths: Vec<LengthRecall>,
    /// Every probe, by length, then by depth.
    pub probes: Vec<ProbeResult>,
    /// Wall time in seconds.
    pub seconds: f64,
}

/// Recall at one length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LengthRecall {
    /// Tokens of the prompt.
    pub length: usize,
    /// Probes whose answer contains the word.
    pub hits: usize,
    /// All probes.
    pub total: usize,
    /// `hits / total`.
    pub recall: f64,
}

/// One probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// Tokens of the prompt.
    pub length: usize,
    /// Depth of the needle, 0 to 1.
    pub depth: f64,
    /// Whose word was asked for.
    pub name: String,
    /// The word.
    pub value: String,
    /// What the model said.
    pub answer: String,
    /// Whether the answer contains the word.
    pub hit: bool,
    /// Whether the answer holds a passphrase that only another request of the sweep was told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
    /// Set if the request failed.
    pub failure: Option<RequestFailure>,
}

impl ProbeResult {
    pub(super) fn answered(probe: &Probe, answer: String) -> Self {
        let hit = answer.contains(&probe.value);
        Self { answer, hit, ..Self::blank(probe) }
    }

    pub(super) fn failed(probe: &Probe, failure: RequestFailure) -> Self {
        Self { failure: Some(failure), ..Self::blank(probe) }
    }

    fn blank(probe: &Probe) -> Self {
        Self {
            length: probe.length,
            depth: probe.depth,
            name: probe.name.clone(),
            value: probe.value.clone(),
            answer: String::new(),
            hit: false,
            foreign: false,
            failure: None,
        }
    }
}

impl NeedleReport {
    pub(super) fn new(
        assignment: String,
        digest: String,
        mut probes: Vec<ProbeResult>,
        seconds: f64,
    ) -> Self {
        mark_foreign(&mut probes);
        let mut lengths: Vec<LengthRecall> = Vec::new();
        for probe in &probes {
            if lengths.last().is_none_or(|last| last.length != probe.length) {
                lengths.push(LengthRecall { length: probe.length, hits: 0, total: 0, recall: 0.0 });
            }
            if let Some(last) = lengths.last_mut() {
                last.hits += usize::from(probe.hit);
                last.total += 1;
                last.recall = last.hits as f64 / last.total as f64;
            }
        }
        let recall = probes.iter().filter(|probe| probe.hit).count() as f64 / probes.len().max(1) as f64;
        Self { assignment, digest, recall, lengths, probes, seconds }
    }

    /// Probes that were hit.
    pub fn hits(&self) -> usize {
        self.probes.iter().filter(|probe| probe.hit).count()
    }

    /// Probes whose answer holds the passphrase of another request.
    pub fn foreign(&self) -> usize {
        self.probes.iter().filter(|probe| probe.foreign).count()
    }

    /// One mark a probe, lengths in order: `512 ●●✗●  1024 ●●●●`.
    pub fn marks(&self) -> String {
        let row = |length: usize| -> String {
            self.probes.iter().filter(|probe| probe.length == length).map(ProbeResult::mark).collect()
        };
        let rows: Vec<String> =
            self.lengths.iter().map(|length| format!("{} {}", length.length, row(length.length))).collect();
        rows.join("  ")
    }

    /// The first request that failed inside the model.
    pub fn failure(&self) -> Option<&RequestFailure> {
        self.probes.iter().find_map(|probe| probe.failure.as_ref())
    }
}

/// Single words are drawn anew for each prompt, so a wrong one may be another prompt's by chance; passphrases are unique.
fn mark_foreign(probes: &mut [ProbeResult]) {
    let phrases: Vec<String> =
        probes.iter().map(|probe| probe.value.clone()).filter(|value| value.contains(' ')).collect();
    for probe in probes {
        let own = &probe.value;
        probe.foreign = phrases.iter().any(|phrase| phrase != own && probe.answer.contains(phrase.as_str()));
    }
}

impl fmt::Display for NeedleReport {
    /// One row a length, one mark a depth, then what was missed.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = self.digest.get(..12).unwrap_or(&self.digest);
        writeln!(
            out,
            "needle sweep  assignment {}  digest {digest}  {:.1} s\n",
            self.assignment, self.seconds
        )?;
        let depths = self.lengths.iter().map(|length| length.total).max().unwrap_or(0);
        let width = (depths * 2).max(12);
        writeln!(out, "  tokens  {:<width$}  recall", scale(width))?;
        for length in &self.lengths {
            let row = self.probes.iter().filter(|probe| probe.length == length.length);
            let marks: Vec<&str> = row.map(ProbeResult::mark).collect();
            let score = format!("{}/{}", length.hits, length.total);
            writeln!(
                out,
                "  {:>6}  {:<width$}  {score:>6}  {:.3}",
                length.length,
                marks.join(" "),
                length.recall
            )?;
        }
        writeln!(
            out,
            "\n  recall {:.3}   depth runs from left to right; ● recalled, ✗ not, ! request failed",
            self.recall
        )?;
        for probe in self.probes.iter().filter(|probe| !probe.hit) {
            let what = match &probe.failure {
                Some(failure) => format!("{}: {}", failure.code, failure.message),
                None => format!("\"{}\"", probe.answer.split_whitespace().collect::<Vec<_>>().join(" ")),
            };
            writeln!(
                out,
                "  {} tokens, depth {:.0} %: {} is {}; got {what}",
                probe.length,
                probe.depth * 100.0,
                probe.name,
                probe.value
            )?;
        }
        Ok(())
    }
}

impl ProbeResult {
    fn mark(&self) -> &'static str {
        match (&self.failure, self.hit) {
            (Some(_), _) => "!",
            (None, _) if self.foreign => "≠",
            (None, true) => "●",
            (None, false) => "✗",
        }
    }
}

/// `0%` at the left, `100%` at the right.
fn scale(width: usize) -> String {
    format!("0%{:>rest$}", "100%", rest = width - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(length: usize, depth: f64) -> Probe {
        Probe { length, depth, name: "Lisbon".into(), value: "tiger".into(), prompt: vec![], max_tokens: 9 }
    }

    fn report() -> NeedleReport {
        let probes = vec![
            ProbeResult::answered(&probe(512, 0.25), "The secret word of Lisbon is tiger.".into()),
            ProbeResult::answered(&probe(512, 0.75), "The secret word of Lisbon is river.".into()),
            ProbeResult::answered(&probe(1024, 0.25), "The secret word of Lisbon is tiger.".into()),
            ProbeResult::failed(
                &probe(1024, 0.75),
                RequestFailure { code: "E-PLUG-501".into(), message: "boom".into() },
            ),
        ];
        NeedleReport::new("live".into(), "0123456789abcdef".into(), probes, 1.25)
    }

    #[test]
    fn recall_counts_answers_that_contain_the_word() {
        let report = report();
        assert_eq!((report.hits(), report.recall), (2, 0.5));
        assert_eq!(
            report.lengths.iter().map(|l| (l.length, l.hits, l.total)).collect::<Vec<_>>(),
            [(512, 1, 2), (1024, 1, 2)]
        );
        assert_eq!(report.failure().unwrap().code, "E-PLUG-501");
        assert_eq!(report.marks(), "512 ●✗  1024 ●!");
        assert_eq!(NeedleReport::new("a".into(), String::new(), vec![], 0.0).recall, 0.0);
    }

    #[test]
    fn a_passphrase_of_another_request_is_foreign() {
        let own = |value: &str| Probe { value: value.into(), ..probe(512, 0.5) };
        let answers = [("amber falcon", "It is amber falcon."), ("mint river", "It is amber falcon.")];
        let results =
            answers.iter().map(|(value, answer)| ProbeResult::answered(&own(value), (*answer).to_owned()));
        let report = NeedleReport::new("a".into(), String::new(), results.collect(), 0.0);
        assert_eq!((report.hits(), report.foreign(), report.marks()), (1, 1, "512 ●≠".to_owned()));
        // Single words are no passphrases: a wrong one may be another prompt's by chance.
        let words = ["tiger", "river"].map(|word| ProbeResult::answered(&own(word), "tiger".into()));
        assert_eq!(NeedleReport::new("a".into(), String::new(), words.into(), 0.0).foreign(), 0);
    }

    #[test]
    fn table_marks_hits_misses_and_failures() {
        let text = report().to_string();
        assert!(text.contains("     512  ● ✗              1/2  0.500"), "{text}");
        assert!(text.contains("    1024  ● !              1/2  0.500"), "{text}");
        assert!(text.contains("depth 75 %: Lisbon is tiger; got \"The secret word of Lisbon is river.\""));
        assert!(text.contains("got E-PLUG-501: boom"));
        assert!(text.contains("  0%") && text.contains("100%"));
    }

    #[test]
    fn json_round_trips() {
        let report = report();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<NeedleReport>(&json).unwrap(), report);
    }
}
