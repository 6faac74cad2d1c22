//! The explanation.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Attention below this share carries nothing.
const NOTHING: f64 = 0.01;
/// Share of the needle's mass that must be kept for it to count as kept.
const MOST: f64 = 0.8;

/// A compressed entry that holds part of the fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NeedleEntry {
    /// Number of the entry.
    pub entry: usize,
    /// Its rank by index score, from 1; absent where nothing is ranked.
    pub rank: Option<usize>,
    /// Its index score.
    pub score: Option<f32>,
    /// Whether the row attended it.
    pub kept: bool,
    /// Attention mass that it would have if the row attended all entries.
    pub mass: f64,
}

/// What one layer could carry of the fact to one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Carrier {
    /// Layer.
    pub layer: u32,
    /// `window`, `csa` or `hca`.
    pub class: String,
    /// Position of the row.
    pub row: usize,
    /// Window in tokens.
    pub window: usize,
    /// Whether the window reaches the fact.
    pub in_window: bool,
    /// Attention mass on the fact through the window.
    pub window_mass: f64,
    /// Complete entries at the row.
    pub complete: usize,
    /// Entries that the indexer keeps; csa layers only.
    pub topk: Option<usize>,
    /// Index score of the last entry that is kept, if anything is left out.
    pub cut_score: Option<f32>,
    /// Attention mass on the fact's entries.
    pub mass: f64,
    /// The same if the row attended all entries.
    pub mass_if_all: f64,
    /// Attention mass on the sinks.
    pub sink: f64,
    /// The fact's entries.
    pub entries: Vec<NeedleEntry>,
}

/// Where the fact was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It was not.
    Recalled,
    /// The indexer ranked its entries past the cut.
    Cut,
    /// The indexer left entries out that rank before the cut: the variant does not choose the best.
    Choice,
    /// The entries were attended, or nothing would have been read from them: the fault lies elsewhere.
    Elsewhere,
}

/// Why a needle was lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// Assignment that answered.
    pub assignment: String,
    /// Tokens of the prompt.
    pub length: usize,
    /// Depth of the needle.
    pub depth: f64,
    /// Whose word was asked for.
    pub name: String,
    /// The word.
    pub value: String,
    /// Whether the answer holds it.
    pub recalled: bool,
    /// What the model said.
    pub answer: String,
    /// Positions of the fact: first, and one past the last.
    pub needle: (usize, usize),
    /// Positions of the rows that must produce the word.
    pub rows: Vec<usize>,
    /// Each layer at each of those rows.
    pub layers: Vec<Carrier>,
    /// Where it was lost.
    pub cause: Cause,
    /// What to do about it.
    pub advice: String,
}

impl Carrier {
    /// Best rank of the fact's entries.
    pub fn best_rank(&self) -> Option<usize> {
        self.entries.iter().filter_map(|e| e.rank).min()
    }

    /// Mass on the fact that is missing because entries were left out.
    pub fn lost(&self) -> f64 {
        self.entries.iter().filter(|e| !e.kept).fold(0.0, |sum, e| sum + e.mass)
    }

    /// Entries that were left out although they rank before the cut.
    fn misses(&self) -> impl Iterator<Item = &NeedleEntry> {
        let topk = self.topk.unwrap_or(usize::MAX);
        self.entries.iter().filter(move |e| !e.kept && e.rank.is_some_and(|rank| rank <= topk))
    }

    /// Smallest top-k that keeps most of the mass on the fact.
    fn enough(&self) -> Option<usize> {
        let mut ranked: Vec<(usize, f64)> =
            self.entries.iter().filter_map(|e| Some((e.rank?, e.mass))).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        let total: f64 = ranked.iter().map(|(_, mass)| mass).sum();
        let mut sum = 0.0;
        ranked.into_iter().find_map(|(rank, mass)| {
            sum += mass;
            (sum >= MOST * total).then_some(rank)
        })
    }
}

impl Why {
    /// The csa layers that lost most, the worst first.
    fn losers(&self) -> Vec<&Carrier> {
        let mut losers: Vec<&Carrier> =
            self.layers.iter().filter(|c| c.topk.is_some() && c.lost() > NOTHING).collect();
        losers.sort_by(|a, b| b.lost().total_cmp(&a.lost()));
        losers
    }

    /// Fills in cause and advice.
    pub(super) fn conclude(&mut self) {
        let losers = self.losers();
        let (cause, advice) = match (self.recalled, losers.first()) {
            (true, _) => {
                (Cause::Recalled, "The needle was recalled; there is nothing to explain.".to_owned())
            }
            (false, Some(worst)) if worst.misses().next().is_some() => {
                let ranks: Vec<String> = worst.misses().filter_map(|e| Some(e.rank?.to_string())).collect();
                let advice = format!(
                    "In layer {} the indexer left out entries of ranks {} although it keeps {}: its variant does not \
                     choose the best. Check it on this call: hotseam trace --capture indexer.select@decode:layers={}",
                    worst.layer,
                    ranks.join(", "),
                    worst.topk.unwrap_or(0),
                    worst.layer
                );
                (Cause::Choice, advice)
            }
            (false, Some(worst)) => {
                let enough = losers.iter().filter_map(|c| c.enough()).max().unwrap_or(0);
                let mut ranks: Vec<usize> =
                    worst.entries.iter().filter(|e| !e.kept).filter_map(|e| e.rank).collect();
                ranks.sort_unstable();
                let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
                let advice = format!(
                    "The indexer keeps {} of {} entries. In layer {} it left out entries of the fact with rank {}, \
                     which would carry {:.3} of the attention. No patch is needed for that: index_topk of {enough} or \
                     more would keep most of it (--set engine.index_topk={enough}).",
                    worst.topk.unwrap_or(0),
                    worst.complete,
                    worst.layer,
                    ranks.join(", "),
                    worst.lost(),
                );
                (Cause::Cut, advice)
            }
            (false, None) => {
                let far = self.layers.iter().any(|c| c.mass_if_all > NOTHING || c.window_mass > NOTHING);
                let advice = match far {
                    true => {
                        "The rows attended the fact: what was read there, or what follows, is wrong. Compare the \
                         assignment with a good one: hotseam compare."
                    }
                    false => {
                        "No layer would attend the fact even if it saw all entries: the queries or the stored entries \
                         are wrong. Compare the assignment with a good one: hotseam compare."
                    }
                };
                (Cause::Elsewhere, advice.to_owned())
            }
        };
        (self.cause, self.advice) = (cause, advice);
    }
}

impl fmt::Display for Why {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = self.answer.split_whitespace().collect::<Vec<_>>().join(" ");
        let verdict = if self.recalled { "recalled" } else { "lost" };
        writeln!(
            out,
            "needle {verdict}  assignment {}  {} tokens, depth {:.0} %\n  {} is {}; the model said \"{said}\"",
            self.assignment,
            self.length,
            self.depth * 100.0,
            self.name,
            self.value
        )?;
        let (from, to) = self.needle;
        let Some(row) = self.rows.first() else { return writeln!(out, "\n{}", self.advice) };
        writeln!(
            out,
            "  the fact is at {from} to {}; the row at {row} must produce the word, {} tokens further\n",
            to - 1,
            row.saturating_sub(to - 1)
        )?;
        for c in self.layers.iter().filter(|c| c.row == *row) {
            write_carrier(out, c)?;
        }
        writeln!(out, "\n{}", self.advice)
    }
}

fn write_carrier(out: &mut fmt::Formatter<'_>, c: &Carrier) -> fmt::Result {
    let window = match c.in_window {
        true => format!("window carries {:.3}", c.window_mass),
        false => format!("out of the window of {}", c.window),
    };
    write!(out, "  layer {:>2} {:<6} ", c.layer, c.class)?;
    match (c.topk, c.class.as_str()) {
        (Some(topk), _) => {
            let best = c.entries.iter().filter(|e| e.rank.is_some()).min_by_key(|e| e.rank);
            let kept = c.entries.iter().filter(|e| e.kept).count();
            let Some(best) = best else { return writeln!(out, "no entry holds the fact yet; {window}") };
            let score = |s: Option<f32>| s.map_or("-".into(), |s| format!("{s:.3}"));
            writeln!(
                out,
                "rank {} of {}, cut at {topk}; score {} against {}; {kept} of {} entries kept",
                best.rank.unwrap_or(0),
                c.complete,
                score(best.score),
                score(c.cut_score),
                c.entries.len()
            )?;
            writeln!(
                out,
                "                  carries {:.3}, would carry {:.3} of all entries, lost {:.3}; {window}",
                c.mass,
                c.mass_if_all,
                c.lost()
            )
        }
        (None, "hca") => {
            writeln!(out, "far entries that hold it: {}, carry {:.3}; {window}", c.entries.len(), c.mass)
        }
        _ => writeln!(out, "{window}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carrier(entries: Vec<NeedleEntry>) -> Carrier {
        let mass = |kept: bool| entries.iter().filter(|e| e.kept || !kept).map(|e| e.mass).sum();
        Carrier {
            layer: 2,
            class: "csa".into(),
            row: 600,
            window: 128,
            in_window: false,
            window_mass: 0.0,
            complete: 150,
            topk: Some(4),
            cut_score: Some(1.0),
            mass: mass(true),
            mass_if_all: mass(false),
            sink: 0.1,
            entries,
        }
    }

    fn why(recalled: bool, entries: Vec<NeedleEntry>) -> Why {
        let mut why = Why {
            assignment: "live".into(),
            length: 600,
            depth: 0.5,
            name: "Lisbon".into(),
            value: "tiger".into(),
            recalled,
            answer: "The secret word".into(),
            needle: (300, 310),
            rows: vec![600],
            layers: vec![carrier(entries)],
            cause: Cause::Elsewhere,
            advice: String::new(),
        };
        why.conclude();
        why
    }

    fn entry(rank: usize, kept: bool, mass: f64) -> NeedleEntry {
        NeedleEntry { entry: rank, rank: Some(rank), score: Some(0.5), kept, mass }
    }

    #[test]
    fn past_the_cut_is_no_fault_of_a_patch() {
        let why = why(false, vec![entry(9, false, 0.3), entry(17, false, 0.2), entry(90, false, 0.01)]);
        assert_eq!(why.cause, Cause::Cut);
        assert!(why.advice.contains("rank 9") && why.advice.contains("index_topk=17"), "{}", why.advice);
        let text = why.to_string();
        assert!(
            text.contains("rank 9 of 150, cut at 4; score 0.500 against 1.000; 0 of 3 entries kept"),
            "{text}"
        );
        assert!(text.contains("lost 0.510"), "{text}");
    }

    #[test]
    fn before_the_cut_is_one() {
        let why = why(false, vec![entry(2, false, 0.3), entry(9, false, 0.2)]);
        assert_eq!(why.cause, Cause::Choice);
        assert!(why.advice.contains("ranks 2 although it keeps 4"), "{}", why.advice);
    }

    #[test]
    fn what_was_attended_was_not_lost_here() {
        assert_eq!(why(false, vec![entry(1, true, 0.4)]).cause, Cause::Elsewhere);
        assert_eq!(why(false, vec![entry(80, false, 0.001)]).cause, Cause::Elsewhere);
        assert_eq!(why(true, vec![entry(9, false, 0.3)]).cause, Cause::Recalled);
    }

    #[test]
    fn json_round_trips() {
        let why = why(false, vec![entry(9, false, 0.3)]);
        let json = serde_json::to_string(&why).unwrap();
        assert_eq!(serde_json::from_str::<Why>(&json).unwrap(), why);
    }
}
