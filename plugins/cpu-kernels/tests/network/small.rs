//! A shape for tests.

use crate::network::Shape;

/// Small, with lengths that are no multiple of a vector where the mathematics allows it.
pub(crate) fn shape() -> Shape {
    Shape {
        hidden: 36,
        heads: 6,
        dim: 20,
        rope: 8,
        q_rank: 20,
        o_rank: 12,
        o_groups: 2,
        window: 50,
        index_heads: 5,
        index_dim: 32,
        topk: 9,
        experts: 7,
        expert_topk: 3,
        inter: 20,
        hc: 3,
        iters: 5,
        hash_layers: 1,
        vocab: 64,
        ratios: vec![0, 4, 128, 4],
    }
}
