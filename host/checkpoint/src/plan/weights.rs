//! Weights of a model by class: how many, in which format, how large, and how they are spread over GPUs.

use std::collections::BTreeMap;

use hotseam_model::{Format, LayerClass, ModelConfig};
use serde::Serialize;

use crate::convert::{Class, Form};
use crate::quantisation::{Quantisation, Role};

/// How tensors are spread over the GPUs of a tensor-parallel group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// Each GPU holds its part: heads, experts or vocabulary.
    Split,
    /// Each GPU holds all.
    Replicated,
}

/// Weights of one class in one format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WeightLine {
    /// Class of the tensors.
    pub class: &'static str,
    /// Format in memory.
    pub format: &'static str,
    /// Split over the GPUs, or on each.
    pub spread: Spread,
    /// Parameters, scales not counted.
    pub parameters: u64,
    /// Bytes of one copy, scales included.
    pub bytes: u64,
    /// Bytes on each GPU.
    pub bytes_per_gpu: u64,
}

/// The weights of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Weights {
    /// By class and format.
    pub lines: Vec<WeightLine>,
    /// All parameters, without multi-token prediction.
    pub parameters: u64,
    /// Parameters that one token uses: all but the embedding and the experts that it is not routed to.
    pub active_parameters: u64,
    /// Bytes of one copy.
    pub bytes: u64,
    /// Bytes on each GPU.
    pub bytes_per_gpu: u64,
    /// Bytes of small tensors of which a step reads only the rows of its tokens and positions.
    #[serde(skip)]
    pub(super) table_bytes: u64,
}

/// Where formats come from.
pub(super) enum Formats<'a> {
    /// What the configuration states.
    Stated(&'a Quantisation),
    /// A form that the model is to be converted to.
    Form(Form),
}

impl Formats<'_> {
    fn of(&self, module: &str, role: Role) -> Format {
        match self {
            Self::Form(form) => form.format(module, role, Format::Bf16),
            _ if role == Role::Compressor => Format::Bf16,
            Self::Stated(quantisation) => {
                let stated = quantisation.stated(module, role);
                stated.and_then(|s| s.formats.first().copied()).unwrap_or(Format::Bf16)
            }
        }
    }
}

/// Adds up the weights of a model for `gpus` GPUs; `attention` says how the heads are spread.
pub(super) fn weights(cfg: &ModelConfig, formats: &Formats, gpus: u64, attention: Spread) -> Weights {
    let mut sum = Sum { cfg, formats, attention, lines: BTreeMap::new(), active: 0, tables: 0 };
    sum.model();
    let lines: Vec<WeightLine> = Class::ALL
        .into_iter()
        .flat_map(|class| {
            let own = sum.lines.iter().filter(move |((c, ..), _)| *c == class);
            own.map(move |(&(_, format, spread), &(parameters, bytes))| WeightLine {
                class: class.name(),
                format,
                spread,
                parameters,
                bytes,
                bytes_per_gpu: if spread == Spread::Split { bytes.div_ceil(gpus) } else { bytes },
            })
        })
        .collect();
    Weights {
        parameters: lines.iter().map(|l| l.parameters).sum(),
        active_parameters: sum.active,
        table_bytes: sum.tables,
        bytes: lines.iter().map(|l| l.bytes).sum(),
        bytes_per_gpu: lines.iter().map(|l| l.bytes_per_gpu).sum(),
        lines,
    }
}

struct Sum<'a> {
    cfg: &'a ModelConfig,
    formats: &'a Formats<'a>,
    attention: Spread,
    /// Parameters and bytes by class, format and spread.
    lines: BTreeMap<(Class, &'static str, Spread), (u64, u64)>,
    active: u64,
    /// Bytes of tables.
    tables: u64,
}

impl Sum<'_> {
    /// Adds `times` matrices `[n, k]`, of which a token uses `used`.
    fn add(
        &mut self,
        class: Class,
        format: Format,
        spread: Spread,
        [n, k]: [usize; 2],
        times: usize,
        used: usize,
    ) {
        let line = self.lines.entry((class, format.name(), spread)).or_default();
        line.0 += (n * k * times) as u64;
        line.1 += (format.byte_len(n, k) * times) as u64;
        self.active += (n * k * used) as u64;
    }

    fn matrix(&mut self, class: Class, spread: Spread, module: &str, role: Role, shape: [usize; 2]) {
        self.add(class, self.formats.of(module, role), spread, shape, 1, 1);
    }

    /// Adds values that are f32 (or i32) in memory.
    fn small(&mut self, count: usize) {
        self.add(Class::Small, Format::F32, Spread::Replicated, [1, count], 1, 1);
    }

    fn model(&mut self) {
        let cfg = self.cfg;
        let vocabulary = [cfg.vocab_size, cfg.hidden_size];
        self.add(Class::Embedding, Format::Bf16, Spread::Split, vocabulary, 1, 0);
        self.add(Class::Head, Format::Bf16, Spread::Split, vocabulary, 1, 1);
        self.small(cfg.hidden_size + cfg.hc_mult * (cfg.hc_mult * cfg.hidden_size + 1) + 1);
        (0..cfg.num_hidden_layers).for_each(|layer| self.layer(layer));
    }

    fn layer(&mut self, layer: usize) {
        let cfg = self.cfg;
        let (h, d, rank) = (cfg.hidden_size, cfg.head_dim, cfg.q_lora_rank);
        let (heads_dim, o_rank) = (cfg.num_attention_heads * d, cfg.o_groups * cfg.o_lora_rank);
        let a = format!("layers.{layer}.attn");
        let f = format!("layers.{layer}.ffn");
        let whole = Spread::Replicated;
        for (name, role, spread, shape) in [
            ("wq_a", Role::Linear, whole, [rank, h]),
            ("wq_b", Role::Linear, self.attention, [heads_dim, rank]),
            ("wkv", Role::Linear, whole, [d, h]),
            ("wo_a", Role::OutputA, self.attention, [o_rank, heads_dim / cfg.o_groups]),
            ("wo_b", Role::Linear, self.attention, [h, o_rank]),
        ] {
            self.matrix(Class::Attention, spread, &format!("{a}.{name}"), role, shape);
        }
        let class = cfg.class(layer);
        if class != LayerClass::Window {
            self.compressor(layer, &a, d);
        }
        if class == LayerClass::Csa {
            let wq_b = [cfg.index_n_heads * cfg.index_head_dim, rank];
            self.matrix(Class::Indexer, whole, &format!("{a}.indexer.wq_b"), Role::Linear, wq_b);
            self.add(Class::Indexer, Format::Bf16, whole, [cfg.index_n_heads, h], 1, 1);
            self.compressor(layer, &a, cfg.index_head_dim);
        }
        self.add(Class::Router, Format::Bf16, whole, [cfg.n_routed_experts, h], 1, 1);
        let inner = cfg.moe_intermediate_size;
        for (name, shape) in [("w1", [inner, h]), ("w2", [h, inner]), ("w3", [inner, h])] {
            let shared = format!("{f}.shared_experts.{name}");
            self.matrix(Class::SharedExperts, Spread::Split, &shared, Role::Linear, shape);
            let format = self.formats.of(&format!("{f}.experts.0.{name}"), Role::Expert);
            let (all, used) = (cfg.n_routed_experts, cfg.num_experts_per_tok);
            self.add(Class::RoutedExperts, format, Spread::Split, shape, all, used);
        }
        let hc = (2 + cfg.hc_mult) * cfg.hc_mult;
        self.small(2 * (hc * cfg.hc_mult * h + hc + 3));
        self.small(2 * h + rank + d + cfg.num_attention_heads);
        if cfg.is_hash(layer) {
            // A table, not parameters.
            let line = self.lines.entry((Class::Small, "i32", whole)).or_default();
            let bytes = (4 * cfg.vocab_size * cfg.num_experts_per_tok) as u64;
            line.1 += bytes;
            self.tables += bytes;
        } else {
            self.small(cfg.n_routed_experts);
        }
    }

    fn compressor(&mut self, layer: usize, prefix: &str, width: usize) {
        let wide = self.cfg.coff(layer) * width;
        for name in ["wkv", "wgate"] {
            let module = format!("{prefix}.compressor.{name}");
            let shape = [wide, self.cfg.hidden_size];
            self.matrix(Class::Compressor, Spread::Replicated, &module, Role::Compressor, shape);
        }
        let positions = self.cfg.ratio(layer) as usize * wide;
        self.small(positions + width);
        self.tables += Format::F32.byte_len(1, positions) as u64;
    }
}
