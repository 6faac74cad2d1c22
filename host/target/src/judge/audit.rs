//! Hand-offs in which every item arrives as it was sent.

use hotseam_config::AuditOracle;
use hotseam_evidence::kv_map::{self, Audited};

use super::{Kind, Material, NoVerdict, Report, Subject, counts, failed, outcome};
use crate::{Handoff, Outcome, Progress};

/// Signature of a hand-off that changed something.
const SIGNATURE: &str = "handoff";
/// Damaged items that the detail names.
const NAMED: usize = 3;

pub(super) struct Audit {
    lengths: Vec<usize>,
    prompts: Vec<Vec<u32>>,
}

impl Audit {
    pub(super) fn new(oracle: &AuditOracle, material: &Material<'_>) -> Self {
        let prompts = kv_map::prompts(material.tokenizer, material.haystack, &oracle.lengths);
        Self { lengths: oracle.lengths.clone(), prompts }
    }

    fn run(&self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        let total = self.prompts.len();
        let (mut sum, mut damaged) = (Handoff::default(), 0);
        for (done, prompt) in self.prompts.iter().enumerate() {
            report(Progress { done, total });
            match subject.audits.audit(subject.assignment, prompt)? {
                Audited::Nothing => {
                    let text = "nothing is handed over".to_owned();
                    return Ok(outcome(false, SIGNATURE, 1.0, text, String::new()));
                }
                Audited::Failed(failure) => return Ok(failed(&failure)),
                Audited::Map(map) => {
                    damaged += usize::from(map.verdict().is_some());
                    sum.add(&map);
                }
            }
        }
        let items: usize = sum.components.iter().map(|own| own.items).sum();
        let whole: usize = sum.components.iter().map(|own| own.whole).sum();
        let first: Vec<&str> = sum.findings().take(NAMED).collect();
        let metric = whole as f64 / items.max(1) as f64;
        Ok(Outcome {
            counts: counts(damaged, total),
            ..outcome(damaged > 0, SIGNATURE, metric, sum.summary(), first.join("; "))
        })
    }
}

impl Kind for Audit {
    fn describe(&self) -> String {
        let at: Vec<String> = self.lengths.iter().map(ToString::to_string).collect();
        format!(
            "audited hand-offs of {} tokens; bad if an item does not arrive as it was sent",
            at.join(", ")
        )
    }

    fn base(&mut self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        self.run(subject, report)
    }

    fn arm(&self, subject: &Subject<'_>, report: Report<'_>) -> Result<Outcome, NoVerdict> {
        self.run(subject, report)
    }
}
