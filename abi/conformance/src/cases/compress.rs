//! Cases of `attention.compress` and `indexer.compress`.

use super::Gen;
use super::store::compare_pools;
use crate::batch::{Rows, Tables};
use crate::buffer::{Buffer, POISON, Role};
use crate::compare::{BY_UNIT, Floats, Judge};
use crate::pools::WritePool;
use crate::report::Coordinate;
use crate::runner::{Case, Runner};
use crate::{Op, Subject, truth};
use hotseam_abi::{CompressArgs, StepCtx, layer_class};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Result, views};

#[derive(Clone)]
struct Compress {
    op: Op,
    note: &'static str,
    rows: Rows,
    ratio: usize,
    overlap: bool,
    kv: Buffer,
    gate: Buffer,
    ape: Buffer,
    norm_weight: Buffer,
    tables: Tables,
    sources: Buffer,
    entry_positions: Buffer,
    out_slots: Buffer,
    state_dst: Buffer,
    state: Buffer,
    pool: WritePool,
}

/// What is special about a case.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    None,
    /// Scores of up to +-300: a softmax that does not subtract the largest overflows.
    LargeGates,
    /// One token's kv is NaN: only the entries that take it may be.
    NanToken,
}

pub(super) fn run(runner: &mut Runner<'_>, mut g: Gen, op: Op) {
    let shapes: &[(usize, usize, usize)] = match op {
        Op::IndexerCompress => &[(4, 32, 8), (4, 128, 32)],
        _ => &[(4, 64, 8), (128, 64, 8), (4, 512, 32), (128, 512, 32)],
    };
    for (i, (ratio, dim, half)) in shapes.iter().enumerate() {
        let large = *dim > 64;
        if large && !g.full() {
            continue;
        }
        let mut batches: Vec<(Rows, Special)> = g.batches().into_iter().map(|b| (b, Special::None)).collect();
        if large {
            batches.truncate(2);
        } else if g.full() {
            batches.push((g.batches().swap_remove(0), Special::LargeGates));
            batches.push((g.batches().swap_remove(0), Special::NanToken));
        }
        if i == 0 && g.full() {
            batches.push((g.empty(), Special::None));
        }
        for (j, (rows, special)) in batches.into_iter().enumerate() {
            let shape = Shape { dim: *dim, rope_dim: 2 * half };
            // The pages of the engine, and others.
            let per_page = [256 / ratio, 8][j % 2];
            match Compress::new(&mut g, op, rows, *ratio, shape, per_page, special) {
                Ok(case) => runner.run(case),
                Err(e) => return runner.fail(op, "layout", e.message),
            }
        }
    }
}

impl Compress {
    fn new(
        g: &mut Gen,
        op: Op,
        rows: Rows,
        ratio: usize,
        shape: Shape,
        entries_per_page: usize,
        special: Special,
    ) -> Result<Self> {
        let (overlap, dim) = (ratio == 4, shape.dim);
        let (channels, keep) = (dim * (1 + overlap as usize), ratio * (1 + overlap as usize));
        // State rows: those read hold the tokens before each sequence's first row, those written are others.
        let read = |position: usize| position.min(keep);
        let written = |n_rows: usize| n_rows.min(keep);
        let n_state: usize = rows.spans.iter().map(|s| read(s.position) + written(s.rows)).sum();
        let mut free = g.rng.permutation(n_state + 5).into_iter();
        let mut state = Buffer::poisoned("state", Role::Output, (n_state + 5) * 2 * channels);
        let mut state_dst = vec![-1i32; rows.len()];
        let (mut sources, mut entry_positions) = (Vec::new(), Vec::new());
        for (s, span) in rows.spans.iter().enumerate() {
            let first_kept = span.position - read(span.position);
            let kept: Vec<usize> = free.by_ref().take(read(span.position)).collect();
            for row in &kept {
                let values = g.rng.normals(2 * channels, 1.5);
                state.f32_mut()[row * 2 * channels..(row + 1) * 2 * channels].copy_from_slice(&values);
            }
            for i in span.rows - written(span.rows)..span.rows {
                state_dst[rows.begins[s] + i] = free.next().expect("enough state rows") as i32;
            }
            let source = |position: i64| match usize::try_from(position) {
                Err(_) => -1,
                Ok(p) if p >= span.position => (rows.begins[s] + p - span.position) as i32,
                Ok(p) => -(kept[p - first_kept] as i32) - 2,
            };
            for group in span.position / ratio..span.end() / ratio {
                let from = (group * ratio) as i64 - if overlap { ratio as i64 } else { 0 };
                sources.extend((from..((group + 1) * ratio) as i64).map(source));
                entry_positions.push((group * ratio) as i32);
            }
        }
        let n = entry_positions.len();
        let pool = WritePool::new(g.layout, shape, entries_per_page, n + 7)?;
        let mut slots = pool.some_slots(&mut g.rng);
        slots.truncate(n);
        if g.on_device {
            // Inside and at the end.
            for entry in [n.min(1), n + 1] {
                let width = ratio * (1 + overlap as usize);
                slots.insert(entry, -1);
                entry_positions.insert(entry, POISON as i32);
                sources.splice(entry * width..entry * width, std::iter::repeat_n(POISON as i32, width));
            }
        }
        let mut kv = g.by_row("kv", &rows, channels, 1.0);
        let gate =
            g.by_row("gate", &rows, channels, if special == Special::LargeGates { 100.0 } else { 1.5 });
        if special == Special::NanToken {
            let row = rows.live()[0];
            kv.f32_mut()[row * channels..(row + 1) * channels].fill(f32::NAN);
        }
        Ok(Self {
            op,
            note: match special {
                Special::None => "",
                Special::LargeGates => ", gates of hundreds",
                Special::NanToken => ", a NaN token",
            },
            ratio,
            overlap,
            kv,
            gate,
            ape: Buffer::f32s("ape", g.rng.normals(ratio * channels, 0.7)),
            norm_weight: g.norm_weight(dim),
            tables: g.tables(shape.rope_dim / 2),
            sources: Buffer::i32s("sources", sources),
            entry_positions: Buffer::i32s("entry_positions", entry_positions),
            out_slots: Buffer::i32s("out_slots", slots),
            state_dst: Buffer::i32s("state_dst", state_dst).by_row(1),
            state,
            pool,
            rows,
        })
    }

    fn channels(&self) -> usize {
        self.pool.form.shape.dim * (1 + self.overlap as usize)
    }

    /// The case with some of its entries only.
    fn entries(&self, keep: impl Fn(usize) -> bool) -> Self {
        let some = |b: &Buffer, n: usize| {
            let entries = b.i32().chunks_exact(n).enumerate().filter(|(entry, _)| keep(*entry));
            Buffer::i32s(b.name, entries.flat_map(|(_, values)| values.to_vec()).collect())
        };
        Self {
            sources: some(&self.sources, self.ratio * (1 + self.overlap as usize)),
            entry_positions: some(&self.entry_positions, 1),
            out_slots: some(&self.out_slots, 1),
            ..self.clone()
        }
    }

    /// What truth answers: in host memory there are no padded entries.
    fn without_padding(&self) -> Self {
        self.entries(|entry| self.out_slots.i32()[entry] >= 0)
    }

    fn args(&mut self) -> CompressArgs {
        let (n, dim, channels) = (self.rows.len(), self.pool.form.shape.dim, self.channels());
        let state_rows = self.state.words().len() / (2 * channels);
        CompressArgs {
            size: size_of::<CompressArgs>() as u32,
            ratio: self.ratio as u32,
            overlap: self.overlap.into(),
            n_entries: self.out_slots.words().len() as u32,
            norm_eps: 1e-6,
            batch: self.rows.arg(),
            kv: self.kv.tensor_f32(&[n, channels]),
            gate: self.gate.tensor_f32(&[n, channels]),
            ape: self.ape.tensor_f32(&[self.ratio, channels]),
            norm_weight: self.norm_weight.tensor_f32(&[dim]),
            rope: self.tables.arg(),
            sources: self.sources.ptr(),
            entry_positions: self.entry_positions.ptr(),
            out_slots: self.out_slots.ptr(),
            state_dst: self.state_dst.ptr(),
            state: self.state.tensor_f32(&[state_rows, 2 * channels]),
            pool: self.pool.arg(),
        }
    }
}

impl Case for Compress {
    fn op(&self) -> Op {
        self.op
    }

    fn title(&self) -> String {
        let n = self.out_slots.i32().iter().filter(|slot| **slot >= 0).count();
        let padded = if n < self.out_slots.words().len() { ", padded entries" } else { "" };
        format!(
            "{}, ratio {}, dim {}, {n} entries{padded}{}",
            self.rows.title(),
            self.ratio,
            self.pool.form.shape.dim,
            self.note
        )
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn layer(&self) -> (u32, u32) {
        if self.overlap { (2, layer_class::CSA) } else { (3, layer_class::HCA) }
    }

    fn call(&mut self, subject: &Subject<'_>, ctx: &StepCtx) -> i32 {
        let f = match self.op {
            Op::IndexerCompress => subject.indexer.and_then(|a| a.compress),
            _ => subject.attention.and_then(|a| a.compress),
        };
        f.expect("the op is served")(subject.this, ctx, &self.args())
    }

    fn truth(&mut self, _capabilities: u64) -> Result<()> {
        let mut plain = self.without_padding();
        let args = plain.args();
        // SAFETY: the arguments point to the buffers of that case.
        truth::compress(unsafe { views::Compress::from_raw(&args)? })?;
        (self.pool, self.state) = (plain.pool, plain.state);
        Ok(())
    }

    fn buffers(&self) -> Vec<&Buffer> {
        let mut all = vec![
            &self.kv,
            &self.gate,
            &self.ape,
            &self.norm_weight,
            &self.sources,
            &self.entry_positions,
            &self.out_slots,
            &self.state_dst,
            &self.state,
            &self.pool.bytes,
        ];
        all.extend(self.rows.buffers().into_iter().chain(self.tables.buffers()));
        all
    }

    fn outputs(&mut self) -> Vec<&mut Buffer> {
        vec![&mut self.state, &mut self.pool.bytes]
    }

    fn judge(&self, want: &Self, got: &Self, judge: &mut Judge) {
        let slots: Vec<usize> =
            self.out_slots.i32().iter().filter(|s| **s >= 0).map(|s| *s as usize).collect();
        compare_pools(&self.pool, &want.pool, &got.pool, &slots, judge);

        let width = 2 * self.channels();
        let written: Vec<usize> =
            self.state_dst.i32().iter().filter(|s| **s >= 0).map(|s| *s as usize).collect();
        let row = |c: &Self, r: usize| c.state.words()[r * width..(r + 1) * width].to_vec();
        let n_rows = self.state.words().len() / width;
        if let Some(bad) = (0..n_rows).find(|r| !written.contains(r) && row(got, *r) != row(self, *r)) {
            let at = Coordinate::new("state", bad, &[("row", usize::MAX)]);
            let message = format!("wrote {at}, which is not in state_dst");
            return judge.fail_at(at, f64::NAN, f64::NAN, message);
        }
        let gather = |c: &Self| -> Vec<f32> {
            written.iter().flat_map(|r| c.state.f32()[r * width..(r + 1) * width].to_vec()).collect()
        };
        let (want, got) = (gather(want), gather(got));
        let axes = [("written row", written.len()), ("channel", width)];
        let unit = self.channels();
        judge.floats(
            &Floats { output: "state", want: &want, got: &got, axes: &axes, unit, floor: BY_UNIT },
            &|_| true,
        );
    }

    /// The row's group closed by itself: the same batch, one entry.
    fn alone(&self, row: usize) -> Option<Self> {
        let width = self.ratio * (1 + self.overlap as usize);
        let entry = self.sources.i32().chunks_exact(width).position(|s| s.contains(&(row as i32)))?;
        Some(self.entries(|e| e == entry))
    }

    fn same_row(&self, _row: usize, alone: &Self) -> bool {
        let slot = alone.out_slots.i32()[0] as usize;
        self.pool.entry(slot) == alone.pool.entry(slot)
    }
}
