//! `attention.store` and `attention.core`.

use super::layout;
use super::numbers::{add_scaled, dot, rms_norm, rope};
use crate::reference::Mass;
use hotseam_sdk::ops::Parallel;
use hotseam_sdk::{Result, SharedMut, views};

/// `attention.store`; see [`hotseam_abi::StoreArgs`].
pub fn store(mut a: views::Store<'_>) -> Result<()> {
    let mut entry = vec![0f32; a.dim];
    for row in 0..a.rows.len() {
        let (position, slot) = (a.rows.positions[row], a.out_slots[row]);
        if position < 0 || slot < 0 {
            continue;
        }
        rms_norm(&a.kv[row * a.dim..(row + 1) * a.dim], a.norm_weight, a.norm_eps, &mut entry);
        let (cos, sin) = a.rope.row(position as usize);
        rope(&mut entry, cos, sin, false);
        let form = a.pool.form;
        layout::encode(form.layout, form.shape.rope_dim, &entry, a.pool.entry_mut(slot as usize))?;
    }
    Ok(())
}

/// `attention.core`; see [`hotseam_abi::CoreArgs`]. The inverse rope is left to the caller ([`inverse_rope`]).
pub fn core(par: &dyn Parallel, mut a: views::Core<'_>) -> Result<()> {
    // Refuses an unknown layout before the rows, whose loop cannot fail any more.
    layout::parts(a.swa.form.layout, a.swa.form.shape)?;
    a.entries.map(|pool| layout::parts(pool.form.layout, pool.form.shape)).transpose()?;
    let width = a.heads * a.dim;
    let out = std::mem::take(&mut a.out);
    let out = SharedMut::new(out);
    par.run(a.rows.len(), 1, &|rows| {
        for row in rows {
            if a.rows.positions[row] >= 0 {
                // SAFETY: each row is in one piece.
                core_row(&a, row, unsafe { out.slice(row * width..(row + 1) * width) });
            }
        }
    });
    Ok(())
}

fn core_row(a: &views::Core<'_>, row: usize, out: &mut [f32]) {
    let keys = keys_of(a, row);
    let mut scores = vec![0f64; keys.len() / a.dim];
    let mut total = vec![0f64; a.dim];
    for head in 0..a.heads {
        let q = &a.q[(row * a.heads + head) * a.dim..][..a.dim];
        let sink = f64::from(a.sinks[head]);
        let mut largest = sink;
        for (score, key) in scores.iter_mut().zip(keys.chunks_exact(a.dim)) {
            *score = dot(q, key) * f64::from(a.scale);
            largest = largest.max(*score);
        }
        let mut denominator = (sink - largest).exp();
        total.fill(0.0);
        for (score, key) in scores.iter().zip(keys.chunks_exact(a.dim)) {
            let p = (score - largest).exp();
            denominator += p;
            add_scaled(&mut total, p, key);
        }
        for (o, t) in out[head * a.dim..].iter_mut().zip(&total) {
            *o = (t / denominator) as f32;
        }
    }
}

/// Attention mass of one row, averaged over heads; see [`crate::reference::attention_mass`].
pub fn mass(a: &views::Core<'_>, row: usize, ids: Option<&[usize]>) -> Result<Mass> {
    layout::parts(a.swa.form.layout, a.swa.form.shape)?;
    a.entries.map(|pool| layout::parts(pool.form.layout, pool.form.shape)).transpose()?;
    if row >= a.rows.len() || a.rows.positions[row] < 0 {
        return Ok(Mass::default());
    }
    let complete = a.complete(row);
    let mut entries: Vec<usize> = Vec::new();
    match ids {
        Some(ids) => entries.extend(ids.iter().filter(|id| **id < complete)),
        None => a.for_each_entry(row, |entry| entries.push(entry)),
    }
    let seq = a.rows.seq(row);
    let mut key = vec![0f32; a.dim];
    let mut logits = |pool: &views::Pool<'_>, entry: usize| -> Vec<f64> {
        read(pool, seq, entry, &mut key);
        let heads = a.q[row * a.heads * a.dim..][..a.heads * a.dim].chunks_exact(a.dim);
        heads.map(|q| dot(q, &key) * f64::from(a.scale)).collect()
    };
    let window: Vec<(usize, Vec<f64>)> = a.window_of(row).map(|p| (p, logits(&a.swa, p))).collect();
    let far: Vec<(usize, Vec<f64>)> = match &a.entries {
        Some(pool) => entries.iter().map(|e| (*e, logits(pool, *e))).collect(),
        None => Vec::new(),
    };
    let all = || window.iter().chain(&far).map(|(_, logits)| logits);
    let largest = |h: usize| all().map(|l| l[h]).fold(f64::from(a.sinks[h]), f64::max);
    let denominators: Vec<(f64, f64)> = (0..a.heads)
        .map(|h| {
            let m = largest(h);
            (m, all().map(|l| (l[h] - m).exp()).sum::<f64>() + (f64::from(a.sinks[h]) - m).exp())
        })
        .collect();
    let share = |logits: &[f64]| -> f64 {
        let parts = logits.iter().zip(&denominators).map(|(l, (m, d))| (l - m).exp() / d);
        parts.sum::<f64>() / a.heads.max(1) as f64
    };
    let sinks: Vec<f64> = a.sinks.iter().map(|s| f64::from(*s)).collect();
    Ok(Mass {
        window: window.iter().map(|(p, l)| (*p, share(l))).collect(),
        entries: far.iter().map(|(e, l)| (*e, share(l))).collect(),
        sink: share(&sinks),
    })
}

/// Decodes an entry of a pool whose layout was checked.
fn read(pool: &views::Pool<'_>, seq: usize, entry: usize, values: &mut [f32]) {
    let (form, bytes) = (pool.form, pool.entry(pool.slot(seq, entry)));
    layout::decode(form.layout, form.shape.rope_dim, bytes, values).expect("layout was checked");
}

/// The keys a row attends, decoded: its window, then its compressed entries.
fn keys_of(a: &views::Core<'_>, row: usize) -> Vec<f32> {
    let seq = a.rows.seq(row);
    let mut keys = Vec::new();
    let mut push = |pool: &views::Pool<'_>, entry: usize| {
        let from = keys.len();
        keys.resize(from + a.dim, 0.0);
        read(pool, seq, entry, &mut keys[from..]);
    };
    a.window_of(row).for_each(|position| push(&a.swa, position));
    if let Some(pool) = &a.entries {
        a.for_each_entry(row, |entry| push(pool, entry));
    }
    keys
}

/// Turns the output of [`core`] back by each row's position, as variants with `FUSES_INVERSE_ROPE` do themselves.
/// `out` is `[rows, heads, dim]`; padded rows are left alone.
pub fn inverse_rope(positions: &[i32], tables: views::Rope<'_>, heads: usize, dim: usize, out: &mut [f32]) {
    for (row, position) in positions.iter().enumerate().filter(|(_, p)| **p >= 0) {
        let (cos, sin) = tables.row(*position as usize);
        for head in out[row * heads * dim..(row + 1) * heads * dim].chunks_exact_mut(dim) {
            rope(head, cos, sin, true);
        }
    }
}
