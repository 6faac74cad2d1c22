//! `hotseam rank`.

use anyhow::Context as _;
use hotseam_engine::RankEnds;

use crate::args::RankArgs;
use crate::failure::Failure;
use crate::host;

/// Runs one rank until its leader is gone.
pub(crate) fn run(args: &RankArgs) -> Result<u8, Failure> {
    // SAFETY: nothing in this process has opened files yet whose numbers its command line could name, but for the standard streams,
    // which nobody owns.
    let ends = unsafe { RankEnds::inherited([args.link, args.steps, args.shared]) };
    let ends =
        ends.context("a leader starts ranks: `hotseam serve` with engine.tp_size").map_err(Failure::usage)?;
    host::run_rank(ends)?;
    Ok(0)
}
