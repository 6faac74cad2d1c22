//! Evidence on a CUDA device: whoever looks at calls reads and writes the device's memory, and truth gets the inputs on the host.
//!
//! The device is the emulated one, or with `HOTSEAM_CUDA=device` the machine's own. The engine must be built with CUDA and
//! the plugins of `plugins/faulty-cuda` must be there, as `cargo build --release --workspace --features hotseam/cuda` leaves
//! them.

use hotseam_encoding::Tokenizer;
use hotseam_engine::{Engine, EngineConfig, GuardReport, Request, ViolationKind};
use hotseam_evidence::capture::{Capture, capture};
use hotseam_evidence::compare::{self, Comparison, Side, Workload};
use hotseam_evidence::determinism;
use hotseam_evidence::divergence::Passage;
use hotseam_evidence::graft::{self, GraftPlan, Oracle, Word};
use hotseam_evidence::haystack::Haystack;
use hotseam_model::LayerClass;
use hotseam_slots::{
    CellId, Change, CheckDepth, Op, Phase, Probation, Rule, Seam, SwapPolicy, SwapRecord, SwapRequest,
    SwapStage,
};
use hotseam_tests::cuda::{device, directory, is_real};
use hotseam_tests::http::{hotseam, run};
use hotseam_tests::{Checkpoint, Heard, cuda, full, goldens, hear, root, rule, tap, twin, twins};
use serde_json::Value;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Prompt and chunk: two chunks, the second of which reads what the first wrote. The emulated device takes some 40 ms a token.
const TOKENS: usize = 48;
const CHUNK: usize = 32;
const DECODE: usize = 2;
/// Prompt in which the layers of the longest ratio have an entry.
const LONG: usize = 134;
/// Entries that the indexer keeps: fewer than there are.
const TOPK: usize = 4;

const HALF_SCALE: &str = "faulty/cuda-attention{fault: half-scale}";
const DROPPED_TAIL: &str = "faulty/cuda-attention{fault: dropped-tail}";
const RACE: &str = "faulty/cuda-indexer{fault: race}";
const DECODE_ONLY: &str = "faulty/cuda-moe{fault: decode-only}";

fn rules(more: &[(&str, &str)]) -> Vec<Rule> {
    let more = more.iter().map(|(select, variant)| rule(select, variant));
    cuda::stock("bf16", "f32").into_iter().chain(more).collect()
}

fn sizes() -> EngineConfig {
    EngineConfig {
        max_context: 512,
        max_seqs: 2,
        chunk: CHUNK,
        index_topk: Some(TOPK),
        prefix_cache_bytes: 0,
        ..EngineConfig::default()
    }
}

/// An engine on the device; `None`, with a printed reason, without one.
fn engine(more: &[(&str, &str)], sizes: EngineConfig) -> Option<Engine> {
    device().then(|| cuda::engine(&Checkpoint::Nano.model(), rules(more), sizes))
}

struct Bench {
    engine: Engine,
    tokenizer: Tokenizer,
    passage: Passage,
    long: Passage,
    workload: Workload,
}

/// One for all tests; they take turns, since they use the same names.
fn bench() -> Option<MutexGuard<'static, Bench>> {
    static BENCH: OnceLock<Option<Mutex<Bench>>> = OnceLock::new();
    let bench = BENCH.get_or_init(|| Bench::new().map(Mutex::new)).as_ref()?;
    Some(bench.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Bench {
    fn new() -> Option<Self> {
        let engine = engine(&[], sizes())?;
        let tokenizer = Tokenizer::load(&root().join("assets/nano-v4")).unwrap();
        let haystack =
            Haystack::read(&tokenizer, &[root().join("assets/haystack/time-machine.txt")]).unwrap();
        let passage = |tokens| Passage::new(&tokenizer, &haystack, tokens, DECODE).unwrap();
        let (passage, long) = (passage(TOKENS), passage(LONG));
        Some(Self { engine, tokenizer, workload: Workload::passage(&passage), passage, long })
    }

    fn define(&self, name: &str, more: &[(&str, &str)]) {
        self.engine.slots().remove(name);
        self.engine.slots().define(name, rules(more)).unwrap_or_else(|e| panic!("{e}"));
    }

    fn compare(&self, more: &[(&str, &str)], workload: &Workload) -> Comparison {
        self.define("arm", more);
        let start = Instant::now();
        let report = compare::compare(&self.engine, "live", "arm", workload, Box::new(|_| {})).unwrap();
        println!("{more:?}: {:?} in {:.1} s", report.verdict, start.elapsed().as_secs_f64());
        report
    }

    fn layer(&self, class: LayerClass) -> u32 {
        let c = &self.engine.model().config;
        (0..c.num_hidden_layers).find(|layer| c.class(*layer) == class).unwrap() as u32
    }
}

#[test]
fn stock_is_within_the_floor_of_truth_and_each_fault_is_the_first_divergence() {
    let Some(bench) = bench() else { return };
    let dir = twins();
    let files = ["attention", "indexer", "moe", "mhc"]
        .map(|seam| (seam, twin(&dir, seam, "cuda-stock").display().to_string()));
    let sound: Vec<(&str, &str)> = files.iter().map(|(seam, file)| (*seam, file.as_str())).collect();
    let report = bench.compare(&sound, &Workload::passage(&bench.long));
    assert_eq!(report.verdict, Side::Neither, "{report}");
    assert!(report.cells.len() > 60, "{}", report.cells.len());
    assert!(report.cells.iter().all(|c| c.calls > 0 && c.skipped.is_none()), "{report}");
    // Keys of another layout are made by truth, in the memory of the device.
    let keys = if full() { &["fp8", "bf16", "fp4"][..] } else { &["fp8"] };
    for keys in keys {
        let report =
            bench.compare(&[("indexer", &format!("indexer/cuda-stock{{keys: {keys}}}"))], &bench.workload);
        assert_eq!(report.verdict, Side::Neither, "{report}");
        assert!(report.cells.iter().all(|c| c.skipped.is_none()), "{report}");
    }
    let (p, d) = (Phase::Prefill, Phase::Decode);
    let faults = [
        ("attention", DROPPED_TAIL, Op::Core, p),
        ("indexer", RACE, Op::Select, p),
        ("moe", DECODE_ONLY, Op::Experts, d),
        ("attention@decode", HALF_SCALE, Op::Core, d),
        ("attention", "faulty/cuda-attention{fault: nan}", Op::Core, p),
    ];
    for (select, variant, op, phase) in faults.into_iter().take(if full() { faults.len() } else { 3 }) {
        let report = bench.compare(&[(select, variant)], &bench.workload);
        let first = report.first.as_ref().unwrap_or_else(|| panic!("{variant}: nothing found\n{report}"));
        assert_eq!((first.place.cell.op, first.place.cell.phase), (op, Some(phase)), "{variant}\n{report}");
        assert_eq!(report.verdict, Side::Patched, "{variant}\n{report}");
    }
}

#[test]
fn calls_repeat_bit_for_bit_and_replay_from_a_file_on_the_cpu() {
    let Some(bench) = bench() else { return };
    let repeated = determinism::repeat(&bench.engine, "live", "live", &[], &bench.workload, 2).unwrap();
    assert!(repeated.races().count() == 0 && repeated.cells.len() > 60, "{repeated}");
    assert!(repeated.cells.iter().all(|c| c.failure.is_none() && c.runs >= 1), "{repeated}");
    if is_real() {
        // Under the emulator a process has one order of threads.
        bench.define("arm", &[("indexer", RACE)]);
        let racy = determinism::repeat(&bench.engine, "live", "arm", &[], &bench.workload, 20).unwrap();
        assert!(racy.races().any(|race| race.cell.op == Op::Select), "{racy}");
    }

    let (csa, hca) = (bench.layer(LayerClass::Csa), bench.layer(LayerClass::Hca));
    let cell = |seam, op, layer| CellId { seam, op, phase: Some(Phase::Prefill), layer, rank: None };
    let decode = |cell: CellId| CellId { phase: Some(Phase::Decode), ..cell };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("call.safetensors");
    let registry = bench.engine.slots().registry();
    let cells = [
        decode(cell(Seam::Attention, Op::Core, Some(csa))),
        cell(Seam::Attention, Op::Compress, Some(csa)),
        cell(Seam::Indexer, Op::Select, Some(csa)),
        cell(Seam::Moe, Op::Experts, Some(csa)),
        decode(cell(Seam::Mhc, Op::Post, Some(csa))),
        cell(Seam::Attention, Op::Store, Some(csa)),
        cell(Seam::Attention, Op::Compress, Some(hca)),
        cell(Seam::Attention, Op::Core, Some(hca)),
        decode(cell(Seam::Attention, Op::Compress, Some(csa))),
        cell(Seam::Indexer, Op::Compress, Some(csa)),
        decode(cell(Seam::Moe, Op::Route, Some(0))),
        cell(Seam::Mhc, Op::Pre, Some(csa)),
        decode(cell(Seam::Mhc, Op::Head, None)),
    ];
    for cell in cells.into_iter().take(if full() { cells.len() } else { 5 }) {
        let long = cell.layer == Some(hca) && cell.op == Op::Compress;
        let workload = if long { Workload::passage(&bench.long) } else { bench.workload.clone() };
        capture(&bench.engine, "live", cell, 1, &workload).unwrap().save(&path).unwrap();
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
    let Some(bench) = bench() else { return };
    let cases = [
        ("moe", DECODE_ONLY, "moe.experts@decode", "moe.experts@prefill"),
        ("attention@decode", HALF_SCALE, "attention.core@decode", "moe@decode"),
    ];
    for (select, variant, healed, not) in cases.into_iter().take(if full() { 2 } else { 1 }) {
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

fn guarded(more: &[(&str, &str)]) -> Option<(Vec<Heard>, GuardReport)> {
    let engine = engine(more, EngineConfig { guard: true, ..sizes() })?;
    let handles = [tap(&engine, 20, 4), tap(&engine, 50, 4)];
    Some((handles.map(hear).into(), engine.guard()))
}

#[test]
fn the_guard_sees_what_kernels_write() {
    let Some((got, report)) = guarded(&[]) else { return };
    assert!(report.on && report.calls > 300 && report.violations == 0, "{:?}", report.last);
    // Steps under guard run without graphs and without padding, and give the same bits.
    let plain = engine(&[], sizes()).expect("as before");
    let want: Vec<Heard> = [tap(&plain, 20, 4), tap(&plain, 50, 4)].map(hear).into();
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
        shadow_ms: 120_000,
        probation: Probation { steps: 2, latency_factor: None, ..Probation::default() },
        ..SwapPolicy::default()
    };
    let change = Change::Add(vec![rule(select, variant)]);
    let request = SwapRequest { assignment: "live".into(), change, policy, who: "test".into() };
    let tokens = &goldens::ladder(Checkpoint::Nano).tokens;
    let id = engine.swaps().begin(request).unwrap_or_else(|e| panic!("{e}"));
    // Steps for the shadow and the probation, one request after the other.
    std::thread::scope(|scope| {
        let end = scope.spawn(|| engine.swaps().wait(id).expect("known"));
        while !end.is_finished() {
            let answer = engine.submit(Request::greedy(tokens[..16].to_vec(), 6)).unwrap().tokens();
            answer.unwrap_or_else(|(code, message)| panic!("{code}: {message}"));
        }
        end.join().unwrap()
    })
}

#[test]
fn a_swap_is_shadowed_on_the_device() {
    let Some(engine) = engine(&[], sizes()) else { return };
    let record = swap(&engine, "attention@decode", HALF_SCALE);
    let stages = format!("{:?}", record.stage);
    assert!(stages.contains("E-PLUG-304") && stages.contains("`out` differs by"), "{stages}");
    let dir = twins();
    let events = engine.swaps().subscribe();
    let record =
        swap(&engine, "attention@decode", &twin(&dir, "attention", "cuda-stock").display().to_string());
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
    command.args(args).env("XDG_STATE_HOME", state.path());
    for set in
        ["engine.max_context=512", "engine.max_seqs=2", "plugins.probe.enabled=false"].iter().chain(set)
    {
        command.args(["--set", set]);
    }
    if let (false, Some(directory)) = (is_real(), directory()) {
        command.env("LD_LIBRARY_PATH", directory);
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
    let faults = [
        (format!("moe={DECODE_ONLY}"), "moe"),
        (format!("indexer={RACE}"), "indexer"),
        (format!("attention@decode={HALF_SCALE}"), "attention"),
        (format!("attention={DROPPED_TAIL}"), "attention"),
    ];
    // The emulated device takes half a second for a decode step that is looked at, so it gets one fault and few tokens.
    let whole = is_real();
    let graphs = ["engine.graphs=true", "engine.graphs=false"];
    let narrow = [(format!("moe@decode:layers=0-2={DECODE_ONLY}"), "moe")];
    let faults = if whole { &faults[..] } else { &narrow };
    let runs = faults.iter().flat_map(|fault| graphs.map(|graphs| (fault, graphs)));
    for ((plant, seam), graphs) in runs.take(if whole { 8 } else { 1 }) {
        let oracle = match whole {
            true => "bisect.oracle={kind: kl, tokens: 1024, threshold: 1.0e-3}",
            false => {
                "bisect.oracle={kind: exact, max_tokens: 6, prompts: [{prompt: 'The house by the river was old, and'}]}"
            }
        };
        let start = Instant::now();
        let args = ["bisect", "run", config, "--plant", plant, "--format", "json"];
        let set = [
            bad,
            "bisect={good: live, bad: bad, budget_runs: 20}",
            oracle,
            if whole { "engine.max_context=2048" } else { "engine.index_topk=4" },
            if whole { "engine.chunk=128" } else { "engine.chunk=16" },
            graphs,
        ];
        let (code, out, err) = command(&args, &set);
        let report: Value =
            serde_json::from_str(&out).unwrap_or_else(|e| panic!("{plant}: {e}\n{out}\n{err}"));
        println!(
            "{plant}, {graphs}: exit {code}, {} runs, {:.0} s, culprits {}",
            report["runs"],
            start.elapsed().as_secs_f64(),
            report["culprits"]
        );
        assert_eq!(code, 0, "{plant}: {report:#}");
        let culprits = report["culprits"].as_array().unwrap();
        assert!(!culprits.is_empty() && culprits.iter().all(|c| c["seam"] == *seam), "{plant}: {culprits:?}");
    }
}

#[test]
fn captures_and_explanations_come_from_the_command_line() {
    if engine(&[], sizes()).is_none() {
        return;
    }
    let config = root().join("configs/cuda.yaml");
    let config = config.to_str().expect("UTF-8");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("call.safetensors");
    let file = file.to_str().expect("UTF-8");
    let args =
        ["trace", "-c", config, "--capture", "moe.route@prefill:layers=3", "--needle", "96", "-o", file];
    let (code, out, err) = command(&args, &[]);
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = run(hotseam().args(["plugin", "check", "moe/cpu-stock", "--replay", file]));
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("passed") && out.contains("moe/cuda-stock"), "{out}");
    let args = ["needle", "-c", config, "--lengths", "96", "--probes", "1", "--why", "--probe", "0"];
    let (code, out, err) = command(&args, &[]);
    assert!(code <= 1 && out.contains("layer"), "{code} {out}{err}");
}
