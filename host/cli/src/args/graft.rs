//! `hotseam graft`.

use clap::{Args, ValueEnum};

use super::{ConfigFile, Format};

/// `hotseam graft`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam graft -c configs/context-loss.yaml\n  \
                  hotseam graft -c configs/context-loss.yaml --plant 'kv_transport=faulty/kv_transport{fault: next-layer}'\n  \
                  hotseam graft -c configs/context-loss.yaml --graft kv.index_keys --graft attention.core@decode --layers\n  \
                  hotseam graft -c configs/topology.yaml --kv --oracle kl --plant 'kv_transport=faulty/kv_transport{fault: page-size}'\n  \
                  hotseam graft -c configs/context-loss.yaml --oracle kl --tokens 1024 --format json\n\n\
                  A graft is a selector, whose cells' outputs are replaced, or kv[.component][:layers=2-6,8], the KV that\n\
                  decode begins with. Components: swa, c4, c128, index_keys, c4_state, c128_state, index_state. Without\n\
                  --graft: all KV, each component if that heals, then the outputs of the cells that differ. With a file that has\n\
                  bisect.single_to_paired the good end runs at topology single.\n\n\
                  Exit codes: 0 a graft heals, 1 nothing to heal (the bad end passes), 2 usage or configuration, 3 no graft\n\
                  heals, 4 the good end fails, 5 a graft could not be made.")]
pub(crate) struct GraftArgs {
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// Assignment that gives values; `bisect.good` of the file, or `live`, by default.
    #[arg(long, value_name = "NAME")]
    pub(crate) good: Option<String>,
    /// Assignment that fails; `bisect.bad` of the file by default.
    #[arg(long, value_name = "NAME")]
    pub(crate) bad: Option<String>,
    /// Adds SELECTOR=VARIANT to the bad end, in place of its rules that use `faulty/` plugins; `none` only takes
    /// those away. May be given several times.
    #[arg(long, value_name = "RULE")]
    pub(crate) plant: Vec<String>,
    /// Replaces all KV that decode begins with, and each component of it, whatever heals; no outputs of cells.
    #[arg(long, conflicts_with = "graft")]
    pub(crate) kv: bool,
    /// What to replace; may be given several times.
    #[arg(long, value_name = "WHAT")]
    pub(crate) graft: Vec<String>,
    /// What tells the ends apart.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) oracle: GraftOracle,
    /// Tokens of a needle prompt, or of the held-out text.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(128..))]
    pub(crate) tokens: u32,
    /// Needle prompts to look for failing ones in, with --oracle needle; 8 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) probes: Option<u32>,
    /// Failing prompts to try each graft on, with --oracle needle; 2 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) cases: Option<u32>,
    /// Divergence, in nats, up to which a run passes, with --oracle kl; 0.01 by default.
    #[arg(long, value_name = "NATS")]
    pub(crate) threshold: Option<f64>,
    /// Tries what heals layer by layer too.
    #[arg(long)]
    pub(crate) layers: bool,
    /// Leaves the reverse out: the bad end's values in the good end.
    #[arg(long)]
    pub(crate) no_reverse: bool,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// What tells the ends of a graft apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum GraftOracle {
    /// A fact in a long text is recalled.
    #[default]
    Needle,
    /// The next-token distributions on held-out text are those of the good end.
    Kl,
}
