//! The engine under a stopwatch, driven line by line, so that another program can take turns with it.
//!
//! Lines on standard input: `prefill N` (seconds for a prompt of N tokens and its first token), `decode N M` (seconds for
//! M tokens after a prompt of N), `batch B N M` (the same for B sequences at once), `rss` (resident bytes). One number
//! is printed for each. Prompts are drawn from the held-out golden text.

use hotseam_engine::{Engine, Event, Request};
use hotseam_tests::{Checkpoint, all, config, engine, goldens};
use std::io::{BufRead, Write};
use std::time::Instant;

fn main() {
    let engine = engine(Checkpoint::Nano, all("cpu-stock"), config());
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("standard input");
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words[i].parse::<usize>().expect("a number");
        let answer = match words.first().copied() {
            Some("prefill") => decode(&engine, &tokens[..number(1)], 1, 1).0,
            Some("decode") => decode(&engine, &tokens[..number(1)], number(2) + 1, 1).1,
            Some("batch") => decode(&engine, &tokens[..number(2)], number(3) + 1, number(1)).1,
            Some("rss") => resident() as f64,
            _ => panic!("unknown line `{line}`"),
        };
        println!("{answer}");
        std::io::stdout().flush().expect("standard output");
    }
}

/// Seconds to the first token of all `b` sequences, and from there to the last token.
fn decode(engine: &Engine, prompt: &[u32], tokens: usize, b: usize) -> (f64, f64) {
    let start = Instant::now();
    let handles: Vec<_> = (0..b)
        .map(|_| engine.submit(Request::greedy(prompt.to_vec(), tokens)).expect("a valid request"))
        .collect();
    let wait = |handle: &hotseam_engine::Handle| match handle.recv() {
        Some(Event::Failed { message, .. }) => panic!("{message}"),
        event => event,
    };
    handles.iter().for_each(|h| drop(wait(h)));
    let first = start.elapsed().as_secs_f64();
    handles.iter().for_each(|h| while wait(h).is_some() {});
    (first, start.elapsed().as_secs_f64() - first)
}

/// Resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number") * 1024
}
