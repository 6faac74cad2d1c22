//! Evidence on a CUDA device: whoever looks at calls reads and writes the device's memory, and truth gets the inputs on the host.
//!
//! The device is the emulated one, or with `HOTSEAM_CUDA=device` the machine's own. The engine must be built with CUDA and
//! the plugins of `plugins/faulty-cuda` must be there, as `cargo build --release --workspace --features hotseam/cuda` leaves
//! them.

use hotseam_encoding::Tokenizer;
use hotseam_engine::{
    Device, Engine, EngineConfig, EngineError, Event, GuardReport, Handle, Request, Topology, ViolationKind,
};
use hotseam_evidence::capture::{Capture, capture};
use hotseam_evidence::compare::{self, Comparison, Side, Workload};
use hotseam_evidence::determinism;
use hotseam_evidence::divergence::Passage;
use hotseam_evidence::graft::{self, GraftPlan, Oracle, Word};
use hotseam_evidence::haystack::Haystack;
use hotseam_loader::Loader;
use hotseam_model::LayerClass;
use hotseam_slots::{
    CellId, Change, CheckDepth, Geometry, Op, Phase, Probation, Registry, Rule, Seam, Slots, SwapPolicy,
    SwapRecord, SwapRequest, SwapStage,
};
use hotseam_tests::cuda::{device, emulator, own_device};
use hotseam_tests::http::{hotseam, run};
use hotseam_tests::{Checkpoint, full, goldens, plugins, root, rule};
use serde_json::Value;
use std::sync::Arc;
use std::time::Instant;

/// Prompt and chunk of the comparisons: two chunks, the second of which reads what the first wrote.
const TOKENS: usize = 150;
const CHUNK: usize = 96;
const DECODE: usize = 4;

const HALF_SCALE: &str = "faulty/cuda-attention{fault: half-scale}";
const DROPPED_TAIL: &str = "faulty/cuda-attention{fault: dropped-tail}";
const RACE: &str = "faulty/cuda-indexer{fault: race}";
const DECODE_ONLY: &str = "faulty/cuda-moe{fault: decode-only}";

fn rules(more: &[(&str, &str)]) -> Vec<Rule> {
    let stock = [
        ("attention", "attention/cuda-stock{kv: bf16}"),
        ("indexer", "indexer/cuda-stock{keys: f32}"),
        ("moe", "moe/cuda-stock"),
        ("mhc", "mhc/cuda-stock"),
    ];
    stock.iter().chain(more).map(|(select, variant)| rule(select, variant)).collect()
}

fn sizes() -> EngineConfig {
    EngineConfig {
        device: Device::Cuda(0),
        max_context: 512,
        max_seqs: 2,
        chunk: CHUNK,
        index_topk: Some(16),
        prefix_cache_bytes: 0,
        ..EngineConfig::default()
    }
}

/// An engine on the device; `None`, with a printed reason, where there cannot be one.
fn engine(more: &[(&str, &str)], sizes: EngineConfig) -> Option<Engine> {
    if !device() {
        return None;
    }
    let file = plugins().join("libhotseam_faulty_cuda_attention.so");
    if !file.is_file() {
        println!("skipped: {} is not built", file.display());
        return None;
    }
    let model = Checkpoint::Nano.model();
    let loader = Loader::new(vec![plugins()]).expect("a plugin directory");
    let registry = Registry::new(loader, Geometry::new(&model.config, Topology::Single));
    let slots = Slots::new(registry.on(hotseam_loader::Device::Cuda));
    slots.define("live", rules(more)).unwrap_or_else(|e| panic!("{e}"));
    match Engine::start(model, Arc::new(slots), sizes) {
        Ok(engine) => Some(engine),
        Err(EngineError::NoCuda) => {
            println!("skipped: this build has no engine for CUDA (--features hotseam/cuda)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

struct Bench {
    engine: Engine,
    tokenizer: Tokenizer,
    passage: Passage,
    workload: Workload,
}

impl Bench {
    fn new() -> Option<Self> {
        let engine = engine(&[], sizes())?;
        let tokenizer = Tokenizer::load(&root().join("assets/nano-v4")).unwrap();
        let haystack =
            Haystack::read(&tokenizer, &[root().join("assets/haystack/time-machine.txt")]).unwrap();
        let passage = Passage::new(&tokenizer, &haystack, TOKENS, DECODE).unwrap();
        Some(Self { engine, tokenizer, workload: Workload::passage(&passage), passage })
    }

    fn define(&self, name: &str, more: &[(&str, &str)]) {
        self.engine.slots().remove(name);
        self.engine.slots().define(name, rules(more)).unwrap_or_else(|e| panic!("{e}"));
    }

    fn compare(&self, more: &[(&str, &str)]) -> Comparison {
        self.define("arm", more);
        let start = Instant::now();
        let report =
            compare::compare(&self.engine, "live", "arm", &self.workload, Box::new(|_| {})).unwrap();
        println!("{more:?}: {:?} in {:.1} s", report.verdict, start.elapsed().as_secs_f64());
        report
    }

    fn layer(&self, class: LayerClass) -> u32 {
        let c = &self.engine.model().config;
        (0..c.num_hidden_layers).find(|layer| c.class(*layer) == class).unwrap() as u32
    }
}

/// A copy of a stock plugin with another hash, inside the plugin directory: the loader takes files from nowhere else.
fn twin(dir: &tempfile::TempDir, seam: &str) -> String {
    let name = format!("libhotseam_{seam}_cuda_stock.so");
    let mut bytes = std::fs::read(plugins().join(&name)).unwrap();
    bytes.extend_from_slice(b"another hash");
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

fn twins() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("twins-").tempdir_in(plugins()).unwrap()
}

#[test]
fn stock_is_within_the_floor_of_truth_and_each_fault_is_the_first_divergence() {
    let Some(bench) = Bench::new() else { return };
    let dir = twins();
    let files = ["attention", "indexer", "moe", "mhc"].map(|seam| (seam, twin(&dir, seam)));
    let sound: Vec<(&str, &str)> = files.iter().map(|(seam, file)| (*seam, file.as_str())).collect();
    let report = bench.compare(&sound);
    assert_eq!(report.verdict, Side::Neither, "{report}");
    assert!(report.cells.len() > 60, "{}", report.cells.len());
    assert!(report.cells.iter().all(|c| c.calls > 0 && c.skipped.is_none()), "{report}");
    // Keys of another layout are made by truth, in the memory of the device.
    for keys in ["bf16", "fp8"] {
        let report = bench.compare(&[("indexer", &format!("indexer/cuda-stock{{keys: {keys}}}"))]);
        assert_eq!(report.verdict, Side::Neither, "{report}");
        assert!(report.cells.iter().all(|c| c.skipped.is_none()), "{report}");
    }
    let (p, d) = (Phase::Prefill, Phase::Decode);
    for (select, variant, op, phase) in [
        ("attention@decode", HALF_SCALE, Op::Core, d),
        ("attention", DROPPED_TAIL, Op::Core, p),
        ("indexer", RACE, Op::Select, p),
        ("moe", DECODE_ONLY, Op::Experts, d),
        ("attention", "faulty/cuda-attention{fault: nan}", Op::Core, p),
    ] {
        let report = bench.compare(&[(select, variant)]);
        let first = report.first.as_ref().unwrap_or_else(|| panic!("{variant}: nothing found\n{report}"));
        assert_eq!((first.place.cell.op, first.place.cell.phase), (op, Some(phase)), "{variant}\n{report}");
        assert_eq!(report.verdict, Side::Patched, "{variant}\n{report}");
    }
}

#[test]
fn calls_repeat_bit_for_bit_and_replay_from_a_file_on_the_cpu() {
    let Some(bench) = Bench::new() else { return };
    let repeated =
        determinism::repeat(&bench.engine, "live", "live", &[], &bench.workload, 3).unwrap();
    assert!(repeated.races().count() == 0 && repeated.cells.len() > 60, "{repeated}");
    assert!(repeated.cells.iter().all(|c| c.failure.is_none() && c.runs >= 2), "{repeated}");
    if own_device() {
        // Under the emulator a process has one order of threads.
        bench.define("arm", &[("indexer", RACE)]);
        let racy = determinism::repeat(&bench.engine, "live", "arm", &[], &bench.workload, 20).unwrap();
        assert!(racy.races().any(|race| race.cell.op == Op::Select), "{racy}");
    }

    let (csa, hca) = (bench.layer(LayerClass::Csa), bench.layer(LayerClass::Hca));
    let cell = |seam, op, layer| CellId { seam, op, phase: Some(Phase::Prefill), layer };
    let decode = |cell: CellId| CellId { phase: Some(Phase::Decode), ..cell };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("call.safetensors");
    let registry = bench.engine.slots().registry();
    for cell in [
        cell(Seam::Attention, Op::Store, Some(csa)),
        cell(Seam::Attention, Op::Compress, Some(csa)),
        cell(Seam::Attention, Op::Compress, Some(hca)),
        cell(Seam::Attention, Op::Core, Some(hca)),
        decode(cell(Seam::Attention, Op::Core, Some(csa))),
        decode(cell(Seam::Attention, Op::Compress, Some(csa))),
        cell(Seam::Indexer, Op::Compress, Some(csa)),
        cell(Seam::Indexer, Op::Select, Some(csa)),
        decode(cell(Seam::Moe, Op::Route, Some(0))),
        cell(Seam::Moe, Op::Experts, Some(csa)),
        cell(Seam::Mhc, Op::Pre, Some(csa)),
        decode(cell(Seam::Mhc, Op::Post, Some(csa))),
        decode(cell(Seam::Mhc, Op::Head, None)),
    ] {
        capture(&bench.engine, "live", cell, 1, &bench.workload).unwrap().save(&path).unwrap();
        let file = Capture::load(&path).unwrap();
        let seam = cell.seam;
        let options = if seam == Seam::Attention { "{kv: bf16}" } else { "" };
        for variant in [format!("{seam}/truth{options}"), format!("{seam}/cpu-stock{options}")] {
            let report = file.replay(&registry.generation(&variant.parse().unwrap()).unwrap()).unwrap();
            assert!(report.passed, "{report}");
        }
        let own = registry.generation(&format!("{seam}/cuda-stock").parse().unwrap()).unwrap();
        let error = file.replay(&own).unwrap_err().to_string();
        assert!(error.contains("runs on cuda") && error.contains("hotseam compare"), "{error}");
    }
}

#[test]
fn grafted_outputs_heal_and_break() {
    let Some(bench) = Bench::new() else { return };
    for (select, variant, healed, not) in [
        ("attention@decode", HALF_SCALE, "attention.core@decode", "moe@decode"),
        ("moe", DECODE_ONLY, "moe.experts@decode", "moe.experts@prefill"),
    ] {
        bench.define("bad", &[(select, variant)]);
        let plan = GraftPlan {
            good: "live".into(),
            bad: "bad".into(),
            grafts: [healed, not].iter().map(|text| text.parse().unwrap()).collect(),
            kv: false,
            cases: 1,
            reverse: true,
            layers: false,
        };
        let oracle = Oracle::Kl(&bench.passage, 1e-4);
        let report = graft::run(&bench.engine, &bench.tokenizer, oracle, &plan, |_| {}).unwrap();
        let row = |name: &str| report.rows.iter().find(|row| row.graft.to_string() == name).expect("a row");
        assert_eq!(report.verdict, Word::Healed, "{report}");
        assert!(row(healed).healed && row(healed).broke && row(healed).replaced > 0, "{report}");
        assert!(!row(not).healed, "{report}");
    }
}

/// Logits by position, and how the request ended: nothing, or (code, message).
type Heard = (Vec<(u32, Vec<f32>)>, Option<(String, String)>);

fn tap(engine: &Engine, length: usize) -> Handle {
    let tokens = &goldens::ladder(Checkpoint::Nano).tokens;
    let forced = tokens[length..length + 8].to_vec();
    let request = Request { tap_logits: true, forced, ..Request::greedy(tokens[..length].to_vec(), 8) };
    engine.submit(request).unwrap()
}

fn hear(handle: Handle) -> Heard {
    let mut rows = Vec::new();
    loop {
        match handle.recv() {
            Some(Event::Logits { position, logits }) => rows.push((position, logits)),
            Some(Event::Failed { code, message }) => return (rows, Some((code, message))),
            Some(Event::Done { .. }) | None => return (rows, None),
            Some(Event::Token { .. } | Event::Prompt { .. }) => {}
        }
    }
}

fn guarded(more: &[(&str, &str)]) -> Option<(Vec<Heard>, GuardReport)> {
    let engine = engine(more, EngineConfig { guard: true, ..sizes() })?;
    let handles = [tap(&engine, 100), tap(&engine, 140)];
    Some((handles.map(hear).into(), engine.guard()))
}

#[test]
fn the_guard_sees_what_kernels_write() {
    let Some((got, report)) = guarded(&[]) else { return };
    assert!(report.on && report.calls > 500 && report.violations == 0, "{:?}", report.last);
    // Steps under guard run without graphs and without padding, and give the same bits.
    let plain = engine(&[], sizes()).expect("as before");
    let want: Vec<Heard> = [tap(&plain, 100), tap(&plain, 140)].map(hear).into();
    assert_eq!(got, want);
    for (variant, kinds, op, phase, argument) in [
        (
            "faulty/cuda-attention{fault: past-end}",
            &[ViolationKind::OutOfBounds][..],
            Op::Core,
            Phase::Decode,
            "out",
        ),
        ("faulty/cuda-attention{fault: nan}", &[ViolationKind::NotFinite], Op::Core, Phase::Prefill, "out"),
        (RACE, &[ViolationKind::Duplicate, ViolationKind::Missing], Op::Select, Phase::Prefill, "ids"),
    ] {
        let seam = if op == Op::Select { "indexer" } else { "attention" };
        let (heard, report) = guarded(&[(seam, variant)]).expect("as before");
        let found = report.last.first().unwrap_or_else(|| panic!("{variant}: {heard:?}"));
        println!("{found}");
        assert!(kinds.contains(&found.kind), "{variant}: {found}");
        assert_eq!((found.cell.op, found.cell.phase), (op, Some(phase)), "{found}");
        assert!(found.argument == argument && found.variant.starts_with("faulty/cuda-"), "{found}");
        let failed = heard.iter().filter_map(|(_, failure)| failure.as_ref());
        assert!(failed.into_iter().any(|(code, _)| *code == found.code()), "{variant}: {heard:?}");
    }
}

fn swap(engine: &Engine, select: &str, variant: &str) -> SwapRecord {
    let policy = SwapPolicy {
        conformance: CheckDepth::Off,
        shadow_steps: 2,
        probation: Probation { steps: 2, latency_factor: None, ..Probation::default() },
        ..SwapPolicy::default()
    };
    let change = Change::Add(rule(select, variant));
    let request = SwapRequest { assignment: "live".into(), change, policy, who: "test".into() };
    let tokens = &goldens::ladder(Checkpoint::Nano).tokens;
    let id = engine.swaps().begin(request).unwrap_or_else(|e| panic!("{e}"));
    // Steps for the shadow and the probation, one request after the other.
    while engine.swaps().running().is_some_and(|running| running.id == id) {
        let answer = engine.submit(Request::greedy(tokens[..40].to_vec(), 6)).unwrap().tokens();
        answer.unwrap_or_else(|(code, message)| panic!("{code}: {message}"));
    }
    engine.swaps().wait(id).expect("known")
}

#[test]
fn a_swap_is_shadowed_on_the_device() {
    let Some(engine) = engine(&[], sizes()) else { return };
    let record = swap(&engine, "attention@decode", HALF_SCALE);
    let stages = format!("{:?}", record.stages);
    assert!(stages.contains("E-PLUG-304") && stages.contains("`out` differs by"), "{stages}");
    let dir = twins();
    let events = engine.swaps().subscribe();
    let record = swap(&engine, "attention@decode", &twin(&dir, "attention"));
    let shadowed = events.try_iter().find_map(|e| match e.stage {
        SwapStage::Shadowed { steps, calls, worst, .. } => Some((steps, calls, worst)),
        _ => None,
    });
    let (steps, calls, worst) = shadowed.unwrap_or_else(|| panic!("{record:?}"));
    assert!(steps >= 2 && calls > 0 && worst == 0.0, "{steps} {calls} {worst}");
}

/// A command on `configs/cuda.yaml`, made small.
fn command(args: &[&str], set: &[&str]) -> (i32, String, String) {
    let state = tempfile::tempdir().expect("a directory");
    let mut command = hotseam();
    command.args(args).env("XDG_STATE_HOME", state.path()).env("HOTSEAM_EMULATOR_STRICT", "1");
    for set in ["engine.max_context=1024", "engine.max_seqs=2"].iter().chain(set) {
        command.args(["--set", set]);
    }
    if let (false, Some(emulator)) = (own_device(), emulator()) {
        command.env("LD_LIBRARY_PATH", emulator);
    }
    run(&mut command)
}

#[test]
fn a_bisection_finds_each_fault() {
    if engine(&[], sizes()).is_none() {
        return;
    }
    let config = root().join("configs/cuda.yaml");
    let config = config.to_str().expect("UTF-8");
    let bad = "assignments.bad={extends: live, rules: [\
        {select: attention@prefill, use: 'attention/cuda-stock{kv: bf16}'}, \
        {select: indexer, use: 'indexer/cuda-stock{keys: bf16}'}]}";
    for (i, (plant, seam)) in [
        (format!("moe={DECODE_ONLY}"), "moe"),
        (format!("attention@decode={HALF_SCALE}"), "attention"),
        (format!("attention={DROPPED_TAIL}"), "attention"),
        (format!("indexer={RACE}"), "indexer"),
    ]
    .iter()
    .enumerate()
    {
        let tokens = if full() { 512 } else { 160 };
        let oracle = format!("bisect.oracle={{kind: kl, tokens: {tokens}, threshold: 1.0e-3}}");
        let start = Instant::now();
        let args = ["bisect", "run", config, "--plant", plant, "--format", "json"];
        let set = [bad, "bisect={good: live, bad: bad, budget_runs: 20}", &oracle, "engine.index_topk=16"];
        let (code, out, err) = command(&args, &set);
        let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{plant}: {e}\n{out}\n{err}"));
        println!(
            "{plant}: exit {code}, {} runs, {:.0} s, culprits {}",
            report["runs"],
            start.elapsed().as_secs_f64(),
            report["culprits"]
        );
        assert_eq!(code, 0, "{i} {plant}: {report:#}");
        let culprits = report["culprits"].as_array().unwrap();
        assert!(!culprits.is_empty() && culprits.iter().all(|c| c["seam"] == *seam), "{plant}: {culprits:?}");
    }
}

#[test]
fn traces_and_explanations_come_from_the_command_line() {
    if engine(&[], sizes()).is_none() {
        return;
    }
    let config = root().join("configs/cuda.yaml");
    let config = config.to_str().expect("UTF-8");
    let (code, out, err) = command(&["trace", "-c", config], &[]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("attention/cuda-stock"), "{out}");
    let args = ["needle", "-c", config, "--lengths", "256", "--probes", "1", "--why"];
    let (code, out, err) = command(&args, &[]);
    assert!(code <= 1 && out.contains("layer"), "{code} {out}{err}");
}
