//! The trial log: append-only JSON lines, one before and one after each run.
//!
//! The line before a run survives a crash of the machine, so the arm that caused it is known.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::event::{Event, Observer};

/// Writes events as JSON lines.
pub struct JsonLog<W: Write> {
    out: W,
    failed: Option<io::Error>,
}

impl<W: Write> JsonLog<W> {
    /// Logs to `out`.
    pub fn new(out: W) -> Self {
        Self { out, failed: None }
    }

    /// The first write error, if any: a search goes on without its log, and the caller says so.
    pub fn error(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    fn write(&mut self, mut line: Value) {
        if self.failed.is_some() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        line["time"] = json!(now);
        let written = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
        self.failed = written.err();
    }
}

impl<W: Write> Observer for JsonLog<W> {
    fn event(&mut self, event: &Event<'_>) {
        self.write(match event {
            Event::Note(text) => json!({"event": "note", "text": text}),
            Event::Start { number, why, changes, digest } => {
                json!({"event": "start", "number": number, "why": why, "changes": changes, "digest": digest})
            }
            Event::End { trial, left } => json!({"event": "end", "trial": trial, "left": left}),
        });
    }
}

#[cfg(test)]
mod tests {
    use hotseam_target::{Outcome, Verdict};

    use super::*;
    use crate::event::Trial;

    #[test]
    fn one_line_before_and_one_after() {
        let mut log = JsonLog::new(Vec::new());
        log.event(&Event::Start { number: 1, why: "good end", changes: &[], digest: "d" });
        let outcome = Outcome {
            verdict: Verdict::Good,
            signature: "recall".into(),
            metric: 1.0,
            summary: "8/8".into(),
            detail: String::new(),
            seconds: 0.5,
        };
        let trial = Trial {
            number: 1,
            why: "good end".into(),
            changes: vec![],
            digest: "d".into(),
            arm: Default::default(),
            outcome,
        };
        log.event(&Event::End { trial: &trial, left: None });
        let lines: Vec<Value> =
            String::from_utf8(log.out).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["event"], "start");
        assert_eq!(lines[1]["trial"]["outcome"]["verdict"], "good");
        assert_eq!(lines[1]["trial"]["number"], 1);
    }

    #[test]
    fn a_write_error_is_kept_and_ends_the_log_only() {
        let mut log = JsonLog::new(io::Cursor::new([0_u8; 4]));
        log.event(&Event::Note("more than four bytes"));
        log.event(&Event::Note("again"));
        assert!(log.error().is_some());
    }
}
