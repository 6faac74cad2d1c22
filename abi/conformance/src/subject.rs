//! What is checked.

use crate::DeviceMemory;
use hotseam_abi::{AttentionV1, HostServicesV1, IndexerV1, InfoV1, KvTransportV1, MhcV1, MoeV1, seam};
use serde::Serialize;
use std::ffi::c_void;
use std::fmt;

/// An op of a seam.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// `attention.store`
    AttentionStore,
    /// `attention.compress`
    AttentionCompress,
    /// `attention.core`
    AttentionCore,
    /// `indexer.compress`
    IndexerCompress,
    /// `indexer.select`
    IndexerSelect,
    /// `moe.route`
    MoeRoute,
    /// `moe.experts`
    MoeExperts,
    /// `mhc.pre`
    MhcPre,
    /// `mhc.post`
    MhcPost,
    /// `mhc.head`
    MhcHead,
    /// All of `kv_transport`, which is checked as one.
    KvTransport,
}

impl Op {
    /// Every op.
    pub const ALL: [Self; 11] = [
        Self::AttentionStore,
        Self::AttentionCompress,
        Self::AttentionCore,
        Self::IndexerCompress,
        Self::IndexerSelect,
        Self::MoeRoute,
        Self::MoeExperts,
        Self::MhcPre,
        Self::MhcPost,
        Self::MhcHead,
        Self::KvTransport,
    ];

    /// Name as it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::AttentionStore => "attention.store",
            Self::AttentionCompress => "attention.compress",
            Self::AttentionCore => "attention.core",
            Self::IndexerCompress => "indexer.compress",
            Self::IndexerSelect => "indexer.select",
            Self::MoeRoute => "moe.route",
            Self::MoeExperts => "moe.experts",
            Self::MhcPre => "mhc.pre",
            Self::MhcPost => "mhc.post",
            Self::MhcHead => "mhc.head",
            Self::KvTransport => "kv_transport",
        }
    }

    /// Whether the subject has the function of this op.
    pub(crate) fn served_by(self, subject: &Subject<'_>) -> bool {
        let (attention, indexer) = (subject.attention, subject.indexer);
        let (moe, mhc) = (subject.moe, subject.mhc);
        match self {
            Self::AttentionStore => attention.is_some_and(|t| t.store.is_some()),
            Self::AttentionCompress => attention.is_some_and(|t| t.compress.is_some()),
            Self::AttentionCore => attention.is_some_and(|t| t.core.is_some()),
            Self::IndexerCompress => indexer.is_some_and(|t| t.compress.is_some()),
            Self::IndexerSelect => indexer.is_some_and(|t| t.select.is_some()),
            Self::MoeRoute => moe.is_some_and(|t| t.route.is_some()),
            Self::MoeExperts => moe.is_some_and(|t| t.experts.is_some()),
            Self::MhcPre => mhc.is_some_and(|t| t.pre.is_some()),
            Self::MhcPost => mhc.is_some_and(|t| t.post.is_some()),
            Self::MhcHead => mhc.is_some_and(|t| t.head.is_some()),
            Self::KvTransport => subject.kv_transport.is_some(),
        }
    }

    /// One of [`hotseam_abi::seam`].
    pub fn seam(self) -> u32 {
        match self {
            Self::AttentionStore | Self::AttentionCompress | Self::AttentionCore => seam::ATTENTION,
            Self::IndexerCompress | Self::IndexerSelect => seam::INDEXER,
            Self::MoeRoute | Self::MoeExperts => seam::MOE,
            Self::MhcPre | Self::MhcPost | Self::MhcHead => seam::MHC,
            Self::KvTransport => seam::KV_TRANSPORT,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Op {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// How much to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// One or two cases an op and phase, well under 100 ms: what a swap can always afford.
    Quick,
    /// Every case, one to two seconds on the CPU.
    Full,
}

/// A live instance of a variant, apart from how it was loaded.
///
/// Only ops whose function is set are checked. While [`check`](crate::check) runs nothing else calls the instance.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Name for the report, such as `indexer/cpu-sm120{early_exit: true}`.
    pub variant: &'a str,
    /// One of [`hotseam_abi::seam`].
    pub seam: u32,
    /// The instance.
    pub this: *mut c_void,
    /// Functions, if `seam` is attention.
    pub attention: Option<&'a AttentionV1>,
    /// Functions, if `seam` is indexer.
    pub indexer: Option<&'a IndexerV1>,
    /// Functions, if `seam` is moe.
    pub moe: Option<&'a MoeV1>,
    /// Functions, if `seam` is mhc.
    pub mhc: Option<&'a MhcV1>,
    /// Functions, if `seam` is kv_transport.
    pub kv_transport: Option<&'a KvTransportV1>,
    /// What the instance says of itself. `capabilities`, `phases` and `layout` are read.
    pub info: InfoV1,
    /// Memory of the device that its ops work on; `None` if they work on host memory.
    pub device: Option<&'a DeviceMemory>,
    /// Services passed in each call; valid for the life of the process.
    pub host: *const HostServicesV1,
    /// Returns, and forgets, the text that the last failed call on this thread gave to
    /// [`HostServicesV1::error`].
    pub take_error: fn() -> String,
}
