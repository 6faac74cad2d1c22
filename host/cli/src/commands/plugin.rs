//! `hotseam plugin`.

mod bench;
mod check;
pub(super) mod files;
mod new;
mod probe;
mod show;
mod sign;

use crate::args::{PluginArgs, PluginCommand};
use crate::failure::Failure;

/// Makes, lists, shows, checks, signs or times plugins.
pub(crate) fn run(args: &PluginArgs) -> Result<u8, Failure> {
    match &args.command {
        PluginCommand::New(args) => new::run(args),
        PluginCommand::List { files, format } => show::list(files, *format),
        PluginCommand::Inspect { plugin, files, format } => show::inspect(plugin, files, *format),
        PluginCommand::Check(args) => check::run(args),
        PluginCommand::Sign(args) => sign::run(args),
        PluginCommand::Bench(args) => bench::run(args),
        PluginCommand::Probe => Ok(probe::run()),
    }
}
