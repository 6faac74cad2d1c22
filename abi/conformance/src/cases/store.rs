//! Cases of `attention.store`.

use super::{Gen, row_of};
use crate::batch::{Rows, Tables};
use crate::buffer::Buffer;
use crate::compare::{BY_UNIT, Floats, Judge};
use crate::pools::WritePool;
use crate::report::Coordinate;
use crate::runner::{Case, Runner};
use crate::{Op, Subject, truth};
use hotseam_abi::{StepCtx, StoreArgs, layer_class};
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::{Result, views};

#[derive(Clone)]
struct Store {
    note: &'static str,
    rows: Rows,
    kv: Buffer,
    norm_weight: Buffer,
    tables: Tables,
    out_slots: Buffer,
    pool: WritePool,
}

pub(super) fn run(runner: &mut Runner<'_>, mut g: Gen) {
    for (dim, half) in [(64, 8), (512, 32)] {
        if dim == 512 && !g.full() {
            continue;
        }
        let mut batches: Vec<(Rows, &'static str)> = g.batches().into_iter().map(|b| (b, "")).collect();
        if dim == 64 && g.full() {
            batches.push((g.empty(), ""));
            batches.push((g.batches().swap_remove(0), "a NaN row, a row without a slot"));
        }
        for (i, (rows, note)) in batches.into_iter().enumerate() {
            let shape = Shape { dim, rope_dim: 2 * half };
            match Store::new(&mut g, rows, shape, [256, 64, 8][i % 3], note) {
                Ok(case) => runner.run(case),
                Err(e) => return runner.fail(Op::AttentionStore, "layout", e.message),
            }
        }
    }
}

impl Store {
    fn new(
        g: &mut Gen,
        rows: Rows,
        shape: Shape,
        entries_per_page: usize,
        note: &'static str,
    ) -> Result<Self> {
        let dim = shape.dim;
        let pool = WritePool::new(g.layout, shape, entries_per_page, rows.len() + 9)?;
        let mut order = pool.some_slots(&mut g.rng).into_iter();
        let slot = |row| rows.position(row).and_then(|_| order.next()).unwrap_or(-1);
        let mut slots: Vec<i32> = (0..rows.len()).map(slot).collect();
        let mut kv = g.by_row("kv", &rows, dim, 1.7);
        if !note.is_empty() {
            let live = rows.live();
            kv.f32_mut()[live[0] * dim + 3] = f32::NAN;
            slots[live[1]] = -1;
        }
        Ok(Self {
            note,
            kv,
            norm_weight: g.norm_weight(dim),
            tables: g.tables(shape.rope_dim / 2),
            out_slots: Buffer::i32s("out_slots", slots).by_row(1),
            pool,
            rows,
        })
    }

    fn args(&mut self) -> StoreArgs {
        let (n, dim) = (self.rows.len(), self.pool.form.shape.dim);
        StoreArgs {
            size: size_of::<StoreArgs>() as u32,
            norm_eps: 1e-6,
            batch: self.rows.arg(),
            kv: self.kv.tensor_f32(&[n, dim]),
            norm_weight: self.norm_weight.tensor_f32(&[dim]),
            rope: self.tables.arg(),
            out_slots: self.out_slots.ptr(),
            pool: self.pool.arg(),
        }
    }
}

impl Case for Store {
    fn op(&self) -> Op {
        Op::AttentionStore
    }

    fn title(&self) -> String {
        let note = if self.note.is_empty() { String::new() } else { format!(", {}", self.note) };
        let form = self.pool.form;
        format!("{}, dim {}, pages of {}{note}", self.rows.title(), form.shape.dim, form.entries_per_page)
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn layer(&self) -> (u32, u32) {
        (0, layer_class::WINDOW)
    }

    fn call(&mut self, subject: &Subject<'_>, ctx: &StepCtx) -> i32 {
        let f = subject.attention.and_then(|a| a.store).expect("the op is served");
        f(subject.this, ctx, &self.args())
    }

    fn truth(&mut self, _capabilities: u64) -> Result<()> {
        let args = self.args();
        // SAFETY: the arguments point to the buffers of this case.
        truth::store(unsafe { views::Store::from_raw(&args)? })
    }

    fn buffers(&self) -> Vec<&Buffer> {
        let mut all = vec![&self.kv, &self.norm_weight, &self.out_slots, &self.pool.bytes];
        all.extend(self.rows.buffers().into_iter().chain(self.tables.buffers()));
        all
    }

    fn outputs(&mut self) -> Vec<&mut Buffer> {
        vec![&mut self.pool.bytes]
    }

    fn judge(&self, want: &Self, got: &Self, judge: &mut Judge) {
        let slots: Vec<usize> =
            self.out_slots.i32().iter().filter(|s| **s >= 0).map(|s| *s as usize).collect();
        compare_pools(&self.pool, &want.pool, &got.pool, &slots, judge);
    }

    fn alone(&self, row: usize) -> Option<Self> {
        let slot = self.out_slots.i32()[row];
        (slot >= 0).then(|| Self {
            rows: self.rows.only(row),
            kv: row_of(&self.kv, row),
            out_slots: Buffer::i32s("out_slots", vec![slot]).by_row(1),
            ..self.clone()
        })
    }

    fn same_row(&self, row: usize, alone: &Self) -> bool {
        let slot = self.out_slots.i32()[row] as usize;
        self.pool.entry(slot) == alone.pool.entry(slot)
    }
}

/// Most of the values of a call that may be off by a step of their format: those that lie so near the middle of two numbers
/// that the rounding of f32 sums decides.
const MOST_STEPS: f64 = 0.02;

/// Compares the entries at `slots`, and demands that no other byte of the pool changed. Entries of a layout that quantises
/// may differ from truth's by one step of the format, in few values; nothing else.
pub(super) fn compare_pools(
    before: &WritePool,
    want: &WritePool,
    got: &WritePool,
    slots: &[usize],
    judge: &mut Judge,
) {
    if let Some(place) = got.stray(before, slots) {
        let message = format!("wrote {place}, which is no slot of this call ({} slots are)", slots.len());
        return judge.fail(message);
    }
    if let Some(entry) = slots.iter().position(|s| got.entry(*s) == before.entry(*s)) {
        let at = Coordinate::new("pool", entry, &[("entry", usize::MAX)]);
        let message = format!("did not write {at}, slot {}", slots[entry]);
        return judge.fail_at(at, f64::NAN, f64::NAN, message);
    }
    let dim = before.form.shape.dim;
    let (values, found) = (want.decoded(slots), got.decoded(slots));
    let axes = [("entry", slots.len()), ("dim", dim)];
    if before.form.is_f32() {
        let floats =
            Floats { output: "pool", want: &values, got: &found, axes: &axes, unit: dim, floor: BY_UNIT };
        return judge.floats(&floats, &|_| true);
    }
    let (mut largest, mut first, mut differing) = (0f64, None, 0usize);
    for (at, (w, g)) in values.iter().zip(&found).enumerate().filter(|(_, (w, _))| !w.is_nan()) {
        if w.to_bits() == g.to_bits() || w == g {
            continue;
        }
        differing += 1;
        let (slot, i) = (slots[at / dim], at % dim);
        let step = |pool: &WritePool, value| {
            let form = pool.form;
            truth::layout::step(form.layout, form.shape.rope_dim, dim, pool.entry(slot), i, value)
        };
        let steps = f64::from((w - g).abs()) / f64::from(step(want, *w).max(step(got, *g)));
        if (steps > 1.0 || steps.is_nan()) && first.is_none() {
            first = Some((Coordinate::new("pool", at, &axes), f64::from(*g), f64::from(*w)));
        }
        largest = largest.max(if steps.is_nan() { f64::INFINITY } else { steps });
    }
    judge.error("steps of the format", largest, 1.0, first);
    let share = differing as f64 / values.len().max(1) as f64;
    if share > MOST_STEPS && largest <= 1.0 {
        let at = Coordinate::new("pool", 0, &axes);
        let percent = share * 100.0;
        let message = format!(
            "{percent:.1} % of the values of pool entries are a step off, at most {} % may be",
            MOST_STEPS * 100.0
        );
        judge.fail_at(at, share, 0.0, message);
    }
}
