//! The loop over pages.

use crate::query::Queries;
use crate::{page, top};
use hotseam_cpu_kernels::scratch::lease;
use hotseam_sdk::ops::Parallel;
use hotseam_sdk::views::Select;
use hotseam_sdk::{Result, SharedMut};
use std::ops::Range;

/// Rows of a work item: those of one sequence share the decoded page.
const ROWS: usize = 8;

/// `indexer.select`. With `early_exit` the loop of a sequence ends at its last page, else at the end of its page table
/// with the scores past the last entry set to minus infinity; both give the same.
///
/// # Errors
/// If the index heads are too large.
pub(crate) fn select(par: &dyn Parallel, a: &mut Select<'_>, early_exit: bool) -> Result<()> {
    let queries = Queries::new(par, a)?;
    let (n, topk, width) = (a.rows.len(), a.topk, a.scores_width);
    let tap = !a.scores.is_empty();
    let (ids, taps) =
        (SharedMut::new(std::mem::take(&mut a.ids)), SharedMut::new(std::mem::take(&mut a.scores)));
    let a = &*a;
    let keep = |row: usize, scores: &[f32]| {
        // SAFETY: rows do not overlap.
        let (ids, taps) = unsafe {
            (
                ids.slice(row * topk..(row + 1) * topk),
                taps.slice(if tap { row * width..(row + 1) * width } else { 0..0 }),
            )
        };
        top::best(scores, ids);
        taps.iter_mut().zip(scores).for_each(|(tap, score)| *tap = *score);
    };
    par.run(n.div_ceil(ROWS), 1, &|blocks| {
        for block in blocks {
            let mut rows = block * ROWS..n.min((block + 1) * ROWS);
            while let Some(run) = next_run(a, &mut rows) {
                score_run(a, &queries, run, early_exit, &keep);
            }
        }
    });
    Ok(())
}

/// Takes from the front of `rows` those that belong to one sequence; padded rows form runs of their own.
fn next_run(a: &Select<'_>, rows: &mut Range<usize>) -> Option<Range<usize>> {
    let of = |row: usize| (a.rows.positions[row] >= 0).then(|| a.rows.seq(row));
    let begin = rows.next()?;
    while rows.start < rows.end && of(rows.start) == of(begin) {
        rows.start += 1;
    }
    Some(begin..rows.start)
}

/// Scores the rows `run` of one sequence and gives each row's scores of its complete entries to `keep`.
fn score_run(
    a: &Select<'_>,
    queries: &Queries,
    run: Range<usize>,
    early_exit: bool,
    keep: &(dyn Fn(usize, &[f32]) + Sync),
) {
    let (dim, heads, per_page) = (a.dim, a.heads, a.keys.form.entries_per_page);
    let last = run.clone().map(|row| a.complete(row)).max().unwrap_or(0);
    if last == 0 {
        run.for_each(|row| keep(row, &[]));
        return;
    }
    let seq = a.rows.seq(run.start);
    let pages = if early_exit { last.div_ceil(per_page) } else { a.keys.pages(seq).len() };
    let width = pages * per_page;
    let (mut tile, mut dots) = (lease::<f32>(per_page * dim), lease::<f32>(per_page));
    let mut scores = lease::<f32>(run.len() * width);
    scores.fill(f32::NEG_INFINITY);
    for first in (0..width).step_by(per_page) {
        let there = last.saturating_sub(first).min(per_page);
        page::load(&a.keys, seq, first, dim, &mut tile[..there * dim]);
        for (scores, row) in scores.chunks_exact_mut(width).zip(run.clone()) {
            let visible = a.complete(row).saturating_sub(first).min(per_page);
            let q = &queries.q[row * heads * dim..][..heads * dim];
            let weights = &queries.weights[row * heads..][..heads];
            page::score(q, weights, &tile, &mut dots[..visible], &mut scores[first..first + visible]);
        }
    }
    for (scores, row) in scores.chunks_exact(width).zip(run) {
        keep(row, &scores[..a.complete(row)]);
    }
}
