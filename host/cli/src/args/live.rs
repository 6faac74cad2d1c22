//! Commands about a server.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use hotseam_config::valid_assignment_name;

use super::{CaptureArgs, Format, GuardedFile};

/// `hotseam serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam serve -c configs/quickstart.yaml --set server.listen=127.0.0.1:9000\n\n\
                  Then, from another shell:\n  \
                  hotseam swap indexer@decode:layers=2-4 'indexer/cpu-sm120{keys: f32}' -c configs/quickstart.yaml"
)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) file: GuardedFile,
    /// Log JSON lines.
    #[arg(long)]
    pub(crate) log_json: bool,
}

/// `hotseam rank`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam serve -c configs/quickstart.yaml --set engine.tp_size=4\n\nstarts three of them."
)]
pub(crate) struct RankArgs {
    /// Number of the inherited socket for tables.
    #[arg(long, value_name = "FD")]
    pub(crate) link: i32,
    /// Number of the inherited socket for steps.
    #[arg(long, value_name = "FD")]
    pub(crate) steps: i32,
    /// Number of the inherited memory.
    #[arg(long, value_name = "FD")]
    pub(crate) shared: i32,
}

/// Which server.
#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// Admin socket of the server, or its loopback listener as http://HOST:PORT.
    #[arg(long, value_name = "PATH|URL", conflicts_with = "config")]
    pub(crate) admin: Option<String>,
    /// File with the token that the loopback listener wants.
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub(crate) token_file: Option<PathBuf>,
    /// Configuration file of the server, which tells its admin socket.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Changes one field of that file, as it was given to the server.
    #[arg(long, value_name = "FIELD=VALUE", requires = "config")]
    pub(crate) set: Vec<String>,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Which assignment.
#[derive(Debug, Args)]
pub(crate) struct AssignmentArgs {
    /// Assignment.
    #[arg(long = "assignment", value_name = "NAME", default_value = "live", value_parser = assignment)]
    pub(crate) name: String,
}

fn assignment(text: &str) -> Result<String, String> {
    match valid_assignment_name(text) {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 64 letters, digits, `-`, `_` or `.`, such as canary".to_owned()),
    }
}

/// `hotseam slots`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example:\n  hotseam slots -c configs/quickstart.yaml\n  hotseam slots --admin /run/hotseam.sock --format json"
)]
pub(crate) struct SlotsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SlotsCommand>,
    #[command(flatten)]
    pub(crate) assignment: AssignmentArgs,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// What else to do with slots.
#[derive(Debug, Subcommand)]
pub(crate) enum SlotsCommand {
    /// Follow the swaps of a server, stage by stage, until interrupted.
    #[command(after_help = "Example:\n  hotseam slots watch -c configs/quickstart.yaml")]
    Watch {
        #[command(flatten)]
        server: AdminArgs,
    },
    /// Save the assignments of a server, and the hash of the code that each variant had.
    #[command(after_help = "Example:\n  hotseam slots save tuesday.yaml -c configs/quickstart.yaml")]
    Save {
        /// File to write.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        server: AdminArgs,
    },
    /// Bring a saved assignment back, by the swaps that it takes.
    Load(LoadArgs),
}

/// `hotseam slots load`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam slots load tuesday.yaml --dry-run -c configs/quickstart.yaml\n  \
                  hotseam slots load tuesday.yaml --assignment live\n\n\
                  Exit codes: 0 loaded, 1 refused or rolled back, 2 usage, or code that is not what was saved."
)]
pub(crate) struct LoadArgs {
    /// File that `slots save` wrote.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Loads it even if plugins are not the ones that were saved.
    #[arg(long)]
    pub(crate) any_hash: bool,
    #[command(flatten)]
    pub(crate) how: SwapHow,
    #[command(flatten)]
    pub(crate) assignment: AssignmentArgs,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// How careful a swap is, and what to wait for.
#[derive(Debug, Args)]
pub(crate) struct SwapHow {
    /// Says what would change, and changes nothing; exit with 1 if it would be refused.
    #[arg(long, conflicts_with_all = ["wait", "no_wait"])]
    pub(crate) dry_run: bool,
    /// Waits until probation is over; exit with 1 if the swap was rolled back.
    #[arg(long, conflicts_with = "no_wait")]
    pub(crate) wait: bool,
    /// Returns as soon as the swap has a number.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// What becomes of sequences in flight if a KV layout changes.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) kv: Kv,
    /// Conformance that a new variant must show first.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) check: Check,
    /// Steps in which old and new run side by side first.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    pub(crate) shadow: u32,
    /// Steps in which the old variants are kept ready to come back; 0 for none.
    #[arg(long, value_name = "STEPS", default_value_t = 32)]
    pub(crate) probation: u32,
    /// In a swap group: goes on without members that are not connected now.
    #[arg(long)]
    pub(crate) without_absent: bool,
}

/// What becomes of sequences in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kv {
    /// The swap is refused.
    #[default]
    Refuse,
    /// They end as they are; new ones wait.
    Drain,
    /// They are prefilled again.
    Recompute,
}

/// Conformance of a new variant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    /// None.
    Off,
    /// One or two cases an op.
    #[default]
    Quick,
    /// Every case.
    Full,
}

/// `hotseam swap`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam swap attention@decode attention/cpu-sm120-mma -c configs/quickstart.yaml\n  \
                  hotseam swap moe:class=hash moe/cpu-fused-scale --dry-run\n  \
                  hotseam swap indexer 'indexer/cpu-stock{keys: bf16}' --kv recompute --wait\n  \
                  hotseam swap '!attention@decode'\n  \
                  hotseam swap kv_transport kv_transport/shm --admin /run/hotseam-prefill.sock\n\n\
                  A selector is seam[.op][@phase][:layers=2-6,8|class=csa]; with a leading ! it goes back to the\n\
                  variant the cells had first. The swap takes effect at a step boundary; no request fails.\n\
                  In a swap group (disaggregation.swap_group) a swap of what both ends of a pair must have alike goes\n\
                  to all connected members, and commits on all or on none.\n\n\
                  Exit codes: 0 done, 1 refused or rolled back, 2 usage."
)]
pub(crate) struct SwapArgs {
    /// Which cells.
    #[arg(value_name = "SELECTOR")]
    pub(crate) selector: String,
    /// The variant they get; left out if the selector begins with `!`.
    #[arg(value_name = "VARIANT")]
    pub(crate) variant: Option<String>,
    #[command(flatten)]
    pub(crate) how: SwapHow,
    #[command(flatten)]
    pub(crate) assignment: AssignmentArgs,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// `hotseam rollback`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam rollback -c configs/quickstart.yaml\n  hotseam rollback --kv recompute\n\n\
                        Exit codes: 0 done, 1 refused, 2 usage."
)]
pub(crate) struct RollbackArgs {
    /// Says what would change, and changes nothing; exit with 1 if it would be refused.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// What becomes of sequences in flight if a KV layout changes back.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) kv: Kv,
    /// In a swap group: goes on without members that are not connected now.
    #[arg(long)]
    pub(crate) without_absent: bool,
    #[command(flatten)]
    pub(crate) assignment: AssignmentArgs,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// `hotseam reload`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam reload --dry-run -c configs/quickstart.yaml\n  hotseam reload -c configs/quickstart.yaml\n\n\
                  The server reads its own configuration file again, with the changes that it was started with, and swaps\n\
                  in what differs; a file with a mistake changes nothing. SIGHUP does the same.\n\n\
                  Exit codes: 0 done, 1 the file or one of its swaps was refused, 2 usage."
)]
pub(crate) struct ReloadArgs {
    /// Says what would change, and changes nothing; exit with 1 if a swap would be refused.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// What becomes of sequences in flight if a KV layout changes.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) kv: Kv,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// `hotseam trace`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam trace -c configs/quickstart.yaml\n  \
                  hotseam trace -c configs/context-loss.yaml --capture indexer.select@decode:layers=2 --needle 2048 -o call.safetensors\n  \
                  hotseam plugin check 'indexer/cpu-sm120{keys: bf16}' --replay call.safetensors\n  \
                  hotseam trace -c configs/quickstart.yaml --kv --prompt-tokens 600\n\n\
                  Without --capture and --kv it asks a running server. With them the model runs in this process.\n\n\
                  Exit codes of --kv: 0 every item arrived as it was sent, 1 some did not, 2 usage or configuration.")]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) assignment: AssignmentArgs,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
    #[command(flatten)]
    pub(crate) capture: CaptureArgs,
}
