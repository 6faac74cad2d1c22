//! The CUDA device of tests that run in this process.

use crate::{Checkpoint, goldens, rule, slots};
use hotseam_engine::{Device, Engine, EngineConfig, Event, Handle, Request, Topology};
use hotseam_model::Model;
use hotseam_slots::{LayoutPolicy, Rule};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use hotseam_cuda_emulator::{device, directory, is_real};

/// Rules that give every seam to its stock variant for a device.
pub fn stock(kv: &str, keys: &str) -> Vec<Rule> {
    vec![
        rule("attention", &format!("attention/cuda-stock{{kv: {kv}}}")),
        rule("indexer", &format!("indexer/cuda-stock{{keys: {keys}}}")),
        rule("moe", "moe/cuda-stock"),
        rule("mhc", "mhc/cuda-stock"),
    ]
}

/// An engine on device 0.
pub fn engine(model: &Arc<Model>, rules: Vec<Rule>, config: EngineConfig) -> Engine {
    let config = EngineConfig { device: Device::Cuda(0), topology: Topology::Single, ..config };
    let slots = slots(model, &config, rules);
    Engine::start(Arc::clone(model), slots, config).unwrap_or_else(|e| panic!("{e}"))
}

/// What runs while something is swapped.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Streams at once.
    pub streams: usize,
    /// Tokens of an answer.
    pub answer: usize,
    /// Swaps.
    pub swaps: usize,
}

impl Load {
    /// What the machine's device or the emulated one does in a short time.
    pub fn of_this_device(swaps: usize) -> Self {
        let (streams, answer) = if is_real() { (8, 160) } else { (2, 10) };
        Self { streams, answer, swaps }
    }
}

/// Answers of the embedded checkpoint stream while swap number `n` puts `next(n)`, a selector and a variant, into `live`, for each of
/// the load's swaps. Every swap is made, no request fails, and tokens are those of before; how long tokens took is printed.
///
/// # Panics
/// If not.
pub fn swapped_under_load(engine: &Engine, load: Load, next: impl Fn(usize) -> (String, String) + Sync) {
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let (started, gaps) = (Instant::now(), Mutex::new(Vec::new()));
    let answers = || -> Vec<Vec<u32>> {
        let submit = |i: usize| {
            let prompt = tokens[i * 11..i * 11 + 20 + i * 31].to_vec();
            engine.submit(Request::greedy(prompt, load.answer)).expect("taken")
        };
        let handles: Vec<_> = (0..load.streams).map(submit).collect();
        std::thread::scope(|scope| {
            let gaps = &gaps;
            let readers: Vec<_> =
                handles.into_iter().map(|handle| scope.spawn(move || answer(&handle, gaps))).collect();
            readers.into_iter().map(|reader| reader.join().expect("a reader")).collect()
        })
    };
    let want = answers();
    let quiet = taken(&gaps);
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            for swap in 0..load.swaps {
                let (select, variant) = next(swap);
                let report = engine.slots().swap("live", rule(&select, &variant), LayoutPolicy::Refuse);
                report.unwrap_or_else(|e| panic!("swap {swap}, {select} to {variant}: {e}"));
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut rounds = 0;
        while !swapper.is_finished() {
            assert_eq!(answers(), want, "round {rounds}");
            rounds += 1;
        }
        swapper.join().expect("every swap is made");
    });
    let busy = taken(&gaps);
    let at = |gaps: &[Duration], percent: usize| gaps[(gaps.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    println!(
        "{} swaps under {} streams, no failed request, tokens equal, {:.0} s; gaps between tokens, p50, p99 and longest: {:.2}, \
         {:.2}, {:.2} ms without swaps, {:.2}, {:.2}, {:.2} ms with",
        load.swaps,
        load.streams,
        started.elapsed().as_secs_f64(),
        at(&quiet, 50),
        at(&quiet, 99),
        at(&quiet, 100),
        at(&busy, 50),
        at(&busy, 99),
        at(&busy, 100)
    );
}

/// The tokens of an answer; the times between them go to `gaps`.
fn answer(handle: &Handle, gaps: &Mutex<Vec<Duration>>) -> Vec<u32> {
    let (mut ids, mut last) = (Vec::new(), None::<Instant>);
    loop {
        match handle.recv() {
            Some(Event::Token { id, .. }) => {
                let now = Instant::now();
                if let Some(last) = last.replace(now) {
                    gaps.lock().expect("no reader panics").push(now - last);
                }
                ids.push(id);
            }
            Some(Event::Done { .. }) => return ids,
            Some(Event::Failed { code, message }) => panic!("{code}: {message}"),
            Some(_) => {}
            None => panic!("the engine stopped"),
        }
    }
}

fn taken(gaps: &Mutex<Vec<Duration>>) -> Vec<Duration> {
    let mut taken = std::mem::take(&mut *gaps.lock().expect("no reader panics"));
    taken.sort_unstable();
    taken
}
