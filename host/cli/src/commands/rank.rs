//! `hotseam rank`.

use std::os::fd::{FromRawFd as _, OwnedFd};

use anyhow::{Context as _, bail};
use hotseam_engine::RankEnds;

use crate::args::RankArgs;
use crate::failure::Failure;
use crate::host;

/// Runs one rank until its leader is gone.
pub(crate) fn run(args: &RankArgs) -> Result<u8, Failure> {
    let [tables, steps, shared] = inherited([args.link, args.steps, args.shared]).map_err(Failure::usage)?;
    host::run_rank(RankEnds { tables, steps, shared })?;
    Ok(0)
}

/// Files that this process was started with.
fn inherited(numbers: [i32; 3]) -> anyhow::Result<[OwnedFd; 3]> {
    let [a, b, c] = numbers;
    if a == b || b == c || a == c {
        bail!(
            "--link, --steps and --shared name the same file; a leader starts ranks, `hotseam serve` with engine.tp_size"
        );
    }
    for number in numbers {
        // SAFETY: asks for the flags of a number, whatever it is.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        let open = if flags < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) };
        open.with_context(|| {
            format!(
                "file {number} was not inherited; a leader starts ranks, `hotseam serve` with engine.tp_size"
            )
        })?;
    }
    // SAFETY: each number is open, they differ, and this is the first and only owner: nothing else in this process has opened files
    // of numbers that its command line names.
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }))
}
