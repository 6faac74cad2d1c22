//! {{description}}.
//!
//! `select` is a plain working kernel to start from; `compress` comes from `indexer/cpu-stock`.

use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::ops::{Parallel, dot, linear, rope};
use hotseam_sdk::views::Select;
use hotseam_sdk::{Ctx, Error, Host, Indexer, Info, NoOptions, Plugin, Result, SharedMut, export_plugin};
use std::sync::{Mutex, PoisonError};

/// The variant `indexer/{{name}}`.
#[derive(Debug, Default)]
pub struct Variant {
    scratch: Mutex<Scratch>,
}

/// Memory that is kept between calls, so that a warm call allocates nothing.
#[derive(Debug, Default)]
struct Scratch {
    /// `[rows, heads, dim]` queries.
    q: Vec<f32>,
    /// `[rows, heads]` weights of the heads.
    weights: Vec<f32>,
    /// `[rows, longest]` (score, entry) of the complete entries.
    scores: Vec<(f32, i32)>,
}

impl Plugin for Variant {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self::default())
    }

    fn info(&self, shape: Shape) -> Info {
        Info::of_layout(layout::KEY_F32, shape)
    }
}

impl Indexer for Variant {
    fn select(&self, ctx: &Ctx, mut a: Select<'_>) -> Result<()> {
        if a.keys.form.layout != layout::KEY_F32 {
            let found = a.keys.form.layout;
            return Err(Error::argument(format!("layout {found}, expected {}", layout::KEY_F32)));
        }
        let (rows, heads, dim) = (a.rows.len(), a.heads, a.dim);
        let longest = (0..rows).map(|row| a.complete(row)).max().unwrap_or(0);
        // Calls on one instance never overlap, so nobody waits here.
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let Scratch { q, weights, scores } = &mut *scratch;
        q.resize(rows * heads * dim, 0.0);
        weights.resize(rows * heads, 0.0);
        scores.resize(rows * longest, (0.0, 0));
        linear(ctx.host(), a.q_lora, rows, a.wq_b, q);
        linear(ctx.host(), a.x, rows, a.weights_proj, weights);

        let (ids, taps) = (std::mem::take(&mut a.ids), std::mem::take(&mut a.scores));
        let tapped = !taps.is_empty();
        let (q, scores) = (SharedMut::new(q), SharedMut::new(scores));
        let (ids, taps) = (SharedMut::new(ids), SharedMut::new(taps));
        ctx.host().run(rows, 1, &|pieces| {
            for row in pieces {
                let n = a.complete(row);
                // SAFETY: each row has its own part of every buffer.
                let (q, scores, ids, tap) = unsafe {
                    (
                        q.slice(row * heads * dim..(row + 1) * heads * dim),
                        scores.slice(row * longest..row * longest + n),
                        ids.slice(row * a.topk..(row + 1) * a.topk),
                        taps.slice(if tapped { row * a.scores_width..(row + 1) * a.scores_width } else { 0..0 }),
                    )
                };
                score(&a, row, q, &weights[row * heads..(row + 1) * heads], scores);
                tap.iter_mut().zip(&*scores).for_each(|(tap, (score, _))| *tap = *score);
                keep(scores, ids);
            }
        });
        Ok(())
    }
}

/// Scores of the complete entries of a row; `q` is not yet roped.
fn score(a: &Select<'_>, row: usize, q: &mut [f32], weights: &[f32], scores: &mut [(f32, i32)]) {
    if scores.is_empty() {
        return;
    }
    let (cos, sin) = a.rope.row(a.rows.positions[row] as usize);
    q.chunks_exact_mut(a.dim).for_each(|head| rope(head, cos, sin, false));
    let factor = ((a.heads * a.dim) as f32).sqrt().recip();
    for (entry, score) in scores.iter_mut().enumerate() {
        let key = a.keys.f32(a.keys.slot(a.rows.seq(row), entry));
        let heads = q.chunks_exact(a.dim).zip(weights);
        *score = (heads.map(|(q, w)| w * dot(q, key).max(0.0)).sum::<f32>() * factor, entry as i32);
    }
}

/// The entries of the largest scores, -1 where there are fewer; NaN is below every number.
fn keep(scores: &mut [(f32, i32)], ids: &mut [i32]) {
    let kept = ids.len().min(scores.len());
    if kept > 0 && kept < scores.len() {
        let value = |score: f32| if score.is_nan() { (false, 0.0) } else { (true, score) };
        scores.select_nth_unstable_by(kept - 1, |(a, i), (b, j)| {
            let ((a_is, a), (b_is, b)) = (value(*a), value(*b));
            b_is.cmp(&a_is).then(b.total_cmp(&a)).then(i.cmp(j))
        });
    }
    let (used, unused) = ids.split_at_mut(kept);
    used.iter_mut().zip(scores).for_each(|(id, (_, entry))| *id = *entry);
    unused.fill(-1);
}

export_plugin! {
    seam: indexer, plugin: Variant, ops: [select],
    name: "indexer/{{name}}", description: "{{description}}", base: "indexer/cpu-stock",
    options: "{}",
    cpu: "[]"
}
