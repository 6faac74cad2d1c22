//! The verdict of a command.

use std::time::Duration;

use hotseam_config::CommandOracle;

use super::{Kind, NoVerdict, Report, Subject, counts, outcome};
use crate::command::{self, Answer, Run};
use crate::{Counts, Outcome, Verdict};

pub(super) struct Command {
    oracle: CommandOracle,
}

impl Command {
    pub(super) fn new(oracle: &CommandOracle) -> Self {
        Self { oracle: oracle.clone() }
    }

    fn run(&self, subject: &Subject<'_>) -> Result<Outcome, NoVerdict> {
        let limit = Duration::from_secs_f64(self.oracle.timeout_seconds);
        let answer = command::run(&Run {
            command: &self.oracle.command,
            env: &self.oracle.env,
            limit,
            assignment: subject.assignment,
            places: subject.places,
        })?;
        match answer {
            Answer::Hang => Err(NoVerdict::Hang(self.oracle.timeout_seconds)),
            Answer::Exit { verdict, report, output } => {
                let bad = verdict == Verdict::Bad;
                let counted = report.counts();
                let summary = match (verdict, counted) {
                    (Verdict::Skip, _) => "skipped".to_owned(),
                    (_, Some(Counts { fail, total })) => format!("{fail}/{total} failed"),
                    (Verdict::Bad, None) => "failed".to_owned(),
                    (Verdict::Good, None) => "passed".to_owned(),
                };
                let signature = report.signature.as_deref().unwrap_or("command");
                let metric = report.metric.unwrap_or(f64::from(u8::from(bad)));
                Ok(Outcome {
                    verdict,
                    counts: match verdict {
                        Verdict::Skip => counts(0, 0),
                        _ => counted.unwrap_or_else(|| Counts::once(verdict)),
                    },
                    launch: report.launch.unwrap_or(0),
                    ..outcome(bad, signature, metric, summary, output)
                })
            }
        }
    }
}

impl Kind for Command {
    fn describe(&self) -> String {
        format!("command `{}`; 0 is good, 1 is bad, 125 skips", self.oracle.command.join(" "))
    }

    fn base(&mut self, subject: &Subject<'_>, _: Report<'_>) -> Result<Outcome, NoVerdict> {
        self.run(subject)
    }

    fn arm(&self, subject: &Subject<'_>, _: Report<'_>) -> Result<Outcome, NoVerdict> {
        self.run(subject)
    }
}
