//! Cases of `mhc.pre`, `mhc.post` and `mhc.head`.

use super::{Gen, row_of};
use crate::batch::Rows;
use crate::buffer::{Buffer, Role};
use crate::compare::{BY_UNIT, Floats, Judge};
use crate::runner::{Case, Runner};
use crate::{Op, Subject, truth};
use hotseam_abi::weight_format::F32;
use hotseam_abi::{MhcHeadArgs, MhcPostArgs, MhcPreArgs, StepCtx, capability, layer_class};
use hotseam_sdk::ops::Serial;
use hotseam_sdk::{Result, views};

const HC: usize = 4;
const HC_EPS: f32 = 1e-6;
const NORM_EPS: f32 = 1e-6;

/// Batches and widths of all three ops; the last member makes one row NaN.
fn shapes(g: &Gen) -> Vec<(Rows, usize, bool)> {
    let mut shapes: Vec<(Rows, usize, bool)> = g.row_counts().into_iter().map(|r| (r, 256, false)).collect();
    if g.full() {
        let last = g.row_counts().pop().expect("there are counts");
        shapes.extend([(last.clone(), 100, false), (last, 256, true), (g.empty(), 256, false)]);
    }
    shapes
}

fn streams(g: &mut Gen, rows: &Rows, hidden: usize, nan: bool) -> Buffer {
    let mut streams = g.by_row("streams", rows, HC * hidden, 2.0);
    if nan {
        streams.f32_mut()[rows.live()[0] * HC * hidden + 5] = f32::NAN;
    }
    streams
}

fn title(rows: &Rows, hidden: usize, nan: bool, more: &str) -> String {
    format!("{}, {HC} streams of {hidden}{more}{}", rows.title(), if nan { ", a NaN row" } else { "" })
}

fn compare(rows: &Rows, output: &'static str, want: &Buffer, got: &Buffer, unit: usize, judge: &mut Judge) {
    let axes: &[(&'static str, usize)] = match output {
        "comb" => &[("row", rows.len()), ("from", HC), ("to", HC)],
        "post" => &[("row", rows.len()), ("stream", HC)],
        "out" => &[("row", rows.len()), ("stream", HC), ("dim", unit)],
        _ => &[("row", rows.len()), ("dim", unit)],
    };
    let floats = Floats { output, want: want.f32(), got: got.f32(), axes, unit, floor: BY_UNIT };
    judge.floats(&floats, &|row| rows.position(row).is_some());
}

#[derive(Clone)]
struct Pre {
    rows: Rows,
    hidden: usize,
    nan: bool,
    streams: Buffer,
    fn_weight: Buffer,
    base: Buffer,
    scale: Buffer,
    next_norm: Buffer,
    x: Buffer,
    post: Buffer,
    comb: Buffer,
}

pub(super) fn run_pre(runner: &mut Runner<'_>, mut g: Gen) {
    for (rows, hidden, nan) in shapes(&g) {
        let mix = (2 + HC) * HC;
        runner.run(Pre {
            streams: streams(&mut g, &rows, hidden, nan),
            fn_weight: g.matrix("fn_weight", mix, HC * hidden, F32).buffer,
            base: Buffer::f32s("base", g.rng.normals(mix, 1.0)),
            scale: Buffer::f32s("scale", vec![0.8, 1.3, 1.1]),
            next_norm: g.norm_weight(hidden),
            x: Buffer::out("x", rows.len(), hidden),
            post: Buffer::out("post", rows.len(), HC),
            comb: Buffer::out("comb", rows.len(), HC * HC),
            rows,
            hidden,
            nan,
        });
    }
}

impl Pre {
    fn args(&mut self) -> MhcPreArgs {
        let (n, hidden, mix) = (self.rows.len(), self.hidden, (2 + HC) * HC);
        MhcPreArgs {
            size: size_of::<MhcPreArgs>() as u32,
            iters: 20,
            hc_eps: HC_EPS,
            norm_eps: NORM_EPS,
            batch: self.rows.arg(),
            streams: self.streams.tensor_f32(&[n, HC, hidden]),
            fn_weight: self.fn_weight.tensor_f32(&[mix, HC * hidden]),
            base: self.base.tensor_f32(&[mix]),
            scale: self.scale.tensor_f32(&[3]),
            next_norm: self.next_norm.tensor_f32(&[hidden]),
            x: self.x.tensor_f32(&[n, hidden]),
            post: self.post.tensor_f32(&[n, HC]),
            comb: self.comb.tensor_f32(&[n, HC, HC]),
        }
    }
}

impl Case for Pre {
    fn op(&self) -> Op {
        Op::MhcPre
    }

    fn title(&self) -> String {
        title(&self.rows, self.hidden, self.nan, "")
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn layer(&self) -> (u32, u32) {
        (2, layer_class::CSA)
    }

    fn call(&mut self, subject: &Subject<'_>, ctx: &StepCtx) -> i32 {
        let f = subject.mhc.and_then(|a| a.pre).expect("the op is served");
        f(subject.this, ctx, &self.args())
    }

    fn truth(&mut self, capabilities: u64) -> Result<()> {
        let args = self.args();
        // SAFETY: the arguments point to the buffers of this case.
        truth::mhc_pre(&Serial, unsafe { views::MhcPre::from_raw(&args)? })?;
        if capabilities & capability::NORM_FUSED != 0 {
            let hidden = self.hidden;
            for row in self.x.f32_mut().chunks_exact_mut(hidden) {
                let plain = row.to_vec();
                truth::numbers::rms_norm(&plain, self.next_norm.f32(), NORM_EPS, row);
            }
        }
        Ok(())
    }

    fn buffers(&self) -> Vec<&Buffer> {
        let mut all = vec![&self.streams, &self.fn_weight, &self.base, &self.scale, &self.next_norm];
        all.extend([&self.x, &self.post, &self.comb]);
        all.extend(self.rows.buffers());
        all
    }

    fn outputs(&mut self) -> Vec<&mut Buffer> {
        vec![&mut self.x, &mut self.post, &mut self.comb]
    }

    fn judge(&self, want: &Self, got: &Self, judge: &mut Judge) {
        compare(&self.rows, "comb", &want.comb, &got.comb, HC * HC, judge);
        compare(&self.rows, "post", &want.post, &got.post, HC, judge);
        compare(&self.rows, "x", &want.x, &got.x, self.hidden, judge);
    }

    fn alone(&self, row: usize) -> Option<Self> {
        Some(Self {
            rows: self.rows.only(row),
            streams: row_of(&self.streams, row),
            x: Buffer::out("x", 1, self.hidden),
            post: Buffer::out("post", 1, HC),
            comb: Buffer::out("comb", 1, HC * HC),
            ..self.clone()
        })
    }
}

#[derive(Clone)]
struct Post {
    rows: Rows,
    hidden: usize,
    nan: bool,
    f: Buffer,
    streams: Buffer,
    post: Buffer,
    comb: Buffer,
    /// `None` if the streams are the output.
    out: Option<Buffer>,
}

pub(super) fn run_post(runner: &mut Runner<'_>, mut g: Gen) {
    for (rows, hidden, nan) in shapes(&g) {
        for in_place in [true, false] {
            let mut streams = streams(&mut g, &rows, hidden, nan);
            streams.role = if in_place { Role::Output } else { Role::Input };
            runner.run(Post {
                f: g.by_row("f", &rows, hidden, 1.0),
                post: g.by_row("post", &rows, HC, 1.0),
                comb: g.by_row("comb", &rows, HC * HC, 0.5),
                out: (!in_place).then(|| Buffer::out("out", rows.len(), HC * hidden)),
                streams,
                rows: rows.clone(),
                hidden,
                nan,
            });
        }
    }
}

impl Post {
    fn args(&mut self) -> MhcPostArgs {
        let (n, hidden) = (self.rows.len(), self.hidden);
        let streams = self.streams.tensor_f32(&[n, HC, hidden]);
        MhcPostArgs {
            size: size_of::<MhcPostArgs>() as u32,
            batch: self.rows.arg(),
            f: self.f.tensor_f32(&[n, hidden]),
            streams,
            post: self.post.tensor_f32(&[n, HC]),
            comb: self.comb.tensor_f32(&[n, HC, HC]),
            out: self.out.as_mut().map_or(streams, |o| o.tensor_f32(&[n, HC, hidden])),
        }
    }

    fn result(&self) -> &Buffer {
        self.out.as_ref().unwrap_or(&self.streams)
    }
}

impl Case for Post {
    fn op(&self) -> Op {
        Op::MhcPost
    }

    fn title(&self) -> String {
        title(&self.rows, self.hidden, self.nan, if self.out.is_none() { ", in place" } else { "" })
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn layer(&self) -> (u32, u32) {
        (2, layer_class::CSA)
    }

    fn call(&mut self, subject: &Subject<'_>, ctx: &StepCtx) -> i32 {
        let f = subject.mhc.and_then(|a| a.post).expect("the op is served");
        f(subject.this, ctx, &self.args())
    }

    fn truth(&mut self, _capabilities: u64) -> Result<()> {
        let args = self.args();
        // SAFETY: the arguments point to the buffers of this case.
        truth::mhc_post(&Serial, unsafe { views::MhcPost::from_raw(&args)? })
    }

    fn buffers(&self) -> Vec<&Buffer> {
        let mut all = vec![&self.f, &self.streams, &self.post, &self.comb];
        all.extend(self.rows.buffers().into_iter().chain(&self.out));
        all
    }

    fn outputs(&mut self) -> Vec<&mut Buffer> {
        vec![self.out.as_mut().unwrap_or(&mut self.streams)]
    }

    fn judge(&self, want: &Self, got: &Self, judge: &mut Judge) {
        compare(&self.rows, "out", want.result(), got.result(), self.hidden, judge);
    }

    fn alone(&self, row: usize) -> Option<Self> {
        Some(Self {
            rows: self.rows.only(row),
            f: row_of(&self.f, row),
            streams: row_of(&self.streams, row).with_role(self.streams.role),
            post: row_of(&self.post, row),
            comb: row_of(&self.comb, row),
            out: self.out.as_ref().map(|_| Buffer::out("out", 1, HC * self.hidden)),
            ..self.clone()
        })
    }
}

#[derive(Clone)]
struct Head {
    rows: Rows,
    hidden: usize,
    nan: bool,
    streams: Buffer,
    fn_weight: Buffer,
    base: Buffer,
    scale: Buffer,
    x: Buffer,
}

pub(super) fn run_head(runner: &mut Runner<'_>, mut g: Gen) {
    for (rows, hidden, nan) in shapes(&g) {
        runner.run(Head {
            streams: streams(&mut g, &rows, hidden, nan),
            fn_weight: g.matrix("fn_weight", HC, HC * hidden, F32).buffer,
            base: Buffer::f32s("base", g.rng.normals(HC, 1.0)),
            scale: Buffer::f32s("scale", vec![0.9]),
            x: Buffer::out("x", rows.len(), hidden),
            rows,
            hidden,
            nan,
        });
    }
}

impl Head {
    fn args(&mut self) -> MhcHeadArgs {
        let (n, hidden) = (self.rows.len(), self.hidden);
        MhcHeadArgs {
            size: size_of::<MhcHeadArgs>() as u32,
            hc_eps: HC_EPS,
            norm_eps: NORM_EPS,
            batch: self.rows.arg(),
            streams: self.streams.tensor_f32(&[n, HC, hidden]),
            fn_weight: self.fn_weight.tensor_f32(&[HC, HC * hidden]),
            base: self.base.tensor_f32(&[HC]),
            scale: self.scale.tensor_f32(&[1]),
            x: self.x.tensor_f32(&[n, hidden]),
        }
    }
}

impl Case for Head {
    fn op(&self) -> Op {
        Op::MhcHead
    }

    fn title(&self) -> String {
        title(&self.rows, self.hidden, self.nan, "")
    }

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn layer(&self) -> (u32, u32) {
        (u32::MAX, layer_class::WINDOW)
    }

    fn call(&mut self, subject: &Subject<'_>, ctx: &StepCtx) -> i32 {
        let f = subject.mhc.and_then(|a| a.head).expect("the op is served");
        f(subject.this, ctx, &self.args())
    }

    fn truth(&mut self, _capabilities: u64) -> Result<()> {
        let args = self.args();
        // SAFETY: the arguments point to the buffers of this case.
        truth::mhc_head(&Serial, unsafe { views::MhcHead::from_raw(&args)? })
    }

    fn buffers(&self) -> Vec<&Buffer> {
        let mut all = vec![&self.streams, &self.fn_weight, &self.base, &self.scale, &self.x];
        all.extend(self.rows.buffers());
        all
    }

    fn outputs(&mut self) -> Vec<&mut Buffer> {
        vec![&mut self.x]
    }

    fn judge(&self, want: &Self, got: &Self, judge: &mut Judge) {
        compare(&self.rows, "x", &want.x, &got.x, self.hidden, judge);
    }

    fn alone(&self, row: usize) -> Option<Self> {
        Some(Self {
            rows: self.rows.only(row),
            streams: row_of(&self.streams, row),
            x: Buffer::out("x", 1, self.hidden),
            ..self.clone()
        })
    }
}
