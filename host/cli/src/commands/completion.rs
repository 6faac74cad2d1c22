//! `hotseam completion`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::Failure;
use crate::terminal;

/// Prints a completion script.
pub(crate) fn run(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "hotseam", &mut script);
    terminal::data(&String::from_utf8_lossy(&script))?;
    Ok(0)
}
