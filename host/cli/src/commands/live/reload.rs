//! `hotseam reload`.

use std::fmt::Write as _;

use hotseam_server::admin::{AssignmentReload, ReloadAnswer, ReloadRequest};
use hyper::Method;

use super::{body, door, plan, swap};
use crate::admin::ask;
use crate::args::{Format, ReloadArgs};
use crate::failure::Failure;
use crate::terminal;

/// Has the server read its file again.
pub(crate) fn reload(args: &ReloadArgs) -> Result<u8, Failure> {
    let kv = swap::kv_policy(args.kv);
    let request = ReloadRequest { dry_run: args.dry_run, kv };
    let door = door(&args.server)?;
    let sent = body(&request)?;
    let ask = || ask::<ReloadAnswer>(&door, Method::POST, "/reload", sent);
    let answer = if args.dry_run { ask()? } else { swap::telling(&door, None, ask)? };
    match args.server.format {
        Format::Json => terminal::json(&answer)?,
        Format::Text => terminal::data(&text(&answer))?,
    }
    let refused = answer.assignments.iter().filter(|one| match one {
        AssignmentReload::Swapped(plan) => swap::refusable(plan, kv),
        one => matches!(one, AssignmentReload::Refused { .. }),
    });
    // Each is told.
    Ok(u8::from(refused.count() > 0))
}

/// What became of each assignment.
pub(crate) fn text(answer: &ReloadAnswer) -> String {
    let mut text =
        format!("{}{}\n", answer.file, if answer.dry_run { ": plan, nothing was changed" } else { "" });
    for one in &answer.assignments {
        match one {
            AssignmentReload::Unchanged { assignment } => {
                let _ = writeln!(text, "{assignment}: unchanged");
            }
            AssignmentReload::Defined { assignment } => {
                let _ = writeln!(text, "{assignment}: new");
            }
            AssignmentReload::Removed { assignment } => {
                let _ = writeln!(text, "{assignment}: removed");
            }
            AssignmentReload::Swapped(swap) => text += &plan::describe(swap),
            AssignmentReload::Refused { assignment, message, .. } => {
                let _ = writeln!(text, "{assignment}: refused, it stays as it was: {message}");
            }
        }
    }
    if !answer.needs_restart.is_empty() {
        let _ = writeln!(
            text,
            "differs, and takes effect at the next start: {}",
            answer.needs_restart.join(", ")
        );
    }
    text
}
