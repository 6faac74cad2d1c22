//! Seams, their ops, phases and topologies, with the names that people write.

use hotseam_abi as abi;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Gives an enum its `ALL`, `name` and `Display`.
macro_rules! named {
    ($type:ident, { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Name as people write it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use named;

/// A swappable place of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seam {
    /// Attention backend.
    Attention,
    /// C4 indexer.
    Indexer,
    /// Mixture of experts.
    Moe,
    /// Manifold-constrained hyper-connections.
    Mhc,
    /// Prefill-to-decode KV transport.
    KvTransport,
}

named!(Seam, {
    Attention = "attention", Indexer = "indexer", Moe = "moe", Mhc = "mhc", KvTransport = "kv_transport",
});

impl Seam {
    /// Number in the contract.
    pub const fn id(self) -> u32 {
        match self {
            Self::Attention => abi::seam::ATTENTION,
            Self::Indexer => abi::seam::INDEXER,
            Self::Moe => abi::seam::MOE,
            Self::Mhc => abi::seam::MHC,
            Self::KvTransport => abi::seam::KV_TRANSPORT,
        }
    }

    /// The seam of a contract number.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|s| s.id() == id)
    }

    /// Its ops. `kv_transport` has one, since all its functions share tickets and so an instance.
    pub const fn ops(self) -> &'static [Op] {
        match self {
            Self::Attention => &[Op::Store, Op::Compress, Op::Core],
            Self::Indexer => &[Op::Compress, Op::Select],
            Self::Moe => &[Op::Route, Op::Experts],
            Self::Mhc => &[Op::Pre, Op::Post, Op::Head],
            Self::KvTransport => &[Op::Transport],
        }
    }
}

/// An operation of a seam.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// `attention.store`.
    Store,
    /// `attention.compress` and `indexer.compress`.
    Compress,
    /// `attention.core`.
    Core,
    /// `indexer.select`.
    Select,
    /// `moe.route`.
    Route,
    /// `moe.experts`.
    Experts,
    /// `mhc.pre`.
    Pre,
    /// `mhc.post`.
    Post,
    /// `mhc.head`.
    Head,
    /// All of `kv_transport`; never written in a selector.
    Transport,
}

named!(Op, {
    Store = "store", Compress = "compress", Core = "core", Select = "select", Route = "route", Experts = "experts",
    Pre = "pre", Post = "post", Head = "head", Transport = "transport",
});

/// Phase of a step, as far as variants are chosen by it; speculative verification uses the decode cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Prompt tokens.
    Prefill,
    /// New tokens.
    Decode,
}

named!(Phase, { Prefill = "prefill", Decode = "decode" });

impl Phase {
    /// Number in the contract.
    pub const fn id(self) -> u32 {
        match self {
            Self::Prefill => abi::phase::PREFILL,
            Self::Decode => abi::phase::DECODE,
        }
    }
}

/// How prefill and decode are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// One pool for both phases.
    #[default]
    Single,
    /// Two pools, with a hand-off after prefill through `kv_transport`.
    Paired,
}

named!(Topology, { Single = "single", Paired = "paired" });
