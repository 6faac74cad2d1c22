//! The same tokens give the same bits, however the prompt is cut into chunks and on however many threads.

mod network;
#[path = "network/small.rs"]
mod small;

use hotseam_sdk::abi::layout;
use hotseam_sdk::ops::{Parallel, Pool, Serial};
use network::Network;

const TOKENS: usize = 300;

/// Residual streams of all tokens, run in chunks of these lengths; the last length repeats.
fn run(par: &dyn Parallel, kv: u32, keys: u32, chunks: &[usize]) -> Vec<u32> {
    let tokens: Vec<i32> = (0..TOKENS).map(|i| (i * i * 31 % 64) as i32).collect();
    let mut network = Network::new(small::shape(), TOKENS, kv, keys);
    let (mut begin, mut out) = (0, Vec::new());
    let lengths = chunks.iter().chain(chunks.last().into_iter().cycle());
    for length in lengths {
        if begin == TOKENS {
            break;
        }
        let end = TOKENS.min(begin + length);
        out.extend(network.run(par, begin, &tokens[begin..end]).iter().map(|v| v.to_bits()));
        begin = end;
    }
    assert!(out.iter().all(|bits| f32::from_bits(*bits).is_finite()), "every value is written and finite");
    out
}

fn check(kv: u32, keys: u32) {
    let whole = run(&Serial, kv, keys, &[TOKENS]);
    let (two, five) = (Pool::new(2), Pool::new(5));
    let pools: [(&dyn Parallel, &str); 3] = [(&Serial, "serial"), (&two, "2 threads"), (&five, "5 threads")];
    for (par, threads) in pools {
        for chunks in [&[TOKENS][..], &[1], &[3, 1, 5, 128, 2], &[64], &[150, 1]] {
            assert!(run(par, kv, keys, chunks) == whole, "{threads}, chunks {chunks:?}");
        }
    }
}

#[test]
fn f32_entries_and_keys() {
    check(layout::KV_F32, layout::KEY_F32);
}

#[test]
fn bf16_entries_and_keys() {
    check(layout::KV_BF16, layout::KEY_BF16);
}

#[test]
fn fp8_entries_and_keys() {
    check(layout::KV_FP8_DS_MLA, layout::KEY_FP8_HADAMARD);
}

#[test]
fn fp8_entries_and_fp4_keys() {
    check(layout::KV_FP8_DS_MLA, layout::KEY_FP4_HADAMARD);
}
