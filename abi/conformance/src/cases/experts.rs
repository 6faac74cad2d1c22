//! Cases of `moe.experts`.

use super::{Gen, Matrix, row_of};
use crate::batch::Rows;
use crate::buffer::{Buffer, POISON, Role};
use crate::compare::{BY_UNIT, Floats, Judge};
use crate::runner::{Case, Runner};
use crate::{Op, Subject, truth};
use hotseam_abi::weight_format::{BF16, F32, FP8_BLOCK, MXFP4, NVFP4};
use hotseam_abi::{ExpertRef, ExpertsArgs, StepCtx, layer_class};
use hotseam_sdk::ops::Serial;
use hotseam_sdk::{Result, views};
use std::ops::Range;
use std::rc::Rc;

/// Experts that rows choose from.
const EXPERTS: usize = 8;
/// Those of one rank of several: fewer than a row chooses.
const PART: Range<usize> = 2..5;

/// Words of an [`ExpertRef`].
const REF_WORDS: usize = size_of::<ExpertRef>() / 4;

#[derive(Clone)]
struct Experts {
    kind: Kind,
    rows: Rows,
    hidden: usize,
    inter: usize,
    topk: usize,
    x: Buffer,
    ids: Buffer,
    weights: Buffer,
    /// `[w1, w2, w3]` of each expert. Shared by the clones of a case: only their pointers are passed.
    matrices: Rc<Vec<[Matrix; 3]>>,
    refs: Vec<ExpertRef>,
    /// The same for the device; not passed on the CPU.
    device_refs: Buffer,
    out: Buffer,
}

#[derive(Clone, Copy, PartialEq)]
struct Kind {
    limit: f32,
    /// Factor on `x`.
    size: f32,
    routed_scale: f32,
    /// All rows go to the same experts.
    same: bool,
    nan_row: bool,
    /// Which experts the call has.
    share: Share,
    note: &'static str,
}

/// Which experts a call has, and which of them rows have chosen.
#[derive(Clone, Copy, PartialEq)]
enum Share {
    /// All; some rows have a place without one.
    All,
    /// [`PART`], numbered from 0. The others are -1 wherever they stand in a row, and one row has none at all.
    Part,
    /// [`PART`], and every row has chosen others.
    Others,
}

const PLAIN: Kind = Kind {
    limit: 10.0,
    size: 1.0,
    routed_scale: 1.5,
    same: false,
    nan_row: false,
    share: Share::All,
    note: "",
};

pub(super) fn run(runner: &mut Runner<'_>, mut g: Gen) {
    // Gates and ups of tens: 30 and -40 are usual.
    let clamped = Kind { size: 20.0, note: ", gates and ups past the limit", ..PLAIN };
    let scaled = Kind { routed_scale: 1.0, note: ", weights scaled already", ..PLAIN };
    for rows in g.row_counts() {
        runner.run(Experts::new(&mut g, rows.clone(), 96, 40, 2, F32, PLAIN));
        runner.run(Experts::new(&mut g, rows, 256, 128, 2, BF16, clamped));
    }
    // A rank's experts, which are fewer than a row has chosen among all.
    let part = Kind { share: Share::Part, note: ", 3 of them here", ..PLAIN };
    let others = Kind { share: Share::Others, note: ", none of them here", ..PLAIN };
    for rows in g.row_counts() {
        runner.run(Experts::new(&mut g, rows.clone(), 96, 40, 6, F32, part));
        runner.run(Experts::new(&mut g, rows, 192, 160, 6, MXFP4, part));
    }
    // Both sides have a part of a block of 128.
    let last = g.row_counts().pop().expect("there are counts");
    for format in [FP8_BLOCK, MXFP4, NVFP4] {
        runner.run(Experts::new(&mut g, last.clone(), 192, 160, 2, format, PLAIN));
    }
    if !g.full() {
        return;
    }
    for rows in g.row_counts() {
        for format in [BF16, FP8_BLOCK, NVFP4] {
            runner.run(Experts::new(&mut g, rows.clone(), 192, 160, 4, format, part));
        }
        for format in [F32, NVFP4] {
            runner.run(Experts::new(&mut g, rows.clone(), 192, 160, 2, format, others));
        }
    }
    let one = g.row_counts().swap_remove(0);
    for format in [FP8_BLOCK, MXFP4, NVFP4] {
        runner.run(Experts::new(&mut g, one.clone(), 256, 128, 2, format, clamped));
    }
    runner.run(Experts::new(&mut g, last.clone(), 96, 40, 6, BF16, scaled));
    let free = Kind { limit: f32::INFINITY, note: ", no limit", ..clamped };
    runner.run(Experts::new(&mut g, last.clone(), 96, 40, 2, F32, free));
    let same = Kind { same: true, note: ", one pair of experts", ..PLAIN };
    runner.run(Experts::new(&mut g, last.clone(), 256, 128, 2, BF16, same));
    let nan = Kind { nan_row: true, note: ", a NaN row", ..PLAIN };
    runner.run(Experts::new(&mut g, last, 96, 40, 2, F32, nan));
    let empty = g.empty();
    runner.run(Experts::new(&mut g, empty, 96, 40, 2, F32, PLAIN));
}

impl Experts {
    fn new(
        g: &mut Gen,
        rows: Rows,
        hidden: usize,
        inter: usize,
        topk: usize,
        format: u32,
        kind: Kind,
    ) -> Self {
        let mut x = g.by_row("x", &rows, hidden, kind.size);
        if kind.nan_row {
            x.f32_mut()[rows.live()[0] * hidden..][..hidden].fill(f32::NAN);
        }
        let mut ids = Vec::with_capacity(rows.len() * topk);
        for row in 0..rows.len() {
            let mut chosen: Vec<i32> =
                g.rng.permutation(EXPERTS).into_iter().take(topk).map(|e| e as i32).collect();
            if kind.same {
                chosen = (3..3 + topk as i32).collect();
            }
            let local = |id: &mut i32| {
                let here = PART.contains(&(*id as usize)) && kind.share == Share::Part;
                *id = if here { *id - PART.start as i32 } else { -1 };
            };
            match (rows.position(row), kind.share) {
                (None, _) => chosen.fill(-1),
                // An expert of another rank.
                (Some(_), Share::All) if row % 5 == 2 => chosen[0] = -1,
                (Some(_), Share::All) => {}
                (Some(_), Share::Part) if row % 5 == 2 => chosen.fill(-1),
                (Some(_), Share::Part | Share::Others) => chosen.iter_mut().for_each(local),
            }
            ids.extend(chosen);
        }
        let mut weights = g.by_row("weights", &rows, topk, 0.5);
        weights.f32_mut().iter_mut().for_each(|w| *w = w.abs());
        let experts = if kind.share == Share::All { EXPERTS } else { PART.len() };
        let matrices = (0..experts)
            .map(|_| {
                [
                    g.matrix("w1", inter, hidden, format),
                    g.matrix("w2", hidden, inter, format),
                    g.matrix("w3", inter, hidden, format),
                ]
            })
            .collect();
        Self {
            kind,
            hidden,
            inter,
            topk,
            x,
            ids: Buffer::i32s("ids", ids).by_row(topk),
            weights,
            matrices: Rc::new(matrices),
            refs: Vec::new(),
            device_refs: Buffer::poisoned("experts_device", Role::Input, experts * REF_WORDS).on_lines(),
            out: Buffer::out("out", rows.len(), hidden),
            rows,
        }
    }

    fn expert_refs(&self) -> Vec<ExpertRef> {
        let refs = |[w1, w2, w3]: &[Matrix; 3]| ExpertRef { w1: w1.arg(), w2: w2.arg(), w3: w3.arg() };
        self.matrices.iter().map(refs).collect()
    }

    fn args(&mut self) -> ExpertsArgs {
        self.refs = self.expert_refs();
        let experts_device = match self.device_refs.place.get() {
            Some(_) => self.device_refs.ptr::<ExpertRef>().cast_const(),
            None => std::ptr::null(),
        };
        let shape = [self.rows.len(), self.hidden];
        ExpertsArgs {
            size: size_of::<ExpertsArgs>() as u32,
            topk: self.topk as u32,
            n_experts: self.matrices.len() as u32,
            swiglu_limit: self.kind.limit,
            routed_scale: self.kind.routed_scale,
            batch: self.rows.arg(),
            x: self.x.tensor_f32(&shape),
            ids: self.ids.ptr(),
            weights: self.weights.ptr(),
            experts: self.refs.as_ptr(),
            experts_device,
            out: self.out.tensor_f32(&shape),
        }
    }
}

impl Case for Experts {
    fn op(&self) -> Op {
        Op::MoeExperts
    }

    fn title(&self) -> String {
        let (rows, topk, format) = (self.rows.title(), self.topk, self.matrices[0][0].format_name());
        let (hidden, inter, note) = (self.hidden, self.inter, self.kind.note);
        format!("{rows}, {topk} of {EXPERTS} experts, {hidden}x{inter}, {format}{note}")
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn layer(&self) -> (u32, u32) {
        (3, layer_class::HCA)
    }

    fn call(&mut self, subject: &Subject<'_>, ctx: &StepCtx) -> i32 {
        let f = subject.moe.and_then(|a| a.experts).expect("the op is served");
        f(subject.this, ctx, &self.args())
    }

    fn truth(&mut self, _capabilities: u64) -> Result<()> {
        let args = self.args();
        // SAFETY: the arguments point to the buffers of this case.
        truth::experts(&Serial, unsafe { views::Experts::from_raw(&args)? })
    }

    fn buffers(&self) -> Vec<&Buffer> {
        let mut all = vec![&self.x, &self.ids, &self.weights, &self.device_refs, &self.out];
        all.extend(self.rows.buffers());
        all.extend(self.matrices.iter().flatten().flat_map(Matrix::buffers));
        all
    }

    fn outputs(&mut self) -> Vec<&mut Buffer> {
        vec![&mut self.out]
    }

    fn readdress(&mut self) {
        let refs = match self.device_refs.place.get() {
            Some(_) => self.expert_refs(),
            None => return self.device_refs.words_mut().fill(POISON),
        };
        for (words, expert) in self.device_refs.words_mut().chunks_exact_mut(REF_WORDS).zip(&refs) {
            // SAFETY: the struct has no padding and as many bytes as the words.
            let bytes =
                unsafe { std::slice::from_raw_parts(std::ptr::from_ref(expert).cast::<u32>(), REF_WORDS) };
            words.copy_from_slice(bytes);
        }
    }

    fn judge(&self, want: &Self, got: &Self, judge: &mut Judge) {
        let axes = [("row", self.rows.len()), ("dim", self.hidden)];
        let floats = Floats {
            output: "out",
            want: want.out.f32(),
            got: got.out.f32(),
            axes: &axes,
            unit: self.hidden,
            floor: BY_UNIT,
        };
        judge.floats(&floats, &|row| self.rows.position(row).is_some());
    }

    fn alone(&self, row: usize) -> Option<Self> {
        let ids = self.ids.i32()[row * self.topk..(row + 1) * self.topk].to_vec();
        Some(Self {
            rows: self.rows.only(row),
            x: row_of(&self.x, row),
            ids: Buffer::i32s("ids", ids).by_row(self.topk),
            weights: row_of(&self.weights, row),
            out: Buffer::out("out", 1, self.hidden),
            ..self.clone()
        })
    }
}
