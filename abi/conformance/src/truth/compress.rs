//! `attention.compress` and `indexer.compress`.

use super::layout;
use super::numbers::{rms_norm, rope};
use hotseam_sdk::views::{Compress, Source};
use hotseam_sdk::{Error, Result};

/// `attention.compress` and `indexer.compress`; see [`hotseam_abi::CompressArgs`].
pub fn compress(mut a: Compress<'_>) -> Result<()> {
    let mut pooled = vec![0f32; a.dim];
    let mut entry = vec![0f32; a.dim];
    for e in 0..a.n_entries() {
        pool_entry(&a, e, &mut pooled)?;
        rms_norm(&pooled, a.norm_weight, a.norm_eps, &mut entry);
        let (cos, sin) = a.rope.row(a.entry_positions[e] as usize);
        rope(&mut entry, cos, sin, false);
        let (form, slot) = (a.pool.form, a.out_slots[e] as usize);
        layout::encode(form.layout, form.shape.rope_dim, &entry, a.pool.entry_mut(slot))?;
    }
    for row in 0..a.rows.len() {
        if a.state_dst[row] < 0 {
            continue;
        }
        let (c, ape) = (a.channels, ape_of(&a, row)?);
        let state = &mut a.state[a.state_dst[row] as usize * 2 * c..][..2 * c];
        state[..c].copy_from_slice(&a.kv[row * c..(row + 1) * c]);
        for ((s, gate), ape) in state[c..].iter_mut().zip(&a.gate[row * c..]).zip(ape) {
            *s = gate + ape;
        }
    }
    Ok(())
}

/// The position bias of a row.
fn ape_of<'a>(a: &Compress<'a>, row: usize) -> Result<&'a [f32]> {
    let position = usize::try_from(a.rows.positions[row])
        .map_err(|_| Error::argument(format!("row {row} is padding but is a source or has a state row")))?;
    Ok(&a.ape[position % a.ratio * a.channels..][..a.channels])
}

/// Softmax over the sources, channel by channel, and the weighted sum.
fn pool_entry(a: &Compress<'_>, e: usize, out: &mut [f32]) -> Result<()> {
    let width = a.width();
    let mut kv = vec![0f64; width];
    let mut score = vec![0f64; width];
    for (d, o) in out.iter_mut().enumerate() {
        for i in 0..width {
            // With overlap the closing group gives the upper half of its channels.
            let channel = if a.overlap && i >= a.ratio { a.dim + d } else { d };
            (kv[i], score[i]) = match a.source(e, i) {
                Source::Absent => (0.0, f64::NEG_INFINITY),
                Source::Row(row) => {
                    let at = row * a.channels + channel;
                    // The score is an f32 in the state rows; the same rounding keeps one answer for both ways.
                    (f64::from(a.kv[at]), f64::from(a.gate[at] + ape_of(a, row)?[channel]))
                }
                Source::State(row) => {
                    let at = row * 2 * a.channels + channel;
                    (f64::from(a.state[at]), f64::from(a.state[at + a.channels]))
                }
            };
        }
        let largest = score.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
        let (mut sum, mut weights) = (0.0, 0.0);
        for (k, s) in kv.iter().zip(&score) {
            let w = (s - largest).exp();
            weights += w;
            sum += w * k;
        }
        *o = (sum / weights) as f32;
    }
    Ok(())
}
