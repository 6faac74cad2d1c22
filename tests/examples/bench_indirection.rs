//! What it costs that kernels are plugins: nanoseconds of a call without rows, times calls of a decode step, against the
//! time of the step.
//!
//! The price of a call has two parts. The plugin's side is everything that `export_plugin!` puts around a kernel (panic
//! guard, context, checks of every argument), measured on `attention.core`, which has the most arguments, with one row and
//! a kernel that does nothing. The host's side is what a cell does around the function pointer (receipt, health, error
//! code): a call through the cell less a call through the bare pointer. Calls are counted in time of the thread, steps in
//! time of the clock, so a busy machine makes the share smaller and not larger: run it on a quiet one. Rounds of calls and of
//! decoding take turns; medians are printed with the interval that holds the true median in 96 of 100 cases.
//!
//! `bench_indirection [ROUNDS]`, 15 by default. Prints JSON on standard output.

use hotseam_abi::{
    Batch, CoreArgs, MhcPostArgs, OK, PoolRef, RopeTables, SeqSpan, StepCtx, TensorRef, device, dtype,
    layout, phase,
};
use hotseam_engine::{Engine, Event, Request};
use hotseam_slots::{CoreFn, Phase, Snapshot};
use hotseam_tests::{Checkpoint, all, config, engine, goldens};
use serde_json::json;
use std::time::Instant;

/// Calls of one measurement.
const CALLS: u32 = 200_000;
/// Tokens of one measurement, the first one apart.
const TOKENS: usize = 48;
/// Tokens of the prompt.
const PROMPT: usize = 200;

fn main() {
    let rounds = std::env::args().nth(1).map_or(15, |word| word.parse().expect("a number of rounds"));
    let engine = engine(Checkpoint::Nano, all("cpu-stock"), config());
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let snapshot = engine.slots().snapshot("live").expect("the assignment `live`");
    decode(&engine, &tokens);

    let (before, steps) = (calls(&snapshot), engine.stats().step);
    decode(&engine, &tokens);
    let steps = engine.stats().step - steps;
    // One step of the request is its prefill, which makes as many calls.
    let calls = (calls(&snapshot) - before) as f64 / steps as f64;

    let (mut plugin, mut host, mut call, mut step) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        plugin.push(plugin_side());
        host.push(host_side(&snapshot));
        call.extend(plugin.last().zip(host.last()).map(|(plugin, host)| plugin + host.max(0.0)));
        step.push(decode(&engine, &tokens));
    }
    let share: Vec<f64> = call.iter().zip(&step).map(|(call, step)| 100.0 * call * calls / step).collect();
    let report = json!({
        "rounds": rounds, "calls_per_step": calls,
        "plugin_ns_per_call": spread(plugin), "host_ns_per_call": spread(host), "ns_per_call": spread(call),
        "step_us": spread(step.iter().map(|ns| ns / 1e3).collect()), "share_percent": spread(share),
    });
    println!("{report}");
}

/// Calls of all cells so far.
fn calls(snapshot: &Snapshot) -> u64 {
    snapshot.cells().map(|cell| cell.calls).sum()
}

/// Nanoseconds of a decode step of one sequence.
fn decode(engine: &Engine, tokens: &[u32]) -> f64 {
    let handle =
        engine.submit(Request::greedy(tokens[..PROMPT].to_vec(), TOKENS + 1)).expect("a valid request");
    let mut first = None;
    loop {
        match handle.recv() {
            Some(Event::Token { .. }) => drop(first.get_or_insert_with(Instant::now)),
            Some(Event::Failed { code, message }) => panic!("{code}: {message}"),
            Some(Event::Logits { .. } | Event::Prompt { .. }) => {}
            Some(Event::Done { .. }) | None => break,
        }
    }
    first.expect("a first token").elapsed().as_nanos() as f64 / TOKENS as f64
}

/// Median, and the order statistics around it that hold the true one with a probability of at least 0.96.
fn spread(mut values: Vec<f64>) -> serde_json::Value {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    let reach = ((n as f64).sqrt() + 0.5) as usize;
    let (low, high) = ((n / 2).saturating_sub(reach), (n / 2 + reach).min(n - 1));
    json!({"median": values[n / 2], "low": values[low], "high": values[high]})
}

/// Nanoseconds that this thread has run.
fn thread_ns() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds of `f`.
fn timed(mut f: impl FnMut()) -> f64 {
    let start = thread_ns();
    (0..CALLS).for_each(|_| f());
    (thread_ns() - start) / f64::from(CALLS)
}

/// A plugin whose kernels do nothing.
struct Nothing;

impl hotseam_sdk::Plugin for Nothing {
    type Options = hotseam_sdk::NoOptions;

    fn create(_host: hotseam_sdk::Host, _options: hotseam_sdk::NoOptions) -> hotseam_sdk::Result<Self> {
        Ok(Self)
    }
}

impl hotseam_sdk::Attention for Nothing {
    fn core(&self, _ctx: &hotseam_sdk::Ctx, a: hotseam_sdk::views::Core<'_>) -> hotseam_sdk::Result<()> {
        std::hint::black_box(a);
        Ok(())
    }
}

/// A tensor of a shape, contiguous, over `data`; without elements `data` is not read.
fn tensor(data: &mut [f32], kind: u32, shape: &[usize]) -> TensorRef {
    let mut t = TensorRef {
        data: data.as_mut_ptr().cast(),
        dtype: kind,
        ndim: shape.len() as u32,
        ..TensorRef::NONE
    };
    t.device = device::CPU;
    t.shape = [1; 4];
    let mut stride = 1;
    for d in (0..shape.len()).rev() {
        (t.shape[d], t.strides[d]) = (shape[d] as i64, stride);
        stride *= shape[d] as i64;
    }
    t
}

fn context(layer_class: u32) -> StepCtx {
    StepCtx {
        size: size_of::<StepCtx>() as u32,
        phase: phase::DECODE,
        layer: 0,
        layer_class,
        rank: 0,
        world: 1,
        step: 1,
        stream: 0,
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
        host: hotseam_loader::host_services(),
    }
}

/// Nanoseconds of the plugin's side of a call.
fn plugin_side() -> f64 {
    let (ctx, mut memory) = (context(0), vec![0.0f32; 4096]);
    let (heads, dim, half, slots) = (4, 64, 16, 4);
    let (positions, row_seq, table) = ([7i32], [0i32], [0i32]);
    let seqs = [SeqSpan { row_begin: 0, row_count: 1, position: 7, chunk: 1 }];
    let batch = Batch {
        size: size_of::<Batch>() as u32,
        n_rows: 1,
        n_seqs: 1,
        positions: positions.as_ptr(),
        row_seq: row_seq.as_ptr(),
        seqs: seqs.as_ptr(),
    };
    let pool = PoolRef {
        bytes: tensor(&mut memory, dtype::U8, &[slots, dim * 4]),
        layout: layout::KV_F32,
        entries_per_page: 1,
        dim: dim as u32,
        rope_dim: 2 * half as u32,
        data_bytes: 4 * dim as u32,
        scale_bytes: 0,
        table: table.as_ptr(),
        table_width: 1,
    };
    let rope = tensor(&mut memory, dtype::F32, &[8, half]);
    let args = CoreArgs {
        size: size_of::<CoreArgs>() as u32,
        window: 128,
        ratio: 128,
        ids_width: 0,
        scale: 1.0,
        batch: &batch,
        q: tensor(&mut memory, dtype::F32, &[1, heads, dim]),
        sinks: tensor(&mut memory, dtype::F32, &[heads]),
        swa: pool,
        entries: pool,
        ids: std::ptr::null(),
        rope: RopeTables { cos: rope, sin: rope },
        out: tensor(&mut memory, dtype::F32, &[1, heads, dim]),
    };
    let core: CoreFn = std::hint::black_box(hotseam_sdk::shims::attention::core::<Nothing>);
    let mut plugin = Nothing;
    let this = (&raw mut plugin).cast();
    timed(|| assert_eq!(core(this, &ctx, std::hint::black_box(&args)), OK))
}

/// Nanoseconds of the host's side of a call.
fn host_side(snapshot: &Snapshot) -> f64 {
    let (ctx, mut memory) = (context(0), vec![0.0f32; 64]);
    let (hc, hidden) = (4, 64);
    let null = std::ptr::null();
    let size = size_of::<Batch>() as u32;
    let batch = Batch { size, n_rows: 0, n_seqs: 0, positions: null, row_seq: null, seqs: std::ptr::null() };
    let streams = tensor(&mut memory, dtype::F32, &[0, hc, hidden]);
    let args = MhcPostArgs {
        size: size_of::<MhcPostArgs>() as u32,
        batch: &batch,
        f: tensor(&mut memory, dtype::F32, &[0, hidden]),
        streams,
        post: tensor(&mut memory, dtype::F32, &[0, hc]),
        comb: tensor(&mut memory, dtype::F32, &[0, hc, hc]),
        out: streams,
    };
    let cell = &snapshot.layer(Phase::Decode, 0).mhc_post;
    let instance = &cell.generation.instance;
    let post = instance.plugin().entry().mhc.and_then(|table| table.post).expect("mhc.post");
    let through = timed(|| cell.call(&ctx, std::hint::black_box(&args), 0).expect("a call without rows"));
    let bare = timed(|| assert_eq!(post(instance.this(), &ctx, std::hint::black_box(&args)), OK));
    through - bare
}
