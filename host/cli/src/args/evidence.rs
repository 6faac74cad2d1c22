//! Commands that measure.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Format, GuardedFile};

/// `hotseam needle`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  hotseam needle -c configs/quickstart.yaml --lengths 512,1024,2048 --format json\n  \
                  hotseam needle -c configs/context-loss.yaml --assignment broken --probes 8\n  \
                  hotseam needle -c configs/quickstart.yaml --lengths 4096 --task multi-turn --turns 6\n  \
                  hotseam needle -c configs/quickstart.yaml --lengths 2048 --why --set engine.index_topk=8\n\n\
                  The model runs in this process; no server is needed."
)]
pub(crate) struct NeedleArgs {
    #[command(flatten)]
    pub(crate) file: GuardedFile,
    /// Prompt lengths in tokens; the file's by default.
    #[arg(long, value_delimiter = ',', value_name = "TOKENS")]
    pub(crate) lengths: Option<Vec<usize>>,
    /// Depths per length; the file's by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) probes: Option<u32>,
    /// Seed of names, words and passages; the file's by default.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Form of the prompts.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) task: NeedleTask,
    /// Facts in a text of `--task multi`, 2 to 32; 4 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=32))]
    pub(crate) needles: Option<u32>,
    /// Turns of a conversation of `--task multi-turn`, 2 to 32; 6 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=32))]
    pub(crate) turns: Option<u32>,
    /// Also writes the prompts as token ids into this JSON file, to ask another engine the same.
    #[arg(long, value_name = "FILE")]
    pub(crate) save_prompts: Option<PathBuf>,
    /// Assignment that answers.
    #[arg(long, value_name = "NAME", default_value = "live")]
    pub(crate) assignment: String,
    /// Exit with 1 if the recall is below this.
    #[arg(long, value_name = "RECALL", value_parser = share)]
    pub(crate) least: Option<f64>,
    /// Explains one lost needle of the first length instead of counting: rank and score of its entries against the
    /// indexer's cut, layer by layer, and whether window or far entries could have carried it.
    #[arg(long, conflicts_with_all = ["least", "task", "needles", "turns", "save_prompts"])]
    pub(crate) why: bool,
    /// Which needle to explain, from 0; the first that is lost by default.
    #[arg(long, value_name = "N", requires = "why")]
    pub(crate) probe: Option<usize>,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Form of the prompts of `hotseam needle`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum NeedleTask {
    /// One fact in a text.
    #[default]
    Single,
    /// Several facts in a text, one of which is asked for.
    Multi,
    /// A fact told in the first turn of a conversation and asked for in the last.
    MultiTurn,
    /// A passphrase of two words.
    Passphrase,
}

/// A number from 0 to 1: a comparison with anything else would always, or never, hold.
fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn a_share_is_a_number_from_0_to_1() {
        assert_eq!((share("0"), share("0.75"), share("1")), (Ok(0.0), Ok(0.75), Ok(1.0)));
        for text in ["nan", "inf", "-0.1", "1.01", "half", ""] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
