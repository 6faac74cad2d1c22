//! Commands to a running server: `slots`, `swap`, `rollback`, `trace`.

use std::fmt::Write as _;
use std::path::PathBuf;

use hotseam_config::ServerSection;
use hotseam_evidence::trace::{Receipt, Trace};
use hotseam_server::admin::{
    CellLine, RollbackRequest, SlotsView, SwapAnswer, SwapRequest, TraceView, default_admin_path,
};
use hotseam_slots::{CellChange, NumberSet};
use hyper::Method;

use crate::admin::ask;
use crate::args::{AdminArgs, Format, RollbackArgs, SlotsArgs, SwapArgs, TraceArgs};
use crate::failure::Failure;
use crate::host;
use crate::terminal;

/// Shows which variant each cell uses.
pub(crate) fn slots(args: &SlotsArgs) -> Result<u8, Failure> {
    let view: SlotsView = ask(&socket(&args.server)?, Method::GET, "/slots", None)?;
    if args.server.format == Format::Json {
        terminal::json(&view)?;
        return Ok(0);
    }
    let mut text = String::new();
    for (name, assignment) in view.assignments.iter().filter(|(name, _)| **name == args.server.assignment) {
        let receipts = assignment.cells.iter().map(|line| receipt(line, None)).collect();
        text += &Trace::new(name, &assignment.digest.to_string(), receipts).to_string();
        text += "\nrules\n";
        for rule in &assignment.rules {
            let _ = writeln!(text, "  {rule}");
        }
    }
    if text.is_empty() {
        let known: Vec<&str> = view.assignments.keys().map(String::as_str).collect();
        let wanted = &args.server.assignment;
        return Err(Failure::usage(anyhow::anyhow!(
            "no assignment `{wanted}`; there are: {}",
            known.join(", ")
        )));
    }
    let _ =
        writeln!(text, "\nassignments  {}", view.assignments.keys().cloned().collect::<Vec<_>>().join(", "));
    terminal::data(&text)?;
    Ok(0)
}

/// Gives cells to a variant.
pub(crate) fn swap(args: &SwapArgs) -> Result<u8, Failure> {
    let rule = host::parse_rule(&args.selector, args.variant.as_deref()).map_err(Failure::usage)?;
    let request = SwapRequest {
        select: rule.select().clone(),
        variant: rule.variant().cloned(),
        assignment: Some(args.server.assignment.clone()),
        dry_run: false,
    };
    let body = serde_json::to_value(request)?;
    let answer: SwapAnswer = ask(&socket(&args.server)?, Method::POST, "/swap", Some(body))?;
    tell(&answer, args.server.format)
}

/// Undoes the last swap.
pub(crate) fn rollback(args: &RollbackArgs) -> Result<u8, Failure> {
    let request = RollbackRequest { assignment: Some(args.server.assignment.clone()) };
    let body = serde_json::to_value(request)?;
    let answer: SwapAnswer = ask(&socket(&args.server)?, Method::POST, "/rollback", Some(body))?;
    tell(&answer, args.server.format)
}

/// Shows what ran.
pub(crate) fn trace(args: &TraceArgs) -> Result<u8, Failure> {
    let path = format!("/trace?assignment={}", args.server.assignment);
    let view: TraceView = ask(&socket(&args.server)?, Method::GET, &path, None)?;
    if args.server.format == Format::Json {
        terminal::json(&view)?;
        return Ok(0);
    }
    let receipts = view.cells.iter().map(|cell| receipt(&cell.line, Some((cell.calls, cell.rows)))).collect();
    let trace = Trace::new(&view.assignment, &view.digest.to_string(), receipts).with_origins(&view.origins);
    terminal::data(&format!("{trace}\n{} steps since the start; calls since the last change", view.step))?;
    Ok(0)
}

fn receipt(line: &CellLine, ran: Option<(u64, u64)>) -> Receipt {
    Receipt { cell: line.cell, variant: line.variant.to_string(), hash: line.hash.clone(), ran }
}

fn tell(answer: &SwapAnswer, format: Format) -> Result<u8, Failure> {
    match format {
        Format::Json => terminal::json(answer)?,
        Format::Text => terminal::data(&describe(answer))?,
    }
    Ok(0)
}

/// The changed cells, layers that changed alike together.
fn describe(answer: &SwapAnswer) -> String {
    let mut groups: Vec<(&CellChange, Vec<u32>)> = Vec::new();
    for change in &answer.changes {
        let alike = |other: &CellChange| {
            (other.cell.seam, other.cell.op, other.cell.phase)
                == (change.cell.seam, change.cell.op, change.cell.phase)
                && (&other.from, &other.to) == (&change.from, &change.to)
        };
        match groups.iter_mut().find(|(other, _)| alike(other)) {
            Some((_, layers)) => layers.extend(change.cell.layer),
            None => groups.push((change, change.cell.layer.into_iter().collect())),
        }
    }
    let mut text = if groups.is_empty() {
        format!("{}: already so\n", answer.assignment)
    } else {
        let cells = answer.changes.len();
        format!("{}: {cells} cells changed, in force from step {} on\n", answer.assignment, answer.step + 2)
    };
    for (change, layers) in groups {
        let phase = change.cell.phase.map_or(String::new(), |phase| format!("@{phase}"));
        let layers = match layers.is_empty() {
            true => String::new(),
            false => format!(" layers {}", NumberSet::of(layers)),
        };
        let (from, to) = (&change.from, &change.to);
        let _ = writeln!(text, "  {}.{}{phase}{layers}", change.cell.seam, change.cell.op);
        let _ = writeln!(text, "    {} {}", short(&from.hash), from.variant);
        let _ = writeln!(text, " -> {} {}", short(&to.hash), to.variant);
    }
    text
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// The admin socket that the arguments name.
fn socket(args: &AdminArgs) -> Result<PathBuf, Failure> {
    if let Some(path) = &args.admin {
        return Ok(path.clone());
    }
    let server = match &args.config {
        Some(path) => host::load_config(path, &args.set)?.server,
        None => ServerSection::default(),
    };
    let port = server.listen.port();
    if port == 0 && server.admin.is_none() {
        let text =
            "the file leaves port and admin socket to the server; name the socket it printed with --admin";
        return Err(Failure::usage(anyhow::anyhow!(text)));
    }
    Ok(server.admin.unwrap_or_else(|| default_admin_path(port)))
}
