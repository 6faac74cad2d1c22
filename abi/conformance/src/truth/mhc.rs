//! `mhc.pre`, `mhc.post` and `mhc.head`.

use super::numbers::{add_scaled, dot, inverse_rms, sigmoid};
use hotseam_sdk::ops::Parallel;
use hotseam_sdk::views::{MhcHead, MhcPost, MhcPre};
use hotseam_sdk::{Result, SharedMut};

/// `mhc.pre` without the following norm; see [`hotseam_abi::MhcPreArgs`].
pub fn mhc_pre(par: &dyn Parallel, mut a: MhcPre<'_>) -> Result<()> {
    let (hc, hidden) = (a.hc, a.hidden);
    let (x, post, comb) =
        (std::mem::take(&mut a.x), std::mem::take(&mut a.post), std::mem::take(&mut a.comb));
    let (x, post, comb) = (SharedMut::new(x), SharedMut::new(post), SharedMut::new(comb));
    par.run(a.rows.len(), 1, &|rows| {
        for row in rows.filter(|row| a.rows.positions[*row] >= 0) {
            let streams = &a.streams[row * hc * hidden..(row + 1) * hc * hidden];
            let m = mix(streams, a.fn_weight, a.norm_eps);
            let gate = |i: usize, scale: usize| m[i] * f64::from(a.scale[scale]) + f64::from(a.base[i]);
            let pre: Vec<f64> = (0..hc).map(|i| sigmoid(gate(i, 0)) + f64::from(a.hc_eps)).collect();
            let logits: Vec<f64> = (2 * hc..(2 + hc) * hc).map(|i| gate(i, 2)).collect();
            let mixing = sinkhorn(logits, hc, a.iters, f64::from(a.hc_eps));
            // SAFETY: each row is in one piece, for all three outputs.
            let (x, post, comb) = unsafe {
                (
                    x.slice(row * hidden..(row + 1) * hidden),
                    post.slice(row * hc..(row + 1) * hc),
                    comb.slice(row * hc * hc..(row + 1) * hc * hc),
                )
            };
            collapse(&pre, streams, x);
            for (i, p) in post.iter_mut().enumerate() {
                *p = (2.0 * sigmoid(gate(hc + i, 1))) as f32;
            }
            for (c, v) in comb.iter_mut().zip(mixing) {
                *c = v as f32;
            }
        }
    });
    Ok(())
}

/// `mhc.post`; see [`hotseam_abi::MhcPostArgs`].
pub fn mhc_post(par: &dyn Parallel, mut a: MhcPost<'_>) -> Result<()> {
    let (hc, hidden) = (a.hc, a.hidden);
    let streams = std::mem::take(&mut a.streams);
    let streams = SharedMut::new(streams);
    par.run(a.rows.len(), 1, &|rows| {
        for row in rows.filter(|row| a.rows.positions[*row] >= 0) {
            // SAFETY: each row is in one piece.
            let out = unsafe { streams.slice(row * hc * hidden..(row + 1) * hc * hidden) };
            let before = out.to_vec();
            let f = &a.f[row * hidden..(row + 1) * hidden];
            for (k, out) in out.chunks_exact_mut(hidden).enumerate() {
                let mut total = vec![0f64; hidden];
                add_scaled(&mut total, f64::from(a.post[row * hc + k]), f);
                for (i, stream) in before.chunks_exact(hidden).enumerate() {
                    add_scaled(&mut total, f64::from(a.comb[row * hc * hc + i * hc + k]), stream);
                }
                round(&total, out);
            }
        }
    });
    Ok(())
}

/// `mhc.head`; see [`hotseam_abi::MhcHeadArgs`].
pub fn mhc_head(par: &dyn Parallel, mut a: MhcHead<'_>) -> Result<()> {
    let (hc, hidden) = (a.hc, a.hidden);
    let x = std::mem::take(&mut a.x);
    let x = SharedMut::new(x);
    par.run(a.rows.len(), 1, &|rows| {
        for row in rows.filter(|row| a.rows.positions[*row] >= 0) {
            let streams = &a.streams[row * hc * hidden..(row + 1) * hc * hidden];
            let gate = |(m, base): (&f64, &f32)| {
                sigmoid(m * f64::from(a.scale[0]) + f64::from(*base)) + f64::from(a.hc_eps)
            };
            let pre: Vec<f64> = mix(streams, a.fn_weight, a.norm_eps).iter().zip(a.base).map(gate).collect();
            // SAFETY: each row is in one piece.
            collapse(&pre, streams, unsafe { x.slice(row * hidden..(row + 1) * hidden) });
        }
    });
    Ok(())
}

/// `fn . (flat * rsqrt(mean(flat^2) + eps))`.
fn mix(flat: &[f32], fn_weight: &[f32], eps: f32) -> Vec<f64> {
    let inverse = inverse_rms(flat, eps);
    fn_weight.chunks_exact(flat.len()).map(|w| dot(w, flat) * inverse).collect()
}

fn collapse(pre: &[f64], streams: &[f32], x: &mut [f32]) {
    let mut total = vec![0f64; x.len()];
    for (p, stream) in pre.iter().zip(streams.chunks_exact(x.len())) {
        add_scaled(&mut total, *p, stream);
    }
    round(&total, x);
}

fn round(total: &[f64], out: &mut [f32]) {
    for (o, t) in out.iter_mut().zip(total) {
        *o = *t as f32;
    }
}

/// Row softmax plus `eps`, then alternating column and row normalisation, columns first and last.
fn sinkhorn(mut comb: Vec<f64>, hc: usize, iters: usize, eps: f64) -> Vec<f64> {
    for row in comb.chunks_exact_mut(hc) {
        let largest = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
        row.iter_mut().for_each(|v| *v = (*v - largest).exp());
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|v| *v = *v / sum + eps);
    }
    for iteration in 0..iters {
        if iteration > 0 {
            for row in comb.chunks_exact_mut(hc) {
                let sum: f64 = row.iter().sum::<f64>() + eps;
                row.iter_mut().for_each(|v| *v /= sum);
            }
        }
        for column in 0..hc {
            let sum: f64 = (0..hc).map(|row| comb[row * hc + column]).sum::<f64>() + eps;
            (0..hc).for_each(|row| comb[row * hc + column] /= sum);
        }
    }
    comb
}

#[cfg(test)]
mod tests {
    use super::sinkhorn;

    #[test]
    fn sinkhorn_makes_rows_and_columns_sum_to_one() {
        let logits: Vec<f64> = (0..16).map(|i| f64::from(i * 7 % 11) / 3.0).collect();
        let comb = sinkhorn(logits.clone(), 4, 20, 1e-6);
        for i in 0..4 {
            let row: f64 = comb[4 * i..4 * i + 4].iter().sum();
            let column: f64 = (0..4).map(|r| comb[4 * r + i]).sum();
            assert!((row - 1.0).abs() < 1e-3 && (column - 1.0).abs() < 1e-5, "{row} {column}");
        }
        // One iteration normalises the columns only.
        let comb = sinkhorn(logits, 4, 1, 0.0);
        let columns: Vec<f64> = (0..4).map(|i| (0..4).map(|r| comb[4 * r + i]).sum()).collect();
        assert!(columns.iter().all(|c| (c - 1.0).abs() < 1e-12), "{columns:?}");
        assert!((comb[..4].iter().sum::<f64>() - 1.0).abs() > 1e-3);
    }
}
