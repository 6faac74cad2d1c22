//! Evidence on the embedded checkpoint: the planted fault is the first divergence, sound patches stay below the floor, a
//! call in a file judges variants as the engine's own call does, and a lost needle is explained.

use hotseam_encoding::Tokenizer;
use hotseam_engine::{Engine, EngineConfig, Topology};
use hotseam_evidence::capture::{Capture, capture};
use hotseam_evidence::compare::{self, Comparison, Side, Workload, suspicions};
use hotseam_evidence::determinism;
use hotseam_evidence::divergence::Passage;
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::needle::NeedlePlan;
use hotseam_evidence::why::{self, Cause};
use hotseam_model::LayerClass;
use hotseam_slots::{CellId, Op, Phase, Seam};
use hotseam_tests::{Checkpoint, all, engine, root, rule};
use std::sync::{Mutex, OnceLock};

/// Prompt and chunk of the comparisons: four chunks, so that faults of later chunks act.
const TOKENS: usize = 420;
const CHUNK: usize = 128;
const DECODE: usize = 8;

/// The sound patches.
const PATCHES: &[(&str, &str)] = &[
    ("attention@decode", "attention/cpu-sm120-mma"),
    ("indexer", "indexer/cpu-sm120{keys: bf16}"),
    ("mhc", "mhc/cpu-bf16-gemm"),
    ("moe", "moe/cpu-fused-scale"),
];

struct Bench {
    engine: Engine,
    tokenizer: Tokenizer,
    haystack: Haystack,
    workload: Workload,
}

impl Bench {
    fn new(sizes: EngineConfig) -> Self {
        let engine = engine(Checkpoint::Nano, all("cpu-stock"), sizes);
        let tokenizer = Tokenizer::load(&root().join("assets/nano-v4")).unwrap();
        let haystack =
            Haystack::read(&tokenizer, &[root().join("assets/haystack/time-machine.txt")]).unwrap();
        let passage = Passage::new(&tokenizer, &haystack, TOKENS, DECODE).unwrap();
        Self { engine, workload: Workload::passage(&passage), tokenizer, haystack }
    }

    /// One for all tests; they take turns, since they use the same names.
    fn shared() -> &'static Mutex<Self> {
        static BENCH: OnceLock<Mutex<Bench>> = OnceLock::new();
        BENCH.get_or_init(|| {
            Mutex::new(Self::new(EngineConfig {
                max_context: 1024,
                chunk: CHUNK,
                index_topk: Some(16),
                topology: Topology::Paired,
                ..EngineConfig::default()
            }))
        })
    }

    fn define(&self, name: &str, rules: &[(&str, &str)]) {
        let mut assignment = all("cpu-stock");
        assignment.extend(rules.iter().map(|(select, variant)| rule(select, variant)));
        self.engine.slots().remove(name);
        self.engine.slots().define(name, assignment).unwrap_or_else(|e| panic!("{e}"));
    }

    fn between(&self, good: &str, bad: &str) -> Comparison {
        compare::compare(&self.engine, good, bad, &self.workload, Box::new(|_| {})).unwrap()
    }

    /// Stock against stock with `rules`.
    fn compare(&self, rules: &[(&str, &str)]) -> Comparison {
        self.define("arm", rules);
        self.between("live", "arm")
    }

    fn layer(&self, class: LayerClass) -> u32 {
        let c = &self.engine.model().config;
        (0..c.num_hidden_layers).find(|layer| c.class(*layer) == class).unwrap() as u32
    }
}

fn lock() -> std::sync::MutexGuard<'static, Bench> {
    Bench::shared().lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn sound_patches_stay_below_the_floor() {
    let bench = lock();
    let report = bench.compare(PATCHES);
    assert_eq!(report.verdict, Side::Neither, "{report}");
    assert!(report.cells.iter().all(|c| c.calls > 0 && c.skipped.is_none()), "{report}");
    let cells: Vec<Vec<CellId>> = report.cells.iter().map(|c| vec![c.cell]).collect();
    let weights = suspicions(&report, &cells);
    assert!(weights.iter().flatten().all(|w| w.weight > 0.0 && w.weight < 1.0), "{weights:?}");
    // The same code on both ends leaves nothing to compare.
    assert!(bench.compare(&[]).cells.is_empty());
}

#[test]
fn a_planted_fault_is_the_first_divergence() {
    let bench = lock();
    let (p, d) = (Phase::Prefill, Phase::Decode);
    let faults: &[(&str, &str, Seam, Op, Option<Phase>)] = &[
        ("attention@decode", "faulty/attention{fault: half-scale}", Seam::Attention, Op::Core, Some(d)),
        ("attention", "faulty/attention{fault: sinks-dropped}", Seam::Attention, Op::Core, Some(p)),
        ("attention", "faulty/attention{fault: far-no-rope}", Seam::Attention, Op::Compress, Some(p)),
        ("attention@prefill", "faulty/attention{fault: wrong-slot}", Seam::Attention, Op::Compress, Some(p)),
        ("attention", "faulty/attention{fault: nan}", Seam::Attention, Op::Core, Some(p)),
        ("attention", "faulty/attention{fault: error}", Seam::Attention, Op::Core, Some(p)),
        ("indexer@decode", "faulty/indexer{fault: one-page}", Seam::Indexer, Op::Select, Some(d)),
        ("indexer@prefill", "faulty/indexer{fault: wrong-slot}", Seam::Indexer, Op::Compress, Some(p)),
        ("indexer", "faulty/indexer{fault: out-of-range}", Seam::Indexer, Op::Select, Some(p)),
        ("moe", "faulty/moe{fault: id-off-by-one}", Seam::Moe, Op::Route, Some(p)),
        ("moe", "faulty/moe{fault: scale-twice}", Seam::Moe, Op::Route, Some(p)),
        ("mhc", "faulty/mhc{fault: comb-roll}", Seam::Mhc, Op::Pre, Some(p)),
        ("mhc", "faulty/mhc{fault: comb-transposed}", Seam::Mhc, Op::Pre, Some(p)),
        ("kv_transport", "faulty/kv_transport{fault: next-layer}", Seam::KvTransport, Op::Transport, None),
    ];
    for (select, variant, seam, op, phase) in faults {
        let mut rules = PATCHES.to_vec();
        rules.retain(|(s, _)| !s.starts_with(seam.name()));
        rules.push((select, variant));
        let report = bench.compare(&rules);
        let first = report.first.as_ref().unwrap_or_else(|| panic!("{variant}: nothing found\n{report}"));
        let cell = first.place.cell;
        assert_eq!((cell.seam, cell.op, cell.phase), (*seam, *op, *phase), "{variant}\n{report}");
        let guilty = |c: &compare::CellTally| c.cell.seam == *seam;
        assert!(report.cells.iter().all(|c| guilty(c) || c.side() == Side::Neither), "{variant}\n{report}");
        // Suspicion puts the guilty cells first.
        let groups: Vec<Vec<CellId>> = Seam::ALL
            .iter()
            .map(|s| report.cells.iter().map(|c| c.cell).filter(|c| c.seam == *s).collect())
            .collect();
        let weights: Vec<f64> =
            suspicions(&report, &groups).into_iter().map(|w| w.map_or(1.0, |w| w.weight)).collect();
        let top = (0..weights.len()).max_by(|a, b| weights[*a].total_cmp(&weights[*b])).unwrap();
        assert_eq!(Seam::ALL[top], *seam, "{variant}: {weights:?}");
    }
}

#[test]
fn stock_can_be_the_wrong_one() {
    let bench = lock();
    bench.define("arm", &[("mhc", "faulty/mhc{fault: comb-transposed}")]);
    let report = bench.between("arm", "live");
    assert_eq!(report.verdict, Side::Stock, "{report}");
    assert!(report.first.is_none() && report.first_stock.is_some(), "{report}");
    let cells: Vec<CellId> = report.cells.iter().map(|c| c.cell).collect();
    let weighed = suspicions(&report, &[cells]).remove(0).unwrap();
    assert!(weighed.weight < 1.0 && weighed.evidence.contains("stock is the wrong one"), "{weighed:?}");
    // A fault on both ends, in different cells of one seam, is told apart too.
    bench.define("both", &[("mhc@decode", "faulty/mhc{fault: comb-roll}")]);
    assert_eq!(bench.between("arm", "both").verdict, Side::Both);
}

#[test]
fn equal_calls_give_equal_bits_and_races_do_not() {
    let bench = lock();
    bench.define("arm", &[("attention", "faulty/attention{fault: race}")]);
    let cells: Vec<CellId> =
        bench.between("live", "arm").cells.iter().map(|c| c.cell).filter(|c| c.op == Op::Core).collect();
    let repeat = |bad: &str| {
        determinism::repeat(&bench.engine, "live", bad, &cells, &bench.workload, determinism::REPEATS)
            .unwrap()
    };
    let sound = repeat("live");
    assert_eq!(sound.races().count(), 0, "{sound}");
    assert!(sound.cells.len() == cells.len() && sound.cells.iter().all(|c| c.runs >= 19), "{sound}");
    let racy = repeat("arm");
    assert!(racy.races().count() > 0, "{racy}");
    let weighed = racy.suspicions(&[cells.clone(), Vec::new()]);
    assert!(weighed[0].as_ref().is_some_and(|w| w.weight > 1.0) && weighed[1].is_none());
}

#[test]
fn every_op_replays_from_a_file() {
    let bench = lock();
    let (csa, hca) = (bench.layer(LayerClass::Csa), bench.layer(LayerClass::Hca));
    let cell = |seam, op, layer| CellId { seam, op, phase: Some(Phase::Prefill), layer, rank: None };
    let last = (TOKENS / CHUNK - 1) as u64;
    let ops = [
        (cell(Seam::Attention, Op::Store, Some(csa)), "attention"),
        (cell(Seam::Attention, Op::Compress, Some(csa)), "attention"),
        (cell(Seam::Attention, Op::Compress, Some(hca)), "attention"),
        (cell(Seam::Attention, Op::Core, Some(csa)), "attention"),
        (cell(Seam::Attention, Op::Core, Some(hca)), "attention"),
        (cell(Seam::Indexer, Op::Compress, Some(csa)), "indexer"),
        (cell(Seam::Indexer, Op::Select, Some(csa)), "indexer"),
        (cell(Seam::Moe, Op::Route, Some(0)), "moe"),
        (cell(Seam::Moe, Op::Experts, Some(csa)), "moe"),
        (cell(Seam::Mhc, Op::Pre, Some(csa)), "mhc"),
        (cell(Seam::Mhc, Op::Post, Some(csa)), "mhc"),
        (CellId { phase: Some(Phase::Decode), ..cell(Seam::Mhc, Op::Head, None) }, "mhc"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("call.safetensors");
    for (cell, seam) in ops {
        let taken = capture(&bench.engine, "live", cell, last, &bench.workload).unwrap();
        taken.save(&path).unwrap();
        let file = Capture::load(&path).unwrap();
        let registry = bench.engine.slots().registry();
        for (variant, same) in [("cpu-stock", true), ("truth", false)] {
            let generation = registry.generation(&format!("{seam}/{variant}").parse().unwrap()).unwrap();
            let report = file.replay(&generation).unwrap();
            assert!(report.passed, "{report}");
            assert!(!same || report.reproduces == Some(true), "{report}");
        }
        let other = if seam == "moe" { "mhc/cpu-stock" } else { "moe/cpu-stock" };
        let error = file.replay(&registry.generation(&other.parse().unwrap()).unwrap()).unwrap_err();
        assert!(error.to_string().contains("does not serve"), "{error}");
    }
    let error = capture(&bench.engine, "live", cell(Seam::Moe, Op::Route, Some(0)), 999, &bench.workload);
    assert!(error.unwrap_err().to_string().contains("has no call number 999"));
}

#[test]
fn a_faulty_indexer_fails_on_replay_in_any_layout() {
    let bench = lock();
    let layer = Some(bench.layer(LayerClass::Csa));
    let cell = CellId { seam: Seam::Indexer, op: Op::Select, phase: Some(Phase::Decode), layer, rank: None };
    let file = capture(&bench.engine, "live", cell, 2, &bench.workload).unwrap();
    let judge = |variant: &str| {
        let registry = bench.engine.slots().registry();
        file.replay(&registry.generation(&variant.parse().unwrap()).unwrap()).unwrap()
    };
    for keys in ["f32", "bf16", "fp8"] {
        for variant in ["indexer/cpu-stock", "indexer/truth"] {
            let report = judge(&format!("{variant}{{keys: {keys}}}"));
            assert!(report.passed, "{report}");
            assert_eq!(report.converted.is_some(), keys != "f32");
            assert_eq!(report.exact_choice.is_some(), keys != "f32");
        }
        let report = judge(&format!("faulty/indexer{{fault: one-page, keys: {keys}}}"));
        assert!(!report.passed && report.message.contains("below the best"), "{report}");
    }
    assert!(judge("indexer/cpu-sm120{keys: bf16}").passed);
    assert!(!judge("faulty/indexer{fault: out-of-range}").passed);
}

#[test]
fn a_lost_needle_is_explained_by_the_cut() {
    let explain = |topk: Option<usize>, depth: usize| {
        let bench =
            Bench::new(EngineConfig { max_context: 2048, index_topk: topk, ..EngineConfig::default() });
        let plan = NeedlePlan { lengths: vec![1536], probes: 4, seed: 1 };
        let probes = plan.probes(&bench.tokenizer, &bench.haystack).unwrap();
        why::explain(&bench.engine, &bench.tokenizer, "live", &probes[depth]).unwrap()
    };
    let lost =
        (0..2).map(|depth| explain(Some(1), depth)).find(|why| !why.recalled).expect("top-1 loses a needle");

    assert_eq!(lost.cause, Cause::Cut, "{lost}");
    let past =
        |c: &why::Carrier| c.topk == Some(1) && c.best_rank().is_some_and(|rank| rank > 1) && c.lost() > 0.0;
    assert!(lost.layers.iter().any(past), "{lost}");
    assert!(
        lost.layers.iter().filter(|c| c.class == "csa").all(|c| !c.entries.is_empty() && !c.in_window),
        "{lost}"
    );
    assert!(lost.to_string().contains("cut at 1") && lost.advice.contains("index_topk"), "{lost}");
    let kept = explain(None, 0);
    assert_eq!(kept.cause, Cause::Recalled, "{kept}");
}
