//! Log lines on stderr.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command};
use crate::terminal;

/// Starts logging. `serve` logs at `info`, everything else at `warn`, a bisection without the failures of its arms, which
/// are its results; `HOTSEAM_LOG` overrides, `--log-json` of `serve` gives JSON lines.
pub(crate) fn init(cli: &Cli) {
    let (default, json) = match &cli.command {
        Command::Serve(args) => ("info", args.log_json),
        Command::Bisect(_) => ("warn,hotseam_engine=off", false),
        _ => ("warn", false),
    };
    let asked = std::env::var("HOTSEAM_LOG").ok().filter(|text| !text.is_empty());
    let filter = EnvFilter::try_new(asked.as_deref().unwrap_or(default)).unwrap_or_else(|error| {
        terminal::talk(&format!("HOTSEAM_LOG is ignored: {error}"));
        EnvFilter::new(default)
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    if json {
        builder.json().init();
    } else {
        builder.with_ansi(terminal::color(io::stderr().is_terminal())).init();
    }
}
