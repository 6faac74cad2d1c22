//! What grafts did.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::observer::Corrupted;
use super::what::Graft;
use crate::RequestFailure;

/// What a set of cases came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Cases that passed.
    pub passed: usize,
    /// Cases.
    pub total: usize,
    /// Mean log-probability of the right answer, or the divergence from the good end in nats, by [`GraftReport::metric`].
    #[serde(with = "crate::finite")]
    pub metric: f64,
    /// The first request that failed inside the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<RequestFailure>,
}

/// One graft.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraftRow {
    /// What was replaced.
    pub graft: Graft,
    /// Outputs, or pages and state rows, that were replaced in the bad run of the cases.
    pub replaced: u64,
    /// Components of the KV that were left as they are, because the two ends store them in different layouts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// The bad end with the good end's values.
    pub heal: Option<Score>,
    /// Whether that healed it.
    pub healed: bool,
    /// The good end with the bad end's values.
    pub harm: Option<Score>,
    /// Whether that broke it.
    pub broke: bool,
    /// Why it was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// What all grafts together say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// At least one graft heals.
    Healed,
    /// The bad end passes wherever the good end does.
    NothingToHeal,
    /// No graft heals.
    NotHealed,
    /// The good end fails too often to give values.
    GoodFails,
}

/// Grafts between two ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraftReport {
    /// Assignment that gives values.
    pub good: String,
    /// Assignment that fails.
    pub bad: String,
    /// What tells them apart, in words.
    pub oracle: String,
    /// What [`Score::metric`] is: `log-probability` or `divergence`.
    pub metric: String,
    /// The good end, over all cases that were tried.
    pub good_end: Score,
    /// The bad end, over the same.
    pub bad_end: Score,
    /// Cases that the good end passes and the bad end fails, on which grafts were tried.
    pub cases: usize,
    /// What the hand-off of the bad end delivered otherwise than it was sent, in those cases.
    pub corrupted: Vec<Corrupted>,
    /// Grafts, in the order in which they were tried.
    pub rows: Vec<GraftRow>,
    /// What they say.
    pub verdict: Word,
    /// Conclusions, in words.
    pub conclusions: Vec<String>,
    /// Wall time in seconds.
    pub seconds: f64,
}

impl GraftReport {
    /// Exit code of the command.
    pub fn exit_code(&self) -> u8 {
        match self.verdict {
            Word::Healed => 0,
            Word::NothingToHeal => 1,
            Word::NotHealed => 3,
            Word::GoodFails => 4,
        }
    }

    /// The graft of all KV, if it was done.
    fn whole_kv(&self) -> Option<&GraftRow> {
        let is_kv = |row: &&GraftRow| row.graft.to_string() == "kv" && row.refused.is_none();
        self.rows.iter().find(is_kv)
    }

    /// What the rows say, in sentences.
    pub(super) fn conclude(&mut self) {
        let mut say = Vec::new();
        let named = |rows: &mut dyn Iterator<Item = &GraftRow>| {
            rows.map(|row| row.graft.to_string()).collect::<Vec<_>>().join(", ")
        };
        let parts = named(
            &mut self
                .rows
                .iter()
                .filter(|r| r.healed && matches!(&r.graft, Graft::Kv(_)) && r.graft.to_string() != "kv"),
        );
        let (good, bad) = (&self.good, &self.bad);
        if let Some(kv) = self.whole_kv() {
            match kv.healed {
                true => say.push(format!(
                    "KV of `{good}`'s prefill heals `{bad}`'s decode: the fault is in place before decode begins."
                )),
                false => say.push(format!(
                    "KV of `{good}`'s prefill does not heal `{bad}`'s decode: the fault is in decode itself, or in the first token."
                )),
            }
            if kv.healed && !parts.is_empty() {
                say.push(format!("Its carrier: {parts}."));
            }
            if kv.broke {
                say.push(format!(
                    "KV of `{bad}`'s prefill breaks `{good}`'s decode: it is enough by itself."
                ));
            }
        }
        if !self.corrupted.is_empty() {
            let mut names: Vec<&str> = self.corrupted.iter().map(|c| c.component.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            say.push(format!(
                "The hand-off of `{bad}` delivers other bytes than were sent ({}): kv_transport writes them.",
                names.join(", ")
            ));
        } else if self.whole_kv().is_some_and(|kv| kv.healed) {
            say.push("The hand-off delivers what was sent: the KV is written wrongly in prefill.".to_owned());
        }
        let outputs =
            named(&mut self.rows.iter().filter(|r| r.healed && matches!(&r.graft, Graft::Outputs(_))));
        if !outputs.is_empty() {
            say.push(format!("The symptom goes through the outputs of {outputs}."));
        }
        self.conclusions = say;
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            Some(failure) => write!(f, "{}", failure.code),
            None => write!(f, "{}/{} {:.2e}", self.passed, self.total, self.metric),
        }
    }
}

impl fmt::Display for GraftReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graft  good `{}`, bad `{}`", self.good, self.bad)?;
        writeln!(f, "  oracle  {}", self.oracle)?;
        let (good, bad) = (&self.good_end, &self.bad_end);
        writeln!(
            f,
            "  good end passes {}/{}, bad end {}/{}",
            good.passed, good.total, bad.passed, bad.total
        )?;
        writeln!(f, "  {} cases to heal, {:.1} s", self.cases, self.seconds)?;
        if !self.rows.is_empty() {
            let (heal, harm) = ("bad + good's", "good + bad's");
            writeln!(f, "\n  {:<32} {heal:<22} {harm:<22}", "what is replaced")?;
        }
        for row in &self.rows {
            write!(f, "  {:<32} ", row.graft.to_string())?;
            if let Some(why) = &row.refused {
                writeln!(f, "not done: {why}")?;
                continue;
            }
            let cell = |score: &Option<Score>, yes: bool, word: &str| match score {
                Some(score) => format!("{score}{}", if yes { format!(" {word}") } else { String::new() }),
                None => "-".to_owned(),
            };
            let (heal, harm) = (cell(&row.heal, row.healed, "heals"), cell(&row.harm, row.broke, "breaks"));
            writeln!(f, "{heal:<22} {harm}")?;
            if !row.without.is_empty() {
                writeln!(f, "    without {}: their layouts differ", row.without.join(", "))?;
            }
        }
        if !self.rows.is_empty() {
            writeln!(f, "  (cases passed, mean {})", self.metric)?;
        }
        for line in &self.conclusions {
            writeln!(f, "\n{line}")?;
        }
        let verdict = match self.verdict {
            Word::Healed => "a graft heals",
            Word::NothingToHeal => "nothing to heal: the bad end passes wherever the good end does",
            Word::NotHealed => "no graft heals",
            Word::GoodFails => "the good end fails too often to give values",
        };
        writeln!(f, "\nverdict  {verdict}")
    }
}
