//! Section `engine`.

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::schema::{positive, some_positive};

/// How prefill and decode share the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// One pool of pages for both phases.
    #[default]
    Single,
    /// Two pools; the `kv_transport` seam moves a sequence from one to the other after prefill.
    Paired,
}

/// Where steps run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String", extend("pattern" = "^(cpu|cuda(:[0-9]{1,3})?)$"))]
pub enum Device {
    /// `cpu`.
    #[default]
    Cpu,
    /// `cuda`, or `cuda:1` for another than the first device.
    Cuda(u32),
}

impl Serialize for Device {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Cpu => serializer.serialize_str("cpu"),
            Self::Cuda(0) => serializer.serialize_str("cuda"),
            Self::Cuda(ordinal) => serializer.collect_str(&format_args!("cuda:{ordinal}")),
        }
    }
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let ordinal = match text.split_once(':') {
            None if text == "cpu" => return Ok(Self::Cpu),
            None if text == "cuda" => Some(0),
            Some(("cuda", number)) if number.len() <= 3 => number.parse().ok(),
            _ => None,
        };
        ordinal.map(Self::Cuda).ok_or_else(|| {
            D::Error::custom(format!("expected `cpu`, `cuda` or a device such as `cuda:1`, found `{text}`"))
        })
    }
}

/// Whether products of many rows on a CUDA device are made by cuBLASLt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CublasLt {
    /// Where the library is there.
    #[default]
    Auto,
    /// Never.
    Off,
    /// A server without the library does not start.
    Required,
}

/// What carries the sums of tensor-parallel ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Collective {
    /// `nccl` where every rank has a device of its own and the library is there, otherwise `shared`.
    #[default]
    Auto,
    /// Shared host memory; values of a device are copied through it.
    Shared,
    /// NCCL.
    Nccl,
}

/// Section `engine`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a mapping with the keys max_seqs, max_context, ...")]
pub struct EngineSection {
    /// Where steps run: `cpu`, `cuda`, or another device such as `cuda:1`. All variants but transports must be made for it.
    pub device: Device,
    /// Whether decode steps on a CUDA device are recorded as graphs and launched again.
    pub graphs: bool,
    /// Whether products of many rows on a CUDA device are made by cuBLASLt.
    pub cublaslt: CublasLt,
    /// Tensor-parallel ranks: processes on this host that each hold a part of the heads and experts. On CUDA, rank r takes the
    /// device r after `device`.
    #[serde(deserialize_with = "ranks")]
    #[schemars(range(min = 1, max = 64))]
    pub tp_size: u32,
    /// What carries the sums of ranks.
    pub collective: Collective,
    /// Sequences in one step, at most.
    #[serde(deserialize_with = "positive")]
    #[schemars(range(min = 1))]
    pub max_seqs: usize,
    /// Tokens of one sequence, prompt and completion together, at most.
    #[serde(deserialize_with = "positive")]
    #[schemars(range(min = 1))]
    pub max_context: usize,
    /// Prompt tokens per prefill step.
    #[serde(deserialize_with = "positive")]
    #[schemars(range(min = 1))]
    pub chunk: usize,
    /// Pages of the pools; `null` sizes them for `max_seqs` sequences of `max_context`.
    #[serde(deserialize_with = "some_positive")]
    #[schemars(range(min = 1))]
    pub pages: Option<usize>,
    /// Whether prefill and decode are paired.
    pub topology: Topology,
    /// Threads of the arithmetic; 0 takes one per core, or each rank its share of them.
    pub threads: usize,
    /// Compressed entries the indexer keeps; `null` takes the checkpoint's number.
    #[serde(deserialize_with = "some_positive")]
    #[schemars(range(min = 1))]
    pub index_topk: Option<usize>,
    /// Memory for prefill state kept for reuse, in bytes; 0 keeps none.
    pub prefix_cache_bytes: usize,
    /// Whether every seam call is guarded: outputs between red zones, checked before they are used. Several times slower.
    pub guard: bool,
    /// Whether the host's own products of prefill steps use the processor's matrix tiles (Intel AMX): faster and as exact, but
    /// other bits than every other instruction set gives. The option `amx` of `moe/cpu-stock` and `indexer/cpu-stock` does it
    /// for theirs; give it to prefill only, since decode gets slower.
    pub amx: bool,
}

impl Default for EngineSection {
    fn default() -> Self {
        Self {
            device: Device::Cpu,
            graphs: true,
            cublaslt: CublasLt::Auto,
            tp_size: 1,
            collective: Collective::Auto,
            max_seqs: 8,
            max_context: 8192,
            chunk: 512,
            pages: None,
            topology: Topology::Single,
            threads: 0,
            index_topk: None,
            prefix_cache_bytes: 256 << 20,
            guard: false,
            amx: false,
        }
    }
}

/// A number of ranks.
fn ranks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match u32::deserialize(deserializer)? {
        value @ 1..=64 => Ok(value),
        value => Err(D::Error::custom(format_args!("expected a number of 1 to 64, found {value}"))),
    }
}
