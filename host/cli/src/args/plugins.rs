//! Commands about plugin files.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Format, PluginNewArgs};

/// `hotseam plugin`.
#[derive(Debug, Args)]
pub(crate) struct PluginArgs {
    #[command(subcommand)]
    pub(crate) command: PluginCommand,
}

/// What to do about plugins.
#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    /// Write a crate to start a variant from; it builds, conforms and loads as it is.
    New(PluginNewArgs),
    /// List the plugins that can be found, why some are refused, and the hashes in quarantine.
    #[command(
        after_help = "Example:\n  hotseam plugin list\n  hotseam plugin list -c configs/quickstart.yaml --format json"
    )]
    List {
        #[command(flatten)]
        files: PluginFiles,
        /// Form of the output.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show what a plugin is: options, base, what it needs, sidecar, signature, verdict of the probe.
    #[command(after_help = "Example:\n  hotseam plugin inspect indexer/cpu-sm120\n\n\
                            Exit codes: 0 it can be used, 2 it is refused, with the reason.")]
    Inspect {
        /// Plugin name, or path of its file.
        #[arg(value_name = "PLUGIN")]
        plugin: String,
        #[command(flatten)]
        files: PluginFiles,
        /// Form of the output.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Check a variant against the truth; exit with 1 if it fails.
    Check(PluginCheckArgs),
    /// Write the sidecars of plugins, and sign them.
    Sign(PluginSignArgs),
    /// Time the ops of a variant on the cases of conformance.
    Bench(PluginBenchArgs),
    /// Answer a probe: internal to the loader.
    #[command(hide = true, after_help = "Example:\n  hotseam plugin probe")]
    Probe,
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
    pub(crate) files: PluginFiles,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// `hotseam plugin sign`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam plugin sign attention/my-kernel --dir ~/plugins\n  \
                  hotseam plugin sign --new-key ~/keys/release attention/my-kernel --dir ~/plugins\n  \
                  hotseam plugin sign --key ~/keys/release ~/plugins/libhotseam_attention_my_kernel.so --dir ~/plugins\n\n\
                  Beside the file it writes FILE.manifest.yaml, with the hash of the file and what the binary says of\n\
                  itself, and with a key FILE.manifest.yaml.sig. A server with `plugins.policy: signed` and the public key\n\
                  (KEY.pub) in `plugins.keys` loads nothing else.\n\
                  Exit codes: 0 written, 1 a file cannot be written, 2 usage, or a plugin is refused.")]
pub(crate) struct PluginSignArgs {
    /// Plugin names, or paths of their files.
    #[arg(value_name = "PLUGIN", required = true)]
    pub(crate) plugins: Vec<String>,
    /// Secret key to sign with. Without one only the sidecars are written.
    #[arg(long, value_name = "FILE", conflicts_with = "new_key")]
    pub(crate) key: Option<PathBuf>,
    /// Makes a new pair of keys, FILE and FILE.pub, and signs with it.
    #[arg(long, value_name = "FILE")]
    pub(crate) new_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) files: PluginFiles,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// `hotseam plugin bench`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam plugin bench attention/cpu-stock\n  \
                  hotseam plugin bench moe/cpu-fused-scale --against moe/cpu-stock --op moe.route --format json\n\n\
                  Calls of both variants alternate. Times are medians with the 10th and 90th percentile.\n\
                  Exit codes: 0 timed, 1 a call failed, 2 usage.")]
pub(crate) struct PluginBenchArgs {
    /// The variant: plugin and options.
    #[arg(value_name = "VARIANT")]
    pub(crate) variant: String,
    /// Another variant of the same seam, to compare with.
    #[arg(long, value_name = "VARIANT")]
    pub(crate) against: Option<String>,
    /// Only this op, such as attention.core.
    #[arg(long, value_name = "OP")]
    pub(crate) op: Option<String>,
    /// Time for each case, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub(crate) milliseconds: u64,
    #[command(flatten)]
    pub(crate) files: PluginFiles,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// What a plugin file must bring along; as `plugins.policy` in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// Place, owner and mode; a sidecar that is there must hold.
    Open,
    /// A sidecar.
    Manifest,
    /// A signed sidecar.
    Signed,
}

/// Where plugins are, and what is asked of them.
#[derive(Debug, Args)]
pub(crate) struct PluginFiles {
    /// Directory of plugins; may be given several times. The directory of this program by default.
    #[arg(long = "dir", value_name = "DIR")]
    pub(crate) dirs: Vec<PathBuf>,
    /// Configuration file whose section `plugins` holds where no option is given here.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What a file must bring along.
    #[arg(long, value_enum)]
    pub(crate) policy: Option<PolicyName>,
    /// Public key whose signatures count; may be given several times.
    #[arg(long = "trust", value_name = "FILE")]
    pub(crate) keys: Vec<PathBuf>,
    /// Directory of remembered verdicts and of the quarantine.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Runs the code of plugins in this process at once, without a probe in a child.
    #[arg(long)]
    pub(crate) no_probe: bool,
}
