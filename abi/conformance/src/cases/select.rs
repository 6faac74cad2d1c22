//! Cases of `indexer.select`.

use super::{Gen, Matrix, row_of};
use crate::batch::{Rows, Span, Tables};
use crate::buffer::{Buffer, POISON};
use crate::compare::{BY_OUTPUT, Floats, Judge};
use crate::pools::ReadPool;
use crate::report::Coordinate;
use crate::runner::{Case, Runner};
use crate::{Op, Subject, truth};
use hotseam_abi::weight_format::{BF16, F32, FP8_BLOCK, MXFP4, NVFP4};
use hotseam_abi::{SelectArgs, StepCtx, layer_class};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::ops::Serial;
use hotseam_sdk::{Result, views};

const RATIO: usize = 4;
const RANK: usize = 64;
const HIDDEN: usize = 96;

#[derive(Clone)]
struct Select {
    kind: Kind,
    rows: Rows,
    dim: usize,
    q_lora: Buffer,
    x: Buffer,
    wq_b: Matrix,
    weights_proj: Matrix,
    tables: Tables,
    keys: ReadPool,
    ids: Buffer,
    scores: Option<Buffer>,
}

#[derive(Clone, Copy, PartialEq)]
enum Special {
    None,
    /// All head weights negative: no score is above 0, and 0 is not "minus infinity".
    Negative,
    /// All keys equal: every score ties.
    Ties,
    /// One complete key of the last sequence is NaN, all head weights positive.
    NanKey,
    /// The first row's `x` is NaN.
    NanRow,
}

#[derive(Clone, Copy, PartialEq)]
struct Kind {
    topk: usize,
    entries_per_page: usize,
    /// Format of `wq_b`; the head weights are bf16 unless it is f32.
    format: u32,
    tap: bool,
    special: Special,
}

pub(super) fn run(runner: &mut Runner<'_>, mut g: Gen) {
    let plain = Kind { topk: 8, entries_per_page: 16, format: BF16, tap: true, special: Special::None };
    let mut cases: Vec<(Kind, Rows, [usize; 3])> = Vec::new();
    let (seed, flash) = ([8, 32, 8], [4, 128, 32]);
    for (i, rows) in g.batches().into_iter().enumerate() {
        let format = if i % 2 == 0 { BF16 } else { F32 };
        cases.push((Kind { tap: i % 2 == 0, format, ..plain }, rows, seed));
    }
    let first = g.batches().swap_remove(0);
    cases.push((Kind { topk: 64, entries_per_page: 64, tap: false, ..plain }, first.clone(), seed));
    cases.extend([FP8_BLOCK, MXFP4, NVFP4].map(|format| (Kind { format, ..plain }, first.clone(), flash)));
    if g.full() {
        let long = g.rows(&[Span::new(2060, 1, 2), Span::new(2047, 1, 1)], 0);
        let special = |special| Kind { special, ..plain };
        cases.extend([
            (special(Special::Negative), first.clone(), seed),
            (special(Special::Ties), first.clone(), seed),
            (special(Special::NanKey), first.clone(), seed),
            (special(Special::NanRow), first.clone(), seed),
            (Kind { topk: 300, ..plain }, first.clone(), seed),
            (Kind { topk: 512, entries_per_page: 64, ..plain }, long, seed),
            (plain, g.empty(), seed),
            (plain, first.clone(), flash),
            (Kind { topk: 64, entries_per_page: 64, format: F32, ..plain }, first, flash),
        ]);
    }
    for (kind, rows, shape) in cases {
        match Select::new(&mut g, rows, shape, kind) {
            Ok(case) => runner.run(case),
            Err(e) => return runner.fail(Op::IndexerSelect, "layout", e.message),
        }
    }
}

impl Select {
    fn new(g: &mut Gen, rows: Rows, [heads, dim, half]: [usize; 3], kind: Kind) -> Result<Self> {
        let live: Vec<_> = rows.spans.iter().map(|s| 0..s.end() / RATIO).collect();
        let (same, shape) = (g.rng.normals(dim, 1.0), Shape { dim, rope_dim: 2 * half });
        let mut keys =
            ReadPool::new(&mut g.rng, g.layout, shape, kind.entries_per_page, &live, |rng, _, _| match kind
                .special
            {
                Special::Ties => same.clone(),
                _ => rng.normals(dim, 1.0),
            })?;
        let mut x = g.by_row("x", &rows, HIDDEN, 1.0);
        let mut weights_proj =
            g.matrix("weights_proj", heads, HIDDEN, if kind.format == F32 { F32 } else { BF16 });
        match kind.special {
            Special::None | Special::Ties => {}
            Special::Negative => signed(&mut x, &mut weights_proj, true),
            Special::NanKey => {
                signed(&mut x, &mut weights_proj, false);
                keys.set(live.len() - 1, live[live.len() - 1].end / 2, f32::NAN);
            }
            Special::NanRow => x.f32_mut()[rows.live()[0] * HIDDEN..][..HIDDEN].fill(f32::NAN),
        }
        let width = live.iter().map(|r| r.end).max().unwrap_or(0) + 3;
        Ok(Self {
            kind,
            dim,
            q_lora: g.by_row("q_lora", &rows, RANK, 1.0),
            x,
            wq_b: g.matrix("wq_b", heads * dim, RANK, kind.format),
            weights_proj,
            tables: g.tables(half),
            keys,
            ids: Buffer::out("ids", rows.len(), kind.topk),
            scores: kind.tap.then(|| Buffer::out("scores", rows.len(), width)),
            rows,
        })
    }

    fn args(&mut self) -> SelectArgs {
        let n = self.rows.len();
        SelectArgs {
            size: size_of::<SelectArgs>() as u32,
            ratio: RATIO as u32,
            heads: self.weights_proj.n as u32,
            topk: self.kind.topk as u32,
            scores_width: self.scores.as_ref().map_or(0, |s| s.row_words as u32),
            batch: self.rows.arg(),
            q_lora: self.q_lora.tensor_f32(&[n, RANK]),
            x: self.x.tensor_f32(&[n, HIDDEN]),
            wq_b: self.wq_b.arg(),
            weights_proj: self.weights_proj.tensor(),
            rope: self.tables.arg(),
            keys: self.keys.arg(),
            ids: self.ids.ptr(),
            scores: self.scores.as_mut().map_or(std::ptr::null_mut(), Buffer::ptr),
        }
    }

    /// Scores of every complete entry, by row.
    fn true_scores(&self) -> Vec<Vec<f32>> {
        let mut case = self.clone();
        let args = case.args();
        // SAFETY: the arguments point to the buffers of the clone.
        let view = unsafe { views::Select::from_raw(&args) };
        view.and_then(|v| truth::scores(&Serial, &v)).expect("truth has answered this case before")
    }

    /// One row's ids: reachable, distinct, as many as there must be, and with the best scores.
    /// Gaps are relative to `scale`, the root mean square of all scores.
    fn judge_ids(&self, row: usize, ids: &[i32], scores: &[f32], scale: f64, judge: &mut Judge) {
        let at = |rank| Coordinate::new("ids", row * self.kind.topk + rank, &self.ids_axes());
        let used = ids.iter().position(|id| *id == -1).unwrap_or(ids.len());
        let (n, numbers) = (scores.len(), scores.iter().filter(|s| !s.is_nan()).count());
        for (rank, id) in ids.iter().enumerate() {
            let fault = match *id {
                -1 => continue,
                id if rank > used => format!("{} is {id}, after a -1", at(rank)),
                id if id < 0 || id as usize >= n => {
                    format!("{} is {id}, but {n} entries are complete", at(rank))
                }
                id if ids[..rank].contains(&id) => format!("{} is {id}, which was chosen before", at(rank)),
                _ => continue,
            };
            return judge.fail_at(at(rank), f64::from(*id), f64::NAN, fault);
        }
        let least = if n <= self.kind.topk { n } else { numbers.min(self.kind.topk) };
        if used < least {
            let message = format!("{} is -1, but {least} of {n} entries must be chosen", at(used));
            return judge.fail_at(at(used), -1.0, f64::NAN, message);
        }
        if n <= self.kind.topk {
            return judge.overlap(1.0);
        }
        let mut order: Vec<usize> = (0..n).filter(|e| !scores[*e].is_nan()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(self.kind.topk);
        let mut chosen: Vec<usize> = ids[..used].iter().map(|id| *id as usize).collect();
        chosen.retain(|e| !scores[*e].is_nan());
        chosen.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        if chosen.len() < order.len() {
            let message = format!("row {row}: an entry with a NaN score was chosen before a number");
            return judge.fail_at(at(0), f64::NAN, f64::NAN, message);
        }
        // An entry that ties with the last one is as good.
        let cut = order.last().map_or(f32::NAN, |e| scores[*e]);
        let common = chosen.iter().filter(|e| order.contains(e) || scores[**e] == cut).count();
        judge.overlap(common as f64 / order.len().max(1) as f64);
        // Two scores may each be off by the tolerance before they change places.
        let tolerance = 2.0 * judge.tolerance("scores").max;
        let gaps = order.iter().zip(&chosen).map(|(o, c)| f64::from(scores[*o] - scores[*c]) / scale);
        let largest = gaps.clone().fold(0.0, f64::max);
        let first = gaps
            .enumerate()
            .find(|(_, gap)| *gap > tolerance)
            .map(|(rank, _)| (at(rank), f64::from(scores[chosen[rank]]), f64::from(scores[order[rank]])));
        judge.error("score gap", largest, tolerance, first);
    }

    fn ids_axes(&self) -> [(&'static str, usize); 2] {
        [("row", self.rows.len()), ("rank", self.kind.topk)]
    }
}

/// Makes all head weights of one sign.
fn signed(x: &mut Buffer, weights_proj: &mut Matrix, negative: bool) {
    x.f32_mut().iter_mut().for_each(|v| *v = v.abs());
    let sign = if negative { 0x8000 } else { 0 };
    if weights_proj.format == BF16 {
        let (clear, set) = (0x7fff_7fff, sign | sign << 16);
        weights_proj.buffer.words_mut().iter_mut().for_each(|w| *w = *w & clear | set);
    } else {
        weights_proj.buffer.words_mut().iter_mut().for_each(|w| *w = *w & 0x7fff_ffff | sign << 16);
    }
}

impl Case for Select {
    fn op(&self) -> Op {
        Op::IndexerSelect
    }

    fn title(&self) -> String {
        let special = match self.kind.special {
            Special::None => "",
            Special::Negative => ", negative weights",
            Special::Ties => ", all scores equal",
            Special::NanKey => ", a NaN key",
            Special::NanRow => ", a NaN row",
        };
        let (rows, heads, dim) = (self.rows.title(), self.weights_proj.n, self.dim);
        let (topk, page) = (self.kind.topk, self.kind.entries_per_page);
        let format = self.wq_b.format_name();
        format!("{rows}, index {heads}x{dim}, topk {topk}, pages of {page}, {format}{special}")
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn layer(&self) -> (u32, u32) {
        (2, layer_class::CSA)
    }

    fn call(&mut self, subject: &Subject<'_>, ctx: &StepCtx) -> i32 {
        let f = subject.indexer.and_then(|a| a.select).expect("the op is served");
        f(subject.this, ctx, &self.args())
    }

    fn truth(&mut self, _capabilities: u64) -> Result<()> {
        let args = self.args();
        // SAFETY: the arguments point to the buffers of this case.
        truth::select(&Serial, unsafe { views::Select::from_raw(&args)? })
    }

    fn buffers(&self) -> Vec<&Buffer> {
        let mut all = vec![&self.q_lora, &self.x, &self.keys.bytes, &self.keys.table, &self.ids];
        all.extend(self.rows.buffers().into_iter().chain(self.tables.buffers()));
        all.extend(self.wq_b.buffers().chain(self.weights_proj.buffers()).chain(&self.scores));
        all
    }

    fn outputs(&mut self) -> Vec<&mut Buffer> {
        std::iter::once(&mut self.ids).chain(&mut self.scores).collect()
    }

    fn judge(&self, want: &Self, got: &Self, judge: &mut Judge) {
        let scores = self.true_scores();
        let finite = || scores.iter().flatten().filter(|s| s.is_finite());
        let squares: f64 = finite().map(|s| f64::from(*s).powi(2)).sum();
        let scale = (squares / finite().count().max(1) as f64).sqrt().max(1e-12);
        for row in self.rows.live() {
            let ids = &got.ids.i32()[row * self.kind.topk..(row + 1) * self.kind.topk];
            self.judge_ids(row, ids, &scores[row], scale, judge);
        }
        if let (Some(want), Some(got)) = (&want.scores, &got.scores) {
            let width = want.row_words;
            let axes = [("row", self.rows.len()), ("entry", width)];
            for row in self.rows.live() {
                let rest = (scores[row].len()..width).find(|e| got.words()[row * width + e] != POISON);
                if let Some(entry) = rest {
                    let at = Coordinate::new("scores", row * width + entry, &axes);
                    let message = format!("wrote {at}, past the {} complete entries", scores[row].len());
                    judge.fail_at(at, f64::from(got.f32()[row * width + entry]), f64::NAN, message);
                }
            }
            let floats = Floats {
                output: "scores",
                want: want.f32(),
                got: got.f32(),
                axes: &axes,
                unit: width,
                floor: BY_OUTPUT,
            };
            judge.floats(&floats, &|row| self.rows.position(row).is_some());
        }
    }

    fn alone(&self, row: usize) -> Option<Self> {
        Some(Self {
            rows: self.rows.only(row),
            q_lora: row_of(&self.q_lora, row),
            x: row_of(&self.x, row),
            keys: self.keys.only(self.rows.seq(row)),
            ids: Buffer::out("ids", 1, self.kind.topk),
            scores: self.scores.as_ref().map(|s| Buffer::out("scores", 1, s.row_words)),
            ..self.clone()
        })
    }
}
