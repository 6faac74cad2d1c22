//! What part of the model a tensor belongs to, by its name.

use std::fmt;

use crate::quantisation::Role;

/// Part of the model, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Projections of attention: wq_a, wq_b, wkv, wo_a, wo_b.
    Attention,
    /// Projections of the indexer, without its compressor.
    Indexer,
    /// wkv and wgate of compressors, those of the indexer too.
    Compressor,
    /// Matrices of shared experts.
    SharedExperts,
    /// Matrices of routed experts.
    RoutedExperts,
    /// Routers.
    Router,
    /// Token embedding.
    Embedding,
    /// Output head.
    Head,
    /// Norms, sinks, biases, position tables of compressors, hyper-connections, token tables.
    Small,
    /// Multi-token prediction.
    Mtp,
}

impl Class {
    /// All classes, in the order of reports.
    pub const ALL: [Self; 10] = [
        Self::RoutedExperts,
        Self::SharedExperts,
        Self::Attention,
        Self::Compressor,
        Self::Indexer,
        Self::Router,
        Self::Embedding,
        Self::Head,
        Self::Small,
        Self::Mtp,
    ];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Indexer => "indexer",
            Self::Compressor => "compressor",
            Self::SharedExperts => "shared experts",
            Self::RoutedExperts => "routed experts",
            Self::Router => "router",
            Self::Embedding => "embedding",
            Self::Head => "head",
            Self::Small => "small tensors",
            Self::Mtp => "multi-token prediction",
        }
    }

    /// Class of a tensor name, or of a module name.
    pub fn of(name: &str) -> Self {
        if name.starts_with("mtp.") {
            return Self::Mtp;
        }
        let tail = in_block(name).unwrap_or(name);
        let role = role(module(name));
        match role {
            Some(Role::Expert) => Self::RoutedExperts,
            Some(Role::Compressor) => Self::Compressor,
            Some(_) if tail.starts_with("ffn.shared_experts.") => Self::SharedExperts,
            Some(_) if tail.starts_with("attn.indexer.") => Self::Indexer,
            Some(_) => Self::Attention,
            None if tail.starts_with("attn.indexer.weights_proj.") => Self::Indexer,
            None if tail == "ffn.gate.weight" => Self::Router,
            None if name == "embed.weight" => Self::Embedding,
            None if name == "head.weight" => Self::Head,
            None => Self::Small,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Suffixes of the tensors that store one matrix.
const PARTS: [&str; 5] = [".weight", ".scale", ".weight_scale", ".weight_scale_2", ".input_scale"];

/// Name without the suffix that says which part of a matrix a tensor is.
pub(crate) fn module(name: &str) -> &str {
    PARTS.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name)
}

/// Role of a module that is stored as a matrix with a format; `None` for all else.
pub(crate) fn role(module: &str) -> Option<Role> {
    match in_block(module)? {
        "attn.wo_a" => Some(Role::OutputA),
        "attn.wq_a" | "attn.wq_b" | "attn.wkv" | "attn.wo_b" | "attn.indexer.wq_b" | "e_proj" | "h_proj" => {
            Some(Role::Linear)
        }
        "attn.compressor.wkv"
        | "attn.compressor.wgate"
        | "attn.indexer.compressor.wkv"
        | "attn.indexer.compressor.wgate" => Some(Role::Compressor),
        tail => {
            let (place, matrix) = tail.rsplit_once('.')?;
            let shared = place == "ffn.shared_experts";
            let number = place.strip_prefix("ffn.experts.");
            let expert = number.is_some_and(|n| n.bytes().all(|c| c.is_ascii_digit()));
            match matrix {
                "w1" | "w2" | "w3" if shared => Some(Role::Linear),
                "w1" | "w2" | "w3" if expert => Some(Role::Expert),
                _ => None,
            }
        }
    }
}

/// Name inside a decoder layer or a block of multi-token prediction.
fn in_block(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("layers.").or_else(|| name.strip_prefix("mtp."))?;
    rest.split_once('.').map(|(_, tail)| tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Preset;

    #[test]
    fn every_tensor_of_a_model_has_its_class() {
        for (name, class) in [
            ("layers.3.attn.wo_a.scale", Class::Attention),
            ("layers.3.attn.compressor.wgate.weight", Class::Compressor),
            ("layers.3.attn.compressor.ape", Class::Small),
            ("layers.3.attn.indexer.compressor.wkv.weight", Class::Compressor),
            ("layers.3.attn.indexer.wq_b.weight", Class::Indexer),
            ("layers.3.attn.indexer.weights_proj.weight", Class::Indexer),
            ("layers.3.ffn.experts.17.w2.weight_scale_2", Class::RoutedExperts),
            ("layers.3.ffn.shared_experts.w1.weight", Class::SharedExperts),
            ("layers.3.ffn.gate.weight", Class::Router),
            ("layers.3.ffn.gate.tid2eid", Class::Small),
            ("layers.3.hc_attn_scale", Class::Small),
            ("head.weight", Class::Head),
            ("embed.weight", Class::Embedding),
            ("mtp.0.attn.wq_a.weight", Class::Mtp),
        ] {
            assert_eq!(Class::of(name), class, "{name}");
        }
        assert_eq!(role("mtp.0.e_proj"), Some(Role::Linear));
        assert_eq!((role("layers.0.ffn.gate"), role("layers.0.ffn.experts.x.w1")), (None, None));
    }

    /// What the loader reads as matrices is what this file calls so.
    #[test]
    fn roles_are_those_of_the_loader() {
        let (config, weights) = Preset::FlashLike.build().unwrap();
        let tensors = Preset::FlashLike.tensors();
        let found = tensors.iter().filter(|t| role(module(&t.name)).is_some()).count();
        let layer = |l: &hotseam_model::LayerWeights| {
            let inner = l.indexer.as_ref().map_or(0, |_| 3);
            5 + l.compressor.as_ref().map_or(0, |_| 2) + inner + 3 * (l.experts.len() + 1)
        };
        assert_eq!(found, weights.layers.iter().map(layer).sum::<usize>());
        assert_eq!(config.num_hidden_layers, weights.layers.len());
    }
}
