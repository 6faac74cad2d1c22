//! Who wrote the KV of a sequence. Positions are written in order, so a list of runs tells the writer of every page,
//! entry and state row: an entry is written with the last position of its group, a state row with its own position.

use crate::seq::{c4_kept, c128_kept};
use std::ops::Range;
use std::sync::Arc;

/// A variant: its name with options, and the hash of its code and options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// Name with options.
    pub variant: String,
    /// Hash of code and options.
    pub hash: String,
}

/// The variants of one layer that write and read KV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerCode {
    /// `attention.store`: writes window entries.
    pub store: Arc<Code>,
    /// `attention.compress`: writes compressed entries and their state rows; csa and hca layers.
    pub compress: Option<Arc<Code>>,
    /// `attention.core`: reads window and compressed entries.
    pub core: Arc<Code>,
    /// `indexer.compress`: writes index keys and their state rows; csa layers.
    pub index_compress: Option<Arc<Code>>,
    /// `indexer.select`: reads index keys; csa layers.
    pub select: Option<Arc<Code>>,
}

/// The code of one assignment in one phase, as far as it writes or reads KV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhaseCode {
    /// Name of the assignment.
    pub assignment: String,
    /// Digest of all its cells.
    pub digest: [u8; 32],
    /// One of [`hotseam_abi::phase`].
    pub phase: u32,
    /// By layer.
    pub layers: Vec<LayerCode>,
}

/// Positions, from the end of the run before it, that one code wrote.
#[derive(Debug, Clone)]
pub struct Run {
    /// First position after the run.
    pub end: usize,
    /// What wrote it.
    pub writer: Arc<PhaseCode>,
    /// Transport that moved it since; `None` if it is where it was written.
    pub carrier: Option<Arc<Code>>,
}

/// Items of one run that a step reads, in each layer that has such items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reach {
    /// Window entries.
    pub window: usize,
    /// Ratio-4 entries, and as many index keys.
    pub c4: usize,
    /// Ratio-128 entries.
    pub c128: usize,
    /// Ratio-4 state rows, of attention and of the indexer alike.
    pub c4_state: usize,
    /// Ratio-128 state rows.
    pub c128_state: usize,
}

/// The runs of a sequence, in order of position.
#[derive(Debug, Clone)]
pub struct History(Vec<Run>);

/// Runs that need no new memory: a prompt, an answer and some swaps between.
const RESERVED: usize = 8;

impl History {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(RESERVED))
    }

    /// The runs.
    pub fn runs(&self) -> &[Run] {
        &self.0
    }

    /// Notes that `writer` wrote all positions before `end` that nobody wrote yet.
    pub(crate) fn record(&mut self, end: usize, writer: &Arc<PhaseCode>) {
        match self.0.last_mut() {
            Some(last) if end <= last.end => {}
            Some(last) if Arc::ptr_eq(&last.writer, writer) && last.carrier.is_none() => last.end = end,
            _ => self.0.push(Run { end, writer: Arc::clone(writer), carrier: None }),
        }
    }

    /// Notes that everything so far was moved by `carrier`.
    pub(crate) fn carry(&mut self, carrier: &Arc<Code>) {
        self.0.iter_mut().for_each(|run| run.carrier = Some(Arc::clone(carrier)));
    }

    /// Calls `f` with each run and what a step over the positions `rows` reads of it. A step reads the window before
    /// its first row and all that it writes itself, all entries complete at its end, and, where it closes a group, the
    /// state rows kept before it.
    pub fn reach(&self, rows: Range<usize>, window: usize, mut f: impl FnMut(&Run, Reach)) {
        let kept = |kept: Range<usize>, ratio: usize| match rows.end / ratio > rows.start / ratio {
            true => kept,
            false => 0..0,
        };
        let windows = (rows.start + 1).saturating_sub(window)..rows.end;
        let c4_rows = kept(c4_kept(rows.start), 4);
        let c128_rows = kept(c128_kept(rows.start), 128);
        let mut start = 0;
        for run in &self.0 {
            let end = run.end.min(rows.end);
            let overlap = |of: &Range<usize>| end.min(of.end).saturating_sub(start.max(of.start));
            let closed = |ratio: usize| (end / ratio).saturating_sub(start / ratio);
            let reach = Reach {
                window: overlap(&windows),
                c4: closed(4),
                c128: closed(128),
                c4_state: overlap(&c4_rows),
                c128_state: overlap(&c128_rows),
            };
            if reach != Reach::default() {
                f(run, reach);
            }
            start = run.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(name: &str) -> Arc<PhaseCode> {
        Arc::new(PhaseCode { assignment: name.into(), digest: [0; 32], phase: 0, layers: Vec::new() })
    }

    fn reach(history: &History, rows: Range<usize>) -> Vec<(String, Reach)> {
        let mut found = Vec::new();
        history.reach(rows, 128, |run, reach| found.push((run.writer.assignment.clone(), reach)));
        found
    }

    /// Every item of a step, one by one, with the writer of its position.
    fn slow(ends: &[(usize, &str)], rows: Range<usize>) -> Vec<(String, Reach)> {
        let by = |p: usize| ends.iter().position(|(end, _)| p < *end);
        let mut found = vec![Reach::default(); ends.len()];
        for p in 0..rows.end {
            let Some(run) = by(p) else { continue };
            found[run].window += usize::from(p + 128 > rows.start);
            found[run].c4 += usize::from(p % 4 == 3);
            found[run].c128 += usize::from(p % 128 == 127);
            let before = p < rows.start;
            let old4 = before && p >= (rows.start / 4 * 4).saturating_sub(4);
            found[run].c4_state += usize::from(old4 && rows.end / 4 > rows.start / 4);
            let old128 = before && p >= rows.start / 128 * 128;
            found[run].c128_state += usize::from(old128 && rows.end / 128 > rows.start / 128);
        }
        let named = ends.iter().map(|(_, name)| (*name).to_owned()).zip(found);
        named.filter(|(_, reach)| *reach != Reach::default()).collect()
    }

    #[test]
    fn a_run_grows_until_the_writer_changes() {
        let (a, b, carrier) = (writer("a"), writer("b"), Code { variant: "t".into(), hash: "h".into() });
        let mut history = History::new();
        history.record(10, &a);
        history.record(20, &a);
        history.record(20, &b);
        history.record(21, &b);
        let ends = |h: &History| h.runs().iter().map(|r| (r.end, r.carrier.is_some())).collect::<Vec<_>>();
        assert_eq!(ends(&history), [(20, false), (21, false)]);
        history.carry(&Arc::new(carrier));
        history.record(22, &b);
        assert_eq!(ends(&history), [(20, true), (21, true), (22, false)]);
    }

    #[test]
    fn reach_counts_every_item_once() {
        let names = ["a", "b", "c"];
        for ends in [[1, 5, 700], [128, 129, 700], [255, 256, 512], [300, 515, 516]] {
            let mut history = History::new();
            let runs: Vec<_> = ends.into_iter().zip(names).collect();
            runs.iter().for_each(|(end, name)| history.record(*end, &writer(name)));
            for rows in [0..1, 0..128, 3..4, 4..5, 127..128, 126..300, 255..257, 510..516, 299..300] {
                assert_eq!(reach(&history, rows.clone()), slow(&runs, rows.clone()), "{ends:?} {rows:?}");
            }
        }
    }
}
