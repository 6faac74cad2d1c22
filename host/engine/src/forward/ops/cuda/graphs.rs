//! Graphs of decode steps: what a layer enqueues is recorded once for each number of rows and each set of variants that serve it,
//! and launched as one from then on. A swap changes the set for the layers that it touches, and only these are recorded again.

use super::super::{Done, Repeat, StepError};
use hotseam_cuda::{Graph, Stream, capture};
use std::collections::HashMap;

/// Steps that a graph is kept without being launched.
const KEPT: u64 = 4096;

#[derive(Debug)]
enum State {
    /// Was done once without a graph, which loads and sizes whatever is made on first use.
    Warm,
    /// Recorded.
    Graph(Graph),
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
    pub(super) fn run(
        &mut self,
        key: Repeat,
        stream: &Stream,
        work: &mut dyn FnMut() -> Done,
    ) -> Result<bool, StepError> {
        let step = self.step;
        let Some(entry) = self.entries.get_mut(&key) else {
            work()?;
            self.entries.insert(key, Entry { state: State::Warm, last: step });
            return Ok(false);
        };
        entry.last = step;
        match &entry.state {
            State::Graph(graph) => {
                graph.launch(stream)?;
                return Ok(true);
            }
            State::Eager => work()?,
            State::Warm => match capture(stream, &mut *work) {
                Ok(graph) => {
                    graph.launch(stream)?;
                    tracing::debug!(
                        layer = key.layer,
                        rows = key.rows,
                        nodes = graph.nodes(),
                        "recorded a graph"
                    );
                    entry.state = State::Graph(graph);
                }
                Err(error) => {
                    tracing::warn!(%error, layer = key.layer, "this layer runs without a graph: a call cannot be recorded");
                    entry.state = State::Eager;
                    work()?;
                }
            },
        }
        Ok(false)
    }
}
