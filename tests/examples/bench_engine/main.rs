//! The engine under a stopwatch, driven line by line, so that another program can take turns with it.
//!
//! `bench_engine [CHECKPOINT [CONTEXT [amx]]]`: a checkpoint directory, `assets/nano-v4` by default, and the longest prompt
//! and answer together, 4096 by default; with `amx`, products use the processor's matrix tiles. The weights are copied (`model.memory: copied`), and the stock CPU variants serve
//! them, on all cores that the process may use.
//!
//! Lines on standard input: `run N M` (a prompt of N tokens, then M greedy tokens after its first one: the seconds of
//! each part), `batch B N M` (the same for B sequences at once), `rss` (resident bytes), `stream` (bytes a second that
//! can be read), `gemm N` (floating point operations a second of an N x N product). A line of numbers is printed for
//! each; a first line, `ready`, says that the checkpoint is loaded.

mod machine;

use hotseam_engine::{Engine, EngineConfig, Event, Handle, Request};
use hotseam_model::Model;
use hotseam_tests::{root, slots, stock};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("bench_engine: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map_or_else(|| root().join("assets/nano-v4"), PathBuf::from);
    let context = args.next().map_or(Ok(4096), |n| n.parse().map_err(|e| format!("context `{n}`: {e}")))?;
    let amx = match args.next().as_deref() {
        None => false,
        Some("amx") => true,
        Some(other) => return Err(format!("expected amx, found `{other}`")),
    };
    let (config, mut weights) = hotseam_checkpoint::load(&dir, |_, _| {}).map_err(|e| e.to_string())?;
    hotseam_checkpoint::copy_resident(&mut weights).map_err(|e| e.to_string())?;
    let vocab = config.vocab_size as u32;
    let model = Arc::new(Model::new(config, weights, context));
    let settings = EngineConfig { max_context: context, amx, ..EngineConfig::default() };
    let slots = slots(&model, &settings, stock(amx));
    let engine = Engine::start(model, slots, settings).map_err(|e| e.to_string())?;
    say("ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| format!("standard input: {e}"))?;
        let numbers = answer(&engine, vocab, &line).map_err(|e| format!("`{line}`: {e}"))?;
        say(&numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(" "))?;
    }
    Ok(())
}

fn say(line: &str) -> Result<(), String> {
    println!("{line}");
    std::io::stdout().flush().map_err(|e| format!("standard output: {e}"))
}

fn answer(engine: &Engine, vocab: u32, line: &str) -> Result<Vec<f64>, String> {
    let mut words = line.split_whitespace();
    let word = words.next().unwrap_or_default();
    let numbers: Vec<usize> =
        words.map(|n| n.parse().map_err(|e| format!("{n}: {e}"))).collect::<Result<_, _>>()?;
    match (word, numbers.as_slice()) {
        ("run", &[length, count]) => run_prompts(engine, vocab, 1, length, count),
        ("batch", &[sequences, length, count]) => run_prompts(engine, vocab, sequences, length, count),
        ("rss", []) => Ok(vec![machine::resident()?]),
        ("stream", []) => Ok(vec![machine::stream()]),
        ("gemm", &[n]) => Ok(vec![machine::gemm(n)]),
        _ => Err("expected run N M, batch B N M, rss, stream or gemm N".into()),
    }
}

/// Seconds to the first token of all `sequences`, and from there to the last of `count` more tokens of each. Nothing
/// ends an answer early.
fn run_prompts(
    engine: &Engine,
    vocab: u32,
    sequences: usize,
    length: usize,
    count: usize,
) -> Result<Vec<f64>, String> {
    let prompt: Vec<u32> = (0..length as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocab).collect();
    let request = Request::greedy(prompt, count + 1);
    let start = Instant::now();
    let submit = |_| engine.submit(request.clone()).map_err(|e| e.to_string());
    let handles = (0..sequences).map(submit).collect::<Result<Vec<_>, _>>()?;
    let mut tokens = 0;
    let mut wait = |handle: &Handle| match handle.recv() {
        Some(Event::Failed { message, .. }) => Err(message),
        event => {
            tokens += usize::from(matches!(event, Some(Event::Token { .. })));
            Ok(event.is_some())
        }
    };
    for handle in &handles {
        wait(handle)?;
    }
    let first = start.elapsed().as_secs_f64();
    for handle in &handles {
        while wait(handle)? {}
    }
    let rest = start.elapsed().as_secs_f64() - first;
    let expected = sequences * (count + 1);
    if tokens != expected {
        return Err(format!("expected {expected} tokens, got {tokens}"));
    }
    Ok(vec![first, rest])
}
