//! The map of an audited KV hand-off, for people.

use std::fmt;

use hotseam_encoding::{Control, Tokenizer};
use hotseam_engine::{Engine, KvMap, KvRow, Topology};
use hotseam_slots::NumberSet;

use crate::RequestFailure;
use crate::compare::Workload;
use crate::error::EvidenceError;
use crate::haystack::Haystack;

/// Tokens that follow an audited prompt.
const TOKENS: usize = 2;
/// Code of a request whose hand-off was damaged.
const DAMAGED: &str = "E-KV-AUDIT";
/// Sentences between the pieces of text of two prompts.
const APART: usize = 32;

/// What one request's hand-off brought, and how the request ended.
#[derive(Debug)]
pub struct Handoff {
    /// The map.
    pub map: KvMap,
    /// Code and text, if the request failed.
    pub failure: Option<(String, String)>,
}

/// Runs a request on an engine that audits its hand-offs.
///
/// # Errors
/// If the request is refused, or nothing was handed over.
pub fn hand_off(engine: &Engine, assignment: &str, workload: &Workload) -> Result<Handoff, EvidenceError> {
    let failure = engine.submit(workload.request(assignment))?.tokens().err();
    match (engine.kv_map(), failure) {
        (Some(map), failure) => Ok(Handoff { map, failure }),
        (None, Some((code, message))) => Err(EvidenceError::Request { code, message }),
        (None, None) => Err(EvidenceError::NoHandoff),
    }
}

/// What came of a request whose hand-off was to be audited.
#[derive(Debug)]
pub enum Audited {
    /// What arrived, damaged or not.
    Map(Box<KvMap>),
    /// The request failed, and not by its hand-off.
    Failed(RequestFailure),
    /// There is one pool for both phases, so nothing is handed over.
    Nothing,
}

/// One prompt of each length, each another piece of the text: bytes that are left of one are not those of the next.
pub fn prompts(tokenizer: &Tokenizer, haystack: &Haystack, lengths: &[usize]) -> Vec<Vec<u32>> {
    let head = [Control::Bos, Control::User].map(|token| tokenizer.control(token));
    let prompt = |(index, length): (usize, &usize)| {
        let text = haystack.take(index * APART, length.saturating_sub(head.len()));
        head.iter().chain(text.into_iter().flatten()).copied().take(*length).collect()
    };
    lengths.iter().enumerate().map(prompt).collect()
}

/// Runs a prompt on an engine and says what its hand-off brought.
///
/// # Errors
/// If the request is refused, or the engine hands over and does not audit.
pub fn audit(engine: &Engine, assignment: &str, prompt: &[u32]) -> Result<Audited, EvidenceError> {
    if engine.config().topology == Topology::Single {
        return Ok(Audited::Nothing);
    }
    let workload =
        Workload { prompt: prompt.to_vec(), forced: Vec::new(), max_tokens: TOKENS, stop_tokens: Vec::new() };
    let Handoff { map, failure } = match hand_off(engine, assignment, &workload) {
        Err(EvidenceError::Request { code, message }) => {
            return Ok(Audited::Failed(RequestFailure { code, message }));
        }
        moved => moved?,
    };
    Ok(match failure {
        Some((code, message)) if code != DAMAGED => Audited::Failed(RequestFailure { code, message }),
        _ => Audited::Map(Box::new(map)),
    })
}

/// A map as a table: one row for each set of layers that are alike, then what is wrong.
pub struct Table<'a>(pub &'a KvMap);

fn alike(a: &KvRow, b: &KvRow) -> bool {
    (&a.component, a.item_bytes, a.expected, a.whole, &a.items)
        == (&b.component, b.item_bytes, b.expected, b.whole, &b.items)
}

/// `3-5,9` of the numbers in their order; cut where it gets long.
fn numbers(items: &[i32]) -> String {
    const MOST: usize = 24;
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for item in items {
        match runs.last_mut() {
            Some((_, last)) if *item == *last + 1 => *last = *item,
            _ => runs.push((*item, *item)),
        }
    }
    let run = |(first, last): &(i32, i32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let text = runs.iter().map(run).collect::<Vec<_>>().join(",");
    match text.len() > MOST {
        true => format!("{}..", &text[..MOST]),
        false => text,
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(map) = self;
        let items: usize = map.rows.iter().map(|row| row.expected).sum();
        let bytes: u64 = map.rows.iter().map(|row| row.expected as u64 * row.item_bytes).sum();
        writeln!(
            out,
            "room {}  {}  {}  {items} items, {bytes} bytes",
            map.room, map.assignment, map.transport
        )?;
        writeln!(
            out,
            "\n{:<12} {:<14} {:>10} {:>8} {:>6}  items",
            "component", "layers", "bytes each", "expected", "whole"
        )?;
        let mut rows: Vec<(&KvRow, Vec<u32>)> = Vec::new();
        for row in &map.rows {
            match rows.iter_mut().find(|(known, _)| alike(known, row)) {
                Some((_, layers)) => layers.push(row.layer),
                None => rows.push((row, vec![row.layer])),
            }
        }
        for (row, layers) in rows {
            let layers = NumberSet::of(layers).to_string();
            writeln!(
                out,
                "{:<12} {layers:<14} {:>10} {:>8} {:>6}  {}",
                row.component,
                row.item_bytes,
                row.expected,
                row.whole,
                numbers(&row.items)
            )?;
        }
        writeln!(out)?;
        match map.findings.is_empty() {
            true => write!(out, "every item arrived as it was sent"),
            false => map.findings.iter().try_for_each(|finding| writeln!(out, "{finding}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotseam_engine::{Finding, FindingKind};

    #[test]
    fn the_table_groups_layers_and_names_what_is_wrong() {
        let row = |component: &str, layer, whole| KvRow {
            component: component.into(),
            layer,
            item_bytes: 1024,
            expected: 3,
            whole,
            items: vec![4, 5, 9],
        };
        let mut map = KvMap {
            room: 7,
            assignment: "live".into(),
            transport: "kv_transport/tcp".into(),
            rows: vec![row("c4", 2, 3), row("c4", 4, 3), row("c4", 6, 2), row("swa", 0, 3)],
            findings: Vec::new(),
        };
        let text = Table(&map).to_string();
        assert!(text.starts_with("room 7  live  kv_transport/tcp  12 items, 12288 bytes\n"), "{text}");
        assert!(text.contains("c4           2,4                  1024        3      3  4-5,9\n"), "{text}");
        assert!(text.contains("c4           6                    1024        3      2  4-5,9\n"), "{text}");
        assert!(text.ends_with("every item arrived as it was sent"), "{text}");
        let kind = FindingKind::CutAt { bytes: 512, of: 1024 };
        map.findings.push(Finding { component: "c4".into(), layer: 6, page: Some(2), item: 9, kind });
        let text = Table(&map).to_string();
        assert!(text.ends_with("c4 layer 6 page 2: only 512 of 1024 bytes were written\n"), "{text}");
        assert_eq!(numbers(&(0..40).map(|i| i * 2).collect::<Vec<_>>()), "0,2,4,6,8,10,12,14,16,18..");
    }
}
