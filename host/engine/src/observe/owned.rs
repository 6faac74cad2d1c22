//! Arguments of any op that are not the engine's.

use hotseam_abi::{
    CompressArgs, CoreArgs, ExpertsArgs, MhcHeadArgs, MhcPostArgs, MhcPreArgs, RouteArgs, SelectArgs,
    StoreArgs,
};
use hotseam_slots::Args;

#[derive(Debug)]
pub(super) enum Owned {
    Store(Box<StoreArgs>),
    Compress(Box<CompressArgs>),
    Core(Box<CoreArgs>),
    Select(Box<SelectArgs>),
    Route(Box<RouteArgs>),
    Experts(Box<ExpertsArgs>),
    Pre(Box<MhcPreArgs>),
    Post(Box<MhcPostArgs>),
    Head(Box<MhcHeadArgs>),
}

impl Owned {
    pub(super) fn args(&self) -> Args<'_> {
        match self {
            Self::Store(a) => Args::Store(a),
            Self::Compress(a) => Args::Compress(a),
            Self::Core(a) => Args::Core(a),
            Self::Select(a) => Args::Select(a),
            Self::Route(a) => Args::Route(a),
            Self::Experts(a) => Args::Experts(a),
            Self::Pre(a) => Args::Pre(a),
            Self::Post(a) => Args::Post(a),
            Self::Head(a) => Args::Head(a),
        }
    }
}
