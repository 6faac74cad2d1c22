//! Equal greedy answers.

use hotseam_config::ExactOracle;
use hotseam_evidence::exact::{self, Case, Expected};

use super::{Kind, NoVerdict, Report, Subject, counts, failed, outcome};
use crate::{Outcome, Progress};

pub(super) struct Exact {
    oracle: ExactOracle,
    /// By prompt: the given text, or what the good end answered.
    expected: Vec<Option<Expected>>,
}

impl Exact {
    pub(super) fn new(oracle: &ExactOracle) -> Self {
        let given = oracle.prompts.iter().map(|prompt| prompt.expect.clone().map(Expected::Text));
        Self { expected: given.collect(), oracle: oracle.clone() }
    }

    /// Asks every prompt; those of which nothing is expected yet set it, if `learn`.
    fn run(
        &self,
        subject: &Subject<'_>,
        report: Report<'_>,
        mut learn: Option<&mut Vec<Option<Expected>>>,
    ) -> Result<Outcome, NoVerdict> {
        let total = self.oracle.prompts.len();
        let mut cases: Vec<Case> = Vec::new();
        for (index, prompt) in self.oracle.prompts.iter().enumerate() {
            report(Progress { done: index, total });
            let answer = exact::ask(
                subject.model,
                subject.tokenizer,
                &prompt.prompt,
                self.oracle.max_tokens,
                subject.assignment,
            )?;
            let known = self.expected.get(index).cloned().flatten();
            let expected = match (known, &answer) {
                (Some(expected), _) => expected,
                (None, Ok(reply)) => Expected::Reply(reply.clone()),
                (None, Err(failure)) => return Ok(failed(failure)),
            };
            if let Some(learnt) = &mut learn {
                learnt.push(Some(expected.clone()));
            }
            cases.push(exact::judge(&prompt.prompt, &expected, answer));
        }
        report(Progress { done: total, total });
        if let Some(failure) = cases.iter().find_map(|case| case.failure.as_ref()) {
            return Ok(failed(failure));
        }
        let wrong: Vec<&Case> = cases.iter().filter(|case| case.differs_at.is_some()).collect();
        let equal = total - wrong.len();
        let detail = wrong.first().map_or(String::new(), |case| {
            let at = case.differs_at.unwrap_or_default();
            format!("`{}` differs at {at}: `{}`", case.prompt, case.answer)
        });
        Ok(Outcome {
            counts: counts(wrong.len(), total),
            ..outcome(
                !wrong.is_empty(),
                "exact",
                equal as f64 / total as f64,
                format!("{equal}/{total} equal"),
                detail,
            )
        })
    }
}

impl Kind for Exact {
    fn describe(&self) -> String {
        let given = self.oracle.prompts.iter().filter(|prompt| prompt.expect.is_some()).count();
        let total = self.oracle.prompts.len();
        let against = match given {
            0 => "the good end's".to_owned(),
            _ if given == total => "the given ones".to_owned(),
            _ => format!("{given} given ones and the good end's"),
        };
        format!(
            "greedy answers to {total} prompts, {} tokens; bad if one is not equal to {against}",
            self.oracle.max_tokens
        )
    }

    fn base(&mut self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        let mut learnt = Vec::new();
        let outcome = self.run(subject, report, Some(&mut learnt))?;
        if learnt.len() == self.expected.len() {
            self.expected = learnt;
        }
        Ok(outcome)
    }

    fn arm(&self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        self.run(subject, report, None)
    }
}
