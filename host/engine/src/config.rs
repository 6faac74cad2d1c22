//! Sizes and topology of an engine.

use crate::{EngineError, PdSettings, RankSettings, SwapSettings};
use hotseam_kv::PAGE_TOKENS;
use hotseam_model::ModelConfig;
use hotseam_ops::Amx;
pub use hotseam_slots::Topology;
use std::fmt;

/// What a worker does of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// All of it.
    #[default]
    Single,
    /// Prompts, whose KV it sends to decode workers.
    Prefill,
    /// Answers, over KV that prefill workers send.
    Decode,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "single",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

/// Where steps run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Device {
    /// On the CPU.
    #[default]
    Cpu,
    /// On the CUDA device of this number.
    Cuda(u32),
}

impl Device {
    /// The devices that variants name in their manifests.
    pub fn of_variants(self) -> hotseam_loader::Device {
        match self {
            Self::Cpu => hotseam_loader::Device::Cpu,
            Self::Cuda(_) => hotseam_loader::Device::Cuda,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Whether products of many rows on a CUDA device are made by cuBLASLt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum CublasLt {
    /// Where the library is there.
    #[default]
    Auto,
    /// Never.
    Off,
    /// An engine without the library does not start.
    Required,
}

/// Sizes and topology of an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Where steps run; all variants of seams that take part in them must be made for it.
    pub device: Device,
    /// Whether decode steps on a CUDA device are recorded as graphs and launched again.
    pub graphs: bool,
    /// Whether products of many rows on a CUDA device are made by cuBLASLt.
    pub cublaslt: CublasLt,
    /// Sequences that run at once; more wait.
    pub max_seqs: usize,
    /// Longest prompt and answer together, in tokens.
    pub max_context: usize,
    /// Most rows of a prefill step.
    pub chunk: usize,
    /// Full KV pages of 256 positions; `None` for as many as `max_seqs` sequences of `max_context` need.
    pub pages: Option<usize>,
    /// One store, or a prefill and a decode store with a hand-off between them.
    pub topology: Topology,
    /// What this worker does of a request.
    pub role: Role,
    /// How a prefill or decode worker meets others, and whether hand-offs are audited.
    pub pd: PdSettings,
    /// Entries that the indexer keeps, in place of the checkpoint's number.
    pub index_topk: Option<usize>,
    /// Bytes of saved prefill states that requests with `reuse_prefill` may start from.
    pub prefix_cache_bytes: usize,
    /// Whether every seam call is made under guard: on outputs of its own, checked before they are used. Several times
    /// slower, for finding faults.
    pub guard: bool,
    /// Whether the host's own products of prefill steps use the processor's matrix tiles ([`hotseam_ops::Amx`]): faster, as
    /// exact, but other bits than those of every other instruction set. Decode reads each weight once for a few rows, for
    /// which tiles are slower.
    pub amx: bool,
    /// Whether a saved prefill state may be used by an assignment whose prefill variants did not write it, as long as the
    /// layouts are equal. Answers then mix writers.
    pub prefix_across_writers: bool,
    /// Where swaps keep what outlasts the process, and their limits.
    pub swap: SwapSettings,
    /// The tensor-parallel group; `None` for one rank.
    pub ranks: Option<RankSettings>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            device: Device::Cpu,
            graphs: true,
            cublaslt: CublasLt::Auto,
            max_seqs: 8,
            max_context: 8192,
            chunk: 512,
            pages: None,
            topology: Topology::Single,
            role: Role::Single,
            pd: PdSettings::default(),
            index_topk: None,
            prefix_cache_bytes: 256 << 20,
            guard: false,
            amx: false,
            prefix_across_writers: false,
            swap: SwapSettings::default(),
            ranks: None,
        }
    }
}

impl EngineConfig {
    /// Full pages of each store.
    pub fn total_pages(&self) -> usize {
        self.pages.unwrap_or(self.max_seqs * self.max_context.div_ceil(PAGE_TOKENS))
    }

    /// Largest number of rows of any step.
    pub(crate) fn max_rows(&self) -> usize {
        self.chunk.max(self.max_seqs)
    }

    /// Checks the sizes against each other and the model's. [`crate::Engine::start`] does it; callers that build
    /// something of a size first ask themselves.
    ///
    /// # Errors
    /// The first size that cannot work, with its key.
    pub fn validate(&self, model: &ModelConfig) -> Result<(), EngineError> {
        let fail = |field: &'static str, expected: String, found: usize| {
            Err(EngineError::Config { field, expected, found: found.to_string() })
        };
        if !(1..=1024).contains(&self.max_seqs) {
            return fail("engine.max_seqs", "1 to 1024".into(), self.max_seqs);
        }
        if !(1..=65536).contains(&self.chunk) {
            return fail("engine.chunk", "1 to 65536".into(), self.chunk);
        }
        let limit = model.max_position_embeddings;
        if self.max_context == 0 || self.max_context > limit {
            return fail(
                "engine.max_context",
                format!("1 to the model's max_position_embeddings, {limit}"),
                self.max_context,
            );
        }
        let least = self.max_context.div_ceil(PAGE_TOKENS);
        let most = 1 << 20;
        if self.pages.unwrap_or(0) > most {
            return fail("engine.pages", format!("at most {most}"), self.total_pages());
        }
        if self.total_pages() < least {
            return fail(
                "engine.pages",
                format!("at least {least} for one sequence of max_context"),
                self.total_pages(),
            );
        }
        if self.role != Role::Single && self.topology != Topology::Paired {
            let field = "engine.topology";
            let expected = format!("paired for the role {}, which hands KV over", self.role);
            return Err(EngineError::Config { field, expected, found: self.topology.to_string() });
        }
        if self.cublaslt == CublasLt::Required && self.device == Device::Cpu {
            return Err(EngineError::Config {
                field: "engine.cublaslt",
                expected: "auto or off where steps run on the CPU".to_owned(),
                found: "required".to_owned(),
            });
        }
        let several = self.ranks.is_some();
        if several && (self.role != Role::Single || self.topology != Topology::Single) {
            let (field, found) = ("engine.topology", self.topology.to_string());
            let expected =
                "single where engine.tp_size is above 1: a hand-off moves the KV of one rank".to_owned();
            return Err(EngineError::Config { field, expected, found });
        }
        let on_device = matches!(self.device, Device::Cuda(_));
        if on_device && (self.role != Role::Single || self.topology != Topology::Single) {
            let (field, found) = ("engine.topology", self.topology.to_string());
            let expected = format!("single: transports do not move the memory of {} yet", self.device);
            return Err(EngineError::Config { field, expected, found });
        }
        if let Some(Err(missing)) = self.amx.then(Amx::detect) {
            let expected = format!("false: {missing}");
            return Err(EngineError::Config { field: "engine.amx", expected, found: "true".into() });
        }
        match self.index_topk {
            Some(0) => fail("engine.index_topk", "at least 1".into(), 0),
            _ => Ok(()),
        }
    }
}
