//! Commands that look at the calls of one request.

use std::path::PathBuf;

use clap::Args;

use super::{ConfigFile, Format};

/// The request that is looked at.
#[derive(Debug, Args)]
pub(crate) struct WorkloadArgs {
    /// Tokens of held-out text, the decoded ones included.
    #[arg(long, value_name = "N", default_value_t = 1024, conflicts_with = "needle",
          value_parser = clap::value_parser!(u32).range(4..))]
    pub(crate) prompt_tokens: u32,
    /// How many of them are forced through decode.
    #[arg(long, value_name = "N", default_value_t = 16, conflicts_with = "needle",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) decode_tokens: u32,
    /// A needle prompt of this many tokens instead, answered freely.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) needle: Option<usize>,
    /// Which of the file's needle depths, from 0.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "needle")]
    pub(crate) probe: usize,
}

/// `hotseam compare`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam compare -c configs/context-loss.yaml\n  \
                  hotseam compare -c configs/context-loss.yaml --good live --bad suspects --prompt-tokens 2048 --format json\n  \
                  hotseam compare -c configs/context-loss.yaml --needle 2048 --probe 3\n\n\
                  The good end drives; at each call of a cell that differs, stock, patched and truth run on the same\n\
                  inputs. The model runs in this process; no server is needed.\n\n\
                  Exit codes: 0 nothing is beyond the floor, 1 a divergence was found, 2 usage or configuration.")]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// Assignment that drives; `bisect.good` of the file, or `live`, by default.
    #[arg(long, value_name = "NAME")]
    pub(crate) good: Option<String>,
    /// Assignment that is held against it; `bisect.bad` of the file by default.
    #[arg(long, value_name = "NAME")]
    pub(crate) bad: Option<String>,
    /// Makes some calls of each cell that differs 20 times as well, and says whether the bits are equal.
    #[arg(long)]
    pub(crate) repeat: bool,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// The part of `hotseam trace` that runs a model.
#[derive(Debug, Args)]
#[command(
    group(clap::ArgGroup::new("in_process").args(["capture", "kv"])),
    mut_arg("prompt_tokens", |arg| arg.requires("in_process")),
    mut_arg("decode_tokens", |arg| arg.requires("in_process")),
    mut_arg("needle", |arg| arg.requires("in_process"))
)]
pub(crate) struct CaptureArgs {
    /// Runs the model in this process and writes one call of this cell, such as `indexer.select@decode:layers=2`, to a
    /// file with all that it reads.
    #[arg(long, value_name = "CELL", requires = "out", requires = "config")]
    pub(crate) capture: Option<String>,
    /// Runs the model in this process, prefill and decode in two stores, and shows what the KV hand-off of one request brought:
    /// every component and layer, by checksum.
    #[arg(long, requires = "config")]
    pub(crate) kv: bool,
    /// Which call of the cell, from 0.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "capture")]
    pub(crate) call: u64,
    /// The file to write.
    #[arg(short, long, value_name = "FILE", requires = "capture")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
}
