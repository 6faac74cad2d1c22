//! A small random model, the built plugins, and requests whose answers are known.
#![allow(dead_code, reason = "no test uses all of it")]

use hotseam_checkpoint::random::Preset;
use hotseam_engine::{Engine, EngineConfig, Request};
use hotseam_loader::Loader;
use hotseam_model::Model;
use hotseam_slots::{
    Change, CheckDepth, Geometry, Probation, Registry, Rule, Slots, SwapPolicy, SwapRecord, SwapRequest,
    SwapStage,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Directory of the built plugins: that of the test executable, without `deps`.
pub(crate) fn plugins() -> PathBuf {
    let exe = std::env::current_exe().expect("the path of this executable");
    exe.ancestors().nth(2).expect("target/release/deps/test").to_owned()
}

pub(crate) fn model() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let build = || {
        let (config, weights) = Preset::Tiny.build().expect("a model");
        Arc::new(Model::new(config, weights, 2048))
    };
    Arc::clone(MODEL.get_or_init(build))
}

pub(crate) fn rule(select: &str, variant: &str) -> Rule {
    let variant = (!variant.is_empty()).then(|| variant.parse().expect("a variant"));
    Rule::new(select.parse().expect("a selector"), variant).expect("a rule")
}

pub(crate) fn stock() -> Vec<Rule> {
    let seams = ["attention", "indexer", "moe", "mhc"].map(|s| rule(s, &format!("{s}/cpu-stock")));
    seams.into_iter().chain([rule("kv_transport", "kv_transport/local")]).collect()
}

pub(crate) fn sizes() -> EngineConfig {
    EngineConfig { max_context: 2048, chunk: 64, max_seqs: 4, ..EngineConfig::default() }
}

/// An engine whose `live` is stock.
pub(crate) fn engine(config: EngineConfig) -> Engine {
    let loader = Loader::new(vec![plugins()]).expect("a plugin directory; build the plugins first");
    engine_with(config, loader, stock())
}

pub(crate) fn engine_with(config: EngineConfig, loader: Loader, rules: Vec<Rule>) -> Engine {
    engine_of(model(), config, loader, rules)
}

pub(crate) fn engine_of(model: Arc<Model>, config: EngineConfig, loader: Loader, rules: Vec<Rule>) -> Engine {
    let slots = Slots::new(Registry::new(loader, Geometry::new(&model.config, config.topology)));
    slots.define("live", rules).unwrap_or_else(|e| panic!("{e}"));
    Engine::start(model, Arc::new(slots), config).expect("an engine")
}

/// A prompt that differs from every other one.
pub(crate) fn prompt(number: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| ((i * 7 + i * i * 3 + number * 11) % 61 + 3) as u32).collect()
}

pub(crate) fn ask(number: usize, len: usize, tokens: usize) -> Request {
    Request::greedy(prompt(number, len), tokens)
}

/// No conformance, so that a fault gets as far as the step loop.
pub(crate) fn unchecked() -> SwapPolicy {
    let probation = Probation { steps: 24, ms: 20_000, ..Probation::default() };
    SwapPolicy { conformance: CheckDepth::Off, probation, ..SwapPolicy::default() }
}

pub(crate) fn add(select: &str, variant: &str, policy: SwapPolicy) -> SwapRequest {
    let change = Change::Add(vec![rule(select, variant)]);
    SwapRequest { assignment: "live".into(), change, policy, who: "test".into() }
}

/// Swaps and waits for the end.
pub(crate) fn swap(engine: &Engine, request: SwapRequest) -> SwapRecord {
    let id = engine.swaps().begin(request).expect("no other swap runs");
    engine.swaps().wait(id).expect("a record")
}

pub(crate) fn end(record: &SwapRecord) -> &SwapStage {
    record.end.as_ref().expect("it has ended")
}

/// The text of a refused or rolled-back swap, after checking its code.
pub(crate) fn failed(record: &SwapRecord, code: u16) -> String {
    match end(record) {
        SwapStage::Refused { code: found, message } => {
            assert_eq!(*found, Some(code), "{message}");
            message.clone()
        }
        SwapStage::RolledBack { code: found, message } => {
            assert_eq!(*found, code, "{message}");
            message.clone()
        }
        other => panic!("expected E-PLUG-{code}, found {other:?}"),
    }
}

pub(crate) fn kept(record: &SwapRecord) {
    assert!(matches!(end(record), SwapStage::Kept { .. }), "{:?}", end(record));
}

/// Variant that serves a cell now.
pub(crate) fn serving(engine: &Engine, cell: &str) -> String {
    let snapshot = engine.slots().snapshot("live").expect("there");
    let found = snapshot.cells().find(|c| c.cell.to_string() == cell).expect("a cell");
    found.generation.spec.to_string()
}

/// The answers of an engine that is never swapped.
pub(crate) fn wanted(config: EngineConfig, requests: &[Request]) -> Vec<Vec<u32>> {
    let engine = engine(config);
    let handles: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).expect("taken")).collect();
    handles.into_iter().map(|h| h.tokens().expect("answered")).collect()
}

/// Runs `f` while every request is asked again and again, and at least once after it. None may fail, and the answers are
/// `want`, where it says anything.
pub(crate) fn under_load<R>(
    engine: &Engine,
    requests: &[Request],
    want: &[Vec<u32>],
    f: impl FnOnce() -> R,
) -> R {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (i, request) in requests.iter().enumerate() {
            let done = &done;
            scope.spawn(move || {
                loop {
                    let last = done.load(Ordering::SeqCst);
                    let handle = engine.submit(request.clone()).expect("taken");
                    let tokens = handle.tokens().unwrap_or_else(|(code, text)| panic!("{code}: {text}"));
                    assert!(want.get(i).is_none_or(|want| *want == tokens), "answer {i}");
                    if last {
                        return;
                    }
                }
            });
        }
        // Also when `f` panics, so that its message is seen.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let _done = Done(&done);
        let begun = engine.stats().generated_tokens;
        let start = std::time::Instant::now();
        while engine.stats().generated_tokens < begun + 200 {
            assert!(start.elapsed().as_secs() < 20, "no tokens");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        f()
    })
}
