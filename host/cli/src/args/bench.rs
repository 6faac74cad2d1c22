//! `hotseam bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hotseam_checkpoint::plan::roofline::{H200_BANDWIDTH, H200_PEAK};

use super::checkpoint::{Form, KvName};
use super::{ConfigFile, Format};

/// `hotseam bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

/// What speed is asked about.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Work out how fast a model can be at most: the floor of a decode step and of a prefill.
    ///
    /// Reads config.json; no weights, and nothing is run. A floor is the time that memory needs for the bytes of a step, or
    /// arithmetic for its products, whichever is longer. Routing is taken as even; communication is not counted.
    #[command(
        after_help = "Example:\n  hotseam bench roofline configs/models/deepseek-v4-flash.json --batch 1,32\n  \
                      hotseam bench roofline DeepSeek-V4-Flash --tp 4 --bandwidth 1500 --peak 400 --format json\n\n\
                      The defaults of --bandwidth and --peak are one H200 as measured: a copy, and bf16 products of large\n\
                      matrices. FP8 products are faster. Measure both in the run that you hold against a floor.\n\
                      Exit codes: 0 worked out, 2 wrong usage or configuration."
    )]
    Roofline(RooflineArgs),
    /// Time decode steps of an assignment over long contexts, and the calls of each op in them, against the floor; and prefill steps.
    ///
    /// Contexts are made of copies of a short prompt's pages, so no long prompt is computed. With --shape the weights are random
    /// ones in the shapes of another configuration; layers that are alike share theirs, so that hundreds of gigabytes take a few.
    #[command(after_help = "Example:\n  hotseam bench kernels -c configs/cuda.yaml --contexts 1024,4096\n  \
                      hotseam bench kernels -c configs/cuda.yaml --shape configs/models/deepseek-v4-flash.json --contexts 131072\n  \
                      hotseam bench kernels -c configs/cuda.yaml --prefill 512,2048 --set engine.cublaslt=off\n\n\
                      The times of ops are of a step whose calls are timed one by one, without graphs: they show where time goes, and\n\
                      add up to more than a step takes. The floor is that of `hotseam bench roofline` with --bandwidth and --peak.\n\
                      Exit codes: 0 timed, 1 a step failed, 2 wrong usage or configuration.")]
    Kernels(KernelsArgs),
}

/// `hotseam bench kernels`.
#[derive(Debug, Args)]
pub(crate) struct KernelsArgs {
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// The assignment whose variants are timed.
    #[arg(long, default_value = "live", value_name = "NAME")]
    pub(crate) assignment: String,
    /// A config.json: random weights of its shapes, FP8 and MXFP4, in place of the checkpoint's.
    #[arg(long, value_name = "FILE")]
    pub(crate) shape: Option<PathBuf>,
    /// Layers of --shape, from the first on; all if left out.
    #[arg(long, value_name = "N", requires = "shape", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) layers: Option<u64>,
    /// Sequences of a step, one or several numbers.
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_name = "N,..", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) batches: Vec<u64>,
    /// Tokens of context of each sequence, one or several numbers.
    #[arg(long, value_delimiter = ',', default_value = "4096", value_name = "TOKENS,..", value_parser = clap::value_parser!(u64).range(1024..=1 << 24))]
    pub(crate) contexts: Vec<u64>,
    /// Rows of a prefill step, the first of a prompt, one or several numbers; none are timed if left out.
    #[arg(long, value_delimiter = ',', value_name = "ROWS,..", value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    pub(crate) prefill: Vec<u64>,
    /// Milliseconds that each size is timed for.
    #[arg(long, default_value_t = 500, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) milliseconds: u64,
    /// Leave the times of single ops out.
    #[arg(long)]
    pub(crate) no_ops: bool,
    /// Memory bandwidth for the floor, in GB/s.
    #[arg(long, default_value_t = H200_BANDWIDTH, value_name = "GB/s", value_parser = positive)]
    pub(crate) bandwidth: f64,
    /// Arithmetic for the floor, in TFLOP/s.
    #[arg(long, default_value_t = H200_PEAK, value_name = "TFLOP/s", value_parser = positive)]
    pub(crate) peak: f64,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// `hotseam bench roofline`.
#[derive(Debug, Args)]
pub(crate) struct RooflineArgs {
    /// Checkpoint directory, or a config.json.
    #[arg(value_name = "DIR|FILE")]
    pub(crate) path: PathBuf,
    /// Sequences of a decode step, one or several numbers.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32", value_name = "N,..", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) batch: Vec<u64>,
    /// Tokens of context of each sequence; 4096,131072,1048576 if left out, as far as the model goes.
    #[arg(long, value_delimiter = ',', value_name = "TOKENS,..", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) context: Vec<u64>,
    /// Tokens of prompts; as many as --context if left out.
    #[arg(long, value_delimiter = ',', value_name = "TOKENS,..", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) prefill: Vec<u64>,
    /// GPUs of the tensor-parallel group.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) tp: u64,
    /// Memory bandwidth of each GPU, in GB/s.
    #[arg(long, default_value_t = H200_BANDWIDTH, value_name = "GB/s", value_parser = positive)]
    pub(crate) bandwidth: f64,
    /// Arithmetic of each GPU, in TFLOP/s; a multiplication and an addition are two.
    #[arg(long, default_value_t = H200_PEAK, value_name = "TFLOP/s", value_parser = positive)]
    pub(crate) peak: f64,
    /// Storage form of the weights, in place of what the configuration states.
    #[arg(long, value_enum, value_name = "FORM")]
    pub(crate) form: Option<Form>,
    /// Storage of keys and values.
    #[arg(long, value_enum, default_value_t = KvName::Fp8)]
    pub(crate) kv: KvName,
    /// Storage of index keys.
    #[arg(long, value_enum, default_value_t = KvName::Fp8)]
    pub(crate) index_keys: KvName,
    /// Kernels that a step starts one after the other; --launch-us says how long a start takes.
    #[arg(long, value_name = "N", requires = "launch_us", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) launches: Option<u64>,
    /// Time to start a kernel, in microseconds.
    #[arg(long, value_name = "US", requires = "launches", value_parser = positive)]
    pub(crate) launch_us: Option<f64>,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// A number above 0, within what a machine can have.
fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (1e-6..=1e9).contains(number));
    number.ok_or_else(|| format!("expected a number above 0, such as 4300 or 2.5, found `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_above_zero() {
        assert_eq!((positive("4300"), positive("2.5")), (Ok(4300.0), Ok(2.5)));
        for wrong in ["0", "-1", "nan", "inf", "", "4300GB", "1e10"] {
            assert!(positive(wrong).is_err(), "{wrong}");
        }
    }
}
