//! `hotseam bisect`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

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
    /// Go on with a search that ended early, from its log.
    Resume(BisectResumeArgs),
    /// Go through a search again from its log alone, without a model.
    Replay(BisectReplayArgs),
    /// Write the report of a search from its log alone.
    Report(BisectReportArgs),
    /// List a log: what was run, what came of it, what was undone.
    Log(BisectLogArgs),
    /// Drop the answer of a run from a log; resuming asks again.
    Undo(BisectUndoArgs),
}

/// `hotseam bisect run`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam bisect run configs/context-loss.yaml\n  \
                  hotseam bisect run configs/context-loss.yaml --output report.html --output report.md\n  \
                  hotseam bisect run configs/context-loss.yaml --plant 'attention@decode=faulty/attention{fault: half-scale}'\n  \
                  hotseam bisect run configs/context-loss.yaml --plant 'moe=faulty/moe{fault: scale-twice}' --set 'bisect.oracle={kind: kl}'\n\n\
                  Exit codes: 0 culprit found and confirmed, or a setting that heals (no patch); 1 nothing to find (the\n\
                  ends agree); 2 usage or configuration; 3 inconclusive; 4 the good end fails; 5 the oracle gave no\n\
                  verdict; 6 budget spent; 10 the culprit fails in another way than the bad end.")]
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
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    /// Confidence that a claim needs if the oracle is noisy.
    #[arg(long, value_name = "P", value_parser = confidence)]
    pub(crate) confidence: Option<f64>,
    /// Largest set of changes that only fail together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) max_set: Option<u32>,
    /// Seed of the order of runs where chance decides it.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Only print the changes, the expected number of runs and their minutes. If no log tells how long a run takes, the
    /// good end is run once.
    #[arg(long, conflicts_with_all = ["log", "no_log", "cache", "output"])]
    pub(crate) dry_run: bool,
    /// Log to this new file; by default a new file in `hotseam-runs` beside the configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Keep no log. A search without one cannot be resumed.
    #[arg(long, conflicts_with = "log")]
    pub(crate) no_log: bool,
    /// Use answers of earlier searches of the same configuration in this directory, and leave it new ones.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Bounds of a search that may change when it is resumed.
#[derive(Debug, Args)]
pub(crate) struct Bounds {
    /// Oracle runs allowed, both ends included; the file's by default, or 20, or 200 if the oracle is noisy.
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) budget_runs: Option<u32>,
    /// Minutes of oracle runs allowed.
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) budget_minutes: Option<u32>,
    /// Independent culprits to look for.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_culprits: Option<u32>,
    /// Arms to measure at the same time, if the target can; a noisy oracle is asked about one after another.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) jobs: Option<u32>,
}

/// Form of a report.
#[derive(Debug, Args)]
pub(crate) struct Form {
    /// Form of the report on stdout.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: ReportFormat,
    /// Writes the report to FILE too, in the form that its name ends with: .html, .md, .json, .xml (JUnit) or .txt. May
    /// be given several times.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Vec<PathBuf>,
}

/// `hotseam bisect resume`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam bisect resume configs/hotseam-runs/context-loss-20261130-021500.jsonl\n  \
                  hotseam bisect resume run.jsonl --budget-runs 60\n\n\
                  The configuration, model and plugins must be those that the log was written with."
)]
pub(crate) struct BisectResumeArgs {
    /// Log of the search.
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// `hotseam bisect replay`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam bisect replay run.jsonl")]
pub(crate) struct BisectReplayArgs {
    /// Log of the search.
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// `hotseam bisect report`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam bisect report run.jsonl --format html -o report.html\n  \
                  hotseam bisect report run.jsonl --format markdown")]
pub(crate) struct BisectReportArgs {
    /// Log of the search.
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
    /// Form of the report; by default the one that the name of the output ends with, or text.
    #[arg(long, value_enum)]
    pub(crate) format: Option<ReportFormat>,
    /// File to write; stdout by default.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// `hotseam bisect log`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam bisect log run.jsonl")]
pub(crate) struct BisectLogArgs {
    /// Log of the search.
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
}

/// `hotseam bisect undo`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hotseam bisect undo run.jsonl\n  hotseam bisect undo run.jsonl 7\n\n\
                  The log keeps the answer and says that it was undone.")]
pub(crate) struct BisectUndoArgs {
    /// Log of the search.
    #[arg(value_name = "LOG")]
    pub(crate) log: PathBuf,
    /// Number of the run; the last one by default.
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<usize>,
}

/// Form of a bisection report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ReportFormat {
    /// For people, at a terminal.
    #[default]
    Text,
    /// For programs; configs/schema/bisect-report.schema.json describes it.
    Json,
    /// To paste into an issue.
    Markdown,
    /// One page with everything in it.
    Html,
    /// For CI servers: one test case a change.
    Junit,
}

fn confidence(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.5 && value < 1.0 => Ok(value),
        _ => Err("expected a probability above 0.5 and below 1, such as 0.95".to_owned()),
    }
}
