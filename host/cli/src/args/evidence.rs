//! Commands that measure.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{ConfigFile, Format};

/// `hotseam needle`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam needle -c configs/quickstart.yaml --lengths 512,1024,2048 --format json\n  \
                  hotseam needle -c configs/context-loss.yaml --assignment broken --probes 8\n\n\
                  The model runs in this process; no server is needed."
)]
pub(crate) struct NeedleArgs {
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// Prompt lengths in tokens; the file's by default.
    #[arg(long, value_delimiter = ',', value_name = "TOKENS")]
    pub(crate) lengths: Option<Vec<usize>>,
    /// Depths per length; the file's by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) probes: Option<u32>,
    /// Seed of names, words and passages; the file's by default.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Assignment that answers.
    #[arg(long, value_name = "NAME", default_value = "live")]
    pub(crate) assignment: String,
    /// Exit with 1 if the recall is below this.
    #[arg(long, value_name = "RECALL")]
    pub(crate) least: Option<f64>,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// `hotseam bisect`.
#[derive(Debug, Args)]
pub(crate) struct BisectArgs {
    #[command(subcommand)]
    pub(crate) command: BisectCommand,
}

/// What to do about a bisection.
#[derive(Debug, Subcommand)]
pub(crate) enum BisectCommand {
    /// Search the changes between the good and the bad end of a file.
    Run(BisectRunArgs),
}

/// `hotseam bisect run`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam bisect run configs/context-loss.yaml\n  \
                  hotseam bisect run configs/context-loss.yaml --plant 'attention@decode=faulty/attention{fault: half-scale}'\n  \
                  hotseam bisect run configs/context-loss.yaml --plant 'moe=faulty/moe{fault: scale-twice}' --set 'bisect.oracle={kind: kl}'\n\n\
                  Exit codes: 0 culprit found and confirmed, 1 nothing to find (the ends agree), 2 usage or configuration,\n\
                  3 inconclusive, 4 the good end fails, 5 the oracle gave no verdict, 6 budget spent, 10 the culprit fails\n\
                  in another way than the bad end.")]
pub(crate) struct BisectRunArgs {
    /// Configuration file with a `bisect` section.
    #[arg(value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Changes one field for this run; may be given several times.
    #[arg(long, value_name = "FIELD=VALUE")]
    pub(crate) set: Vec<String>,
    /// Adds SELECTOR=VARIANT to the bad end, in place of its rules that use `faulty/` plugins; `none` only takes
    /// those away. May be given several times.
    #[arg(long, value_name = "RULE")]
    pub(crate) plant: Vec<String>,
    /// Oracle runs allowed, both ends included; the file's by default.
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) budget: Option<u32>,
    /// Independent culprits to look for.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_culprits: u32,
    /// Only print the changes and the expected number of runs.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Appends JSON lines to this file: one before and one after each run.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Form of the report.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: ReportFormat,
}

/// Form of a bisection report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ReportFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
    /// To paste into an issue.
    Markdown,
}
