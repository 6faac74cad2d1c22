//! Time of `attention.core` and `indexer.select` at the shape of DeepSeek-V4-Flash with 16 heads, in every layout, beside
//! the floor of this machine: products at the measured rate of the fused multiply-add, or bytes at the measured rate of
//! memory, whichever is more.
//! `cargo run --release -p hotseam-cpu-kernels --example seams [threads [core|select]]`

mod calls;
mod clock;
mod floor;

use calls::{CoreCall, SelectCall};
use clock::Clock;
use floor::Floor;
use hotseam_sdk::abi::layout;
use hotseam_sdk::ops::{Parallel, Pool};

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    let pool = Pool::new(threads);
    let (floor, clock) = (Floor::measure(&pool), Clock::new(pool.threads()));
    println!("{} threads: {:.1} GFLOP/s, {:.1} GB/s", pool.threads(), floor.flops / 1e9, floor.bytes / 1e9);
    let only = std::env::args().nth(2);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if wanted("core") {
        core(&pool, &floor, &clock);
    }
    if wanted("select") {
        select(&pool, &floor, &clock);
    }
}

fn core(pool: &Pool, floor: &Floor, clock: &Clock) {
    for (name, layout) in [("f32", layout::KV_F32), ("bf16", layout::KV_BF16), ("fp8", layout::KV_FP8_DS_MLA)]
    {
        for (rows, position) in [(512, 1536), (1, 2047), (1, 32_767)] {
            let mut call = CoreCall::new(rows, position, layout);
            let time = best(clock, rows, || call.run(pool));
            print(
                &format!("core {name}, {rows} rows at {position}"),
                time,
                floor,
                call.flops(),
                call.bytes(),
            );
        }
    }
}

fn select(pool: &Pool, floor: &Floor, clock: &Clock) {
    for (name, layout) in [
        ("f32", layout::KEY_F32),
        ("bf16", layout::KEY_BF16),
        ("fp8", layout::KEY_FP8_HADAMARD),
        ("fp4", layout::KEY_FP4_HADAMARD),
    ] {
        for (rows, position, topk) in [(512, 1536, 128), (512, 7680, 512), (1, 2047, 256), (1, 32_767, 512)] {
            let mut call = SelectCall::new(rows, position, topk, layout);
            let time = best(clock, rows, || call.run(pool));
            let title = format!("select {name}, {rows} rows at {position}, top {topk}");
            print(&title, time, floor, call.flops(), call.bytes());
        }
    }
}

/// Seconds of the best of some runs.
fn best(clock: &Clock, rows: usize, mut call: impl FnMut()) -> f64 {
    call();
    (0..if rows > 1 { 5 } else { 200 }).map(|_| clock.time(&mut call)).fold(f64::INFINITY, f64::min)
}

fn print(title: &str, seconds: f64, floor: &Floor, flops: f64, bytes: f64) {
    let least = (flops / floor.flops).max(bytes / floor.bytes);
    let (ms, least_ms, share) = (seconds * 1e3, least * 1e3, least / seconds * 100.0);
    println!("{title:40} {ms:9.3} ms, floor {least_ms:8.3} ms, {share:5.1} % of it");
}
