//! `hotseam plugin check`.

use hotseam_evidence::conform::{self, CheckLevel};

use super::files;
use crate::args::{Format, PluginCheckArgs};
use crate::commands::capture;
use crate::failure::Failure;
use crate::terminal;

/// Holds a variant against the truth, on the cases or on a captured call.
pub(super) fn run(args: &PluginCheckArgs) -> Result<u8, Failure> {
    if let Some(file) = &args.replay {
        return capture::replay(args, file);
    }
    let registry = files::registry(&args.files)?;
    let generation = files::generation(&registry, &args.variant)?;
    let level = if args.quick { CheckLevel::Quick } else { CheckLevel::Full };
    let report = conform::check(&generation, level).map_err(Failure::usage)?;
    match args.format {
        Format::Text => terminal::data(&report.to_string())?,
        Format::Json => {
            let mut value = serde_json::to_value(&report)?;
            value["passed"] = report.passed().into();
            terminal::json(&value)?;
        }
    }
    if report.cases.is_empty() {
        terminal::talk("the variant serves no op of its own; its base does");
    }
    Ok(u8::from(!report.passed()))
}
