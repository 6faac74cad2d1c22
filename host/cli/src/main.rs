//! The `hotseam` command.
//!
//! stdout is data, stderr is talk. Exit codes: 0 done; 1 the answer is no (a check failed, ends agree); 2 wrong usage or
//! configuration; further codes of `bisect run` are in its help.

mod admin;
mod args;
mod commands;
mod failure;
mod host;
mod logging;
mod terminal;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;
use failure::{Failure, closed_pipe};

/// What NCCL reads.
const NVLINK_MULTICAST: &str = "NCCL_NVLS_ENABLE";

fn main() -> ExitCode {
    // Multicast over NVLink can put the GPUs of a host that others share out of service. It stays off unless somebody asks for it.
    if std::env::var_os(NVLINK_MULTICAST).is_none() {
        // SAFETY: this is the only thread yet. The ranks that it may start inherit it.
        unsafe { std::env::set_var(NVLINK_MULTICAST, "0") };
    }
    let cli = Cli::parse();
    logging::init(&cli);
    match run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) if closed_pipe(&failure.error) => ExitCode::from(failure::CLOSED_PIPE),
        Err(failure) => {
            terminal::talk(&format!("error: {}", failure.chain()));
            ExitCode::from(failure.code)
        }
    }
}

fn run(cli: Cli) -> Result<u8, Failure> {
    match cli.command {
        Command::Serve(args) => commands::serve::run(&args),
        Command::Rank(args) => commands::rank::run(&args),
        Command::Slots(args) => commands::live::slots(&args),
        Command::Swap(args) => commands::live::swap(&args),
        Command::Rollback(args) => commands::live::rollback(&args),
        Command::Reload(args) => commands::live::reload(&args),
        Command::Trace(args) if args.capture.capture.is_some() => commands::capture::run(&args),
        Command::Trace(args) if args.capture.kv => commands::kv_map::run(&args),
        Command::Trace(args) => commands::live::trace(&args),
        Command::Needle(args) => commands::needle::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Graft(args) => commands::graft::run(&args),
        Command::Bisect(args) => commands::bisect::run(&args),
        Command::Plugin(args) => commands::plugin::run(&args),
        Command::Config(args) => commands::config::run(&args),
        Command::Checkpoint(args) => commands::checkpoint::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Completion { shell } => commands::completion::run(shell),
    }
}
