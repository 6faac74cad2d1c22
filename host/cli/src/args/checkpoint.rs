//! `hotseam checkpoint`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use hotseam_checkpoint::convert;
use hotseam_checkpoint::plan::{KvFormat, Spread};

use super::Format;

/// `hotseam checkpoint`.
#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    #[command(subcommand)]
    pub(crate) command: CheckpointCommand,
}

/// What to do about a checkpoint.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointCommand {
    /// Show geometry, storage formats and tensors, from the headers alone.
    #[command(after_help = "Example:\n  hotseam checkpoint inspect assets/nano-v4\n\n\
                            Exit codes: 0 done, 2 no checkpoint, or a damaged one.")]
    Inspect(InspectArgs),
    /// Write a checkpoint in another storage form, and say what the values lost.
    ///
    /// The source is checked whole before anything is written, and the result before it gets its name. One matrix at a time
    /// is in memory. Tokenizer files go along; other files stay behind.
    #[command(
        after_help = "Example:\n  hotseam checkpoint convert DeepSeek-V4-Flash flash-nvfp4 --to nvfp4\n\n\
                            Exit codes: 0 written and read back, 1 it could not be written, 2 wrong usage: the source does \
                            not pass the checks, or OUT exists."
    )]
    Convert(ConvertArgs),
    /// Work out whether a model fits on GPUs: weights, keys and values, workspace, and what is left.
    ///
    /// Reads config.json and, if there is one, the index; no weights. Padding of pages and fragmentation are not counted.
    #[command(
        after_help = "Example:\n  hotseam checkpoint plan DeepSeek-V4-Flash-NVFP4 --gpus 4 --gpu-memory 96GB --context 524288\n\n\
                      Exit codes: 0 it fits, 1 it does not, 2 wrong usage or configuration."
    )]
    Plan(PlanArgs),
}

/// `hotseam checkpoint inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Checkpoint directory.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// A storage form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// No quantisation.
    Bf16,
    /// DeepSeek's: projections FP8 in blocks of 128 x 128, routed experts MXFP4.
    Fp8Mxfp4,
    /// NVIDIA's: projections FP8 in blocks of 128 x 128, routed experts NVFP4.
    Nvfp4,
}

impl Form {
    pub(crate) fn get(self) -> convert::Form {
        match self {
            Self::Bf16 => convert::Form::Bf16,
            Self::Fp8Mxfp4 => convert::Form::Fp8Mxfp4,
            Self::Nvfp4 => convert::Form::Nvfp4,
        }
    }
}

/// `hotseam checkpoint convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Checkpoint directory to read.
    #[arg(value_name = "IN")]
    pub(crate) from: PathBuf,
    /// Directory to write, which must not exist.
    #[arg(value_name = "OUT")]
    pub(crate) to: PathBuf,
    /// Storage form of the result.
    #[arg(long = "to", value_enum, value_name = "FORM")]
    pub(crate) form: Form,
    /// Threads; 0: one per core.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) threads: usize,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Storage of keys and values, or of index keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvName {
    /// E2M1 with scales.
    Fp4,
    /// E4M3 with scales.
    Fp8,
    /// bf16.
    Bf16,
    /// f32.
    F32,
}

impl KvName {
    pub(crate) fn get(self) -> KvFormat {
        match self {
            Self::Fp4 => KvFormat::Fp4,
            Self::Fp8 => KvFormat::Fp8,
            Self::Bf16 => KvFormat::Bf16,
            Self::F32 => KvFormat::F32,
        }
    }
}

/// How attention is spread over GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttentionSpread {
    /// Each GPU has its heads, and the keys and values of every sequence.
    Split,
    /// Each GPU has all heads, and the keys and values of its share of the sequences.
    Replicated,
}

impl AttentionSpread {
    pub(crate) fn get(self) -> Spread {
        match self {
            Self::Split => Spread::Split,
            Self::Replicated => Spread::Replicated,
        }
    }
}

/// `hotseam checkpoint plan`.
#[derive(Debug, Args, PartialEq)]
pub(crate) struct PlanArgs {
    /// Checkpoint directory, a config.json, or a plan: YAML with `checkpoint` and these options as keys.
    #[arg(value_name = "DIR|FILE")]
    pub(crate) path: PathBuf,
    /// Storage form of the weights, in place of what the configuration states.
    #[arg(long, value_enum, value_name = "FORM")]
    pub(crate) form: Option<Form>,
    /// GPUs of one tensor-parallel group.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) gpus: u64,
    /// Memory of each GPU, with its unit: GB (10^9 bytes) or GiB (2^30).
    #[arg(long, default_value = "96GB", value_name = "SIZE", value_parser = bytes)]
    pub(crate) gpu_memory: u64,
    /// Tokens of context of each sequence; the model's longest if left out.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) context: Option<u64>,
    /// Sequences at the same time.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) sequences: u64,
    /// Storage of keys and values.
    #[arg(long, value_enum, default_value_t = KvName::Fp8)]
    pub(crate) kv: KvName,
    /// Storage of index keys.
    #[arg(long, value_enum, default_value_t = KvName::Fp8)]
    pub(crate) index_keys: KvName,
    /// How attention is spread over the GPUs.
    #[arg(long, value_enum, default_value_t = AttentionSpread::Split)]
    pub(crate) attention: AttentionSpread,
    /// Prompt tokens of one step.
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) chunk: u64,
    /// Memory on each GPU for the driver, libraries, graphs and communication.
    #[arg(long, default_value = "2.5GB", value_name = "SIZE", value_parser = bytes)]
    pub(crate) runtime: u64,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// A parser of [`PlanArgs`] alone.
#[derive(Debug, Parser)]
#[command(name = "plan", disable_help_flag = true)]
struct Planned {
    #[command(flatten)]
    args: PlanArgs,
}

impl PlanArgs {
    /// The arguments that `words` give.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let words = std::iter::once(OsString::from("plan")).chain(words);
        Planned::try_parse_from(words).map(|planned| planned.args)
    }
}

/// A size with its unit.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("expected a size with its unit, such as 96GB or 95.6GiB, found `{text}`");
    let (number, unit) = match (text.strip_suffix("GiB"), text.strip_suffix("GB")) {
        (Some(number), _) => (number, (1u64 << 30) as f64),
        (_, Some(number)) => (number, 1e9),
        _ => return Err(wrong()),
    };
    let size = number.trim().parse::<f64>().map_err(|_| wrong())? * unit;
    if (1.0..=1e15).contains(&size) { Ok(size.round() as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("96GB"), Ok(96_000_000_000));
        assert_eq!(bytes("1.5GiB"), Ok(1_610_612_736));
        for wrong in ["96", "", "GB", "-1GB", "0GB", "nanGB", "infGB", "1e9GB", "96gb"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
