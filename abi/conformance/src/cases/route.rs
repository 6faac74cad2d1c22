//! Cases of `moe.route`.

use super::{Gen, Matrix, row_of};
use crate::batch::Rows;
use crate::buffer::Buffer;
use crate::compare::{BY_UNIT, Floats, Judge};
use crate::report::Coordinate;
use crate::runner::{Case, Runner};
use crate::{Op, Subject, truth};
use hotseam_abi::weight_format::{BF16, F32};
use hotseam_abi::{RouteArgs, StepCtx, TensorRef, capability, dtype, layer_class};
use hotseam_sdk::ops::Serial;
use hotseam_sdk::{Result, views};

const VOCAB: usize = 37;
const ROUTED_SCALE: f32 = 1.5;

#[derive(Clone)]
struct Route {
    note: &'static str,
    rows: Rows,
    topk: usize,
    x: Buffer,
    gate: Matrix,
    bias: Option<Buffer>,
    tid2eid: Option<Buffer>,
    input_ids: Buffer,
    ids: Buffer,
    weights: Buffer,
    /// What the variant's `route` leaves in its weights; set by `truth`.
    factor: f32,
}

pub(super) fn run(runner: &mut Runner<'_>, mut g: Gen) {
    let mut batches: Vec<(Rows, &'static str)> = g.row_counts().into_iter().map(|b| (b, "")).collect();
    if g.full() {
        let last = g.row_counts().pop().expect("there are counts");
        batches.push((last.clone(), "large logits"));
        batches.push((last, "a NaN row"));
        batches.push((g.empty(), ""));
    }
    for (rows, note) in batches {
        for hash in [false, true] {
            runner.run(Route::new(&mut g, rows.clone(), 8, 2, 256, hash, note));
            if g.full() {
                runner.run(Route::new(&mut g, rows.clone(), 64, 6, 96, hash, note));
            }
        }
    }
}

impl Route {
    fn new(
        g: &mut Gen,
        rows: Rows,
        experts: usize,
        topk: usize,
        hidden: usize,
        hash: bool,
        note: &'static str,
    ) -> Self {
        let mut x = g.by_row("x", &rows, hidden, if note == "large logits" { 25.0 } else { 1.0 });
        if note == "a NaN row" {
            x.f32_mut()[rows.live()[0] * hidden..][..hidden].fill(f32::NAN);
        }
        // A bias as large as the scores: it changes most choices, and must change no weight.
        let bias = (!hash).then(|| Buffer::f32s("bias", g.rng.normals(experts, 0.8)));
        let table = |g: &mut Gen| {
            let choice =
                |_| g.rng.permutation(experts).into_iter().take(topk).map(|e| e as i32).collect::<Vec<_>>();
            Buffer::i32s("tid2eid", (0..VOCAB).flat_map(choice).collect())
        };
        let tid2eid = hash.then(|| table(g));
        let token = |row| if rows.position(row).is_some() { g.rng.below(VOCAB) as i32 } else { -1 };
        let input_ids = (0..rows.len()).map(token).collect();
        Self {
            note,
            topk,
            x,
            gate: g.matrix("gate", experts, hidden, if experts == 8 { BF16 } else { F32 }),
            bias,
            tid2eid,
            input_ids: Buffer::i32s("input_ids", input_ids).by_row(1),
            ids: Buffer::out("ids", rows.len(), topk),
            weights: Buffer::out("weights", rows.len(), topk),
            factor: 1.0,
            rows,
        }
    }

    fn args(&mut self) -> RouteArgs {
        let (n, topk, experts, hidden) = (self.rows.len(), self.topk, self.gate.n, self.gate.k);
        RouteArgs {
            size: size_of::<RouteArgs>() as u32,
            topk: topk as u32,
            routed_scale: ROUTED_SCALE,
            batch: self.rows.arg(),
            x: self.x.tensor_f32(&[n, hidden]),
            gate: self.gate.tensor(),
            bias: self.bias.as_mut().map_or(TensorRef::NONE, |b| b.tensor_f32(&[experts])),
            tid2eid: self.tid2eid.as_mut().map_or(TensorRef::NONE, |t| t.tensor(dtype::I32, &[VOCAB, topk])),
            input_ids: self.input_ids.ptr(),
            ids: self.ids.ptr(),
            weights: self.weights.ptr(),
        }
    }

    fn true_scores(&self) -> Vec<f32> {
        let mut case = self.clone();
        let args = case.args();
        // SAFETY: the arguments point to the buffers of the clone.
        let view = unsafe { views::Route::from_raw(&args) };
        truth::router_scores(&Serial, &view.expect("truth has answered this case before"))
    }

    /// The ids of a row: experts that are there, each once, and the right ones. Returns false if they are not.
    fn judge_ids(&self, row: usize, want: &[i32], got: &[i32], scores: &[f32], judge: &mut Judge) -> bool {
        let axes = [("row", self.rows.len()), ("choice", self.topk)];
        let at = |k| Coordinate::new("ids", row * self.topk + k, &axes);
        for (k, id) in got.iter().enumerate() {
            let fault = match usize::try_from(*id) {
                Ok(e) if e >= self.gate.n => Some(format!("there are {} experts", self.gate.n)),
                Ok(_) if got[..k].contains(id) => Some("it was chosen before".to_owned()),
                Ok(_) if self.tid2eid.is_some() && *id != want[k] => {
                    Some(format!("the table sends token {} to {}", self.input_ids.i32()[row], want[k]))
                }
                Ok(_) => None,
                Err(_) => Some("it is no expert".to_owned()),
            };
            if let Some(fault) = fault {
                let message = format!("{} is {id}: {fault}", at(k));
                judge.fail_at(at(k), f64::from(*id), f64::from(want[k]), message);
                return false;
            }
        }
        let Some(bias) = &self.bias else { return true };
        let key = |id: &i32| f64::from(scores[*id as usize]) + f64::from(bias.f32()[*id as usize]);
        let sorted = |ids: &[i32]| {
            let mut keys: Vec<f64> = ids.iter().map(key).collect();
            keys.sort_by(|a, b| b.total_cmp(a));
            keys
        };
        judge.overlap(got.iter().filter(|id| want.contains(id)).count() as f64 / self.topk as f64);
        let tolerance = judge.tolerance("weights").max;
        let (best, chosen) = (sorted(want), sorted(got));
        let gap = |k: usize| (best[k] - chosen[k]) / best[0].abs().max(1.0);
        let largest = (0..self.topk).map(gap).fold(0.0, f64::max);
        let first = (0..self.topk).find(|k| gap(*k) > tolerance).map(|k| (at(k), chosen[k], best[k]));
        judge.error("gap of score and bias", largest, tolerance, first);
        largest <= tolerance
    }
}

impl Case for Route {
    fn op(&self) -> Op {
        Op::MoeRoute
    }

    fn title(&self) -> String {
        let kind = if self.tid2eid.is_some() { "hash" } else { "topk" };
        let note = if self.note.is_empty() { String::new() } else { format!(", {}", self.note) };
        let (rows, n, topk, hidden) = (self.rows.title(), self.gate.n, self.topk, self.gate.k);
        format!("{rows}, {kind} {topk} of {n} experts, hidden {hidden}, {}{note}", self.gate.format_name())
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn layer(&self) -> (u32, u32) {
        if self.tid2eid.is_some() { (0, layer_class::WINDOW) } else { (3, layer_class::HCA) }
    }

    fn call(&mut self, subject: &Subject<'_>, ctx: &StepCtx) -> i32 {
        let f = subject.moe.and_then(|a| a.route).expect("the op is served");
        f(subject.this, ctx, &self.args())
    }

    fn truth(&mut self, capabilities: u64) -> Result<()> {
        let scales = match self.tid2eid {
            Some(_) => capability::ROUTE_SCALES_HASH,
            None => capability::ROUTE_SCALES_TOPK,
        };
        self.factor = if capabilities & scales != 0 { ROUTED_SCALE } else { 1.0 };
        let args = self.args();
        // SAFETY: the arguments point to the buffers of this case.
        truth::route(&Serial, unsafe { views::Route::from_raw(&args)? })
    }

    fn buffers(&self) -> Vec<&Buffer> {
        let mut all = vec![&self.x, &self.gate.buffer, &self.input_ids];
        all.extend(self.rows.buffers());
        all.extend(&self.bias);
        all.extend(&self.tid2eid);
        all.extend([&self.ids, &self.weights]);
        all
    }

    fn outputs(&mut self) -> Vec<&mut Buffer> {
        vec![&mut self.ids, &mut self.weights]
    }

    fn judge(&self, want: &Self, got: &Self, judge: &mut Judge) {
        let (n, topk) = (self.gate.n, self.topk);
        let scores = self.true_scores();
        // The weights that belong to the ids that were chosen: a tie that fell the other way is no error.
        let mut weights = vec![f32::NAN; self.rows.len() * topk];
        for row in 0..self.rows.len() {
            let span = row * topk..(row + 1) * topk;
            let (ids, out) = (&got.ids.i32()[span.clone()], &mut weights[span.clone()]);
            if self.rows.position(row).is_none() {
                if ids.iter().any(|id| *id != -1) || got.weights.f32()[span].iter().any(|w| *w != 0.0) {
                    return judge.fail(format!("padded row {row} has ids {ids:?}, not -1 with weights 0"));
                }
                continue;
            }
            let scores = &scores[row * n..(row + 1) * n];
            if !self.judge_ids(row, &want.ids.i32()[span], ids, scores, judge) {
                return;
            }
            let sum: f64 = ids.iter().map(|id| f64::from(scores[*id as usize])).sum();
            for (w, id) in out.iter_mut().zip(ids) {
                *w = (f64::from(scores[*id as usize]) / (sum + 1e-20) * f64::from(want.factor)) as f32;
            }
        }
        let axes = [("row", self.rows.len()), ("choice", topk)];
        let floats = Floats {
            output: "weights",
            want: &weights,
            got: got.weights.f32(),
            axes: &axes,
            unit: topk,
            floor: BY_UNIT,
        };
        judge.floats(&floats, &|row| self.rows.position(row).is_some());
    }

    fn alone(&self, row: usize) -> Option<Self> {
        Some(Self {
            rows: self.rows.only(row),
            x: row_of(&self.x, row),
            input_ids: Buffer::i32s("input_ids", vec![self.input_ids.i32()[row]]).by_row(1),
            ids: Buffer::out("ids", 1, self.topk),
            weights: Buffer::out("weights", 1, self.topk),
            ..self.clone()
        })
    }
}
