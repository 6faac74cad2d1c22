//! Time of every op in a network of the embedded checkpoint's shape: a prefill of 2,048 tokens in chunks of 512, then
//! decode. `cargo run --release -p hotseam-cpu-kernels --example network [threads]`

#[path = "../tests/network/mod.rs"]
mod network;

use hotseam_sdk::abi::layout;
use hotseam_sdk::ops::{Parallel, Pool};
use network::{Network, Shape};
use std::time::{Duration, Instant};

const PROMPT: usize = 2048;
const CHUNK: usize = 512;
const DECODE: usize = 64;

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    let pool = Pool::new(threads);
    let shape = Shape {
        hidden: 256,
        heads: 8,
        dim: 64,
        rope: 16,
        q_rank: 128,
        o_rank: 128,
        o_groups: 2,
        window: 128,
        index_heads: 8,
        index_dim: 32,
        topk: 64,
        experts: 8,
        expert_topk: 2,
        inter: 128,
        hc: 4,
        iters: 20,
        hash_layers: 2,
        vocab: 4096,
        ratios: vec![0, 0, 4, 128, 4, 128, 4, 0],
    };
    let mut network = Network::new(shape, PROMPT + DECODE, layout::KV_F32, layout::KEY_F32);
    let tokens: Vec<i32> = (0..PROMPT + DECODE).map(|i| (i * 7919 % 4096) as i32).collect();
    println!("{} threads", pool.threads());
    let mut best: Vec<(&str, Duration)> = Vec::new();
    for _ in 0..5 {
        network.spent.clear();
        let start = Instant::now();
        for (chunk, tokens) in tokens[..PROMPT].chunks(CHUNK).enumerate() {
            network.run(&pool, chunk * CHUNK, tokens);
        }
        network.spent.push(("all", start.elapsed()));
        keep_best(&mut best, &network.spent);
    }
    print(&format!("prefill of {PROMPT} tokens"), &best, 1);
    let mut best: Vec<(&str, Duration)> = Vec::new();
    for _ in 0..5 {
        network.spent.clear();
        let start = Instant::now();
        for position in PROMPT..PROMPT + DECODE {
            network.run(&pool, position, &tokens[position..=position]);
        }
        network.spent.push(("all", start.elapsed()));
        keep_best(&mut best, &network.spent);
    }
    print("decode of a token", &best, DECODE as u32);
}

fn keep_best(best: &mut Vec<(&'static str, Duration)>, spent: &[(&'static str, Duration)]) {
    for (name, time) in spent {
        match best.iter_mut().find(|(known, _)| known == name) {
            Some((_, least)) => *least = (*least).min(*time),
            None => best.push((name, *time)),
        }
    }
}

fn print(title: &str, spent: &[(&str, Duration)], by: u32) {
    println!("\n{title}, best of 5");
    for (name, time) in spent {
        println!("{name:24} {:9.3} ms", (*time / by).as_secs_f64() * 1e3);
    }
}
