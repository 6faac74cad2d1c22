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

/// What NCCL is told, unless the environment says otherwise.
const NCCL: [(&str, &str); 2] = [
    // Multicast over NVLink can put the GPUs of a host that others share out of service.
    ("NCCL_NVLS_ENABLE", "0"),
    // It would write what it has to say among what commands print on stdout.
    ("NCCL_DEBUG_FILE", "/dev/stderr"),
];

fn main() -> ExitCode {
    for (name, value) in NCCL.iter().filter(|(name, _)| std::env::var_os(name).is_none()) {
        // SAFETY: this is the only thread yet. The ranks that it may start inherit it.
        unsafe { std::env::set_var(name, value) };
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
