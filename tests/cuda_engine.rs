//! Steps on a CUDA device: logits against truth on the CPU, graphs against single calls, and swaps under load. On the device that
//! `scripts/cuda-emulator` makes, or with `HOTSEAM_CUDA=device` on the machine's own, where lengths and loads are larger.

use hotseam_engine::{Engine, EngineConfig, Event, Request, Sampling};
use hotseam_tests::cuda::{Load, device, is_real, stock, swapped_under_load};
use hotseam_tests::{
    Checkpoint, all, argmax, config, cuda, difference, engine, goldens, logits, rule, tapped, twin, twins,
};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Goal of a bf16 cache: largest difference over the range of the logits.
const BF16_BOUND: f32 = 2e-3;
/// Of an f32 cache: rounding of f32 alone.
const F32_BOUND: f32 = 2e-5;
/// Places of the largest logits that are compared as sets.
const TOP: usize = 10;

fn sizes() -> EngineConfig {
    EngineConfig { max_seqs: 8, max_context: 4096, ..config() }
}

fn top(logits: &[f32]) -> BTreeSet<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_unstable_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    order.into_iter().take(TOP).collect()
}

/// Logits of prompts of these lengths, on the device against truth over the same entries. The bound holds for the last position
/// of each; what all positions show is printed: where two experts or entries are nearly equally good, rounding chooses the
/// other one, and the logits of that position are those of the other choice.
fn ladder(kv: &str, lengths: &[usize], bound: f32) {
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let mut rules = all("truth");
    rules.push(rule("attention", &format!("attention/truth{{kv: {kv}}}")));
    let truth = engine(Checkpoint::Nano, rules, config());
    let on_device = cuda::engine(&Checkpoint::Nano.model(), stock(kv, "f32"), sizes());
    let (mut last, mut worst) = ((0.0f32, 0), 0.0f32);
    let (mut overlap, mut same, mut within, mut rows) = (1.0f64, 0, 0, 0);
    for length in lengths {
        let of = |engine: &Engine| logits(engine.submit(tapped(&tokens[..*length])).expect("taken"));
        let (want, got) = (of(&truth), of(&on_device));
        assert_eq!(got.len(), want.len(), "length {length}");
        for ((position, got), (_, want)) in got.iter().zip(&want) {
            let d = difference(got, want);
            assert!(!d.is_nan(), "{kv}, length {length}, position {position}: not a number");
            if *position as usize + 1 == *length && d > last.0 {
                last = (d, *length);
            }
            worst = worst.max(d);
            overlap = overlap.min(top(got).intersection(&top(want)).count() as f64 / TOP as f64);
            same += usize::from(argmax(got) == argmax(want));
            within += usize::from(d < bound);
            rows += 1;
        }
    }
    println!(
        "kv {kv}: {} lengths to {}: worst last position {:.2e} of the range at length {}, goal {bound:.0e}; of all {rows} positions \
         {within} are within, worst {worst:.2e}, {same} arg-maxes equal, lowest overlap of the top {TOP} {overlap:.2}",
        lengths.len(),
        lengths.last().expect("a length"),
        last.0,
        last.1
    );
    assert!(last.0 < bound, "{kv}: {:e} at length {}", last.0, last.1);
}

fn lengths() -> &'static [usize] {
    match is_real() {
        true => &[
            1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 255, 256, 257, 258, 259, 260, 511, 512, 513, 1023,
            1024, 1025, 2044, 2047, 2048, 2049, 2052,
        ],
        false => &[1, 5, 130],
    }
}

#[test]
fn logits_of_f32_caches_are_those_of_truth() {
    if device() {
        ladder("f32", lengths(), F32_BOUND);
    }
}

#[test]
fn logits_of_bf16_caches_are_near_those_of_truth() {
    if device() {
        ladder("bf16", lengths(), BF16_BOUND);
    }
}

/// Tokens and logits of several requests at once.
fn together(engine: &Engine, prompts: &[&[u32]], max_tokens: usize) -> Vec<Vec<(u32, Vec<f32>)>> {
    let request = |prompt: &&[u32]| Request {
        max_tokens,
        tap_logits: true,
        ..Request::greedy(prompt.to_vec(), max_tokens)
    };
    let handles: Vec<_> = prompts.iter().map(|p| engine.submit(request(p)).expect("taken")).collect();
    handles.into_iter().map(logits).collect()
}

/// Requests come and go, so that steps of several numbers of rows are recorded, padded and launched again; groups of both ratios
/// close on the way.
#[test]
fn graphs_give_the_bits_of_single_calls() {
    if !device() {
        return;
    }
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let prompts: [&[u32]; 3] = [&tokens[..5], &tokens[7..127 + 7], &tokens[20..62 + 20]];
    let run = |graphs: bool| {
        let engine =
            cuda::engine(&Checkpoint::Nano.model(), stock("bf16", "f32"), EngineConfig { graphs, ..sizes() });
        let all = together(&engine, &prompts, 7);
        let first = together(&engine, &prompts[..1], 4);
        // An answer is told before its pages are free.
        let start = Instant::now();
        while engine.stats().free_pages != engine.stats().total_pages {
            assert!(start.elapsed() < Duration::from_secs(5), "all pages come back");
            std::thread::yield_now();
        }
        [all, first].concat()
    };
    let (graphs, calls) = (run(true), run(false));
    for (request, (a, b)) in graphs.iter().zip(&calls).enumerate() {
        assert_eq!(a.len(), b.len(), "request {request}");
        for ((position, a), (_, b)) in a.iter().zip(b) {
            let equal = a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(equal, "request {request}, position {position}: {:e}", difference(a, b));
        }
    }
}

/// Tokens that the device draws are those that the host draws from the same logits, greedy and by temperature, alone and where one
/// request of a step wants more than its token, so that all logits come back.
#[test]
fn tokens_drawn_on_the_device_are_the_hosts() {
    if !device() {
        return;
    }
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let engine = cuda::engine(&Checkpoint::Nano.model(), stock("bf16", "f32"), sizes());
    let (seeds, length) = if is_real() { (8, 48) } else { (1, 5) };
    let samplings = [(0.0, 1.0), (0.8, 1.0), (1.5, 0.9), (1.0, 0.5)];
    let run = |seed: u64, more: &dyn Fn(usize) -> usize| -> Vec<Vec<(u32, f32)>> {
        let submit = |(i, (temperature, top_p)): (usize, &(f32, f32))| {
            let sampling = Sampling { temperature: *temperature, top_p: *top_p, seed };
            let prompt = tokens[i * 7..i * 7 + 5].to_vec();
            let request = Request { sampling, logprobs: more(i), ..Request::greedy(prompt, length) };
            engine.submit(request).expect("taken")
        };
        let handles: Vec<_> = samplings.iter().enumerate().map(submit).collect();
        let answer = |handle: hotseam_engine::Handle| {
            let mut said = Vec::new();
            loop {
                match handle.recv() {
                    Some(Event::Token { id, logprob, .. }) => said.push((id, logprob)),
                    Some(Event::Done { .. }) => return said,
                    other => panic!("{other:?}"),
                }
            }
        };
        handles.into_iter().map(answer).collect()
    };
    let (mut drawn, mut worst) = (0, 0f32);
    for seed in 1..=seeds {
        let device = run(seed, &|_| 0);
        for host in [run(seed, &|_| 1), run(seed, &|i| usize::from(i == 2))] {
            for (request, (got, want)) in device.iter().zip(&host).enumerate() {
                let ids = |said: &[(u32, f32)]| said.iter().map(|(id, _)| *id).collect::<Vec<_>>();
                assert_eq!(ids(got), ids(want), "seed {seed}, {:?}", samplings[request]);
                for ((_, got), (_, want)) in got.iter().zip(want) {
                    worst = worst.max((got - want).abs());
                }
                drawn += got.len();
            }
        }
        let greedy = &device[0];
        assert!(device[2] != *greedy || device[3] != *greedy, "temperature does something");
    }
    println!("{drawn} tokens equal, log-probabilities within {worst:.1e}");
    assert!(worst < 1e-4, "{worst:e}");
}

const SEAMS: [&str; 4] = ["attention", "indexer", "moe", "mhc"];

/// Streams run while every seam is swapped to and fro.
#[test]
fn every_seam_is_swapped_under_load_with_graphs() {
    if !device() {
        return;
    }
    let engine = cuda::engine(&Checkpoint::Nano.model(), stock("bf16", "f32"), sizes());
    let dir = twins();
    let files: Vec<PathBuf> = SEAMS.iter().map(|seam| twin(&dir, seam, "cuda-stock")).collect();
    let load = Load::of_this_device(if is_real() { 100 } else { 8 });
    swapped_under_load(&engine, load, |swap| {
        let (seam, options) = (SEAMS[swap % 4], ["{kv: bf16}", "{keys: f32}", "", ""][swap % 4]);
        let variant = match (swap / 4) % 2 {
            0 => format!("{}{options}", files[swap % 4].display()),
            _ => format!("{seam}/cuda-stock{options}"),
        };
        let narrow = swap % 3 == 0 && seam != "indexer";
        (if narrow { format!("{seam}@decode:layers=2-6") } else { seam.into() }, variant)
    });
}
