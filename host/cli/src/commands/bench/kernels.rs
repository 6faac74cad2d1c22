//! `hotseam bench kernels`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use hotseam_checkpoint::plan::KvFormat;
use hotseam_checkpoint::plan::roofline::{Machine, Request, Roofline, roofline, roofline_of};
use hotseam_checkpoint::random::shaped::{Formats, shaped};
use hotseam_config::Config;
use hotseam_engine::bench::{self, BenchError, DecodeTime, PrefillTime, StepBench};
use hotseam_engine::{Device, EngineConfig};
use hotseam_model::{Format as WeightFormat, Model, ModelConfig, Weights};
use hotseam_slots::{Slots, Snapshot};
use serde::Serialize;

use crate::args::{Format, KernelsArgs};
use crate::failure::Failure;
use crate::host::spinner;
use crate::{host, terminal};

/// Positions of a page.
const PAGE: usize = 256;
/// Pages that the prompt takes whose pages are copied, and that a step may need beyond a context.
const MORE: usize = 8;

/// What was timed, and against what.
#[derive(Debug, Serialize)]
struct Report {
    /// The device.
    device: String,
    /// Where weights and shapes come from.
    model: String,
    layers: usize,
    assignment: String,
    digest: String,
    graphs: bool,
    bandwidth_gb_per_s: f64,
    peak_tflop_per_s: f64,
    prefill: Vec<Line<PrefillTime>>,
    steps: Vec<Line<DecodeTime>>,
}

#[derive(Debug, Serialize)]
struct Line<T> {
    #[serde(flatten)]
    time: T,
    /// Least time of such a step.
    floor_ms: f64,
    /// The floor over the median: 1 cannot be passed.
    fraction_of_floor: f64,
    tokens_per_second: f64,
}

impl<T> Line<T> {
    /// Of a step of so many tokens.
    fn new(time: T, tokens: usize, median_ms: f64, floor_ms: Option<f64>) -> Self {
        let floor_ms = floor_ms.unwrap_or(0.0);
        let (fraction_of_floor, tokens_per_second) = (floor_ms / median_ms, tokens as f64 / median_ms * 1e3);
        Self { time, floor_ms, fraction_of_floor, tokens_per_second }
    }
}

/// Times prefill and decode steps.
pub(super) fn run(args: &KernelsArgs) -> Result<u8, Failure> {
    let mut config = host::config(&args.file)?;
    let (model_config, weights, name) = model(args, &config)?;
    let (contexts, batches): (Vec<usize>, Vec<usize>) = (sizes(&args.contexts), sizes(&args.batches));
    let prefill = sizes(&args.prefill);
    let rows = prefill.iter().max().copied().unwrap_or(0);
    let longest = contexts.iter().max().copied().unwrap_or(0).max(rows) + 1;
    config.engine.chunk = config.engine.chunk.max(rows);
    config.engine.max_context = longest;
    config.engine.max_seqs = batches.iter().max().copied().unwrap_or(0) + 1;
    let of = |context: &usize, batch: &usize| batch * (context + 1).div_ceil(PAGE);
    let most = contexts.iter().flat_map(|context| batches.iter().map(move |batch| of(context, batch))).max();
    config.engine.pages = Some(most.unwrap_or(0).max(rows.div_ceil(PAGE)) + MORE);
    let engine: EngineConfig = host::engine_sizes(&config, &model_config)?;
    hotseam_loader::init_threads(config.engine.threads);
    let slots = host::slots(&config, &model_config)?;
    let model = Arc::new(Model::new(model_config, weights, longest));

    let floors = floors(args, &config, &model, &slots)?;
    let time = Duration::from_millis(args.milliseconds);
    let what = StepBench { prefill, batches, contexts, time, ops: !args.no_ops };
    let told = spinner("timing");
    let times = bench::steps(&model, &slots, &args.assignment, &engine, &what, |time| {
        tracing::info!(batch = time.batch, context = time.context, median_ms = time.median_ms, "timed");
    });
    told.finish();
    let times = times.map_err(|error| match error {
        BenchError::Step(_) => Failure::from(anyhow::Error::new(error)),
        usage => Failure::usage(usage),
    })?;
    let snapshot = slots.snapshot(&args.assignment);
    let report = Report {
        device: bench::device(engine.device),
        model: name,
        layers: model.config.num_hidden_layers,
        assignment: args.assignment.clone(),
        digest: snapshot.map(|table| table.digest().to_string()).unwrap_or_default(),
        graphs: matches!(engine.device, Device::Cuda(_)) && engine.graphs,
        bandwidth_gb_per_s: args.bandwidth,
        peak_tflop_per_s: args.peak,
        prefill: times.prefill.into_iter().map(|time| prefill_line(time, &floors)).collect(),
        steps: times.decode.into_iter().map(|time| line(time, &floors)).collect(),
    };
    match args.format {
        Format::Json => terminal::json(&report)?,
        Format::Text => terminal::data(&text(&report))?,
    }
    Ok(0)
}

fn sizes(numbers: &[u64]) -> Vec<usize> {
    numbers.iter().map(|n| *n as usize).collect()
}

/// Geometry and weights, and what they are called.
fn model(args: &KernelsArgs, config: &Config) -> Result<(ModelConfig, Weights, String), Failure> {
    let Some(shape) = &args.shape else {
        let path = &config.model.path;
        let told = spinner(&format!("loading {}", path.display()));
        let loaded = hotseam_checkpoint::load(path, |done, total| told.tick(done, total));
        told.finish();
        let (config, weights) = loaded.map_err(Failure::usage)?;
        return Ok((config, weights, path.display().to_string()));
    };
    let mut c = hotseam_checkpoint::plan::read_geometry(shape).map_err(Failure::usage)?;
    if let Some(layers) = args.layers.map(|layers| layers as usize) {
        c.num_hidden_layers = layers.min(c.num_hidden_layers);
        c.compress_ratios.truncate(c.num_hidden_layers);
        c.num_hash_layers = c.num_hash_layers.min(c.num_hidden_layers);
    }
    let formats = Formats { dense: WeightFormat::Fp8Block, experts: WeightFormat::Mxfp4 };
    let told = spinner("making weights");
    let weights = shaped(&c, formats).map_err(Failure::usage);
    told.finish();
    let name = format!("random weights in the shapes of {}, FP8 and MXFP4", shape.display());
    Ok((c, weights?, name))
}

fn floors(
    args: &KernelsArgs,
    config: &Config,
    model: &Model,
    slots: &Slots,
) -> Result<Option<Roofline>, Failure> {
    let Some((kv, index_keys)) = slots.snapshot(&args.assignment).and_then(|table| formats(model, &table))
    else {
        return Ok(None);
    };
    let request = Request {
        form: args.shape.as_ref().map(|_| hotseam_checkpoint::convert::Form::Fp8Mxfp4),
        kv,
        index_keys,
        batches: args.batches.clone(),
        contexts: args.contexts.clone(),
        prompts: args.prefill.clone(),
        machine: Machine {
            gpus: 1,
            bandwidth_gb_per_s: args.bandwidth,
            peak_tflop_per_s: args.peak,
            launches: 0,
            launch_us: 0.0,
        },
    };
    let found = match &args.shape {
        Some(_) => roofline_of(&model.config, &request).map_err(Failure::usage)?,
        None => roofline(&config.model.path, &request).map_err(Failure::usage)?,
    };
    Ok(Some(found))
}

/// How the variants of a table keep entries and index keys; `None` if in a way that floors do not know.
fn formats(model: &Model, table: &Snapshot) -> Option<(KvFormat, KvFormat)> {
    let format = |layout: hotseam_slots::Layout| match layout.name() {
        "kv-f32" | "key-f32" => Some(KvFormat::F32),
        "kv-bf16" | "key-bf16" => Some(KvFormat::Bf16),
        "kv-fp8-ds-mla" | "key-fp8-hadamard" => Some(KvFormat::Fp8),
        "key-fp4-hadamard" => Some(KvFormat::Fp4),
        _ => None,
    };
    let keys = (0..model.config.num_hidden_layers).find_map(|layer| table.key_layout(layer));
    Some((format(table.kv_layout(0))?, keys.map_or(Some(KvFormat::Fp8), format)?))
}

fn prefill_line(time: PrefillTime, floors: &Option<Roofline>) -> Line<PrefillTime> {
    let of = |floors: &Roofline| {
        let row = floors.prefill.iter().find(|row| row.prompt_tokens == time.rows as u64)?;
        Some(row.step.floor_ms)
    };
    let (tokens, median, floor) = (time.rows, time.median_ms, floors.as_ref().and_then(of));
    Line::new(time, tokens, median, floor)
}

fn line(time: DecodeTime, floors: &Option<Roofline>) -> Line<DecodeTime> {
    let of = |floors: &Roofline| {
        let size = (time.batch as u64, time.context as u64);
        let row = floors.decode.iter().find(|row| (row.batch, row.context_tokens) == size)?;
        Some(row.step.floor_ms)
    };
    let (tokens, median, floor) = (time.batch, time.median_ms, floors.as_ref().and_then(of));
    Line::new(time, tokens, median, floor)
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "{}\n{}, {} layers\nassignment {}, digest {}, graphs {}\nfloors at {} GB/s (--bandwidth), {} TFLOP/s (--peak)\n",
        report.device,
        report.model,
        report.layers,
        report.assignment,
        report.digest,
        if report.graphs { "on" } else { "off" },
        report.bandwidth_gb_per_s,
        report.peak_tflop_per_s
    );
    if !report.prefill.is_empty() {
        let heads = ["prefill", "ms", "10 %", "90 %", "floor ms", "of floor", "tokens/s"];
        let _ = writeln!(
            text,
            "\n{:>15}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            heads[0], heads[1], heads[2], heads[3], heads[4], heads[5], heads[6]
        );
    }
    for Line { time, floor_ms, fraction_of_floor, tokens_per_second } in &report.prefill {
        let _ = writeln!(
            text,
            "{:>15}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>10.1}",
            time.rows,
            time.median_ms,
            time.low_ms,
            time.high_ms,
            floor_ms,
            fraction_of_floor,
            tokens_per_second
        );
    }
    let heads = ["batch", "context", "ms", "10 %", "90 %", "floor ms", "of floor", "tokens/s"];
    let _ = writeln!(
        text,
        "\n{:>6}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        heads[0], heads[1], heads[2], heads[3], heads[4], heads[5], heads[6], heads[7]
    );
    for Line { time, floor_ms, fraction_of_floor, tokens_per_second } in &report.steps {
        let _ = writeln!(
            text,
            "{:>6}{:>9}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>10.1}",
            time.batch,
            time.context,
            time.median_ms,
            time.low_ms,
            time.high_ms,
            floor_ms,
            fraction_of_floor,
            tokens_per_second
        );
    }
    for Line { time, .. } in report.steps.iter().filter(|line| !line.time.ops.is_empty()) {
        let _ = writeln!(text, "\nops at batch {}, context {}", time.batch, time.context);
        for op in &time.ops {
            let variants = op.variants.join(", ");
            let calls = if op.calls == 0 { String::new() } else { format!("{} calls", op.calls) };
            let _ = writeln!(text, "{:>12.1} us{calls:>12}  {:<18} {variants}", op.us, op.op);
        }
    }
    text
}
