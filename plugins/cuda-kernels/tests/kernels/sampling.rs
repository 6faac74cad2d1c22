//! `ops.sample` against a sort and plain sums of the same masses.

use super::kit::{Both, Kit};
use hotseam_cuda::Buffer;
use hotseam_cuda_kernels::ops::Ops;

/// As the device is given it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Draw {
    temperature: f32,
    top_p: f32,
    uniform: f64,
}

/// `exp(x)` times 2^32, rounded: the definition, by another road than the kernel's.
fn mass(x: f32) -> u64 {
    if x <= -23.0 { 0 } else { (f64::from(x).exp() * 4_294_967_296.0 + 0.5) as u64 }
}

/// Tokens that the draw may give, and the log-probability of each at temperature 1; none for a row that is refused. There is more than
/// one where the place drawn is within the error of the sums from a border.
fn allowed(logits: &[f32], draw: Draw) -> Vec<usize> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if logits.iter().any(|l| l.is_nan()) || !best.is_finite() {
        return Vec::new();
    }
    if draw.temperature == 0.0 {
        return vec![logits.iter().position(|l| *l == best).unwrap()];
    }
    let scaled: Vec<f32> = logits.iter().map(|l| ((l - best) / draw.temperature).max(f32::MIN)).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| scaled[*b].total_cmp(&scaled[*a]).then(a.cmp(b)));
    let masses: Vec<u64> = order.iter().map(|id| mass(scaled[*id])).collect();
    let total: u64 = masses.iter().sum();
    let slack = logits.len() as i128 + 2;
    // Every number of kept tokens within the error, and every place within it.
    let wanted = (total as f64 * f64::from(draw.top_p)).ceil().clamp(1.0, total as f64) as i128;
    let mut ids = Vec::new();
    let (mut sum, mut begun) = (0i128, false);
    for mass in &masses {
        sum += i128::from(*mass);
        if sum < wanted - slack {
            continue;
        }
        let place = (draw.uniform * sum as f64) as i128;
        let mut before = 0i128;
        for (id, mass) in order.iter().zip(&masses) {
            let after = before + i128::from(*mass);
            if before - slack <= place && place < after + slack && *mass > 0 {
                ids.push(*id);
            }
            before = after;
        }
        if sum >= wanted + slack || begun && *mass == 0 {
            break;
        }
        begun = sum >= wanted;
    }
    ids
}

fn logprob(logits: &[f32], id: usize) -> f64 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - best).exp()).sum();
    f64::from(logits[id] - best) - sum.ln()
}

/// Tokens and log-probabilities, from poisoned memory.
fn sample(kit: &Kit, ops: &Ops, logits: &Both, draws: &[Draw]) -> Vec<(i32, f32)> {
    let draws_there = Buffer::of(draws, "draws").unwrap();
    let chosen = Both::out(&[draws.len(), 2]);
    ops.sample(kit.stream.raw(), &logits.device(), draws_there.address(), &chosen.device()).unwrap();
    kit.wait();
    chosen.result().chunks(2).map(|pair| (pair[0].to_bits() as i32, pair[1])).collect()
}

#[test]
fn tokens_are_those_of_the_sorted_masses() {
    let mut kit = Kit::new(9);
    let ops = Ops::load().unwrap();
    let (mut exact, mut all) = (0, 0);
    for width in [1, 2, 5, 31, 127, 128, 129, 512, 1023, 1024, 1025, 5003] {
        let draws: Vec<Draw> = [0.0, 1.0, 0.7, 3.0, 1e-3, 1e-38]
            .into_iter()
            .flat_map(|temperature| [1.0, 0.9, 0.5, 0.0].map(|top_p| (temperature, top_p)))
            .map(|(temperature, top_p)| Draw { temperature, top_p, uniform: kit.random.f64() })
            .collect();
        let mut x = kit.tensor(&[draws.len(), width], 3.0);
        let rows = x.host_f32_mut().chunks_mut(width);
        for (row, logits) in rows.enumerate() {
            match row % 4 {
                // Equal ones, among them the best.
                0 => logits.iter_mut().for_each(|l| *l = (*l * 0.5).round()),
                1 => {
                    logits[width / 2] =
                        f32::NEG_INFINITY.max(if width == 1 { 0.0 } else { f32::NEG_INFINITY })
                }
                _ => {}
            }
        }
        x.upload();
        let got = sample(&kit, &ops, &x, &draws);
        for _ in 0..3 {
            assert_eq!(sample(&kit, &ops, &x, &draws), got, "the same bits each time");
        }
        for (row, (id, said)) in got.into_iter().enumerate() {
            let (logits, draw) = (&x.host_f32()[row * width..][..width], draws[row]);
            let allowed = allowed(logits, draw);
            assert!(allowed.contains(&(id as usize)), "{draw:?} of {width}: {id}, not one of {allowed:?}");
            let want = logprob(logits, id as usize);
            assert!(
                (f64::from(said) - want).abs() < 2e-6 * want.abs().max(1.0),
                "{draw:?} of {width}: {said}, {want}"
            );
            exact += usize::from(allowed.len() == 1);
            all += 1;
        }
    }
    assert!(exact * 10 > all * 9, "{exact} of {all} draws have one answer");
}

#[test]
fn rows_that_mean_nothing_are_refused_and_others_are_not() {
    let mut kit = Kit::new(10);
    let ops = Ops::load().unwrap();
    for width in [1, 40, 1500] {
        for temperature in [0.0, 0.8] {
            let mut x = kit.tensor(&[5, width], 1.0);
            let values = x.host_f32_mut();
            values[width + width / 2] = f32::NAN;
            values[2 * width..3 * width].fill(f32::NEG_INFINITY);
            values[3 * width] = f32::INFINITY;
            x.upload();
            let draws = [Draw { temperature, top_p: 1.0, uniform: 0.3 }; 5];
            let ids: Vec<i32> = sample(&kit, &ops, &x, &draws).into_iter().map(|chosen| chosen.0).collect();
            assert_eq!(ids[1..4], [-1, -1, -1], "width {width}");
            assert!(ids[0] >= 0 && ids[4] >= 0, "width {width}: {ids:?}");
        }
    }
}

/// The ends of what may be drawn: the first token, and the last that is kept.
#[test]
fn the_ends_of_the_draw_are_the_ends_of_what_is_kept() {
    let kit = Kit::new(11);
    let ops = Ops::load().unwrap();
    let logits: Vec<f32> = [0.1f32, 0.4, 0.2, 0.3].iter().map(|p| p.ln()).collect();
    let last = 1.0 - f64::EPSILON / 2.0;
    for (top_p, uniform, want) in
        [(1.0, 0.0, 1), (1.0, last, 0), (0.75, last, 2), (0.5, last, 3), (0.0, last, 1)]
    {
        let x = Both::new(&logits, &[1, 4], hotseam_sdk::abi::dtype::F32);
        let got = sample(&kit, &ops, &x, &[Draw { temperature: 1.0, top_p, uniform }]);
        assert_eq!(got[0].0, want, "top_p {top_p}, {uniform}");
    }
}
