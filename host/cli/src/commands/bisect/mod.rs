//! `hotseam bisect`.

mod form;
mod invocation;
mod logs;
mod plan;
mod search;

pub(crate) use invocation::plant;

use crate::args::{BisectArgs, BisectCommand};
use crate::failure::{Failure, USAGE};

/// Exit code if the oracle could not be asked.
const ORACLE_BROKEN: u8 = 5;

/// Runs, resumes, replays or reports a bisection.
pub(crate) fn run(args: &BisectArgs) -> Result<u8, Failure> {
    let result = match &args.command {
        BisectCommand::Run(args) => search::run(args),
        BisectCommand::Resume(args) => search::resume(args),
        BisectCommand::Replay(args) => logs::replay(args),
        BisectCommand::Report(args) => logs::report(args),
        BisectCommand::Log(args) => logs::list(args),
        BisectCommand::Undo(args) => logs::undo(args),
    };
    // 1 says that the ends agree, so no error may end with it.
    result.map_err(|failure| match failure.code {
        USAGE => failure,
        _ => Failure { code: ORACLE_BROKEN, ..failure },
    })
}
