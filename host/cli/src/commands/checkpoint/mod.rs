//! `hotseam checkpoint`.

mod convert;
mod inspect;
mod plan;
mod plan_file;

use crate::args::{CheckpointArgs, CheckpointCommand};
use crate::failure::Failure;

/// Looks at a checkpoint, converts it, or plans for it.
pub(crate) fn run(args: &CheckpointArgs) -> Result<u8, Failure> {
    match &args.command {
        CheckpointCommand::Inspect(args) => inspect::run(args),
        CheckpointCommand::Convert(args) => convert::run(args),
        CheckpointCommand::Plan(args) => plan::run(args),
    }
}

/// Bytes in words.
pub(crate) fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.2} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.2} kB", b / 1e3),
        b => format!("{b} B"),
    }
}

/// A number of parameters in words.
pub(crate) fn count(parameters: u64) -> String {
    let n = parameters as f64;
    match n {
        n if n >= 1e9 => format!("{:.2} B", n / 1e9),
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n => format!("{n}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_words() {
        assert_eq!([1, 1234, 96_000_000_000].map(size), ["1 B", "1.23 kB", "96.00 GB"]);
        assert_eq!([12, 284_300_000_000].map(count), ["12", "284.30 B"]);
    }
}
