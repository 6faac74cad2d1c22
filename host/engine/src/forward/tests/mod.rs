//! Forward passes that are spread over ranks. The ranks are threads, and what they sum is summed in memory.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod drawn;
mod failures;
mod rank;
mod sums;

use hotseam_model::Model;
use rank::Logits;

/// Differences of f32 rounding, in parts of the range of a row's logits. Ranks add the same terms in another order, and a sum of a few
/// hundred terms is off by a few units in its last place of 6e-8, twice in each of 7 layers; the prompts here show a tenth of this.
/// It is no bound for any prompt: where two entries or experts are nearly equally good, rounding may choose the other one.
const ROUNDING: f32 = 1e-5;

/// Compares the logits of several ranks with those of one; returns the largest difference over the range of a row's logits.
fn compare(what: &str, got: &Logits, want: &Logits) -> f32 {
    assert_eq!(got.len(), want.len(), "{what}");
    let mut worst = 0.0f32;
    for (row, (got, want)) in got.iter().zip(want).enumerate() {
        let (low, high) = want.iter().fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
        let off = got.iter().zip(want).map(|(a, b)| (a - b).abs() / (high - low)).fold(0.0, f32::max);
        assert!(got.iter().all(|v| v.is_finite()), "{what}, row {row}");
        assert!(off < ROUNDING, "{what}, row {row}: {off:e} of the range");
        assert_eq!(argmax(got), argmax(want), "{what}, row {row}");
        worst = worst.max(off);
    }
    println!("{what}: {} rows, worst {worst:.1e} of the range", got.len());
    worst
}

fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("not empty")
}

/// Sums of a step.
fn sums_of_a_step(model: &Model) -> usize {
    2 * model.config.num_hidden_layers
}
