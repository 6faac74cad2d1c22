//! One rank of a group of threads: a forward pass with its model, variants and memory.

use super::sums::Sums;
use crate::forward::ops::StepError;
use crate::forward::{Answer, Forward, Step};
use crate::guard::{Guard, GuardLog};
use crate::observe::Probe;
use crate::scheduler::layouts;
use crate::{Device, EngineConfig};
use hotseam_kv::{KvConfig, KvStore, LayerLayout, Place, Plan, SeqKv};
use hotseam_loader::Loader;
use hotseam_model::{LayerClass, Model};
use hotseam_slots::{Geometry, Phase, Registry, Rule, Slots, Snapshot};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Positions that models and engines of these tests have.
pub(super) const CONTEXT: usize = 2048;

/// Logits of the wanted rows of a step, one after the other; none on ranks other than the first.
pub(super) type Logits = Vec<Vec<f32>>;

pub(super) struct Rank {
    pub(super) forward: Forward,
    pub(super) slots: Slots,
    guard: Option<Guard>,
    model: Arc<Model>,
    store: KvStore,
    config: EngineConfig,
    plan: Plan,
    number: u64,
    /// Its rank, and the number of ranks.
    place: (u32, u32),
}

/// Directory of the built plugins.
fn plugins() -> PathBuf {
    let exe = std::env::current_exe().expect("the path of this executable");
    exe.ancestors().nth(2).expect("target/release/deps/test").to_owned()
}

/// The embedded model.
pub(super) fn nano() -> &'static Model {
    static NANO: OnceLock<Model> = OnceLock::new();
    NANO.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("host/engine is two deep");
        let (config, weights) =
            hotseam_checkpoint::load(&root.join("assets/nano-v4"), |_, _| {}).expect("the embedded model");
        Model::new(config, weights, CONTEXT)
    })
}

pub(super) fn rule(select: &str, variant: &str) -> Rule {
    Rule::new(select.parse().expect("a selector"), Some(variant.parse().expect("a variant"))).expect("a rule")
}

/// Every seam to its stock variant, for the CPU or for CUDA devices.
pub(super) fn stock(of: &str) -> Vec<Rule> {
    ["attention", "indexer", "moe", "mhc"].map(|seam| rule(seam, &format!("{seam}/{of}-stock"))).to_vec()
}

pub(super) fn sizes() -> EngineConfig {
    // Chunks end in the middle of prompts, pages and groups.
    EngineConfig { max_context: CONTEXT, chunk: 200, max_seqs: 4, ..EngineConfig::default() }
}

/// A token that differs from its neighbours and from those of other sequences.
pub(super) fn token(model: &Model, seq: usize, position: usize) -> i32 {
    let mixed = (seq * 1_000_003 + position).wrapping_mul(2_654_435_761) >> 7;
    (3 + mixed % (model.config.vocab_size - 3)) as i32
}

/// What each rank makes of `script`, which all run at the same time.
pub(super) fn group<T: Send>(
    model: &Model,
    sums: &Arc<Sums>,
    world: u32,
    config: &EngineConfig,
    rules: impl Fn(u32) -> Vec<Rule> + Sync,
    script: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    let run = |rank: u32| script(&mut Rank::new(model, sums, (rank, world), config, rules(rank)));
    std::thread::scope(|scope| {
        let run = &run;
        let ranks: Vec<_> = (0..world).map(|rank| scope.spawn(move || run(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank that does not panic")).collect()
    })
}

impl Rank {
    fn new(
        whole: &Model,
        sums: &Arc<Sums>,
        place: (u32, u32),
        config: &EngineConfig,
        rules: Vec<Rule>,
    ) -> Self {
        let (rank, world) = place;
        let model = Arc::new(whole.clone().of_rank(rank, world).unwrap_or_else(|e| panic!("{e}")));
        let loader = Loader::new(vec![plugins()]).expect("a plugin directory; build the plugins first");
        let registry = Registry::new(loader, Geometry::new(&whole.config, config.topology));
        let slots = Slots::new(registry.on(config.device.of_variants()));
        slots.define("live", rules).unwrap_or_else(|e| panic!("{e}"));
        let forward = Forward::new(&model, config, Some(sums.rank(rank))).unwrap_or_else(|e| panic!("{e}"));
        let memory = match config.device {
            Device::Cpu => Place::Host,
            Device::Cuda(ordinal) => Place::Device(ordinal),
        };
        let (pages, max_seqs) = (config.total_pages(), config.max_seqs);
        let kv = KvConfig { pages, max_seqs, max_rows: config.max_rows(), place: memory };
        let store = KvStore::new(&model.config, kv).expect("memory");
        let guard = config.guard.then(|| Guard::new(GuardLog::default()));
        let (config, plan) = (config.clone(), Plan::default());
        Self { forward, slots, guard, model, store, config, plan, number: 0, place }
    }

    pub(super) fn open(&mut self) -> SeqKv {
        self.store.open(CONTEXT).expect("pages")
    }

    pub(super) fn close(&mut self, seq: SeqKv) {
        self.store.close(seq);
    }

    pub(super) fn snapshot(&self, assignment: &str) -> Arc<Snapshot> {
        self.slots.snapshot(assignment).expect("it is defined")
    }

    /// Runs the next `rows` positions of each sequence, whose numbers are theirs for [`token`]; the logits are those of all rows. The
    /// positions are neither taken nor given up.
    pub(super) fn run(
        &mut self,
        assignment: &str,
        phase: Phase,
        seqs: &mut [(usize, SeqKv)],
        rows: usize,
    ) -> Result<Logits, StepError> {
        let snapshot = self.snapshot(assignment);
        let of: Vec<LayerLayout> = layouts(&self.model.config, &snapshot).collect();
        self.store.ensure(&of).expect("memory");
        self.plan.begin(self.config.max_context);
        let mut tokens = Vec::new();
        for (number, seq) in seqs.iter_mut() {
            tokens.extend((seq.len()..seq.len() + rows).map(|at| token(&self.model, *number, at)));
            self.plan.add(&mut self.store, seq, rows, 0).expect("state rows");
        }
        self.number += 1;
        let wanted: Vec<usize> = (0..tokens.len()).collect();
        let guard = self.guard.as_ref();
        let probe = Probe { observer: None, guard, shadow: None, timer: None, copies: None };
        let step = Step {
            snapshot: &snapshot,
            phase,
            store: &self.store,
            plan: &self.plan,
            layouts: &of,
            tokens: &tokens,
            wanted: &wanted,
            draws: &[],
            number: self.number,
            looked_at: probe.sees_calls(),
            probe,
        };
        let ctx = self.forward.context(&step, 0, LayerClass::Window);
        assert_eq!((ctx.rank, ctx.world), self.place, "what calls are told");
        let ran = self.forward.run(&step);
        let vocab = self.model.config.vocab_size;
        ran.map(|answer| match answer {
            Answer::Logits(logits) => logits.chunks_exact(vocab).map(<[f32]>::to_vec).collect(),
            Answer::Chosen(chosen) => unreachable!("nothing is to be drawn: {chosen:?}"),
        })
    }

    /// Gives up the positions of a step.
    pub(super) fn abort(&mut self, seqs: &mut [(usize, SeqKv)]) {
        seqs.iter_mut().for_each(|(_, seq)| self.store.abort(seq));
    }

    /// As [`Rank::run`], and takes the positions.
    pub(super) fn step(
        &mut self,
        assignment: &str,
        phase: Phase,
        seqs: &mut [(usize, SeqKv)],
        rows: usize,
    ) -> Result<Logits, StepError> {
        let logits = self.run(assignment, phase, seqs, rows)?;
        seqs.iter_mut().for_each(|(_, seq)| self.store.commit(seq, rows));
        Ok(logits)
    }

    /// A prompt of its own; the logits are those of all rows.
    pub(super) fn prompt(&mut self, number: usize, length: usize) -> (SeqKv, Logits) {
        let (mut seqs, mut logits) = ([(number, self.open())], Vec::new());
        while seqs[0].1.len() < length {
            let rows = self.config.chunk.min(length - seqs[0].1.len());
            let ran = self.step("live", Phase::Prefill, &mut seqs, rows);
            logits.extend(ran.unwrap_or_else(|e| panic!("{e}")));
        }
        let [(_, seq)] = seqs;
        (seq, logits)
    }

    /// Prompts of lengths `lengths`, alone, then of lengths `together`, and answers to these in the same steps. Of these the last one
    /// leaves after each `steps`.
    pub(super) fn drive(&mut self, lengths: &[usize], together: &[usize], steps: usize) -> Logits {
        let mut all = Vec::new();
        for (number, length) in lengths.iter().enumerate() {
            let (seq, logits) = self.prompt(number, *length);
            all.extend(logits);
            self.close(seq);
        }
        let mut seqs = Vec::new();
        for (number, length) in together.iter().enumerate() {
            let (seq, logits) = self.prompt(100 + number, *length);
            all.extend(logits);
            seqs.push((100 + number, seq));
        }
        while !seqs.is_empty() {
            for _ in 0..steps {
                let ran = self.step("live", Phase::Decode, &mut seqs, 1);
                all.extend(ran.unwrap_or_else(|e| panic!("{e}")));
            }
            // One leaves, and the others go on without it.
            seqs.pop().into_iter().for_each(|(_, seq)| self.close(seq));
        }
        all
    }
}
