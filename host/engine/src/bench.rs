//! Times of prefill steps at the start of a prompt, and of decode steps over long contexts, without the prompts: the same forward pass as in service, over sequences whose pages
//! are copies of a short prompt's.

use crate::forward::{Answer, Forward, Step};
use crate::observe::Probe;
use crate::sampler::Draw;
use crate::scheduler::layouts;
use crate::{Device, EngineConfig, EngineError};
use hotseam_abi::StepCtx;
use hotseam_cuda::{CudaError, Event};
use hotseam_kv::{KvConfig, KvStore, LayerLayout, PAGE_TOKENS, Place, Plan, SeqKv};
use hotseam_model::Model;
use hotseam_slots::{CellId, Phase, Slots, Snapshot};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps before the first that is timed: one without a graph, one that records it, one that launches it.
const WARM: usize = 3;
/// Steps that are timed, at least.
const LEAST: usize = 5;
/// Tokens of the prompt whose pages are copied.
const PROMPT: usize = 4 * PAGE_TOKENS;

/// What is timed.
#[derive(Debug, Clone)]
pub struct StepBench {
    /// Rows of a prefill step, in turn.
    pub prefill: Vec<usize>,
    /// Sequences of a step, in turn.
    pub batches: Vec<usize>,
    /// Positions of each sequence, in turn.
    pub contexts: Vec<usize>,
    /// How long each is timed.
    pub time: Duration,
    /// Whether the calls of a further step are timed one by one.
    pub ops: bool,
}

/// Time of the calls of one op in a step.
#[derive(Debug, Clone, Serialize)]
pub struct OpTime {
    /// The op, as selectors name it; `host` for what the host does itself between calls.
    pub op: String,
    /// Variants that served it.
    pub variants: Vec<String>,
    /// Calls.
    pub calls: usize,
    /// Microseconds of all of them.
    pub us: f64,
}

/// Times of one size of step.
#[derive(Debug, Clone, Serialize)]
pub struct DecodeTime {
    /// Sequences.
    pub batch: usize,
    /// Positions of each.
    pub context: usize,
    /// Steps timed.
    pub steps: usize,
    /// Median milliseconds of a step.
    pub median_ms: f64,
    /// 10th percentile.
    pub low_ms: f64,
    /// 90th percentile.
    pub high_ms: f64,
    /// Of the calls of one step that were timed one by one, without graphs; their sum is more than a step takes.
    pub ops: Vec<OpTime>,
}

/// Times of prefill steps of so many rows, the first of a prompt, the logits of the last row included.
#[derive(Debug, Clone, Serialize)]
pub struct PrefillTime {
    /// Rows.
    pub rows: usize,
    /// Steps timed.
    pub steps: usize,
    /// Median milliseconds of a step.
    pub median_ms: f64,
    /// 10th percentile.
    pub low_ms: f64,
    /// 90th percentile.
    pub high_ms: f64,
}

/// What was timed.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// Prefill steps.
    pub prefill: Vec<PrefillTime>,
    /// Decode steps.
    pub decode: Vec<DecodeTime>,
}

/// Why nothing is timed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The engine cannot be made.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// There is no such assignment.
    #[error("assignment `{0}` is not defined")]
    Assignment(String),
    /// Sequences do not fit.
    #[error("a batch of {batch} sequences of {context} positions does not fit: {why}")]
    Size {
        /// Sequences.
        batch: usize,
        /// Positions.
        context: usize,
        /// What is missing.
        why: String,
    },
    /// A step failed.
    #[error("a step failed: {0}")]
    Step(String),
}

/// Times steps of an assignment on this thread. `each` is told every result as it is there.
///
/// # Errors
/// The first size that does not fit, or call that fails.
pub fn steps(
    model: &Arc<Model>,
    slots: &Slots,
    assignment: &str,
    config: &EngineConfig,
    what: &StepBench,
    each: impl FnMut(&DecodeTime),
) -> Result<Times, BenchError> {
    let snapshot = slots.snapshot(assignment).ok_or_else(|| BenchError::Assignment(assignment.to_owned()))?;
    config.validate(&model.config)?;
    Bench::new(model, &snapshot, config)?.run(what, each)
}

/// What a device is, with its clocks; or why it cannot be had.
pub fn device(device: Device) -> String {
    let Device::Cuda(ordinal) = device else { return device.to_string() };
    match hotseam_cuda::Device::open(ordinal) {
        Err(error) => format!("{device}: {error}"),
        Ok(opened) => {
            let facts = opened.facts();
            format!(
                "{device}: {}, sm_{}, {} multiprocessors at {} MHz, memory at {} MHz, driver for CUDA {}",
                facts.name,
                facts.sm,
                facts.multiprocessors,
                facts.clock_khz / 1000,
                facts.memory_clock_khz / 1000,
                facts.driver
            )
        }
    }
}

struct Bench<'a> {
    model: &'a Arc<Model>,
    snapshot: &'a Snapshot,
    layouts: Vec<LayerLayout>,
    config: &'a EngineConfig,
    forward: Forward,
    store: KvStore,
    plan: Plan,
    number: u64,
}

impl<'a> Bench<'a> {
    fn new(
        model: &'a Arc<Model>,
        snapshot: &'a Snapshot,
        config: &'a EngineConfig,
    ) -> Result<Self, EngineError> {
        let forward = Forward::new(model, config, None)?;
        let place = match config.device {
            Device::Cpu => Place::Host,
            Device::Cuda(ordinal) => Place::Device(ordinal),
        };
        let kv = KvConfig {
            pages: config.total_pages(),
            max_seqs: config.max_seqs,
            max_rows: config.max_rows(),
            place,
        };
        let mut store = KvStore::new(&model.config, kv)?;
        let layouts: Vec<LayerLayout> = layouts(&model.config, snapshot).collect();
        store.ensure(&layouts)?;
        Ok(Self { model, snapshot, layouts, config, forward, store, plan: Plan::default(), number: 0 })
    }

    fn run(mut self, what: &StepBench, mut each: impl FnMut(&DecodeTime)) -> Result<Times, BenchError> {
        let mut times = Times::default();
        for rows in &what.prefill {
            times.prefill.push(self.time_prefill(*rows, what.time)?);
        }
        let prompt = self.prompt()?;
        for context in &what.contexts {
            for batch in &what.batches {
                let fits = |error: hotseam_kv::KvError| BenchError::Size {
                    batch: *batch,
                    context: *context,
                    why: error.to_string(),
                };
                let mut seqs = Vec::with_capacity(*batch);
                for _ in 0..*batch {
                    let seq = self.store.open_copies(&prompt, &self.layouts, *context, context + 1);
                    seqs.push(seq.map_err(fits)?);
                }
                let time = self.time(&mut seqs, *context, what)?;
                each(&time);
                times.decode.push(time);
                seqs.into_iter().for_each(|seq| self.store.close(seq));
            }
        }
        Ok(times)
    }

    /// Runs a prompt of random tokens.
    fn prompt(&mut self) -> Result<SeqKv, BenchError> {
        let fits = |error: hotseam_kv::KvError| BenchError::Size {
            batch: 1,
            context: PROMPT,
            why: error.to_string(),
        };
        let mut seq = self.store.open(PROMPT).map_err(fits)?;
        while seq.len() < PROMPT {
            let rows = self.config.chunk.min(PROMPT - seq.len());
            let start = seq.len();
            let tokens: Vec<i32> = (start..start + rows).map(|i| self.token(i)).collect();
            self.step(Phase::Prefill, std::slice::from_mut(&mut seq), rows, &tokens, None)?;
            self.store.commit(&mut seq, rows);
        }
        Ok(seq)
    }

    /// Tokens that differ.
    fn token(&self, i: usize) -> i32 {
        (i.wrapping_mul(2_654_435_761) % self.model.config.vocab_size) as i32
    }

    /// Seconds of steps, from the shortest on: those after a few, until there are enough and `time` is over.
    fn samples(
        time: Duration,
        mut step: impl FnMut(usize) -> Result<f64, BenchError>,
    ) -> Result<Vec<f64>, BenchError> {
        let mut samples = Vec::new();
        let mut started = Instant::now();
        for round in 0.. {
            if round == WARM {
                samples.clear();
                started = Instant::now();
            }
            if round >= WARM + LEAST && started.elapsed() >= time {
                break;
            }
            samples.push(step(round)?);
        }
        samples.sort_unstable_by(f64::total_cmp);
        Ok(samples)
    }

    fn time_prefill(&mut self, rows: usize, time: Duration) -> Result<PrefillTime, BenchError> {
        let fits =
            |error: hotseam_kv::KvError| BenchError::Size { batch: 1, context: rows, why: error.to_string() };
        let mut seq = self.store.open(rows).map_err(fits)?;
        let samples = Self::samples(time, |round| {
            let tokens: Vec<i32> = (0..rows).map(|i| self.token(i + round * 31)).collect();
            let seconds = self.step(Phase::Prefill, std::slice::from_mut(&mut seq), rows, &tokens, None)?;
            self.store.abort(&mut seq);
            Ok(seconds)
        })?;
        self.store.close(seq);
        let [median_ms, low_ms, high_ms] = percentiles(&samples);
        Ok(PrefillTime { rows, steps: samples.len(), median_ms, low_ms, high_ms })
    }

    fn time(
        &mut self,
        seqs: &mut [SeqKv],
        context: usize,
        what: &StepBench,
    ) -> Result<DecodeTime, BenchError> {
        let samples = Self::samples(what.time, |round| self.decode_step(seqs, round, None))?;
        let ops = match what.ops {
            true => {
                // The first one loads what is made on first use without graphs.
                self.decode_step(seqs, 0, Some(&Timer::new(self.config.device)))?;
                let timer = Timer::new(self.config.device);
                let seconds = self.decode_step(seqs, 1, Some(&timer))?;
                timer.ops(seconds).map_err(|error| BenchError::Step(error.to_string()))?
            }
            false => Vec::new(),
        };
        let [median_ms, low_ms, high_ms] = percentiles(&samples);
        Ok(DecodeTime { batch: seqs.len(), context, steps: samples.len(), median_ms, low_ms, high_ms, ops })
    }

    /// Seconds of one step, the choice of tokens included, that leaves the sequences as they were.
    fn decode_step(
        &mut self,
        seqs: &mut [SeqKv],
        round: usize,
        timer: Option<&Timer>,
    ) -> Result<f64, BenchError> {
        let tokens: Vec<i32> = (0..seqs.len()).map(|i| self.token(i * 977 + round * 31)).collect();
        let seconds = self.step(Phase::Decode, seqs, 1, &tokens, timer)?;
        seqs.iter_mut().for_each(|seq| self.store.abort(seq));
        Ok(seconds)
    }

    fn step(
        &mut self,
        phase: Phase,
        seqs: &mut [SeqKv],
        rows: usize,
        tokens: &[i32],
        timer: Option<&Timer>,
    ) -> Result<f64, BenchError> {
        self.plan.begin(self.config.max_context);
        for seq in seqs.iter_mut() {
            self.plan
                .add(&mut self.store, seq, rows, 0)
                .map_err(|error| BenchError::Step(error.to_string()))?;
        }
        self.number += 1;
        let wanted: Vec<usize> = (0..seqs.len()).map(|i| (i + 1) * rows - 1).collect();
        let greedy = Draw { temperature: 0.0, top_p: 1.0, uniform: 0.0 };
        let draws = vec![greedy; if phase == Phase::Decode { wanted.len() } else { 0 }];
        let step = Step {
            snapshot: self.snapshot,
            phase,
            store: &self.store,
            plan: &self.plan,
            layouts: &self.layouts,
            tokens,
            wanted: &wanted,
            draws: &draws,
            number: self.number,
            looked_at: timer.is_some(),
            probe: Probe { timer, ..Probe::default() },
        };
        let started = Instant::now();
        let ran = self.forward.run(&step).map(|answer| match answer {
            Answer::Logits(logits) => logits.iter().all(|v| v.is_finite()),
            Answer::Chosen(chosen) => chosen.iter().all(Result::is_ok),
        });
        match ran {
            Ok(true) => Ok(started.elapsed().as_secs_f64()),
            Ok(false) => Err(BenchError::Step("its logits are not finite".to_owned())),
            Err(error) => Err(BenchError::Step(error.to_string())),
        }
    }
}

/// Median, 10th and 90th percentile in milliseconds, of sorted seconds.
fn percentiles(samples: &[f64]) -> [f64; 3] {
    [50, 10, 90].map(|percent| samples[(samples.len() - 1) * percent / 100] * 1e3)
}

/// A call: its cell and variant, and when it began and ended.
struct Timed {
    op: String,
    variant: String,
    span: Span,
}

enum Span {
    Host(Duration),
    Device(Event, Event),
}

/// Times calls one by one: by events on the stream of a device, else by the clock.
pub(crate) struct Timer {
    device: Device,
    calls: RefCell<Vec<Timed>>,
}

impl Timer {
    fn new(device: Device) -> Self {
        Self { device, calls: RefCell::default() }
    }

    /// Makes a call.
    pub(crate) fn call<E>(
        &self,
        cell: CellId,
        variant: impl FnOnce() -> String,
        ctx: &StepCtx,
        call: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let events = match self.device {
            Device::Cpu => None,
            Device::Cuda(_) => Event::new().and_then(|begin| Ok((begin, Event::new()?))).ok(),
        };
        let span = match events {
            Some((begin, end)) => {
                // If an event is refused, so is the question for its time.
                let _ = begin.record(ctx.stream);
                call()?;
                let _ = end.record(ctx.stream);
                Span::Device(begin, end)
            }
            None => {
                let started = Instant::now();
                call()?;
                Span::Host(started.elapsed())
            }
        };
        let (seam, op) = (cell.seam, cell.op);
        self.calls.borrow_mut().push(Timed { op: format!("{seam}.{op}"), variant: variant(), span });
        Ok(())
    }

    /// Times by op, the longest first, in a step of `seconds`.
    fn ops(self, seconds: f64) -> Result<Vec<OpTime>, CudaError> {
        let mut ops: BTreeMap<String, OpTime> = BTreeMap::new();
        let mut rest = seconds * 1e6;
        for call in self.calls.into_inner() {
            let us = match &call.span {
                Span::Host(time) => time.as_secs_f64(),
                Span::Device(begin, end) => end.seconds_since(begin)?,
            } * 1e6;
            rest -= us;
            let new = OpTime { op: call.op.clone(), variants: Vec::new(), calls: 0, us: 0.0 };
            let op = ops.entry(call.op).or_insert(new);
            (op.calls, op.us) = (op.calls + 1, op.us + us);
            if !op.variants.contains(&call.variant) {
                op.variants.push(call.variant);
            }
        }
        let mut ops: Vec<OpTime> = ops.into_values().collect();
        ops.push(OpTime { op: "host".to_owned(), variants: Vec::new(), calls: 0, us: rest.max(0.0) });
        ops.sort_unstable_by(|a, b| b.us.total_cmp(&a.us));
        Ok(ops)
    }
}
