//! Graphs of decode steps: what a layer enqueues is recorded once for each number of rows and each set of variants that serve it,
//! and launched as one from then on. A swap changes the set for the layers that it touches, and only these are recorded again.
//!
//! A layer of one rank is one graph. Where its outputs are summed over ranks it is a graph for each part between sums. The sums
//! themselves stand outside: NCCL asks that a sum is in a graph on every rank or on none, and which rank has recorded a layer is its
//! own affair, after a swap on one rank or a step in which a call failed there.
//!
//! Receipts count a launch as the calls that it stands for. The last node of every graph adds one to its layer's counter on the device,
//! and once a step is done the counters must say what the host has launched: a launch that did not run to its end fails the step.

use super::super::{Repeat, StepError, Work, do_from};
use hotseam_cuda::{Buffer, CudaError, Graph, Stream, capture, copy_from_device};
use hotseam_cuda_kernels::ops;
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
#[derive(Debug)]
pub(super) struct Graphs {
    entries: HashMap<Repeat, Entry>,
    step: u64,
    counters: Counters,
}

/// How often graphs of each layer have run.
#[derive(Debug)]
struct Counters {
    /// `[layers]` u64 on the device.
    device: Buffer,
    /// What they must be, and what they were.
    launched: Vec<u64>,
    counted: Vec<u64>,
}

impl Counters {
    fn address(&self, layer: u32) -> u64 {
        self.device.address() + 8 * u64::from(layer)
    }

    /// Launches a graph of `layer`.
    fn launch(&mut self, graph: &Graph, layer: u32, stream: &Stream) -> Result<(), CudaError> {
        graph.launch(stream)?;
        self.launched[layer as usize] += 1;
        Ok(())
    }
}

impl Graphs {
    /// None yet, of a model of so many layers.
    ///
    /// # Errors
    /// If there is not the memory.
    pub(super) fn new(layers: usize) -> Result<Self, CudaError> {
        let device = Buffer::zeroed(8 * layers, "the counters of graphs")?;
        let counters = Counters { device, launched: vec![0; layers], counted: vec![0; layers] };
        Ok(Self { entries: HashMap::new(), step: 0, counters })
    }

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
        kernels: &ops::Ops,
        stream: &Stream,
        work: &dyn Work,
    ) -> Result<bool, StepError> {
        let Self { entries, step, counters } = self;
        let Some(entry) = entries.get_mut(&key) else {
            do_from(work, 0)?;
            entries.insert(key, Entry { state: State::Warm, last: *step });
            return Ok(false);
        };
        entry.last = *step;
        match &entry.state {
            State::Graphs(graphs) => {
                for (part, graph) in graphs.iter().enumerate() {
                    counters.launch(graph, key.layer, stream)?;
                    work.after(part)?;
                }
                return Ok(true);
            }
            State::Eager => do_from(work, 0)?,
            State::Warm => {
                let mut graphs = Vec::with_capacity(work.parts());
                for part in 0..work.parts() {
                    let recorded = capture(stream, || {
                        work.part(part)?;
                        super::done(kernels.count(stream.raw(), counters.address(key.layer)))
                    });
                    match recorded {
                        Ok(graph) => {
                            counters.launch(&graph, key.layer, stream)?;
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

    /// Fails unless the device has counted every launch. For when it has done all of them.
    pub(super) fn all_ran(&mut self) -> Result<(), StepError> {
        let Counters { device, launched, counted } = &mut self.counters;
        copy_from_device(counted, device.address())?;
        let Some(layer) = (0..launched.len()).find(|layer| counted[*layer] != launched[*layer]) else {
            return Ok(());
        };
        let (ran, wanted) = (counted[layer], launched[layer]);
        // What is lost is lost once.
        launched.copy_from_slice(counted);
        Err(StepError::Device(format!(
            "graphs of layer {layer} were launched {wanted} times and have run {ran} times"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Done;
    use super::*;
    use hotseam_cuda::{Device, fill};

    /// Work in two parts that enqueues nothing of its own.
    struct Nothing;

    impl Work for Nothing {
        fn parts(&self) -> usize {
            2
        }

        fn part(&self, _part: usize) -> Done {
            Ok(())
        }

        fn after(&self, _part: usize) -> Done {
            Ok(())
        }
    }

    #[test]
    fn a_launch_that_the_device_has_not_counted_is_told_with_its_layer() {
        if !hotseam_cuda_emulator::device() {
            return;
        }
        let _device = Device::open(0).expect("a device");
        let (kernels, stream) = (ops::Ops::load().expect("kernels"), Stream::new().expect("a stream"));
        let mut graphs = Graphs::new(3).expect("memory");
        let step = |graphs: &mut Graphs, layers: u32| {
            graphs.step();
            let launched = (0..layers).map(|layer| {
                graphs
                    .run(Repeat { layer, rows: 1, served_by: 7 }, &kernels, &stream, &Nothing)
                    .expect("runs")
            });
            let launched: Vec<bool> = launched.collect();
            stream.synchronize().expect("done");
            launched
        };
        for expected in [false, false, true, true] {
            assert_eq!(step(&mut graphs, 3), [expected; 3]);
            graphs.all_ran().expect("all are counted");
        }
        // What the device has of layer 2 is lost; the others are still right.
        fill(graphs.counters.address(2), 0, 8).expect("written");
        step(&mut graphs, 3);
        let error = graphs.all_ran().expect_err("layer 2 has run 2 times of 8").to_string();
        assert!(error.contains("graphs of layer 2 were launched 8 times and have run 2 times"), "{error}");
        step(&mut graphs, 3);
        graphs.all_ran().expect("the steps after it are right again");
    }
}
