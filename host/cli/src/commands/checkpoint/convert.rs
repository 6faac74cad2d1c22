//! `hotseam checkpoint convert`.

use std::fmt::Write as _;
use std::thread;

use hotseam_checkpoint::CheckpointError;
use hotseam_checkpoint::convert::{Options, Report, SHARD, convert};

use super::size;
use crate::args::{ConvertArgs, Format};
use crate::failure::Failure;
use crate::host::spinner;
use crate::terminal;

/// Writes a checkpoint in another form.
pub(super) fn run(args: &ConvertArgs) -> Result<u8, Failure> {
    let threads = match args.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let options = Options { form: args.form.get(), shard: SHARD, threads };
    let bar = spinner("checking the source");
    let done = convert(&args.from, &args.to, &options, |done, total| {
        if done == 1 {
            bar.message(&format!("writing {}", args.to.display()));
        }
        bar.tick(done, total);
    });
    bar.finish();
    let report = done.map_err(|error| match error {
        CheckpointError::Write { .. } => Failure::from(error),
        _ => Failure::usage(error),
    })?;
    match args.format {
        Format::Json => terminal::json(&report)?,
        Format::Text => terminal::data(&text(&report))?,
    }
    Ok(0)
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    if !report.changes.is_empty() {
        let _ = writeln!(
            text,
            "{:<24}{:<16}{:>9}{:>12}{:>14}{:>10}{:>12}",
            "class", "formats", "matrices", "max error", "relative rms", "SNR", "clipped"
        );
    }
    for change in &report.changes {
        let figures = &change.figures;
        let snr = figures.snr_db.map_or("exact".to_owned(), |db| format!("{db:.1} dB"));
        let _ = writeln!(
            text,
            "{:<24}{:<16}{:>9}{:>12.3e}{:>14.3e}{snr:>10}{:>11.4}%",
            change.class,
            format!("{} -> {}", change.from, change.to),
            change.matrices,
            figures.max_error,
            figures.relative_rms,
            100.0 * figures.clipped,
        );
    }
    let _ = writeln!(
        text,
        "{} tensors copied; {} before, {} after, in {} files",
        report.copied_tensors,
        size(report.bytes_before),
        size(report.bytes_after),
        report.files.len(),
    );
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}
