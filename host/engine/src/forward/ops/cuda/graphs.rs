//! Graphs of decode steps: what a layer enqueues is recorded once for each number of rows and each set of variants that serve it,
//! and launched as one from then on. A swap changes the set for the layers that it touches, and only these are recorded again.
//!
//! A layer of one rank is one graph. Where its outputs are summed over ranks it is a graph for each part between sums. The sums
//! themselves stand outside: NCCL asks that a sum is in a graph on every rank or on none, and which rank has recorded a layer is its
//! own affair, after a swap on one rank or a step in which a call failed there.

use super::super::{Repeat, StepError, Work, do_from};
use hotseam_cuda::{Graph, Stream, capture};
use std::collections::HashMap;

/// Steps that a graph is kept without being launched.
const KEPT: u64 = 4096;

#[derive(Debug)]
enum State {
    /// Was done once without a graph, which loads and sizes whatever is made on first use.
    Warm,
    /// Recorded, a graph for each part.
    Graphs(Vec<Graph>),
    /// Cannot be recorded.
    Eager,
}

#[derive(Debug)]
struct Entry {
    state: State,
    last: u64,
}

/// The graphs of an engine.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    entries: HashMap<Repeat, Entry>,
    step: u64,
}

impl Graphs {
    /// A step begins. Graphs that were not launched for long are dropped.
    pub(super) fn step(&mut self) {
        self.step += 1;
        if self.step.is_multiple_of(KEPT) {
            let oldest = self.step - KEPT;
            self.entries.retain(|_, entry| entry.last > oldest);
        }
    }

    /// Does `work`, or launches what it enqueued before. Returns whether it was launched without being done.
    pub(super) fn run(&mut self, key: Repeat, stream: &Stream, work: &dyn Work) -> Result<bool, StepError> {
        let step = self.step;
        let Some(entry) = self.entries.get_mut(&key) else {
            do_from(work, 0)?;
            self.entries.insert(key, Entry { state: State::Warm, last: step });
            return Ok(false);
        };
        entry.last = step;
        match &entry.state {
            State::Graphs(graphs) => {
                for (part, graph) in graphs.iter().enumerate() {
                    graph.launch(stream)?;
                    work.after(part)?;
                }
                return Ok(true);
            }
            State::Eager => do_from(work, 0)?,
            State::Warm => {
                let mut graphs = Vec::with_capacity(work.parts());
                for part in 0..work.parts() {
                    match capture(stream, || work.part(part)) {
                        Ok(graph) => {
                            graph.launch(stream)?;
                            graphs.push(graph);
                            work.after(part)?;
                        }
                        Err(error) => {
                            tracing::warn!(%error, layer = key.layer, "this layer runs without a graph: a call cannot be recorded");
                            entry.state = State::Eager;
                            do_from(work, part)?;
                            return Ok(false);
                        }
                    }
                }
                let nodes: usize = graphs.iter().map(Graph::nodes).sum();
                let (layer, rows, graphs_of) = (key.layer, key.rows, graphs.len());
                tracing::debug!(layer, rows, nodes, graphs = graphs_of, "recorded a layer");
                entry.state = State::Graphs(graphs);
            }
        }
        Ok(false)
    }
}
