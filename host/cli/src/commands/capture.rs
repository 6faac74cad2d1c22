//! `hotseam trace --capture` and `hotseam plugin check --replay`.

use std::path::Path;

use anyhow::{Context as _, anyhow};
use hotseam_evidence::capture::{self, Capture};
use hotseam_loader::Device;
use hotseam_slots::{
    CellId, Geometry, LayerClass, NumberSet, Op, Registry, Scope, Seam, Selector, Topology, VariantSpec,
};

use crate::args::{Format, PluginCheckArgs, TraceArgs};
use crate::commands::plugin::files;
use crate::failure::Failure;
use crate::host;
use crate::terminal;

/// Runs a request in this process and stores one call of it.
pub(crate) fn run(args: &TraceArgs) -> Result<u8, Failure> {
    let (Some(cell), Some(out), Some(config)) =
        (&args.capture.capture, &args.capture.out, &args.server.config)
    else {
        return Err(Failure::usage(anyhow!("--capture needs -c FILE and -o FILE")));
    };
    let cell = parse_cell(cell)?;
    let config = host::load_config(config, &args.server.set)?;
    let assignment = &args.assignment.name;
    let (host, workload) = host::prepare(&config, [assignment], &args.capture.workload)?;
    let bar = host::spinner("running the request");
    let captured = capture::capture(&host.engine, assignment, cell, args.capture.call, &workload)
        .map_err(Failure::usage)?;
    bar.finish();
    host.engine.shutdown();
    captured.save(out).map_err(Failure::usage)?;
    match args.server.format {
        Format::Json => terminal::json(&captured.meta)?,
        Format::Text => {
            let meta = &captured.meta;
            terminal::data(&format!(
                "{}: call {} of {} ({} rows, {}), {} bytes\ncheck a variant on it with: hotseam plugin check VARIANT --replay {}",
                out.display(),
                meta.call,
                meta.cell,
                meta.rows,
                meta.variant,
                captured.bytes(),
                out.display()
            ))?;
        }
    }
    Ok(0)
}

/// A selector that names exactly one cell.
fn parse_cell(text: &str) -> Result<CellId, Failure> {
    let selector: Selector = text.parse().map_err(Failure::usage)?;
    let layer = match &selector.scope {
        Scope::Layers(layers) => layers.max().filter(|last| NumberSet::one(*last) == *layers),
        _ => None,
    };
    let whole = selector.op == Some(Op::Head) && selector.scope == Scope::All;
    match (selector.op, selector.phase) {
        (Some(op), Some(phase)) if (layer.is_some() || whole) && selector.seam != Seam::KvTransport => {
            Ok(CellId { seam: selector.seam, op, phase: Some(phase), layer, rank: None })
        }
        _ => Err(Failure::usage(anyhow!(
            "`{text}` is no single cell; name seam, op, phase and layer, such as indexer.select@decode:layers=2"
        ))),
    }
}

/// Makes a captured call again with a variant.
pub(crate) fn replay(args: &PluginCheckArgs, file: &Path) -> Result<u8, Failure> {
    let spec: VariantSpec = args.variant.parse().map_err(Failure::usage)?;
    let captured = Capture::load(file).map_err(Failure::usage)?;
    let (dim, rope_dim) = captured.shape().unwrap_or((files::HEAD_DIM, files::ROPE_DIM));
    let geometry = Geometry {
        classes: vec![LayerClass::Csa],
        hash: vec![false],
        head_dim: dim,
        index_head_dim: dim,
        rope_dim,
        topology: Topology::Paired,
        ranks: 1,
        rank: 0,
    };
    let registry = Registry::new(super::plugin::files::loader(&args.files)?, geometry);
    let generation = registry.generation_on(Device::Cpu, &spec).map_err(Failure::usage)?;
    let report = captured
        .replay(&generation)
        .with_context(|| format!("{} is refused", file.display()))
        .map_err(Failure::usage)?;
    match args.format {
        Format::Text => terminal::data(&report.to_string())?,
        Format::Json => terminal::json(&report)?,
    }
    Ok(u8::from(!report.passed))
}
