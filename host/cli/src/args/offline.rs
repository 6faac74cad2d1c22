//! Commands about files.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ConfigFile, Format};

/// `hotseam plugin`.
#[derive(Debug, Args)]
pub(crate) struct PluginArgs {
    #[command(subcommand)]
    pub(crate) command: PluginCommand,
}

/// What to do about plugins.
#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// List the plugins that can be found.
    #[command(after_help = "Example:\n  hotseam plugin list")]
    List {
        #[command(flatten)]
        dirs: PluginDirs,
        /// Form of the output.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show the manifest of a plugin: options, base, what it needs.
    #[command(after_help = "Example:\n  hotseam plugin inspect indexer/cpu-sm120")]
    Inspect {
        /// Plugin name, or path of its file.
        #[arg(value_name = "PLUGIN")]
        plugin: String,
        #[command(flatten)]
        dirs: PluginDirs,
        /// Form of the output.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Check a variant against the truth; exit with 1 if it fails.
    Check(PluginCheckArgs),
}

/// `hotseam plugin check`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam plugin check 'indexer/cpu-sm120{early_exit: true, keys: bf16}'\n  \
                  hotseam plugin check 'faulty/attention{fault: half-scale}' --format json\n  \
                  hotseam plugin check indexer/cpu-stock --replay call.safetensors\n\n\
                  Exit codes: 0 it conforms, 1 it does not, 2 usage, or a file that is no sound capture."
)]
pub(crate) struct PluginCheckArgs {
    /// The variant: plugin and options.
    #[arg(value_name = "VARIANT")]
    pub(crate) variant: String,
    /// One or two cases an op, well under a second.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Judges it on this captured call (`hotseam trace --capture`) instead of the cases.
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    pub(crate) replay: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) dirs: PluginDirs,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Where plugins are.
#[derive(Debug, Args)]
pub(crate) struct PluginDirs {
    /// Directory of plugins; may be given several times. The directory of this program by default.
    #[arg(long = "dir", value_name = "DIR")]
    pub(crate) dirs: Vec<PathBuf>,
}

/// `hotseam config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

/// What to do about a configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a file, its assignments and the plugins they name. Loads no weights.
    #[command(after_help = "Example:\n  hotseam config validate -c configs/quickstart.yaml")]
    Validate {
        #[command(flatten)]
        file: ConfigFile,
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
}

/// `hotseam checkpoint`.
#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    #[command(subcommand)]
    pub(crate) command: CheckpointCommand,
}

/// What to do about a checkpoint.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// List geometry and tensors: names, element types, shapes, bytes.
    #[command(after_help = "Example:\n  hotseam checkpoint inspect assets/nano-v4")]
    Inspect {
        /// Checkpoint directory.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Form of the output.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}
