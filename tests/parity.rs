//! Logits against transformers in f32, over the ladder of lengths, for truth and for stock.
//!
//! The bound is 2e-5 of the logits' range with the same arg-max. Noise of f32 is under 1e-6 of it; a model without sinks
//! differs by 1e-3.

use hotseam_checkpoint::random::Preset;
use hotseam_tests::{Checkpoint, all, argmax, config, difference, engine, goldens, logits, tapped};

fn ladder(checkpoint: Checkpoint, variant: &str) {
    let engine = engine(checkpoint, all(variant), config());
    let golden = goldens::ladder(checkpoint);
    assert!(golden.rungs.len() >= 34, "the ladder has {} rungs", golden.rungs.len());
    let mut worst = (0.0, 0);
    let mut failures = Vec::new();
    for (length, want) in &golden.rungs {
        let rows = logits(engine.submit(tapped(&golden.tokens[..*length])).unwrap());
        let (position, got) = rows.last().unwrap();
        assert_eq!((*position as usize, rows.len()), (length - 1, *length));
        let d = difference(got, want);
        if d.is_nan() || d >= 2e-5 || argmax(got) != argmax(want) {
            failures.push(format!(
                "length {length}: difference {d:e}, arg-max {} for {}",
                argmax(got),
                argmax(want)
            ));
        }
        if d > worst.0 {
            worst = (d, *length);
        }
    }
    println!(
        "{} {variant}: {} lengths, worst {:e} of the range at {}",
        checkpoint.name(),
        golden.rungs.len(),
        worst.0,
        worst.1
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn truth_on_nano() {
    ladder(Checkpoint::Nano, "truth");
}

#[test]
fn truth_on_flash_like() {
    ladder(Checkpoint::Random(Preset::FlashLike), "truth");
}

#[test]
fn truth_on_pro_like() {
    ladder(Checkpoint::Random(Preset::ProLike), "truth");
}

#[test]
fn stock_on_nano() {
    ladder(Checkpoint::Nano, "cpu-stock");
}

#[test]
fn stock_on_flash_like() {
    ladder(Checkpoint::Random(Preset::FlashLike), "cpu-stock");
}

#[test]
fn stock_on_pro_like() {
    ladder(Checkpoint::Random(Preset::ProLike), "cpu-stock");
}
