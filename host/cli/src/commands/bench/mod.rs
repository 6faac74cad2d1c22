//! `hotseam bench`.

mod kernels;

use std::fmt::Write as _;
use std::path::Path;

use hotseam_checkpoint::plan::roofline::{
    H200_BANDWIDTH, H200_PEAK, Machine, Request, Roofline, Step, roofline,
};

use super::checkpoint::{count, size};
use crate::args::{BenchArgs, BenchCommand, Format, RooflineArgs};
use crate::failure::Failure;
use crate::terminal;

/// Works out speeds.
pub(crate) fn run(args: &BenchArgs) -> Result<u8, Failure> {
    match &args.command {
        BenchCommand::Roofline(args) => floors(args),
        BenchCommand::Kernels(args) => kernels::run(args),
    }
}

/// Works out the floor of decode steps and of prefills.
fn floors(args: &RooflineArgs) -> Result<u8, Failure> {
    let request = Request {
        form: args.form.map(|form| form.get()),
        kv: args.kv.get(),
        index_keys: args.index_keys.get(),
        batches: args.batch.clone(),
        contexts: args.context.clone(),
        prompts: args.prefill.clone(),
        machine: Machine {
            gpus: args.tp,
            bandwidth_gb_per_s: args.bandwidth,
            peak_tflop_per_s: args.peak,
            launches: args.launches.unwrap_or(0),
            launch_us: args.launch_us.unwrap_or(0.0),
        },
    };
    let found = roofline(&args.path, &request).map_err(Failure::usage)?;
    match args.format {
        Format::Json => terminal::json(&found)?,
        Format::Text => terminal::data(&text(&args.path, &found))?,
    }
    Ok(0)
}

fn text(path: &Path, found: &Roofline) -> String {
    let (layers, machine) = (&found.layers, &found.machine);
    let mut text = format!(
        "{}\n{} layers: {} window, {} csa, {} hca; weights {}\n{} parameters in {}, {} active\n\
         {:.2} B of KV a context token ({}, index keys {}), {} fixed a sequence\n\
         assumed of {}: {} GB/s (--bandwidth), {} TFLOP/s (--peak)\n",
        path.display(),
        layers.window + layers.csa + layers.hca,
        layers.window,
        layers.csa,
        layers.hca,
        found.form,
        count(found.parameters),
        size(found.weight_bytes),
        count(found.active_parameters),
        found.kv_bytes_per_context_token,
        found.kv_format.name(),
        found.index_key_format.name(),
        size(found.window_bytes_per_sequence),
        if machine.gpus == 1 { "the GPU".to_owned() } else { format!("each of {} GPUs", machine.gpus) },
        machine.bandwidth_gb_per_s,
        machine.peak_tflop_per_s,
    );
    let _ = writeln!(
        text,
        "defaults: one H200 as measured ({H200_BANDWIDTH} GB/s copy, {H200_PEAK} TFLOP/s bf16 products)"
    );
    if machine.launches > 0 {
        let _ = writeln!(
            text,
            "in every floor: {} launches of {} us (--launches, --launch-us)",
            machine.launches, machine.launch_us
        );
    }
    let on = if machine.gpus == 1 { "" } else { ", bytes and FLOP on each GPU" };
    let _ = writeln!(text, "\ndecode, one step{on}\n{:>6}{:>9}{}", "batch", "context", COLUMNS);
    for row in &found.decode {
        let _ = writeln!(text, "{:>6}{:>9}{}", row.batch, row.context_tokens, columns(&row.step));
    }
    let _ = writeln!(text, "\nprefill of one sequence in one pass{on}\n{:>15}{}", "prompt", COLUMNS);
    for row in &found.prefill {
        let _ = writeln!(text, "{:>15}{}", row.prompt_tokens, columns(&row.step));
    }
    let per_token = size(found.activation_bytes_per_token);
    let _ = writeln!(text, "\nmemory also moves {per_token} of residual streams a token");
    for note in &found.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// Heads of the columns of a step.
const COLUMNS: &str = "    weights         KV      FLOP  floor ms  tokens/s  bound";

fn columns(step: &Step) -> String {
    format!(
        "{:>11}{:>11}{:>10}{:>10}{:>10}  {}",
        size(step.weight_bytes),
        size(step.kv_bytes),
        flop(step.flop),
        figures(step.floor_ms),
        figures(step.tokens_per_second),
        step.bound.name(),
    )
}

/// Products in words.
fn flop(n: f64) -> String {
    let units = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G")];
    let (unit, name) = units.into_iter().find(|(unit, _)| n >= *unit).unwrap_or((1e6, "M"));
    format!("{:.2} {name}", n / unit)
}

/// A number with three figures at least.
fn figures(n: f64) -> String {
    match n {
        n if n >= 100.0 => format!("{n:.0}"),
        n if n >= 10.0 => format!("{n:.1}"),
        n if n >= 1.0 => format!("{n:.2}"),
        n => format!("{n:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_words() {
        assert_eq!([1.5e6, 27.42e9, 1.5e12, 4.25e15].map(flop), ["1.50 M", "27.42 G", "1.50 T", "4.25 P"]);
        assert_eq!([1585.4, 26.28, 2.613, 0.01234].map(figures), ["1585", "26.3", "2.61", "0.0123"]);
    }
}
