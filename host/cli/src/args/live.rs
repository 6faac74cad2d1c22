//! Commands about a server.

use std::path::PathBuf;

use clap::Args;

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

/// Which server.
#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    /// Admin socket of the server.
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub(crate) admin: Option<PathBuf>,
    /// Configuration file of the server, which tells its admin socket.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Changes one field of that file, as it was given to the server.
    #[arg(long, value_name = "FIELD=VALUE", requires = "config")]
    pub(crate) set: Vec<String>,
    /// Assignment.
    #[arg(long, value_name = "NAME", default_value = "live")]
    pub(crate) assignment: String,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// `hotseam slots`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam slots -c configs/quickstart.yaml\n  hotseam slots --admin /run/hotseam.sock --format json"
)]
pub(crate) struct SlotsArgs {
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// `hotseam swap`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam swap attention@decode attention/cpu-sm120-mma -c configs/quickstart.yaml\n  \
                  hotseam swap moe:class=hash moe/cpu-fused-scale\n  hotseam swap '!attention@decode'\n\n\
                  A selector is seam[.op][@phase][:layers=2-6,8|class=csa]; with a leading ! it goes back to the\n\
                  variant the cells had first. The swap takes effect at a step boundary; no request fails."
)]
pub(crate) struct SwapArgs {
    /// Which cells.
    #[arg(value_name = "SELECTOR")]
    pub(crate) selector: String,
    /// The variant they get; left out if the selector begins with `!`.
    #[arg(value_name = "VARIANT")]
    pub(crate) variant: Option<String>,
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// `hotseam rollback`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam rollback -c configs/quickstart.yaml")]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    pub(crate) server: AdminArgs,
}

/// `hotseam trace`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam trace -c configs/quickstart.yaml\n  \
                  hotseam trace -c configs/context-loss.yaml --capture indexer.select@decode:layers=2 --needle 2048 -o call.safetensors\n  \
                  hotseam plugin check 'indexer/cpu-sm120{keys: bf16}' --replay call.safetensors\n\n\
                  Without --capture it asks a running server. With it the model runs in this process.")]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) server: AdminArgs,
    #[command(flatten)]
    pub(crate) capture: CaptureArgs,
}
