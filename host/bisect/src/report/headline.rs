//! The report in a sentence or two, and what to do next.

use super::{Culprit, Fails, Report, Word, layers};

/// What a report needs to know beyond the search.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// Version of the program.
    pub version: String,
    /// The command that runs the search again.
    pub command: String,
    /// The log, if there is one.
    pub log: Option<String>,
    /// What the answers depend on, name and value: model, configuration, plugins.
    pub facts: Vec<(String, String)>,
}

/// What came out, in a sentence or two.
pub fn headline(report: &Report) -> String {
    let ends = format!("{} passes and {} fails", report.ends.good.assignment, report.ends.bad.assignment);
    let only_ends = report.trials.iter().all(|trial| matches!(trial.why.as_str(), "good end" | "bad end"));
    match report.verdict {
        Word::Found | Word::SecondSignature => found(report),
        Word::NoPatch => {
            let healing = report.what_if.iter().find(|tried| tried.heals);
            let settings: Vec<String> = healing
                .map(|tried| {
                    tried.settings.iter().map(|s| format!("{} {} -> {}", s.name, s.from, s.to)).collect()
                })
                .unwrap_or_default();
            let measured = healing.map_or(String::new(), |tried| format!(" ({})", tried.outcome.summary));
            format!(
                "The good end fails as well, so no patch is to blame. What heals it: {}{measured}.",
                settings.join(", ")
            )
        }
        Word::SameCode => "Both ends run the same code with the same options in every cell.".to_owned(),
        Word::OracleAgrees => "Both ends pass this oracle.".to_owned(),
        Word::GoodFails => match report.what_if.len() {
            0 => "The end that should work fails by itself, so no change can be blamed.".to_owned(),
            tried => format!(
                "The end that should work fails by itself, so no change can be blamed, and none of {tried} settings \
                 that were tried heals it."
            ),
        },
        Word::Inconclusive if report.culprits.is_empty() && only_ends => {
            "The ends could not be judged, so no change was searched: see the notes.".to_owned()
        }
        Word::Inconclusive if report.culprits.is_empty() => {
            format!("{ends}, but no set of changes could be convicted.")
        }
        Word::Inconclusive => {
            format!("{} That does not explain everything: see the open changes.", found(report))
        }
        Word::OracleBroken => {
            "The oracle gave no verdict, so nothing is blamed and nothing is cleared.".to_owned()
        }
        Word::BudgetSpent if report.culprits.is_empty() && only_ends => {
            format!("{} runs were not enough to tell the ends apart.", report.runs)
        }
        Word::BudgetSpent if report.culprits.is_empty() => {
            format!("{} runs were not enough to convict a change.", report.runs)
        }
        Word::BudgetSpent => format!("{} The budget ended before everything was confirmed.", found(report)),
    }
}

fn found(report: &Report) -> String {
    let name = |culprit: &Culprit| {
        let at = [culprit.phase.as_str(), culprit.class.as_str(), &layers(&culprit.layers)]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        let only = match culprit.topology {
            Some(by) if by.fails == Fails::OnlyPaired => ", guilty only when disaggregated",
            _ => "",
        };
        format!("{} in {at}: {}{only}", culprit.seam, culprit.change)
    };
    match report.culprits.as_slice() {
        [] => "Nothing was convicted.".to_owned(),
        [only] => format!("{}.", name(only)),
        several => {
            let together = several.iter().all(|culprit| !culprit.interacts_with.is_empty());
            let how = if together { "Only together" } else { "Independent of each other" };
            let mixed = !together && several.iter().any(|culprit| !culprit.interacts_with.is_empty());
            let how = if mixed { "Some of them only together" } else { how };
            let names: Vec<String> = several.iter().map(name).collect();
            format!("{how}: {}.", names.join("; "))
        }
    }
}

/// What to do next, for verdicts that leave something to do.
pub fn advice(report: &Report) -> Option<String> {
    let flagged = report.conformance.iter().any(|check| !check.passed);
    Some(match report.verdict {
        Word::Found => return None,
        Word::NoPatch => {
            "Change the setting, or find out what the smaller value loses: `hotseam needle --why` explains one lost \
             needle."
                .to_owned()
        }
        Word::SameCode => {
            "Nothing to test: compare configuration instead (`hotseam config print --effective`).".to_owned()
        }
        Word::OracleAgrees if flagged => {
            "Conformance flags variants all the same: some faults leave recall whole. Try `oracle: {kind: kl}` or \
             longer prompts."
                .to_owned()
        }
        Word::OracleAgrees if report.handoff.as_ref().is_some_and(|handoff| handoff.changed().next().is_some()) => {
            "The audit of the hand-off finds damage all the same, which this oracle does not see. Try \
             `oracle: {kind: audit}`."
                .to_owned()
        }
        Word::OracleAgrees => {
            "Every variant passes conformance. If users still see a fault, it may be no patch: try settings \
             (`--set engine.index_topk=...`, `engine.topology`, `engine.chunk`), longer prompts, or \
             `oracle: {kind: kl}`."
                .to_owned()
        }
        Word::GoodFails => {
            "Pick a good end that passes, or an easier oracle. Further settings can be tried by hand: \
             `--set engine.index_topk=...`, key dtype, `engine.topology`, `engine.chunk`."
                .to_owned()
        }
        Word::Inconclusive => {
            "Narrow the bad end to the open changes and run again, with more runs or a sharper oracle.".to_owned()
        }
        Word::BudgetSpent => {
            "Go on where it stopped: `hotseam bisect resume LOG --budget-runs N`.".to_owned()
        }
        Word::OracleBroken => "See the notes for what it said; mend it and `hotseam bisect resume LOG`.".to_owned(),
        Word::SecondSignature => {
            "A second fault may hide behind the culprit. Take it out of the bad end and run again.".to_owned()
        }
    })
}

/// A time as people read it.
pub fn duration(seconds: f64) -> String {
    let total = seconds.max(0.0).round() as u64;
    match total {
        0..100 => format!("{seconds:.1} s"),
        100..6000 => format!("{} min {:02} s", total / 60, total % 60),
        _ => format!("{} h {:02} min", total / 3600, total % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn times_are_short() {
        assert_eq!(
            [duration(0.04), duration(99.4), duration(100.2), duration(7265.0)],
            ["0.0 s", "99.4 s", "1 min 40 s", "2 h 01 min"]
        );
    }
}
