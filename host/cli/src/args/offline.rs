//! Commands about files.

use clap::{Args, Subcommand};

use super::{ConfigFile, Format};

/// `hotseam config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

/// What to do about a configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a file, its assignments, the plugins they name, and sizes against the checkpoint. Loads no weights.
    #[command(after_help = "Example:\n  hotseam config validate -c configs/quickstart.yaml\n\n\
                            Exit codes: 0 valid, 2 not, with file, line and column where there is one.")]
    Validate {
        #[command(flatten)]
        file: ConfigFile,
        /// Form of the output.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Print a file with all changes applied.
    #[command(
        after_help = "Example:\n  hotseam config print --effective -c configs/quickstart.yaml --set engine.chunk=256"
    )]
    Print {
        /// Defaults filled in and paths made absolute; without it, the file as it stands.
        #[arg(long)]
        effective: bool,
        #[command(flatten)]
        file: ConfigFile,
        /// Form of the output.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Print the JSON Schema of the file, with which editors complete and check.
    #[command(after_help = "Example:\n  hotseam config schema > config.schema.json")]
    Schema,
}
