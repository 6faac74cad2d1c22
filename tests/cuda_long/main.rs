//! A sequence of 524,288 tokens on a CUDA device, its pages scattered over pools of more than 4 GiB: attention and indexer against
//! truth on sampled rows, and byte offsets past 2^31 and 2^32.
//!
//! On the emulated device memory that nobody writes costs nothing, so offsets are as large there; heads are fewer, and the
//! sequence that the indexer scores is shorter. With `HOTSEAM_CUDA=device` sizes are those of the model, and batches have so many
//! rows, nearly all of them padding, that the rows at their end lie past 2^31 values too. That takes up to 45 GB of the device.
//!
//! The plugins are the files that `cargo build --release --workspace` left beside this test.

mod attend;
mod choose;
mod judge;
mod kit;
mod pools;
mod rows;
mod write;

use hotseam_abi::layout::{
    KEY_BF16, KEY_F32, KEY_FP4_HADAMARD, KEY_FP8_HADAMARD, KV_BF16, KV_F32, KV_FP8_DS_MLA,
};
use kit::Kit;
use std::sync::{Mutex, PoisonError};

/// Tokens of the sequence.
const TOKENS: usize = 524_288;
/// Values of an entry of attention and of an index key, and those of them that are roped.
const HEAD_DIM: usize = 512;
const INDEX_DIM: usize = 128;
const ROPE_DIM: usize = 64;

const KV: [(&str, u32); 3] = [("f32", KV_F32), ("bf16", KV_BF16), ("fp8", KV_FP8_DS_MLA)];
const KEYS: [(&str, u32); 4] =
    [("f32", KEY_F32), ("bf16", KEY_BF16), ("fp8", KEY_FP8_HADAMARD), ("fp4", KEY_FP4_HADAMARD)];

/// The layouts that a run takes: all on a real device and in a long run, otherwise the one of the serving engines, since the emulated
/// device takes a minute for each.
fn some<'a>(kit: &Kit, all: &'a [(&'a str, u32)], served: u32) -> impl Iterator<Item = &'a (&'a str, u32)> {
    let every = kit.real || hotseam_tests::full();
    all.iter().filter(move |(_, layout)| every || *layout == served)
}

/// How large things are.
struct Sizes {
    /// Bytes of a pool, and of what lies beside it in the same call.
    pool: usize,
    beside: usize,
    /// Heads of attention and of the indexer, and the entries that a row keeps.
    heads: usize,
    index_heads: usize,
    topk: usize,
    /// Tokens before the last row that the indexer sees, inputs of its matrices.
    scored: usize,
    rank: usize,
    hidden: usize,
    /// Rows of a batch, padding included; with scores of all entries there are fewer, since each row has 512 KiB of them.
    rows: usize,
    rows_scored: usize,
}

impl Sizes {
    fn new(real: bool) -> Self {
        let gib = 1usize << 30;
        match real {
            // Past 2^31 values of f32 in pools, queries, outputs and scores; past 65,535 rows, the most of a launch.
            true => Self {
                pool: 10 * gib,
                beside: 10 * gib,
                heads: 64,
                index_heads: 64,
                topk: 512,
                scored: TOKENS,
                rank: 1024,
                hidden: 4096,
                rows: 66_000,
                rows_scored: 33_000,
            },
            false => Self {
                pool: 4 * gib + gib / 4,
                beside: 2 * gib + gib / 4,
                heads: 16,
                index_heads: 24,
                topk: 128,
                scored: TOKENS / 16,
                rank: 64,
                hidden: 128,
                rows: 300,
                rows_scored: 300,
            },
        }
    }
}

/// Runs `test`, one at a time: together they would need more memory than there is.
fn alone(test: impl FnOnce(&Kit, &Sizes)) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(kit) = Kit::new() else { return };
    test(&kit, &Sizes::new(kit.real));
}

#[test]
fn window_entries_are_stored_where_their_slots_are() {
    alone(|kit, sizes| {
        some(kit, &KV, KV_FP8_DS_MLA).for_each(|(kv, layout)| write::store(kit, sizes, kv, *layout));
    });
}

#[test]
fn compressed_entries_and_states_are_written_where_they_belong() {
    alone(|kit, sizes| {
        for &(kv, layout) in some(kit, &KV, KV_FP8_DS_MLA) {
            write::compress(kit, sizes, ("attention/cuda-stock", "kv", kv), layout, 4);
            write::compress(kit, sizes, ("attention/cuda-stock", "kv", kv), layout, 128);
        }
        for &(keys, layout) in some(kit, &KEYS, KEY_FP8_HADAMARD) {
            write::compress(kit, sizes, ("indexer/cuda-stock", "keys", keys), layout, 4);
        }
    });
}

#[test]
fn rows_attend_the_entries_of_the_whole_sequence() {
    alone(|kit, sizes| {
        for &(kv, layout) in some(kit, &KV, KV_FP8_DS_MLA) {
            let variants: &[&str] = match layout {
                KV_F32 => &["attention/cuda-stock"],
                _ => &["attention/cuda-stock", "attention/cuda-sm120"],
            };
            for layer in [attend::Layer::Window, attend::Layer::Csa, attend::Layer::Hca] {
                attend::core(kit, sizes, variants, kv, layout, layer);
            }
        }
    });
}

#[test]
fn the_best_of_all_entries_are_chosen() {
    alone(|kit, sizes| {
        some(kit, &KEYS, KEY_FP8_HADAMARD)
            .for_each(|(keys, layout)| choose::select(kit, sizes, keys, *layout));
    });
}
