//! Cases of `attention.core`.

use super::{Gen, row_of};
use crate::batch::{Rows, Span, Tables};
use crate::buffer::Buffer;
use crate::compare::{BY_UNIT, Floats, Judge};
use crate::pools::ReadPool;
use crate::random::Random;
use crate::runner::{Case, Runner};
use crate::truth::numbers::{bf16_to_f32, f32_to_bf16};
use crate::{Op, Subject, truth};
use hotseam_abi::{CoreArgs, PoolRef, StepCtx, capability, layer_class, phase};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::ops::Serial;
use hotseam_sdk::{Result, views};

const WINDOW: usize = 128;

/// Factor on the queries that gives scores past 88, whose exponential overflows.
const SHARP: f32 = 32.0;

/// Ids a row may name in cases with selection.
const IDS_WIDTH: usize = 24;

#[derive(Clone)]
struct Core {
    kind: Kind,
    rows: Rows,
    heads: usize,
    dim: usize,
    q: Buffer,
    sinks: Buffer,
    swa: ReadPool,
    entries: Option<ReadPool>,
    ids: Option<Buffer>,
    tables: Tables,
    out: Buffer,
}

/// What a case is about.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    ratio: usize,
    /// Compressed entries are named by ids rather than all taken.
    selected: bool,
    /// Sinks are drawn around this.
    sink: f32,
    /// Factor on the queries.
    sharpness: f32,
    nan_row: bool,
    note: &'static str,
}

const PLAIN: Kind = Kind { ratio: 0, selected: false, sink: 0.5, sharpness: 1.0, nan_row: false, note: "" };
const CSA: Kind = Kind { ratio: 4, selected: true, ..PLAIN };
const HCA: Kind = Kind { ratio: 128, ..PLAIN };

impl Kind {
    /// Rounds the operands of sharp scores to bf16. A softmax multiplies the error of a score by the score's size, so a
    /// kernel with bf16 operands would be flagged for its format; with such operands its products are exact.
    fn coarsen(self, values: &mut [f32]) {
        if self.sharpness > 1.0 {
            values.iter_mut().filter(|v| !v.is_nan()).for_each(|v| *v = bf16_to_f32(f32_to_bf16(*v)));
        }
    }
}

pub(super) fn run(runner: &mut Runner<'_>, mut g: Gen) {
    let heavy = Kind { sink: 5.0, note: ", large sinks", ..CSA };
    let mut cases: Vec<(Kind, Rows)> = Vec::new();
    for rows in g.batches() {
        cases.extend([CSA, HCA].map(|kind| (kind, rows.clone())));
    }
    let first = g.batches().swap_remove(0);
    cases.push((heavy, first.clone()));
    if g.full() {
        cases.extend([
            (PLAIN, first.clone()),
            (Kind { sink: 30.0, note: ", sinks above all scores", ..HCA }, first.clone()),
            (Kind { sink: -30.0, note: ", sinks below all scores", ..PLAIN }, first.clone()),
            (Kind { sharpness: SHARP, note: ", scores of a hundred", ..CSA }, first.clone()),
            (Kind { selected: false, note: ", all entries", ..CSA }, first.clone()),
            (Kind { nan_row: true, note: ", a NaN row", ..CSA }, first),
            (CSA, g.empty()),
            (PLAIN, g.empty()),
        ]);
    }
    // Page sizes of the window pool: a few pages within the window, and the window within one page.
    let small =
        cases.into_iter().enumerate().map(|(i, (kind, rows))| (8, 64, 8, [32, 256][i % 2], kind, rows));
    let mut all: Vec<_> = small.collect();
    if g.full() {
        let few = match g.phase {
            phase::PREFILL => g.rows(&[Span::new(126, 4, 1), Span::new(1021, 5, 3)], 1),
            _ => g.rows(&[Span::new(127, 1, 1), Span::new(128, 1, 1), Span::new(1024, 1, 2)], 1),
        };
        all.extend([PLAIN, CSA, HCA, heavy].map(|kind| (2, 512, 32, 64, kind, few.clone())));
        // A rank's heads: from one to all of the largest model.
        all.extend([1, 3, 128].map(|heads| (heads, 64, 8, 32, CSA, few.clone())));
    }
    for (heads, dim, half, entries_per_page, kind, rows) in all {
        match Core::new(&mut g, rows, heads, dim, half, entries_per_page, kind) {
            Ok(case) => runner.run(case),
            Err(e) => return runner.fail(Op::AttentionCore, "layout", e.message),
        }
    }
}

impl Core {
    fn new(
        g: &mut Gen,
        rows: Rows,
        heads: usize,
        dim: usize,
        half: usize,
        entries_per_page: usize,
        kind: Kind,
    ) -> Result<Self> {
        let (width, shape) = (heads * dim, Shape { dim, rope_dim: 2 * half });
        let value = |rng: &mut Random, _, _| {
            let mut entry = rng.normals(dim, 1.0);
            kind.coarsen(&mut entry);
            entry
        };
        let window: Vec<_> =
            rows.spans.iter().map(|s| (s.position + 1).saturating_sub(WINDOW)..s.end()).collect();
        let swa = ReadPool::new(&mut g.rng, g.layout, shape, entries_per_page, &window, value)?;
        let entries = match kind.ratio {
            0 => None,
            ratio => {
                let live: Vec<_> = rows.spans.iter().map(|s| 0..s.end() / ratio).collect();
                let per_page = if ratio == 4 { 16 } else { 2 };
                Some(ReadPool::new(&mut g.rng, g.layout, shape, per_page, &live, value)?)
            }
        };
        let ids = kind.selected.then(|| {
            let mut ids = Vec::with_capacity(rows.len() * IDS_WIDTH);
            for row in 0..rows.len() {
                let complete = rows.position(row).map_or(0, |p| (p + 1) / kind.ratio);
                let mut chosen: Vec<i32> =
                    g.rng.permutation(complete).into_iter().map(|e| e as i32).collect();
                chosen.resize(IDS_WIDTH, -1);
                if row % 3 == 1 {
                    // -1 means "no entry" wherever it stands.
                    chosen.swap(0, IDS_WIDTH - 1);
                }
                ids.extend(chosen);
            }
            Buffer::i32s("ids", ids).by_row(IDS_WIDTH)
        });
        let mut q = g.by_row("q", &rows, width, kind.sharpness);
        kind.coarsen(q.f32_mut());
        if kind.nan_row {
            q.f32_mut()[rows.live()[0] * width..][..width].fill(f32::NAN);
        }
        let sinks = g.rng.normals(heads, 1.0).into_iter().map(|s| s + kind.sink).collect();
        Ok(Self {
            kind,
            heads,
            dim,
            q,
            sinks: Buffer::f32s("sinks", sinks),
            swa,
            entries,
            ids,
            tables: g.tables(half),
            out: Buffer::out("out", rows.len(), width),
            rows,
        })
    }

    fn args(&mut self) -> CoreArgs {
        let shape = [self.rows.len(), self.heads, self.dim];
        CoreArgs {
            size: size_of::<CoreArgs>() as u32,
            window: WINDOW as u32,
            ratio: self.kind.ratio as u32,
            ids_width: if self.ids.is_some() { IDS_WIDTH as u32 } else { 0 },
            scale: (self.dim as f32).powf(-0.5),
            batch: self.rows.arg(),
            q: self.q.tensor_f32(&shape),
            sinks: self.sinks.tensor_f32(&[self.heads]),
            swa: self.swa.arg(),
            entries: self.entries.as_mut().map_or(PoolRef::NONE, ReadPool::arg),
            ids: self.ids.as_mut().map_or(std::ptr::null(), |ids| ids.ptr::<i32>().cast_const()),
            rope: self.tables.arg(),
            out: self.out.tensor_f32(&shape),
        }
    }
}

impl Case for Core {
    fn op(&self) -> Op {
        Op::AttentionCore
    }

    fn title(&self) -> String {
        let (heads, dim, ratio, note) = (self.heads, self.dim, self.kind.ratio, self.kind.note);
        format!("{}, heads {heads}x{dim}, ratio {ratio}{note}", self.rows.title())
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn layer(&self) -> (u32, u32) {
        match self.kind.ratio {
            0 => (0, layer_class::WINDOW),
            4 => (2, layer_class::CSA),
            _ => (3, layer_class::HCA),
        }
    }

    fn call(&mut self, subject: &Subject<'_>, ctx: &StepCtx) -> i32 {
        let f = subject.attention.and_then(|a| a.core).expect("the op is served");
        f(subject.this, ctx, &self.args())
    }

    fn truth(&mut self, capabilities: u64) -> Result<()> {
        let args = self.args();
        // SAFETY: the arguments point to the buffers of this case.
        truth::core(&Serial, unsafe { views::Core::from_raw(&args)? })?;
        if capabilities & capability::FUSES_INVERSE_ROPE != 0 {
            let (positions, tables) = (self.rows.positions.i32(), self.tables.view());
            truth::inverse_rope(positions, tables, self.heads, self.dim, self.out.f32_mut());
        }
        Ok(())
    }

    fn buffers(&self) -> Vec<&Buffer> {
        let mut all = vec![&self.q, &self.sinks, &self.swa.bytes, &self.swa.table];
        all.extend(self.rows.buffers().into_iter().chain(self.tables.buffers()));
        all.extend(self.entries.iter().flat_map(|p| [&p.bytes, &p.table]));
        all.extend(&self.ids);
        all.push(&self.out);
        all
    }

    fn outputs(&mut self) -> Vec<&mut Buffer> {
        vec![&mut self.out]
    }

    fn judge(&self, want: &Self, got: &Self, judge: &mut Judge) {
        let axes = [("row", self.rows.len()), ("head", self.heads), ("dim", self.dim)];
        let (want, got) = (want.out.f32(), got.out.f32());
        let floats = Floats { output: "out", want, got, axes: &axes, unit: self.dim, floor: BY_UNIT };
        judge.floats(&floats, &|row| self.rows.position(row).is_some());
    }

    fn alone(&self, row: usize) -> Option<Self> {
        let seq = self.rows.seq(row);
        let ids = |b: &Buffer| b.i32()[row * IDS_WIDTH..(row + 1) * IDS_WIDTH].to_vec();
        Some(Self {
            rows: self.rows.only(row),
            q: row_of(&self.q, row),
            swa: self.swa.only(seq),
            entries: self.entries.as_ref().map(|p| p.only(seq)),
            ids: self.ids.as_ref().map(|b| Buffer::i32s("ids", ids(b)).by_row(IDS_WIDTH)),
            out: Buffer::out("out", 1, self.heads * self.dim),
            ..self.clone()
        })
    }
}
