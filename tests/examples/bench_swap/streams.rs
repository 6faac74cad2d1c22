//! Streams of greedy requests that are checked token by token and timed gap by gap.

use hotseam_engine::{Engine, Event, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Tokens of an answer.
const TOKENS: usize = 48;

/// The time between two tokens of one answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gap {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

/// What the streams share.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) stop: AtomicBool,
    pub(crate) requests: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) different: AtomicU64,
}

/// The prompt of a stream; all differ.
fn prompt(tokens: &[u32], stream: usize) -> &[u32] {
    &tokens[stream * 7..stream * 7 + 40 + stream]
}

/// One answer; its gaps are added to `gaps`.
fn answer(engine: &Engine, prompt: &[u32], gaps: &mut Vec<Gap>) -> Result<Vec<u32>, String> {
    let handle = engine.submit(Request::greedy(prompt.to_vec(), TOKENS)).map_err(|e| e.to_string())?;
    let (mut tokens, mut last) = (Vec::with_capacity(TOKENS), None::<Instant>);
    loop {
        match handle.recv() {
            Some(Event::Token { id, .. }) => {
                let now = Instant::now();
                gaps.extend(last.map(|from| Gap { from, to: now }));
                (last, tokens) = (Some(now), [tokens, vec![id]].concat());
            }
            Some(Event::Logits { .. } | Event::Prompt { .. }) => {}
            Some(Event::Done { .. }) => return Ok(tokens),
            Some(Event::Failed { code, message }) => return Err(format!("{code}: {message}")),
            None => return Err("the engine stopped".to_owned()),
        }
    }
}

/// Answers of every stream while nothing is swapped.
pub(crate) fn unswapped(engine: &Engine, tokens: &[u32], streams: usize) -> Vec<Vec<u32>> {
    let one = |stream| answer(engine, prompt(tokens, stream), &mut Vec::new());
    (0..streams).map(|stream| one(stream).unwrap_or_else(|e| panic!("stream {stream}: {e}"))).collect()
}

/// Asks the same again and again until the tally says stop; returns the gaps.
pub(crate) fn run(engine: &Engine, tokens: &[u32], stream: usize, want: &[u32], tally: &Tally) -> Vec<Gap> {
    // Its pages are resident from the start, so that they do not count as growth.
    let now = Instant::now();
    let mut gaps = vec![Gap { from: now, to: now }; 1 << 16];
    gaps.clear();
    while !tally.stop.load(Ordering::Relaxed) {
        tally.requests.fetch_add(1, Ordering::Relaxed);
        match answer(engine, prompt(tokens, stream), &mut gaps) {
            Ok(found) if found == want => {}
            Ok(_) => drop(tally.different.fetch_add(1, Ordering::Relaxed)),
            Err(message) => {
                eprintln!("stream {stream}: {message}");
                tally.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    gaps
}
