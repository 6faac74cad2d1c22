//! The command line.

mod author;
mod bench;
mod bisect;
mod checkpoint;
mod evidence;
mod graft;
mod live;
mod observe;
mod offline;
mod plugins;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use author::PluginNewArgs;
pub(crate) use bench::{BenchArgs, BenchCommand, KernelsArgs, RooflineArgs};
pub(crate) use bisect::{
    BisectArgs, BisectCommand, BisectLogArgs, BisectReplayArgs, BisectReportArgs, BisectResumeArgs,
    BisectRunArgs, BisectUndoArgs, Bounds, Form, ReportFormat,
};
pub(crate) use checkpoint::{CheckpointArgs, CheckpointCommand, ConvertArgs, InspectArgs, PlanArgs};
pub(crate) use evidence::{NeedleArgs, NeedleTask};
pub(crate) use graft::{GraftArgs, GraftOracle};
pub(crate) use live::{
    AdminArgs, Check, Kv, LoadArgs, RankArgs, ReloadArgs, RollbackArgs, ServeArgs, SlotsArgs, SlotsCommand,
    SwapArgs, SwapHow, TraceArgs,
};
pub(crate) use observe::{CaptureArgs, CompareArgs, WorkloadArgs};
pub(crate) use offline::{ConfigArgs, ConfigCommand};
pub(crate) use plugins::{
    PluginArgs, PluginBenchArgs, PluginCheckArgs, PluginCommand, PluginFiles, PluginSignArgs, PolicyName,
};

/// Serves DeepSeek-V4 models with hot-swappable kernels, and finds the patch that broke one.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    after_help = "Example:\n  hotseam serve -c configs/quickstart.yaml\n  hotseam bisect run configs/context-loss.yaml"
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a model over HTTP.
    Serve(ServeArgs),
    /// Run one rank of a tensor-parallel group. A leader starts it: `serve` and others with engine.tp_size above 1.
    #[command(hide = true)]
    Rank(RankArgs),
    /// Show which variant each cell of a running server uses.
    Slots(SlotsArgs),
    /// Give cells of a running server to another variant.
    Swap(SwapArgs),
    /// Undo the last swap.
    Rollback(RollbackArgs),
    /// Read a server's configuration file again and swap in what differs.
    Reload(ReloadArgs),
    /// Show what ran on a running server: variant, hash and calls of each cell.
    Trace(TraceArgs),
    /// Hide a fact in long texts and see whether the model recalls it.
    Needle(NeedleArgs),
    /// Hold two assignments against truth on the same inputs, call by call.
    Compare(CompareArgs),
    /// Put values of a good run into a bad one, to see through which tensor a symptom goes.
    Graft(GraftArgs),
    /// Find the change that broke a model.
    Bisect(BisectArgs),
    /// Look at plugins, and check variants against the truth.
    Plugin(PluginArgs),
    /// Check a configuration, or print what it comes to.
    Config(ConfigArgs),
    /// Look at a checkpoint, convert it, or plan the memory that it needs.
    Checkpoint(CheckpointArgs),
    /// Work out how fast a model can be on a machine.
    Bench(BenchArgs),
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  hotseam completion bash > /etc/bash_completion.d/hotseam")]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// A configuration file and changes to it.
#[derive(Debug, Args)]
pub(crate) struct ConfigFile {
    /// Configuration file.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Changes one field for this run, such as engine.chunk=256; may be given several times.
    #[arg(long, value_name = "FIELD=VALUE")]
    pub(crate) set: Vec<String>,
}

/// A configuration file whose model serves requests here, as it stands or under guard.
#[derive(Debug, Args)]
pub(crate) struct GuardedFile {
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// Guards every seam call, so that the one that writes wrongly is named; several times slower. The same as --set
    /// engine.guard=true.
    #[arg(long)]
    pub(crate) guard: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let leaf = command.get_subcommands().next().is_none();
            assert!(!leaf || help.starts_with("Example:"), "{path} has no example");
            for sub in command.get_subcommands() {
                check(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        check(&Cli::command(), "hotseam");
    }

    #[test]
    fn examples_in_help_parse() {
        fn collect(command: &clap::Command, lines: &mut Vec<String>) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            lines
                .extend(help.lines().map(str::trim).filter(|l| l.starts_with("hotseam ")).map(str::to_owned));
            command.get_subcommands().for_each(|sub| collect(sub, lines));
        }
        let mut lines = Vec::new();
        collect(&Cli::command(), &mut lines);
        assert!(lines.len() > 12);
        for line in lines {
            let command = line.split(" > ").next().unwrap_or(&line);
            let words = shell_words(command);
            if let Err(error) = Cli::try_parse_from(&words) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn flags_without_effect_are_refused() {
        for (line, refused) in [
            ("hotseam slots watch --assignment a", true),
            ("hotseam slots save f --assignment a", true),
            ("hotseam reload --assignment a", true),
            ("hotseam slots load f --assignment a", false),
            ("hotseam swap moe moe/x --assignment 'a b'", true),
            ("hotseam trace --assignment a&b", true),
            ("hotseam trace -c a.yaml", false),
            ("hotseam trace -c a.yaml --prompt-tokens 64", true),
            ("hotseam trace -c a.yaml --needle 512", true),
            ("hotseam trace -c a.yaml --capture moe.route@decode:layers=0 --out f --prompt-tokens 64", false),
            ("hotseam compare -c a.yaml --prompt-tokens 64", false),
            ("hotseam compare -c a.yaml --guard", true),
            ("hotseam graft -c a.yaml --guard", true),
            ("hotseam config print -c a.yaml --guard", true),
            ("hotseam needle -c a.yaml --guard", false),
            ("hotseam serve -c a.yaml --guard", false),
            ("hotseam checkpoint convert a b --to fp4", true),
            ("hotseam checkpoint plan a --gpu-memory 96", true),
            ("hotseam checkpoint plan a --gpu-memory 0GB", true),
            ("hotseam checkpoint plan a --gpus 0", true),
            ("hotseam checkpoint plan a --gpu-memory 141.5GiB --kv bf16", false),
            ("hotseam bench roofline a --batch 1,0", true),
            ("hotseam bench roofline a --context 4096,", true),
            ("hotseam bench roofline a --bandwidth 0", true),
            ("hotseam bench roofline a --launches 100", true),
            ("hotseam bench roofline a --launch-us 2", true),
            ("hotseam bench roofline a --launches 100 --launch-us 2.5 --prefill 1,512", false),
            ("hotseam bisect run a.yaml --dry-run --log x.jsonl", true),
            ("hotseam bisect run a.yaml --dry-run --output x.html", true),
            ("hotseam bisect run a.yaml --dry-run --format json", false),
        ] {
            assert_eq!(Cli::try_parse_from(shell_words(line)).is_err(), refused, "{line}");
        }
    }

    /// Splits at spaces outside single quotes.
    fn shell_words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                _ => words.last_mut().unwrap().push(c),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }
}
