//! Swaps all five seams back and forth between two files of their stock variants while streams of requests run, and
//! holds the gaps between tokens in windows with swaps against those in windows without.
//!
//! `bench_swap [--cuda] [SWAPS] [PAIRS] [STREAMS] [PROBATION]`: 1000 swaps in 5 pairs of windows under 16 streams, each swap
//! with 2 steps of probation, by default. A window without swaps follows each window with them and is as long. Prints a
//! table on standard error and JSON on standard output; exits with 1 if a request failed or a token differed.
//!
//! With `--cuda` it runs on the emulated device, with `HOTSEAM_CUDA=device` on device 0, decode steps as graphs, and swaps
//! the four seams of an engine without a pair of phases.

mod memory;
mod streams;

use hotseam_engine::{Device, Engine, EngineConfig, Topology};
use hotseam_slots::{Change, Probation, SwapPolicy, SwapRequest, SwapStage};
use hotseam_tests::{Checkpoint, all, cuda, goldens, plugins, rule, slots};
use memory::Resident;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use streams::{Gap, Tally};

/// A seam and the name of its stock variant.
type Stock = (&'static str, &'static str);

const ON_CPU: &[Stock] = &[
    ("attention", "cpu-stock"),
    ("indexer", "cpu-stock"),
    ("moe", "cpu-stock"),
    ("mhc", "cpu-stock"),
    ("kv_transport", "local"),
];

const ON_CUDA: &[Stock] =
    &[("attention", "cuda-stock"), ("indexer", "cuda-stock"), ("moe", "cuda-stock"), ("mhc", "cuda-stock")];

/// Swaps one after the other.
struct Swapper<'a> {
    engine: &'a Engine,
    seams: &'a [Stock],
    /// A second file of each seam's stock variant.
    twins: Vec<PathBuf>,
    probation: u32,
    done: usize,
    /// Milliseconds from the request to the end of probation.
    took: Vec<f64>,
}

impl Swapper<'_> {
    fn swap(&mut self) {
        let place = self.done % self.seams.len();
        let (seam, name) = self.seams[place];
        let variant = match self.done / self.seams.len() % 2 {
            0 => self.twins[place].display().to_string(),
            _ => format!("{seam}/{name}"),
        };
        let probation = Probation { steps: self.probation, ..Probation::default() };
        let request = SwapRequest {
            assignment: "live".to_owned(),
            change: Change::Add(vec![rule(seam, &variant)]),
            policy: SwapPolicy { probation, ..SwapPolicy::default() },
            who: "bench".to_owned(),
        };
        let start = Instant::now();
        let id = self.engine.swaps().begin(request).unwrap_or_else(|e| panic!("swap {}: {e}", self.done));
        let end = self.engine.swaps().wait(id).and_then(|record| record.end);
        assert!(matches!(end, Some(SwapStage::Kept { .. })), "swap {} of {seam}: {end:?}", self.done);
        self.took.push(start.elapsed().as_secs_f64() * 1e3);
        self.done += 1;
    }
}

/// A stretch of time, with or without swaps.
struct Window {
    swaps: usize,
    start: Instant,
    end: Instant,
}

fn main() -> ExitCode {
    let (flags, words): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let on_cuda = match flags.as_slice() {
        [] => false,
        [flag] if flag == "--cuda" => true,
        _ => panic!("{flags:?}: expected `--cuda`"),
    };
    assert!(!on_cuda || cuda::device(), "no device: build with --features hotseam-tests/cuda");
    let number = |i: usize, default: usize| {
        words
            .get(i)
            .map_or(default, |word| word.parse().unwrap_or_else(|_| panic!("`{word}`: expected a number")))
    };
    let (swaps, pairs, streams) = (number(0, 1000), number(1, 5).max(1), number(2, 16).max(1));
    let model = Checkpoint::Nano.model();
    let seams = if on_cuda { ON_CUDA } else { ON_CPU };
    let (device, topology) = match on_cuda {
        true => (Device::Cuda(0), Topology::Single),
        false => (Device::Cpu, Topology::Paired),
    };
    let config =
        EngineConfig { max_seqs: streams, max_context: 512, topology, device, ..EngineConfig::default() };
    let rules = if on_cuda { cuda::stock("bf16", "bf16") } else { all("cpu-stock") };
    let engine =
        Engine::start(model.clone(), slots(&model, &config, rules), config).unwrap_or_else(|e| panic!("{e}"));
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let want = streams::unswapped(&engine, &tokens, streams);

    let dir = tempfile::Builder::new().prefix("twins-").tempdir_in(plugins()).expect("a directory");
    let twins = seams.iter().map(|(seam, name)| twin(&dir, seam, name)).collect();
    let probation = number(3, 2) as u32;
    let mut swapper = Swapper { engine: &engine, seams, twins, probation, done: 0, took: Vec::new() };
    let tally = Tally::default();
    let (windows, gaps, memory) = std::thread::scope(|scope| {
        let clients: Vec<_> = want
            .iter()
            .enumerate()
            .map(|(i, want)| {
                let (engine, tokens, tally) = (&engine, &tokens, &tally);
                scope.spawn(move || streams::run(engine, tokens, i, want, tally))
            })
            .collect();
        // The streams begin together, prefill after prefill; by then they no longer do.
        std::thread::sleep(Duration::from_secs(20));
        let fresh = Resident::now();
        // Every file is mapped and has its verdict before anything is measured.
        (0..2 * seams.len()).for_each(|_| swapper.swap());
        let warm = Resident::now();
        let mut windows = Vec::new();
        for pair in 0..pairs {
            let share = swaps * (pair + 1) / pairs - swaps * pair / pairs;
            let start = Instant::now();
            (0..share).for_each(|_| swapper.swap());
            let end = Instant::now();
            std::thread::sleep(end - start);
            windows.push(Window { swaps: share, start, end });
            windows.push(Window { swaps: 0, start: end, end: Instant::now() });
            let (now, seconds) = (Resident::now(), (end - start).as_secs_f64());
            eprintln!(
                "pair {} of {pairs}: {share} swaps in {seconds:.1} s, {} kB resident",
                pair + 1,
                now.all
            );
        }
        let last = Resident::now();
        memory::trim();
        let trimmed = Resident::now();
        tally.stop.store(true, Ordering::Relaxed);
        let gaps: Vec<Gap> = clients.into_iter().flat_map(|c| c.join().expect("a stream")).collect();
        (windows, gaps, [fresh, warm, last, trimmed])
    });
    let report = report(&windows, &gaps, memory, &swapper, &tally);
    eprintln!("{}", table(&report));
    println!("{report}");
    let sound = tally.failed.load(Ordering::Relaxed) + tally.different.load(Ordering::Relaxed) == 0;
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A copy of a plugin with another hash.
fn twin(dir: &tempfile::TempDir, seam: &str, name: &str) -> PathBuf {
    let file = hotseam_loader::file_name(&format!("{seam}/{name}")).expect("a variant name");
    let mut bytes = std::fs::read(plugins().join(&file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    bytes.extend_from_slice(b"another hash");
    let path = dir.path().join(file);
    std::fs::write(&path, bytes).expect("a written copy");
    path
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    sorted.get(((sorted.len() as f64 - 1.0) * q).round() as usize).copied().unwrap_or(f64::NAN)
}

fn report(
    windows: &[Window],
    gaps: &[Gap],
    memory: [Resident; 4],
    swapper: &Swapper<'_>,
    tally: &Tally,
) -> Value {
    let rows: Vec<Value> = windows
        .iter()
        .map(|window| {
            let inside = gaps.iter().filter(|g| g.from >= window.start && g.to <= window.end);
            let mut ms: Vec<f64> = inside.map(|g| (g.to - g.from).as_secs_f64() * 1e3).collect();
            ms.sort_unstable_by(f64::total_cmp);
            json!({
                "swaps": window.swaps, "seconds": (window.end - window.start).as_secs_f64(), "gaps": ms.len(),
                "median_ms": quantile(&ms, 0.5), "p99_ms": quantile(&ms, 0.99), "max_ms": quantile(&ms, 1.0),
            })
        })
        .collect();
    let max = |row: &Value| row["max_ms"].as_f64().unwrap_or(f64::NAN);
    let ratios: Vec<f64> = rows.chunks_exact(2).map(|pair| max(&pair[0]) / max(&pair[1])).collect();
    let mut took = swapper.took[2 * swapper.seams.len()..].to_vec();
    took.sort_unstable_by(f64::total_cmp);
    let [fresh, warm, last, trimmed] = memory;
    json!({
        "swaps": swapper.done - 2 * swapper.seams.len(), "requests": tally.requests.load(Ordering::Relaxed),
        "failed": tally.failed.load(Ordering::Relaxed), "different": tally.different.load(Ordering::Relaxed),
        "windows": rows, "max_ratios": ratios,
        "swap_ms": {"median": quantile(&took, 0.5), "max": quantile(&took, 1.0)},
        "resident_kb": {
            "fresh": fresh.all, "all_mapped": warm.all, "end": last.all, "end_trimmed": trimmed.all,
            "code_fresh": fresh.code, "code_all_mapped": warm.code, "code_end": last.code,
        },
    })
}

fn table(report: &Value) -> String {
    let mut text = String::from("\nwindow    swaps  seconds    gaps  median ms  p99 ms  max ms\n");
    for (i, row) in report["windows"].as_array().into_iter().flatten().enumerate() {
        let f = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let kind = if i % 2 == 0 { "swapped" } else { "quiet" };
        text += &format!(
            "{kind:8} {:6} {:8.1} {:7} {:10.1} {:7.1} {:7.1}\n",
            row["swaps"],
            f("seconds"),
            row["gaps"],
            f("median_ms"),
            f("p99_ms"),
            f("max_ms")
        );
    }
    let kb = &report["resident_kb"];
    text += &format!(
        "largest gap, swapped over quiet, pair by pair: {}\n{} swaps, {} requests, {} failed, {} with other tokens; \
         a swap takes {} ms in the median\nresident kB: {} before the first swap, {} with all files mapped, {} at the end, {} of it \
         in use; of it libraries: {}, {}, {}\n",
        report["max_ratios"],
        report["swaps"],
        report["requests"],
        report["failed"],
        report["different"],
        report["swap_ms"]["median"],
        kb["fresh"],
        kb["all_mapped"],
        kb["end"],
        kb["end_trimmed"],
        kb["code_fresh"],
        kb["code_all_mapped"],
        kb["code_end"]
    );
    text
}
