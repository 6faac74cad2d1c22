//! `hotseam checkpoint plan`.

use std::fmt::Write as _;

use hotseam_checkpoint::plan::{Plan, Request, Spread, plan};

use super::{count, plan_file, size};
use crate::args::{Format, PlanArgs};
use crate::failure::Failure;
use crate::terminal;

/// Exit code of a plan that does not fit.
const DOES_NOT_FIT: u8 = 1;

/// Works out the memory that a model needs.
pub(super) fn run(given: &PlanArgs) -> Result<u8, Failure> {
    let planned = plan_file::read(given)?;
    let args = planned.as_ref().unwrap_or(given);
    let request = Request {
        form: args.form.map(|form| form.get()),
        gpus: args.gpus,
        gpu_bytes: args.gpu_memory,
        context: args.context,
        sequences: args.sequences,
        kv: args.kv.get(),
        index_keys: args.index_keys.get(),
        attention: args.attention.get(),
        chunk: args.chunk,
        runtime_bytes: args.runtime,
    };
    let plan = plan(&args.path, request).map_err(Failure::usage)?;
    match args.format {
        Format::Json => terminal::json(&plan)?,
        Format::Text => terminal::data(&text(&plan))?,
    }
    Ok(if plan.fits { 0 } else { DOES_NOT_FIT })
}

fn sequences(n: u64) -> String {
    format!("{n} sequence{}", if n == 1 { "" } else { "s" })
}

fn text(plan: &Plan) -> String {
    let (request, kv) = (&plan.request, &plan.kv);
    let context = request.context.unwrap_or_default();
    let mut text = format!(
        "{} parameters, {} active; {}\n\nweights on each of {} GPUs\n",
        count(plan.weights.parameters),
        count(plan.weights.active_parameters),
        plan.form,
        request.gpus,
    );
    for line in &plan.weights.lines {
        let spread = if line.spread == Spread::Split { "split" } else { "on each" };
        let (parameters, bytes) = (count(line.parameters), size(line.bytes_per_gpu));
        let _ =
            writeln!(text, "  {:<20}{:<8}{spread:<9}{parameters:>12}{bytes:>14}", line.class, line.format);
    }
    let _ = writeln!(
        text,
        "\nkeys and values, {} entries of {} B, {} index keys of {} B",
        kv.format.name(),
        kv.entry,
        kv.index_format.name(),
        kv.index_key
    );
    let per_token = &kv.per_token;
    for (name, bytes) in [
        ("csa entries", per_token.c4),
        ("hca entries", per_token.c128),
        ("index keys", per_token.index_keys),
        ("a token", per_token.total),
    ] {
        let _ = writeln!(text, "  {name:<37}{:>12.2} B a token", bytes);
    }
    let fixed = &kv.per_sequence;
    for (name, bytes) in [
        ("sliding windows", fixed.window),
        ("csa states", fixed.c4_states),
        ("indexer states", fixed.index_states),
        ("hca states", fixed.c128_states),
        ("a sequence", fixed.total),
    ] {
        let _ = writeln!(text, "  {name:<37}{:>14} a sequence", size(bytes));
    }
    let _ = writeln!(text, "\neach GPU");
    let lines = [
        ("memory", request.gpu_bytes),
        ("weights", plan.weights.bytes_per_gpu),
        ("workspace", plan.workspace.total),
        ("runtime", request.runtime_bytes),
        ("room for keys and values", plan.kv_room),
        ("needed", plan.kv_needed),
    ];
    for (name, bytes) in lines {
        let _ = writeln!(text, "  {name:<37}{:>14}", size(bytes));
    }
    let spare = size(plan.spare.unsigned_abs());
    let verdict = if plan.fits {
        format!("fits, {spare} to spare")
    } else {
        format!("does not fit, {spare} are missing")
    };
    let _ = writeln!(
        text,
        "\n{} of {context} tokens: {verdict} on each GPU\n{} tokens of context fit on each GPU; {} of {context} \
         tokens fit on the group",
        sequences(request.sequences),
        plan.kv_tokens,
        sequences(plan.sequences_that_fit),
    );
    for note in &plan.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}
