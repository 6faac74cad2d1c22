//! The kernels against the truth of every seam.

use hotseam_conformance::{Level, Subject, check};
use hotseam_cpu_kernels::{attention, compress, indexer, mhc, moe};
use hotseam_sdk::abi::{
    AttentionV1, HostServicesV1, IndexerV1, InfoV1, MhcV1, MoeV1, ParallelBody, Text, layout, seam,
};
use hotseam_sdk::layouts::{Parts, Shape};
use hotseam_sdk::ops::{Parallel, Pool};
use hotseam_sdk::{
    Attention, Ctx, Host, Indexer, Mhc, Moe, NoOptions, Plugin, Result, layouts, shims, views,
};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::OnceLock;

struct Stock;

impl Plugin for Stock {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }
}

impl Attention for Stock {
    fn store(&self, ctx: &Ctx, mut a: views::Store<'_>) -> Result<()> {
        attention::store(ctx.host(), &mut a)
    }
    fn compress(&self, ctx: &Ctx, mut a: views::Compress<'_>) -> Result<()> {
        compress(ctx.host(), &mut a)
    }
    fn core(&self, ctx: &Ctx, mut a: views::Core<'_>) -> Result<()> {
        attention::core(ctx.host(), &mut a)
    }
}

impl Indexer for Stock {
    fn compress(&self, ctx: &Ctx, mut a: views::Compress<'_>) -> Result<()> {
        compress(ctx.host(), &mut a)
    }
    fn select(&self, ctx: &Ctx, mut a: views::Select<'_>) -> Result<()> {
        indexer::select(ctx.host(), &mut a)
    }
}

impl Moe for Stock {
    fn route(&self, ctx: &Ctx, mut a: views::Route<'_>) -> Result<()> {
        moe::route(ctx.host(), &mut a)
    }
    fn experts(&self, ctx: &Ctx, mut a: views::Experts<'_>) -> Result<()> {
        moe::experts(ctx.host(), &mut a)
    }
}

impl Mhc for Stock {
    fn pre(&self, ctx: &Ctx, mut a: views::MhcPre<'_>) -> Result<()> {
        mhc::pre(ctx.host(), &mut a)
    }
    fn post(&self, ctx: &Ctx, mut a: views::MhcPost<'_>) -> Result<()> {
        mhc::post(ctx.host(), &mut a)
    }
    fn head(&self, ctx: &Ctx, mut a: views::MhcHead<'_>) -> Result<()> {
        mhc::head(ctx.host(), &mut a)
    }
}

static ATTENTION: AttentionV1 = AttentionV1 {
    store: Some(shims::attention::store::<Stock>),
    compress: Some(shims::attention::compress::<Stock>),
    core: Some(shims::attention::core::<Stock>),
};
static INDEXER: IndexerV1 = IndexerV1 {
    compress: Some(shims::indexer::compress::<Stock>),
    select: Some(shims::indexer::select::<Stock>),
};
static MOE: MoeV1 =
    MoeV1 { route: Some(shims::moe::route::<Stock>), experts: Some(shims::moe::experts::<Stock>) };
static MHC: MhcV1 = MhcV1 {
    pre: Some(shims::mhc::pre::<Stock>),
    post: Some(shims::mhc::post::<Stock>),
    head: Some(shims::mhc::head::<Stock>),
};

thread_local! {
    static ERROR: RefCell<String> = const { RefCell::new(String::new()) };
}

fn threads() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| Pool::new(3))
}

extern "C" fn log(_ctx: *mut c_void, _level: u32, _target: Text, _message: Text) {}

extern "C" fn error(_ctx: *mut c_void, message: Text) {
    // SAFETY: the SDK passes borrowed text.
    let bytes = unsafe { std::slice::from_raw_parts(message.ptr, message.len) };
    ERROR.set(String::from_utf8_lossy(bytes).into_owned());
}

extern "C" fn parallel_for(_ctx: *mut c_void, n: usize, grain: usize, data: *mut c_void, body: ParallelBody) {
    let data = data.expose_provenance();
    threads().run(n, grain, &|range| {
        (body.0)(std::ptr::with_exposed_provenance_mut(data), range.start, range.end)
    });
}

fn host() -> *const HostServicesV1 {
    static HOST: OnceLock<HostServicesV1> = OnceLock::new();
    HOST.get_or_init(|| HostServicesV1 {
        size: size_of::<HostServicesV1>() as u32,
        version: 1,
        threads: threads().threads() as u32,
        ctx: std::ptr::null_mut(),
        log,
        error,
        parallel_for,
    })
}

/// Checks the kernels of a seam on entries of a layout.
fn conforms(seam: u32, layout: u32, dim: u32) {
    let mut this = Stock;
    let shape = Shape { dim: dim as usize, rope_dim: 16 };
    let parts = if layout == 0 { Parts::default() } else { layouts::parts(layout, shape).unwrap() };
    let subject = Subject {
        variant: "cpu-kernels",
        seam,
        this: (&raw mut this).cast(),
        attention: (seam == seam::ATTENTION).then_some(&ATTENTION),
        indexer: (seam == seam::INDEXER).then_some(&INDEXER),
        moe: (seam == seam::MOE).then_some(&MOE),
        mhc: (seam == seam::MHC).then_some(&MHC),
        kv_transport: None,
        info: InfoV1 {
            size: size_of::<InfoV1>() as u32,
            capabilities: 0,
            phases: 0b111,
            layout,
            dim,
            rope_dim: 16,
            data_bytes: parts.data as u32,
            scale_bytes: parts.scale as u32,
        },
        device: None,
        host: host(),
        take_error: || ERROR.take(),
    };
    let report = check(&subject, Level::Full);
    assert!(!report.cases.is_empty());
    let failed: Vec<String> = (report.cases.iter().filter(|c| !c.passed))
        .map(|c| format!("{} {}: {}", c.op, c.case, c.message))
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {} cases failed:\n{}",
        failed.len(),
        report.cases.len(),
        failed.join("\n")
    );
    assert!(report.batch_invariant);
}

#[test]
fn attention_conforms() {
    conforms(seam::ATTENTION, layout::KV_F32, 64);
}

#[test]
fn attention_with_bf16_entries_conforms() {
    conforms(seam::ATTENTION, layout::KV_BF16, 64);
}

#[test]
fn attention_with_fp8_entries_conforms() {
    conforms(seam::ATTENTION, layout::KV_FP8_DS_MLA, 64);
}

#[test]
fn indexer_with_f32_keys_conforms() {
    conforms(seam::INDEXER, layout::KEY_F32, 32);
}

#[test]
fn indexer_with_bf16_keys_conforms() {
    conforms(seam::INDEXER, layout::KEY_BF16, 32);
}

#[test]
fn indexer_with_fp8_keys_conforms() {
    conforms(seam::INDEXER, layout::KEY_FP8_HADAMARD, 32);
}

#[test]
fn indexer_with_fp4_keys_conforms() {
    conforms(seam::INDEXER, layout::KEY_FP4_HADAMARD, 32);
}

#[test]
fn moe_conforms() {
    conforms(seam::MOE, 0, 0);
}

#[test]
fn mhc_conforms() {
    conforms(seam::MHC, 0, 0);
}
