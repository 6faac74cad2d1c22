//! One piece, chunks and token by token give the same logits, and decoding goes on from prefill without a seam.

use hotseam_checkpoint::random::Preset;
use hotseam_engine::Request;
use hotseam_tests::{Checkpoint, all, config, difference, engine, goldens, logits, tapped};

/// Splits of one prompt; the first is one piece.
const SPLITS: &[&[usize]] =
    &[&[16], &[7, 9], &[129], &[128, 1], &[256], &[130, 126], &[257], &[255, 2], &[512], &[500, 12]];

fn chunked(checkpoint: Checkpoint, variant: &str) {
    let engine = engine(checkpoint, all(variant), hotseam_engine::EngineConfig { chunk: 1048, ..config() });
    let tokens = goldens::ladder(checkpoint).tokens;
    let long: &[&[usize]] = &[&[1048], &[1000, 48]];
    let mut whole = Vec::new();
    for split in SPLITS.iter().chain(long) {
        let length: usize = split.iter().sum();
        let request = Request { chunks: split.to_vec(), ..tapped(&tokens[..length]) };
        let rows = logits(engine.submit(request).unwrap());
        if split.len() == 1 {
            whole = rows;
            continue;
        }
        for ((position, got), (_, want)) in rows.iter().zip(&whole) {
            let d = difference(got, want);
            assert!(d < 2e-5, "{variant}, chunks {split:?}, position {position}: difference {d:e}");
            if variant == "cpu-stock" {
                assert_eq!(
                    got, want,
                    "cpu-stock does not depend on chunks bit for bit: {split:?}, {position}"
                );
            }
        }
        assert_eq!(rows.len(), length);
    }
}

fn token_by_token(checkpoint: Checkpoint, variant: &str, length: usize) {
    let engine = engine(checkpoint, all(variant), config());
    let tokens = goldens::ladder(checkpoint).tokens;
    let whole = logits(engine.submit(tapped(&tokens[..length])).unwrap());
    let ones = Request { chunks: vec![1; length], ..tapped(&tokens[..length]) };
    let forced = Request { forced: tokens[1..length].to_vec(), max_tokens: length, ..tapped(&tokens[..1]) };
    for (way, request) in [("chunks of one", ones), ("teacher-forced decode", forced)] {
        let rows = logits(engine.submit(request).unwrap());
        assert!(rows.len() >= length - 1, "{way}: {} rows", rows.len());
        for ((position, got), (_, want)) in rows.iter().zip(&whole) {
            let d = difference(got, want);
            assert!(d < 2e-5, "{variant}, {way}, position {position}: difference {d:e}");
        }
    }
}

#[test]
fn chunks_of_truth_agree() {
    chunked(Checkpoint::Random(Preset::ProLike), "truth");
}

#[test]
fn chunks_of_stock_agree_bit_for_bit() {
    chunked(Checkpoint::Nano, "cpu-stock");
    chunked(Checkpoint::Random(Preset::FlashLike), "cpu-stock");
    chunked(Checkpoint::Random(Preset::ProLike), "cpu-stock");
}

#[test]
fn token_by_token_agrees_with_one_piece() {
    token_by_token(Checkpoint::Random(Preset::ProLike), "truth", 264);
    token_by_token(Checkpoint::Nano, "cpu-stock", 520);
    token_by_token(Checkpoint::Random(Preset::FlashLike), "cpu-stock", 520);
}
