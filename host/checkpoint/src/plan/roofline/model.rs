//! What a step of a model moves and computes on each GPU.

use hotseam_model::ModelConfig;

use super::{Bound, Machine, Step};
use crate::convert::Class;
use crate::plan::kv::{Kv, Layers};
use crate::plan::weights::{Spread, WeightLine, Weights};

/// Bytes of an activation: bf16.
const ACTIVATION: u64 = 2;

/// A model on a machine.
pub(super) struct Model<'a> {
    pub(super) cfg: &'a ModelConfig,
    pub(super) layers: Layers,
    pub(super) weights: Weights,
    pub(super) kv: Kv,
    pub(super) machine: Machine,
}

/// What queries look at, over all layers.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Entries that they attend to.
    entries: f64,
    /// Index keys that they are compared with.
    keys: f64,
}

/// What a step has to do.
struct Work {
    tokens: f64,
    /// Tokens whose logits are wanted.
    sampled: f64,
    entry_bytes: f64,
    key_bytes: f64,
    /// Over all tokens.
    seen: Seen,
}

impl Model<'_> {
    /// One token of each of `batch` sequences, with `context` tokens to look at, itself included.
    pub(super) fn decode(&self, batch: u64, context: u64) -> Step {
        let one = self.seen(|per, most| (context / per).min(most) as f64);
        let tokens = batch as f64;
        // Sequences share no entries.
        let seen = Seen { entries: tokens * one.entries, keys: tokens * one.keys };
        self.step(&Work {
            tokens,
            sampled: tokens,
            entry_bytes: seen.entries * self.kv.entry as f64,
            key_bytes: seen.keys * self.kv.index_key as f64,
            seen,
        })
    }

    /// All tokens of a prompt in one pass; only the last one is sampled.
    pub(super) fn prefill(&self, prompt: u64) -> Step {
        let tokens = prompt as f64;
        let per_token = &self.kv.per_token;
        let window = self.kv.per_sequence.window as f64;
        let in_window = (tokens / self.cfg.sliding_window as f64).min(1.0);
        self.step(&Work {
            tokens,
            sampled: 1.0,
            // Written once. Queries that look at the same entry can read it together, while it is in a cache.
            entry_bytes: tokens * (per_token.total - per_token.index_keys) + window * in_window,
            key_bytes: tokens * per_token.index_keys,
            seen: self.seen(|per, most| sum_seen(prompt, per, most)),
        })
    }

    /// What is looked at; `count(per, most)` says how many entries that each stand for `per` tokens, at most `most` for a
    /// query.
    fn seen(&self, count: impl Fn(u64, u64) -> f64) -> Seen {
        let Layers { window, csa, hca } = self.layers;
        let [window, csa, hca] = [window, csa, hca].map(|layers| layers as f64);
        let recent = count(1, self.cfg.sliding_window as u64);
        let chosen = count(4, self.cfg.index_topk as u64);
        Seen {
            entries: csa * (chosen + recent) + hca * (count(128, u64::MAX) + recent) + window * recent,
            keys: csa * count(4, u64::MAX),
        }
    }

    fn step(&self, work: &Work) -> Step {
        let touched = self.experts_touched(work.tokens);
        let weights: f64 = self.weights.lines.iter().map(|line| self.read_bytes(line, touched)).sum();
        // Of tables it reads the rows of its tokens and positions, which are not counted either.
        let weights = weights - self.weights.table_bytes as f64;
        let activation = work.tokens * self.activation() as f64;
        let bytes = weights + work.entry_bytes + work.key_bytes + activation;

        let linear: f64 = self.weights.lines.iter().map(|line| self.products(line, work)).sum();
        // A score and a weighted sum for each channel of each head; the heads are split over the GPUs, the indexer is not.
        let heads = (self.cfg.num_attention_heads * self.cfg.head_dim) as f64 / self.machine.gpus as f64;
        let attention = 4.0 * heads * work.seen.entries;
        let indexer = 2.0 * (self.cfg.index_n_heads * self.cfg.index_head_dim) as f64 * work.seen.keys;
        let flop = linear + attention + indexer;

        let memory_ms = bytes / (self.machine.bandwidth_gb_per_s * 1e6);
        let arithmetic_ms = flop / (self.machine.peak_tflop_per_s * 1e9);
        let launch_ms = self.machine.launches as f64 * self.machine.launch_us / 1e3;
        let floor_ms = memory_ms.max(arithmetic_ms) + launch_ms;
        let whole = |bytes: f64| bytes.round() as u64;
        Step {
            experts_touched_per_layer: touched,
            weight_bytes: whole(weights),
            kv_entry_bytes: whole(work.entry_bytes),
            index_key_bytes: whole(work.key_bytes),
            kv_bytes: whole(work.entry_bytes + work.key_bytes),
            activation_bytes: whole(activation),
            linear_flop: linear,
            attention_flop: attention,
            indexer_flop: indexer,
            flop,
            memory_ms,
            arithmetic_ms,
            launch_ms,
            floor_ms,
            tokens_per_second: work.tokens / floor_ms * 1e3,
            bound: if memory_ms >= arithmetic_ms { Bound::Memory } else { Bound::Arithmetic },
        }
    }

    /// Different experts of a layer that `tokens` tokens use on average, if each chooses evenly and for itself.
    fn experts_touched(&self, tokens: f64) -> f64 {
        let all = self.cfg.n_routed_experts as f64;
        let missed = 1.0 - self.cfg.num_experts_per_tok as f64 / all;
        all * (1.0 - missed.powf(tokens))
    }

    /// Bytes of weights that a step reads on each GPU, where `touched` experts of a layer are used. Of the embedding it reads
    /// a few rows, which are not counted.
    fn read_bytes(&self, line: &WeightLine, touched: f64) -> f64 {
        let bytes = line.bytes_per_gpu as f64;
        match line.class {
            class if class == Class::Embedding.name() => 0.0,
            class if class == Class::RoutedExperts.name() => {
                bytes * touched / self.cfg.n_routed_experts as f64
            }
            _ => bytes,
        }
    }

    /// Products with weights on each GPU, two for each parameter that a token uses.
    fn products(&self, line: &WeightLine, work: &Work) -> f64 {
        let used = match line.class {
            class if class == Class::Embedding.name() => 0.0,
            class if class == Class::Head.name() => work.sampled,
            class if class == Class::RoutedExperts.name() => {
                work.tokens * self.cfg.num_experts_per_tok as f64 / self.cfg.n_routed_experts as f64
            }
            _ => work.tokens,
        };
        let gpus = if line.spread == Spread::Split { self.machine.gpus } else { 1 };
        2.0 * used * line.parameters as f64 / gpus as f64
    }

    /// Bytes that a token moves beside weights, keys and values. Around each of the two blocks of a layer the residual
    /// streams are read to mix the block's input, and read and written to add its output; input and output are written and
    /// read once each. A small step can keep them in a cache, which is a thousandth of its bytes.
    pub(super) fn activation(&self) -> u64 {
        let widths = 3 * self.cfg.hc_mult + 4;
        2 * (self.cfg.num_hidden_layers * widths * self.cfg.hidden_size) as u64 * ACTIVATION
    }
}

/// Sum, over the tokens of a prompt, of the entries that each sees: one for every `per` tokens up to itself, at most `most`.
fn sum_seen(prompt: u64, per: u64, most: u64) -> f64 {
    // From token per x last on each sees `last`; before, `per` tokens see each smaller number.
    let last = (prompt / per).min(most);
    let (prompt, per, last) = (u128::from(prompt), u128::from(per), u128::from(last));
    let rising = per * (last * last.saturating_sub(1) / 2);
    (rising + last * (prompt + 1 - per * last)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_each_token() {
        for (per, most) in [(1, 8), (4, 3), (4, u64::MAX), (128, u64::MAX), (1, 1)] {
            for prompt in [1, 2, 3, 4, 11, 12, 13, 127, 128, 129, 400] {
                let each: u64 = (1..=prompt).map(|token| (token / per).min(most)).sum();
                assert_eq!(sum_seen(prompt, per, most), each as f64, "{prompt} {per} {most}");
            }
        }
    }
}
