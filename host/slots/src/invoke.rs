//! Calls on a generation outside an assignment: what evidence makes on the inputs of a call that a step makes anyway.

use crate::bound::{Bound, CallError};
use crate::cell::CellId;
use crate::generation::Generation;
use crate::seam::{Op, Seam};
use hotseam_abi as abi;
use hotseam_abi::{Batch, StepCtx};
use std::sync::Arc;

/// The arguments of any step function.
#[derive(Debug, Clone, Copy)]
pub enum Args<'a> {
    /// `attention.store`.
    Store(&'a abi::StoreArgs),
    /// `attention.compress` and `indexer.compress`.
    Compress(&'a abi::CompressArgs),
    /// `attention.core`.
    Core(&'a abi::CoreArgs),
    /// `indexer.select`.
    Select(&'a abi::SelectArgs),
    /// `moe.route`.
    Route(&'a abi::RouteArgs),
    /// `moe.experts`.
    Experts(&'a abi::ExpertsArgs),
    /// `mhc.pre`.
    Pre(&'a abi::MhcPreArgs),
    /// `mhc.post`.
    Post(&'a abi::MhcPostArgs),
    /// `mhc.head`.
    Head(&'a abi::MhcHeadArgs),
}

/// Arguments of any step function that are not the engine's: boxed, since they are of very different sizes.
#[derive(Debug)]
pub enum OwnedArgs {
    /// `attention.store`.
    Store(Box<abi::StoreArgs>),
    /// `attention.compress` and `indexer.compress`.
    Compress(Box<abi::CompressArgs>),
    /// `attention.core`.
    Core(Box<abi::CoreArgs>),
    /// `indexer.select`.
    Select(Box<abi::SelectArgs>),
    /// `moe.route`.
    Route(Box<abi::RouteArgs>),
    /// `moe.experts`.
    Experts(Box<abi::ExpertsArgs>),
    /// `mhc.pre`.
    Pre(Box<abi::MhcPreArgs>),
    /// `mhc.post`.
    Post(Box<abi::MhcPostArgs>),
    /// `mhc.head`.
    Head(Box<abi::MhcHeadArgs>),
}

/// An argument struct of a step function.
pub trait StepArgs: Copy {
    /// The struct among all others.
    fn any(&self) -> Args<'_>;

    /// This struct, if it is the one in `args`.
    fn of(args: Args<'_>) -> Option<&Self>;
}

macro_rules! step_args {
    ($($type:ident => $variant:ident),+ $(,)?) => {
        $(impl StepArgs for abi::$type {
            fn any(&self) -> Args<'_> {
                Args::$variant(self)
            }

            fn of(args: Args<'_>) -> Option<&Self> {
                match args {
                    Args::$variant(own) => Some(own),
                    _ => None,
                }
            }
        })+

        impl OwnedArgs {
            /// The arguments, as a call takes them.
            pub fn args(&self) -> Args<'_> {
                match self {
                    $(Self::$variant(a) => Args::$variant(a)),+
                }
            }
        }

        impl Args<'_> {
            /// The rows of the call.
            pub fn batch(&self) -> *const Batch {
                match self {
                    $(Self::$variant(a) => a.batch),+
                }
            }
        }
    };
}

step_args! {
    StoreArgs => Store, CompressArgs => Compress, CoreArgs => Core, SelectArgs => Select, RouteArgs => Route,
    ExpertsArgs => Experts, MhcPreArgs => Pre, MhcPostArgs => Post, MhcHeadArgs => Head,
}

impl Args<'_> {
    /// The op that takes them.
    pub const fn op(&self) -> Op {
        match self {
            Self::Store(_) => Op::Store,
            Self::Compress(_) => Op::Compress,
            Self::Core(_) => Op::Core,
            Self::Select(_) => Op::Select,
            Self::Route(_) => Op::Route,
            Self::Experts(_) => Op::Experts,
            Self::Pre(_) => Op::Pre,
            Self::Post(_) => Op::Post,
            Self::Head(_) => Op::Head,
        }
    }
}

impl Generation {
    /// Calls the op of `args` on this generation, or on the base that serves it. No receipt counts the call; `cell`
    /// says where the arguments come from and is named in the error.
    ///
    /// The pointers in `args` must be as the contract says for the length of the call, and nothing else may call the
    /// instance meanwhile.
    ///
    /// # Errors
    /// The plugin's code and text, or [`abi::ERR_UNSUPPORTED`] if neither it nor a base has the op.
    pub fn invoke(self: &Arc<Self>, cell: CellId, ctx: &StepCtx, args: Args<'_>) -> Result<(), CallError> {
        let missing = || CallError {
            cell,
            variant: self.spec.to_string(),
            code: abi::ERR_UNSUPPORTED,
            message: format!("it has no {}", args.op()),
        };
        let generation = self.serving(args.op()).ok_or_else(missing)?;
        let entry = generation.instance.plugin().entry();
        macro_rules! call {
            ($f:expr, $args:expr) => {
                match $f {
                    Some(f) => Bound::new(cell, generation.clone(), f).call(ctx, $args, 0),
                    None => Err(missing()),
                }
            };
        }
        match args {
            Args::Store(a) => call!(entry.attention.and_then(|t| t.store), a),
            Args::Compress(a) if generation.seam == Seam::Indexer => {
                call!(entry.indexer.and_then(|t| t.compress), a)
            }
            Args::Compress(a) => call!(entry.attention.and_then(|t| t.compress), a),
            Args::Core(a) => call!(entry.attention.and_then(|t| t.core), a),
            Args::Select(a) => call!(entry.indexer.and_then(|t| t.select), a),
            Args::Route(a) => call!(entry.moe.and_then(|t| t.route), a),
            Args::Experts(a) => call!(entry.moe.and_then(|t| t.experts), a),
            Args::Pre(a) => call!(entry.mhc.and_then(|t| t.pre), a),
            Args::Post(a) => call!(entry.mhc.and_then(|t| t.post), a),
            Args::Head(a) => call!(entry.mhc.and_then(|t| t.head), a),
        }
    }
}
