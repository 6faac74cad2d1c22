//! Truth as an instance, and the ways to spoil it.

use hotseam_abi as abi;
use hotseam_abi::{HostServicesV1, InfoV1, ParallelBody, Region, Text, component, layout, seam, transfer};
use hotseam_conformance::{Level, Op, Report, Subject, check, truth};
use hotseam_sdk::{
    Attention, Ctx, Error, Host, Indexer, KvTransport, Mhc, Moe, Plugin, Result, shims, views,
};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Mutex;

thread_local!(static ERROR: RefCell<String> = const { RefCell::new(String::new()) });

extern "C" fn log(_: *mut c_void, _: u32, _: Text, _: Text) {}

extern "C" fn error(_: *mut c_void, message: Text) {
    // SAFETY: the text is borrowed for the call.
    let bytes = unsafe { std::slice::from_raw_parts(message.ptr, message.len) };
    ERROR.set(String::from_utf8_lossy(bytes).into_owned());
}

extern "C" fn parallel_for(_: *mut c_void, n: usize, grain: usize, data: *mut c_void, body: ParallelBody) {
    // Pieces in falling order: nothing may depend on it.
    let grain = grain.max(1);
    for piece in (0..n.div_ceil(grain)).rev() {
        (body.0)(data, piece * grain, ((piece + 1) * grain).min(n));
    }
}

static SERVICES: HostServicesV1 = HostServicesV1 {
    size: size_of::<HostServicesV1>() as u32,
    version: 1,
    threads: 2,
    ctx: std::ptr::null_mut(),
    log,
    error,
    parallel_for,
};

/// How an op is wrong; `None` is truth itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Panic,
    Refuse,
    NoRope,
    NoWeight,
    WrongSlot,
    FarNoRope,
    ForgetState,
    HalfScale,
    NoSinks,
    WindowOffByOne,
    OneMoreEntry,
    FirstPage,
    ZeroIsFloor,
    NoIndexRope,
    PlusOne,
    BiasInWeights,
    ScaleTwice,
    NoClamp,
    CombTransposed,
    CombRolled,
    FiveIterations,
    Unstable,
    PaddingRouted,
    WritesInput,
    NextLayer,
    DropsLast,
    Silent,
}

pub(crate) struct Spoiled {
    fault: Fault,
    layout: u32,
    calls: Mutex<usize>,
    areas: Mutex<Vec<Area>>,
    done: Mutex<Vec<(u64, u64)>>,
}

struct Area(Region);

// SAFETY: the tests use an instance on one thread.
unsafe impl Send for Area {}

impl Spoiled {
    fn enter(&self) -> Result<()> {
        match self.fault {
            Fault::Panic => panic!("a planted panic"),
            Fault::Refuse => Err(Error::argument("a planted refusal")),
            _ => Ok(()),
        }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl Plugin for Spoiled {
    type Options = hotseam_sdk::NoOptions;

    fn create(_: Host, _: Self::Options) -> Result<Self> {
        Err(Error::unsupported("made by the tests"))
    }
}

impl Attention for Spoiled {
    fn store(&self, _: &Ctx, mut a: views::Store<'_>) -> Result<()> {
        self.enter()?;
        match self.fault {
            Fault::NoRope => a.rope.half = 0,
            Fault::NoWeight => a.norm_weight = leak(vec![1.0; a.dim]),
            Fault::WrongSlot if a.rows.seqs.iter().any(|s| s.chunk >= 2) => {
                let taken = |slot: &i32| a.out_slots.contains(slot);
                let free = (0..).find(|slot| !taken(slot)).unwrap();
                let last = a.out_slots.iter().rposition(|s| *s >= 0).unwrap();
                let mut slots = a.out_slots.to_vec();
                slots[last] = free;
                a.out_slots = leak(slots);
            }
            _ => {}
        }
        truth::store(a)
    }

    fn compress(&self, _: &Ctx, a: views::Compress<'_>) -> Result<()> {
        self.enter()?;
        spoiled_compress(self.fault, a)
    }

    fn core(&self, ctx: &Ctx, mut a: views::Core<'_>) -> Result<()> {
        self.enter()?;
        match self.fault {
            Fault::HalfScale if ctx.is_decode() => a.scale *= 0.5,
            Fault::NoSinks => a.sinks = leak(vec![f32::NEG_INFINITY; a.heads]),
            Fault::WindowOffByOne => a.window -= 1,
            Fault::Unstable => {
                let mut calls = self.calls.lock().unwrap();
                *calls += 1;
                a.scale *= 1.0 + *calls as f32 * 1e-6;
            }
            _ => {}
        }
        truth::core(ctx.host(), a)
    }
}

/// Replaces an argument; a view outlives what a test could lend it.
fn leak<T>(values: Vec<T>) -> &'static [T] {
    values.leak()
}

fn spoiled_compress(fault: Fault, mut a: views::Compress<'_>) -> Result<()> {
    match fault {
        Fault::NoRope => a.rope.half = 0,
        Fault::FarNoRope => {
            // Position 0 is not rotated.
            a.entry_positions =
                leak(a.entry_positions.iter().map(|p| if *p > 512 { 0 } else { *p }).collect());
        }
        Fault::ForgetState => a.state_dst = leak(vec![-1; a.state_dst.len()]),
        _ => {}
    }
    truth::compress(a)
}

impl Indexer for Spoiled {
    fn compress(&self, _: &Ctx, a: views::Compress<'_>) -> Result<()> {
        self.enter()?;
        spoiled_compress(self.fault, a)
    }

    fn select(&self, ctx: &Ctx, mut a: views::Select<'_>) -> Result<()> {
        self.enter()?;
        if self.is(Fault::NoIndexRope) {
            a.rope.half = 0;
        }
        let scores = truth::scores(ctx.host(), &a)?;
        for (row, scores) in scores.iter().enumerate() {
            let page = a.keys.form.entries_per_page;
            let (topk, width) = (a.topk, a.scores_width);
            let ids = &mut a.ids[row * topk..(row + 1) * topk];
            let mut seen = scores.clone();
            match self.fault {
                Fault::FirstPage if ctx.is_decode() => seen.truncate(page),
                // Entries that do not exist are scored 0 and take part.
                Fault::ZeroIsFloor => seen.resize(scores.len().next_multiple_of(page), 0.0),
                _ => {}
            }
            let mut order: Vec<usize> = (0..seen.len()).filter(|e| !seen[*e].is_nan()).collect();
            order.sort_by(|a, b| seen[*b].total_cmp(&seen[*a]));
            ids.fill(-1);
            for (id, e) in ids.iter_mut().zip(order) {
                *id = e as i32 + self.is(Fault::PlusOne) as i32;
            }
            if scores.len() <= topk && !self.is(Fault::PlusOne) {
                ids.fill(-1);
                (0..scores.len()).for_each(|e| ids[e] = e as i32);
            }
            if self.is(Fault::OneMoreEntry) && scores.is_empty() && topk > 0 {
                ids[0] = 0;
            }
            if !a.scores.is_empty() {
                a.scores[row * width..][..scores.len()].copy_from_slice(scores);
            }
        }
        Ok(())
    }
}

impl Moe for Spoiled {
    fn route(&self, ctx: &Ctx, a: views::Route<'_>) -> Result<()> {
        self.enter()?;
        let (scale, topk, n) = (a.routed_scale, a.topk, a.gate.n as i32);
        let positions = a.rows.positions.to_vec();
        let bias = a.bias.map(<[f32]>::to_vec);
        // SAFETY: the view is given away whole; the slices are used after truth is done with them.
        let (ids, weights) = unsafe {
            (
                std::slice::from_raw_parts_mut(a.ids.as_mut_ptr(), a.ids.len()),
                std::slice::from_raw_parts_mut(a.weights.as_mut_ptr(), a.weights.len()),
            )
        };
        truth::route(ctx.host(), a)?;
        for i in (0..ids.len()).filter(|i| positions[i / topk] >= 0) {
            match self.fault {
                Fault::PlusOne => ids[i] = (ids[i] + 1) % n,
                Fault::ScaleTwice => weights[i] *= scale,
                Fault::BiasInWeights => weights[i] += bias.as_ref().map_or(0.0, |b| b[ids[i] as usize]),
                _ => {}
            }
        }
        if self.is(Fault::PaddingRouted) {
            ids.iter_mut().filter(|id| **id < 0).for_each(|id| *id = 0);
        }
        Ok(())
    }

    fn experts(&self, ctx: &Ctx, mut a: views::Experts<'_>) -> Result<()> {
        self.enter()?;
        let n = a.n_experts() as i32;
        match self.fault {
            Fault::PlusOne => {
                a.ids = leak(a.ids.iter().map(|id| if *id < 0 { -1 } else { (*id + 1) % n }).collect());
            }
            Fault::ScaleTwice => a.routed_scale *= 1.5,
            Fault::NoClamp => a.swiglu_limit = f32::INFINITY,
            Fault::WritesInput if !a.x.is_empty() => {
                let x = a.x.as_ptr().cast_mut();
                // SAFETY: none; the test shows that the checker sees it.
                unsafe { *x = 1.0 };
            }
            _ => {}
        }
        truth::experts(ctx.host(), a)
    }
}

impl Mhc for Spoiled {
    fn pre(&self, ctx: &Ctx, mut a: views::MhcPre<'_>) -> Result<()> {
        self.enter()?;
        let hc = a.hc;
        if self.is(Fault::FiveIterations) {
            a.iters = 1;
        }
        // SAFETY: as in `route`.
        let comb = unsafe { std::slice::from_raw_parts_mut(a.comb.as_mut_ptr(), a.comb.len()) };
        truth::mhc_pre(ctx.host(), a)?;
        for comb in comb.chunks_exact_mut(hc * hc) {
            let right = comb.to_vec();
            for i in 0..hc {
                for k in 0..hc {
                    match self.fault {
                        Fault::CombTransposed => comb[i * hc + k] = right[k * hc + i],
                        Fault::CombRolled => comb[i * hc + k] = right[i * hc + (k + 1) % hc],
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn post(&self, ctx: &Ctx, mut a: views::MhcPost<'_>) -> Result<()> {
        self.enter()?;
        let hc = a.hc;
        if self.is(Fault::CombTransposed) {
            let from = |i: usize| i / (hc * hc) * hc * hc + i % hc * hc + i / hc % hc;
            a.comb = leak((0..a.comb.len()).map(|i| a.comb[from(i)]).collect());
        }
        truth::mhc_post(ctx.host(), a)
    }

    fn head(&self, ctx: &Ctx, mut a: views::MhcHead<'_>) -> Result<()> {
        self.enter()?;
        if self.is(Fault::NoWeight) {
            a.base = leak(vec![0.0; a.hc]);
        }
        truth::mhc_head(ctx.host(), a)
    }
}

impl KvTransport for Spoiled {
    fn register(&self, _: &Ctx, regions: &[Region]) -> Result<()> {
        self.enter()?;
        *self.areas.lock().unwrap() = regions.iter().map(|r| Area(*r)).collect();
        Ok(())
    }

    fn put(&self, _: &Ctx, a: views::Put<'_>) -> Result<u64> {
        let areas = self.areas.lock().unwrap();
        let find = |layer| areas.iter().find(|r| r.0.component == a.component && r.0.layer == layer);
        let own =
            find(a.layer).ok_or_else(|| Error::argument(format!("layer {} is not registered", a.layer)))?;
        let to = match self.fault {
            Fault::NextLayer if a.component == component::C4 => find(a.layer + 2).unwrap_or(own),
            _ => own,
        };
        let n = own.0.item_bytes as usize;
        let inside = |i: &i32, n: u64| *i >= 0 && (*i as u64) < n;
        if !a.src_items.iter().all(|i| inside(i, own.0.src_items))
            || !a.dst_items.iter().all(|i| inside(i, to.0.dst_items))
        {
            return Err(Error::argument("an item is out of range"));
        }
        let kept = a.src_items.len() - (self.is(Fault::DropsLast) && !a.src_items.is_empty()) as usize;
        for (from, to_item) in a.src_items.iter().zip(a.dst_items).take(kept) {
            // SAFETY: both items are inside their regions.
            unsafe {
                let from = own.0.src.add(*from as usize * n);
                std::ptr::copy_nonoverlapping(from, to.0.dst.add(*to_item as usize * n), n);
            }
        }
        let mut done = self.done.lock().unwrap();
        let ticket = done.len() as u64;
        done.push((ticket, (n * a.src_items.len()) as u64));
        Ok(ticket)
    }

    fn poll(&self, _: &Ctx, ticket: u64) -> Result<(u32, u64)> {
        if self.is(Fault::Silent) {
            return Ok((transfer::FAILED, 0));
        }
        let done = self.done.lock().unwrap();
        let found = done.iter().find(|(t, _)| *t == ticket);
        found.map(|(_, n)| (transfer::DONE, *n)).ok_or_else(|| Error::argument(format!("no ticket {ticket}")))
    }
}

/// Checks truth with a fault, or one op of it.
pub(crate) fn report(seam: u32, layout: u32, fault: Fault, level: Level, only: Option<Op>) -> Report {
    let instance = Spoiled {
        fault,
        layout,
        calls: Mutex::new(0),
        areas: Mutex::new(Vec::new()),
        done: Mutex::new(Vec::new()),
    };
    let info = InfoV1 {
        size: size_of::<InfoV1>() as u32,
        capabilities: 0,
        phases: 0b111,
        layout: instance.layout,
        dim: 64,
        rope_dim: 16,
        data_bytes: 0,
        scale_bytes: 0,
    };
    type P = Spoiled;
    let has = |op| only.is_none_or(|only| only == op);
    let mut attention = abi::AttentionV1 { store: None, compress: None, core: None };
    let mut indexer = abi::IndexerV1 { compress: None, select: None };
    let mut moe = abi::MoeV1 { route: None, experts: None };
    let mut mhc = abi::MhcV1 { pre: None, post: None, head: None };
    if has(Op::AttentionStore) {
        attention.store = Some(shims::attention::store::<P>);
    }
    if has(Op::AttentionCompress) {
        attention.compress = Some(shims::attention::compress::<P>);
    }
    if has(Op::AttentionCore) {
        attention.core = Some(shims::attention::core::<P>);
    }
    if has(Op::IndexerCompress) {
        indexer.compress = Some(shims::indexer::compress::<P>);
    }
    if has(Op::IndexerSelect) {
        indexer.select = Some(shims::indexer::select::<P>);
    }
    if has(Op::MoeRoute) {
        moe.route = Some(shims::moe::route::<P>);
    }
    if has(Op::MoeExperts) {
        moe.experts = Some(shims::moe::experts::<P>);
    }
    if has(Op::MhcPre) {
        mhc.pre = Some(shims::mhc::pre::<P>);
    }
    if has(Op::MhcPost) {
        mhc.post = Some(shims::mhc::post::<P>);
    }
    if has(Op::MhcHead) {
        mhc.head = Some(shims::mhc::head::<P>);
    }
    let kv_transport = abi::KvTransportV1 {
        register: Some(shims::kv_transport::register::<P>),
        put: Some(shims::kv_transport::put::<P>),
        poll: Some(shims::kv_transport::poll::<P>),
        cancel: Some(shims::kv_transport::cancel::<P>),
        endpoint: None,
        connect: None,
        accept: None,
        close: None,
    };
    let subject = Subject {
        variant: "truth",
        seam,
        this: (&raw const instance).cast_mut().cast(),
        attention: (seam == seam::ATTENTION).then_some(&attention),
        indexer: (seam == seam::INDEXER).then_some(&indexer),
        moe: (seam == seam::MOE).then_some(&moe),
        mhc: (seam == seam::MHC).then_some(&mhc),
        kv_transport: (seam == seam::KV_TRANSPORT).then_some(&kv_transport),
        info,
        device: None,
        host: &SERVICES,
        take_error: || ERROR.take(),
    };
    check(&subject, level)
}

/// Every seam with each layout it may have.
pub(crate) const SEAMS: [(u32, u32); 10] = [
    (seam::ATTENTION, layout::KV_F32),
    (seam::ATTENTION, layout::KV_BF16),
    (seam::ATTENTION, layout::KV_FP8_DS_MLA),
    (seam::INDEXER, layout::KEY_F32),
    (seam::INDEXER, layout::KEY_BF16),
    (seam::INDEXER, layout::KEY_FP8_HADAMARD),
    (seam::INDEXER, layout::KEY_FP4_HADAMARD),
    (seam::MOE, 0),
    (seam::MHC, 0),
    (seam::KV_TRANSPORT, 0),
];
