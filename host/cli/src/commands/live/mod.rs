//! Commands to a running server: `slots`, `swap`, `rollback`, `reload`, `trace`.

mod plan;
mod reload;
mod saved;
mod stage;
mod swap;

use std::fmt::Write as _;
use std::ops::ControlFlow;

use anyhow::{Context as _, anyhow};
use hotseam_config::{Endpoint, EndpointPlace, ServerSection};
use hotseam_evidence::trace::{Receipt, Trace};
use hotseam_server::admin::{CellLine, SlotsView, TraceView, default_admin_path};
use hotseam_slots::SwapEvent;
use hyper::Method;
use serde_json::Value;

use crate::admin::{Door, ask, follow};
use crate::args::{AdminArgs, Format, SlotsArgs, SlotsCommand, TraceArgs};
use crate::failure::Failure;
use crate::host;
use crate::terminal;

pub(crate) use reload::{reload, text as reloaded};
pub(crate) use swap::{rollback, swap};

/// Shows which variant each cell uses, or does what the subcommand says.
pub(crate) fn slots(args: &SlotsArgs) -> Result<u8, Failure> {
    match &args.command {
        None => show(&args.assignment.name, &args.server),
        Some(SlotsCommand::Watch { server }) => watch(server),
        Some(SlotsCommand::Save { file, server }) => saved::save(file, server),
        Some(SlotsCommand::Load(load)) => saved::load(load),
    }
}

fn show(wanted: &str, args: &AdminArgs) -> Result<u8, Failure> {
    let view: SlotsView = ask(&door(args)?, Method::GET, "/slots", None)?;
    let Some(assignment) = view.assignments.get(wanted) else {
        let known: Vec<&str> = view.assignments.keys().map(String::as_str).collect();
        return Err(Failure::usage(anyhow!("no assignment `{wanted}`; there are: {}", known.join(", "))));
    };
    if args.format == Format::Json {
        terminal::json(&view)?;
        return Ok(0);
    }
    let receipts = assignment.cells.iter().map(|line| receipt(line, None)).collect();
    let mut text = Trace::new(wanted, &assignment.digest.to_string(), receipts).to_string();
    text += "\nrules\n";
    for rule in &assignment.rules {
        let _ = writeln!(text, "  {rule}");
    }
    let names: Vec<&str> = view.assignments.keys().map(String::as_str).collect();
    let _ = writeln!(text, "\nassignments  {}", names.join(", "));
    if let Some(group) = &view.group {
        let _ = writeln!(text, "swap group   {}", group.name);
        for member in &group.members {
            let state = match (member.connected, member.differs.is_empty()) {
                (false, _) => {
                    "not connected: swaps of the group are refused until it is, or --without-absent"
                        .to_owned()
                }
                (true, true) => "connected, alike".to_owned(),
                (true, false) => format!("connected, differs: {}", member.differs.join("; ")),
            };
            let _ = writeln!(text, "  {}  {state}", member.worker);
        }
        if group.members.is_empty() {
            text += "  no other worker is connected\n";
        }
    }
    for (label, record) in [("last swap", &view.last), ("swap now", &view.running)] {
        if let Some(record) = record {
            let _ = writeln!(text, "{label:<11}  {}", stage::record(record));
        }
    }
    terminal::data(&text)?;
    Ok(0)
}

/// Prints each stage of each swap.
fn watch(args: &AdminArgs) -> Result<u8, Failure> {
    follow(&door(args)?, "/events", |name, data| {
        let line = match (name, args.format) {
            ("swap", Format::Json) => Some(data.to_owned()),
            ("swap", Format::Text) => match serde_json::from_str::<SwapEvent>(data) {
                Ok(event) => Some(stage::event(&event)),
                Err(error) => return ControlFlow::Break(Err(error).context("an event from the server")),
            },
            _ => None,
        };
        match line.map_or(Ok(()), |line| terminal::data(&line)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(Err(error.into())),
        }
    })?;
    Ok(0)
}

/// Shows what ran.
pub(crate) fn trace(args: &TraceArgs) -> Result<u8, Failure> {
    let path = format!("/trace?assignment={}", args.assignment.name);
    let view: TraceView = ask(&door(&args.server)?, Method::GET, &path, None)?;
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

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

fn body(value: &impl serde::Serialize) -> Result<Option<Value>, Failure> {
    Ok(Some(serde_json::to_value(value)?))
}

/// The admin endpoints that the arguments name.
fn door(args: &AdminArgs) -> Result<Door, Failure> {
    if let Some(text) = &args.admin {
        return named_door(text, args);
    }
    let server = match &args.config {
        Some(path) => host::load_config(path, &args.set)?.server,
        None => ServerSection::default(),
    };
    let port = server.listen.port();
    if port == 0 && server.admin.is_none() {
        let text =
            "the file leaves port and admin socket to the server; name the socket it printed with --admin";
        return Err(Failure::usage(anyhow!(text)));
    }
    Ok(Door::Unix(server.admin.unwrap_or_else(|| default_admin_path(port))))
}

fn named_door(text: &str, args: &AdminArgs) -> Result<Door, Failure> {
    if !text.contains("://") {
        return match &args.token_file {
            None => Ok(Door::Unix(text.strip_prefix("unix:").unwrap_or(text).into())),
            Some(_) => Err(Failure::usage(anyhow!(
                "--token-file is for a loopback listener, --admin http://HOST:PORT; a socket wants no token"
            ))),
        };
    }
    let endpoint: Endpoint = text.parse().map_err(|error: String| Failure::usage(anyhow!(error)))?;
    let EndpointPlace::Tcp(address) = endpoint.place else {
        return Err(Failure::usage(anyhow!("expected http://HOST:PORT, found `{text}`")));
    };
    let Some(file) = &args.token_file else {
        return Err(Failure::usage(anyhow!("{text} wants a token; name its file with --token-file")));
    };
    let token = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the token in {}", file.display()))
        .map_err(Failure::usage)?;
    let token = token.trim().to_owned();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::usage(anyhow!("{} holds no token", file.display())));
    }
    Ok(Door::Tcp { address, token })
}
