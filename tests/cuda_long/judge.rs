//! Outputs against truth's, by the tolerances of conformance. Each function returns the largest error as a share of its tolerance.

use hotseam_conformance::layouts::Entry;
use hotseam_conformance::tolerances::Tolerance;
use hotseam_conformance::{Form, truth::layout};

/// Most of the values of a call that may be off by a step of their format, as in conformance.
const MOST_STEPS: f64 = 0.02;

fn rms<'a>(values: impl Iterator<Item = &'a f32> + Clone) -> f64 {
    let sum: f64 = values.clone().map(|v| f64::from(*v).powi(2)).sum();
    (sum / values.count().max(1) as f64).sqrt()
}

/// Values of which `unit` belong together: errors are relative to the root mean square of the unit, or to `floor` times that of
/// all if that is more.
pub(crate) fn floats(
    what: &str,
    got: &[f32],
    want: &[f32],
    unit: usize,
    floor: f64,
    tolerance: Tolerance,
) -> f64 {
    assert_eq!(got.len(), want.len(), "{what}");
    let (least, mut worst, mut squares) = ((floor * rms(want.iter())).max(1e-12), 0f64, 0f64);
    for (u, (got, want)) in got.chunks(unit).zip(want.chunks(unit)).enumerate() {
        let scale = rms(want.iter()).max(least);
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(*g) - f64::from(*w)).abs() / scale;
            assert!(error <= tolerance.max, "{what}: unit {u}, place {i}: {g}, expected {w} ({error:.3e})");
            worst = worst.max(error);
            squares += error * error;
        }
    }
    let overall = (squares / want.len().max(1) as f64).sqrt();
    assert!(overall <= tolerance.rms, "{what}: rms error {overall:.3e}, at most {:.0e}", tolerance.rms);
    (worst / tolerance.max).max(overall / tolerance.rms)
}

/// Entries at `slots` of two copies of the same pages. Those of f32 within `tolerance`; in a layout that quantises a few values may
/// be off by a step of the format. Every byte that is of no slot must be `poison`.
pub(crate) fn entries(
    what: &str,
    form: Form,
    found: &[u8],
    truth: &[u8],
    slots: &[usize],
    poison: u8,
    tolerance: Tolerance,
) -> f64 {
    let mut mine = vec![false; found.len()];
    for slot in slots {
        let (data, scale) = form.ranges(*slot);
        mine[data].fill(true);
        mine[scale].fill(true);
    }
    let stray = found.iter().zip(&mine).position(|(byte, mine)| !mine && *byte != poison);
    assert_eq!(stray, None, "{what}: wrote a byte that is of no slot of the call");
    let entry = |bytes: &'_ [u8], slot: usize| {
        let (data, scale) = form.ranges(slot);
        (bytes[data].to_vec(), bytes[scale].to_vec())
    };
    let (dim, rope) = (form.shape.dim, form.shape.rope_dim);
    let (mut got, mut want) = (vec![0f32; dim * slots.len()], vec![0f32; dim * slots.len()]);
    let (mut worst, mut differing) = (0f64, 0usize);
    for (n, slot) in slots.iter().enumerate() {
        let (g, w) = (entry(found, *slot), entry(truth, *slot));
        let (g, w) = (Entry { data: &g.0, scale: &g.1 }, Entry { data: &w.0, scale: &w.1 });
        assert!(g.data.iter().any(|byte| *byte != poison), "{what}: slot {slot} was not written");
        let at = n * dim..(n + 1) * dim;
        layout::decode(form.layout, rope, g, &mut got[at.clone()]).expect("a layout of the contract");
        layout::decode(form.layout, rope, w, &mut want[at.clone()]).expect("a layout of the contract");
        if form.is_f32() {
            continue;
        }
        for (i, (a, b)) in got[at.clone()].iter().zip(&want[at]).enumerate().filter(|(_, (a, b))| a != b) {
            let step = |entry, value| layout::step(form.layout, rope, dim, entry, i, value);
            let steps = f64::from((a - b).abs()) / f64::from(step(g, *a).max(step(w, *b)));
            assert!(steps <= 1.0, "{what}: entry {n}, value {i}: {a}, expected {b} ({steps:.2} steps)");
            worst = worst.max(steps);
            differing += 1;
        }
    }
    if form.is_f32() {
        return floats(what, &got, &want, dim, 1e-3, tolerance);
    }
    let share = differing as f64 / got.len() as f64;
    assert!(share <= MOST_STEPS, "{what}: {:.1} % of the values are a step off", 100.0 * share);
    worst.max(share / MOST_STEPS)
}

/// Prints what a call reached and how far it was from truth.
pub(crate) fn report(what: &str, reach: usize, worst: f64, more: &str) {
    println!(
        "{what}: offsets up to {:.2} GiB, error {worst:.3} of the tolerance{more}",
        reach as f64 / (1u64 << 30) as f64
    );
}
