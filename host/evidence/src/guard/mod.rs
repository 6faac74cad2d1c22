//! What the guard of an engine found, for people and for the search.

use std::fmt;

use hotseam_engine::{GuardReport, Violation};

/// Begin of the signature of a run that the guard stopped.
pub const SIGNATURE: &str = "guard:";

/// Signature of a run whose request failed with `code`, as `guard:unwritten`; `None` if it was not the guard that stopped
/// it.
pub fn signature(code: &str) -> Option<String> {
    Violation::kind_of(code).map(|kind| format!("{SIGNATURE}{kind}"))
}

/// A report as a table: one violation, and how often it was seen, to three lines.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a>(pub &'a GuardReport);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        if !report.on {
            return writeln!(f, "guard  off");
        }
        writeln!(f, "guard  {} calls checked, {} violations", report.calls, report.violations)?;
        // Requests that run into the same call find the same fault.
        let mut seen: Vec<(&Violation, usize)> = Vec::new();
        for violation in &report.last {
            let same = |other: &&mut (&Violation, usize)| {
                (other.0.cell, &other.0.hash, other.0.kind, &other.0.argument)
                    == (violation.cell, &violation.hash, violation.kind, &violation.argument)
            };
            match seen.iter_mut().find(same) {
                Some((_, times)) => *times += 1,
                None => seen.push((violation, 1)),
            }
        }
        for (violation, times) in seen {
            let Violation { cell, layer, variant, hash, kind, argument, place, detail, .. } = violation;
            let of = match (cell.layer, layer) {
                (None, Some(layer)) => format!(" of layer {layer}"),
                _ => String::new(),
            };
            let hash = hash.get(..12).unwrap_or(hash);
            writeln!(f, "\n  {kind}  {cell}  {times} times\n    {variant}  {hash}")?;
            writeln!(f, "    {argument}{of}, {place}: {detail}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotseam_engine::ViolationKind;
    use hotseam_slots::{CellId, Op, Phase, Seam};

    #[test]
    fn the_same_fault_is_told_once() {
        let cell =
            CellId { seam: Seam::Moe, op: Op::Route, phase: Some(Phase::Decode), layer: Some(3), rank: None };
        let violation = |row: u32| Violation {
            cell,
            layer: Some(3),
            variant: "moe/x".into(),
            hash: "ab".repeat(32),
            kind: ViolationKind::OutOfRange,
            argument: "weights".into(),
            place: format!("row {row}"),
            detail: "they sum to 2, expected 1".into(),
            step: 7,
        };
        let report =
            GuardReport { on: true, calls: 9, violations: 2, last: vec![violation(0), violation(5)] };
        assert_eq!(
            Table(&report).to_string(),
            "guard  9 calls checked, 2 violations\n\n  out-of-range  moe.route@decode:layers=3  2 times\n    moe/x  \
             abababababab\n    weights, row 0: they sum to 2, expected 1\n"
        );
        assert_eq!(Table(&GuardReport::default()).to_string(), "guard  off\n");
        assert_eq!(signature(&violation(0).code()), Some("guard:out-of-range".into()));
        assert_eq!(signature("E-PLUG-501"), None);
    }

    #[test]
    fn kinds_are_named_alike_everywhere() {
        for (kind, name) in [
            (ViolationKind::OutOfBounds, "out-of-bounds"),
            (ViolationKind::StrayWrite, "stray-write"),
            (ViolationKind::InputNotFinite, "input-not-finite"),
        ] {
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
            assert_eq!(kind.name(), name);
        }
    }
}
