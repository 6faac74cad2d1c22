//! What the tests of several crates share: models, engines, goldens.
//!
//! The plugins under test are the built `.so` files beside the test executable, so `cargo build --release --workspace`
//! comes first (`scripts/test` does it).

pub mod answers;
pub mod cuda;
pub mod goldens;
pub mod http;
pub mod pairs;
pub mod ranks;
pub mod routers;

use hotseam_checkpoint::random::Preset;
use hotseam_engine::{Engine, EngineConfig, Event, Handle, Request};
use hotseam_loader::Loader;
use hotseam_model::Model;
use hotseam_slots::{Geometry, Registry, Rule, Slots};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ has a parent").to_owned()
}

/// Directory of the built plugins: that of the test executable, without `deps`.
pub fn plugins() -> PathBuf {
    let exe = std::env::current_exe().expect("the path of this executable");
    exe.ancestors().nth(2).expect("target/release/deps/test").to_owned()
}

/// sha256 of a file, hexadecimal.
pub fn sha256(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A directory inside that of the plugins, for twins: the loader takes files from nowhere else.
pub fn twins() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("twins-").tempdir_in(plugins()).expect("a directory")
}

/// A copy in `dir` of the plugin `seam/variant` with another hash.
pub fn twin(dir: &tempfile::TempDir, seam: &str, variant: &str) -> PathBuf {
    let name = format!("libhotseam_{seam}_{}.so", variant.replace('-', "_"));
    let mut bytes = std::fs::read(plugins().join(&name)).expect("a built plugin");
    bytes.extend_from_slice(b"another hash");
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).expect("writable");
    path
}

/// Whether the long tests were asked for (`scripts/test --full`).
pub fn full() -> bool {
    std::env::var("HOTSEAM_TEST_FULL").is_ok_and(|v| v == "1")
}

/// A checkpoint that the tests know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Checkpoint {
    /// The embedded one.
    Nano,
    /// A seeded random one.
    Random(Preset),
}

impl Checkpoint {
    /// Name of its goldens.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nano => "nano-v4",
            Self::Random(preset) => preset.name(),
        }
    }

    /// Its model, loaded once a process.
    pub fn model(self) -> Arc<Model> {
        static MODELS: OnceLock<Mutex<HashMap<Checkpoint, Arc<Model>>>> = OnceLock::new();
        let mut models = MODELS.get_or_init(Mutex::default).lock().expect("no test panics while loading");
        let load = || {
            let (config, weights) = match self {
                Self::Nano => hotseam_checkpoint::load(&root().join("assets/nano-v4"), |_, _| {}),
                Self::Random(preset) => preset.build(),
            }
            .expect("a readable checkpoint");
            Arc::new(Model::new(config, weights, 4096))
        };
        Arc::clone(models.entry(self).or_insert_with(load))
    }
}

/// Rules that give every seam to `variant`'s name, e.g. `truth` or `cpu-stock`.
pub fn all(name: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = ["attention", "indexer", "moe", "mhc"]
        .iter()
        .map(|seam| rule(seam, &format!("{seam}/{name}")))
        .collect();
    rules.push(rule("kv_transport", "kv_transport/local"));
    rules
}

/// Rules as [`all`] has them for the stock variants, which use the processor's matrix tiles in prefill if `amx`.
pub fn stock(amx: bool) -> Vec<Rule> {
    let mut rules = all("cpu-stock");
    if amx {
        let tiles = |seam| rule(&format!("{seam}@prefill"), &format!("{seam}/cpu-stock{{amx: true}}"));
        rules.extend(["indexer", "moe"].map(tiles));
    }
    rules
}

/// One rule.
pub fn rule(select: &str, variant: &str) -> Rule {
    let select = select.parse().expect("a selector");
    Rule::new(select, Some(variant.parse().expect("a variant"))).expect("a rule")
}

/// Assignments over the built plugins for an engine of this configuration; `live` is `rules`.
pub fn slots(model: &Model, config: &EngineConfig, rules: Vec<Rule>) -> Arc<Slots> {
    let loader = Loader::new(vec![plugins()]).expect("a plugin directory");
    let registry = Registry::new(loader, Geometry::new(&model.config, config.topology));
    let slots = Slots::new(registry.on(config.device.of_variants()));
    slots.define("live", rules).unwrap_or_else(|e| panic!("{e}"));
    Arc::new(slots)
}

/// An engine over a checkpoint.
pub fn engine(checkpoint: Checkpoint, rules: Vec<Rule>, config: EngineConfig) -> Engine {
    let model = checkpoint.model();
    let slots = slots(&model, &config, rules);
    Engine::start(model, slots, config).unwrap_or_else(|e| panic!("{e}"))
}

/// Sizes that the parity tests use.
pub fn config() -> EngineConfig {
    EngineConfig { max_context: 4096, ..EngineConfig::default() }
}

/// A request whose last prompt row's logits are tapped.
pub fn tapped(prompt: &[u32]) -> Request {
    Request { tap_logits: true, ..Request::greedy(prompt.to_vec(), 1) }
}

/// All logits of a request, by position.
pub fn logits(handle: Handle) -> Vec<(u32, Vec<f32>)> {
    let mut rows = Vec::new();
    loop {
        match handle.recv() {
            Some(Event::Logits { position, logits }) => rows.push((position, logits)),
            Some(Event::Token { .. } | Event::Prompt { .. }) => {}
            Some(Event::Done { .. }) => return rows,
            Some(Event::Failed { code, message }) => panic!("{code}: {message}"),
            None => panic!("the engine stopped"),
        }
    }
}

/// Logits by position, and how a request ended: nothing, or (code, message).
pub type Heard = (Vec<(u32, Vec<f32>)>, Option<(String, String)>);

/// A request for `forced` tokens behind the first `length` of the embedded checkpoint's text, with its logits tapped.
pub fn tap(engine: &Engine, length: usize, forced: usize) -> Handle {
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let request = Request {
        tap_logits: true,
        forced: tokens[length..length + forced].to_vec(),
        ..Request::greedy(tokens[..length].to_vec(), forced)
    };
    engine.submit(request).unwrap_or_else(|e| panic!("{e}"))
}

/// What comes of it.
pub fn hear(handle: Handle) -> Heard {
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

/// Largest absolute difference over the range of `want`.
pub fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let (low, high) = want.iter().fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
    let worst = got
        .iter()
        .zip(want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m: f32, d| if d.is_nan() { d } else { m.max(d) });
    worst / (high - low)
}

/// Index of the largest value.
pub fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("not empty")
}
