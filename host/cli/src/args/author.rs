//! Commands for authors of plugins.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// `hotseam plugin new`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam plugin new attention my-kernel\n  \
                        hotseam plugin new moe fused-experts --path ~/kernels/fused --description 'Experts in one pass'\n\n\
                        The crate builds as it is, passes `hotseam plugin check`, and takes the ops that it leaves out from \
                        stock.\nExit codes: 0 written, 1 a file cannot be written, 2 usage.")]
pub(crate) struct PluginNewArgs {
    /// Seam: attention, indexer, moe, mhc or kv_transport.
    #[arg(value_name = "SEAM")]
    pub(crate) seam: String,
    /// Name of the variant: lower-case letters, digits and single dashes.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Directory of the crate, new or empty. ./NAME by default.
    #[arg(long, value_name = "DIR")]
    pub(crate) path: Option<PathBuf>,
    /// One line that says what is special about it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
    /// Checkout of Hotseam to build against. The one around this program or the working directory by default, else the
    /// SDK of this version.
    #[arg(long, value_name = "DIR")]
    pub(crate) sdk: Option<PathBuf>,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}
