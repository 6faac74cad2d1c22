//! Sizes, and the weights and memory of a layer.

use super::weights::Random;

/// Sizes of a network.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    pub(crate) rope: usize,
    pub(crate) q_rank: usize,
    pub(crate) o_rank: usize,
    pub(crate) o_groups: usize,
    pub(crate) window: usize,
    pub(crate) index_heads: usize,
    pub(crate) index_dim: usize,
    pub(crate) topk: usize,
    pub(crate) experts: usize,
    pub(crate) expert_topk: usize,
    pub(crate) inter: usize,
    pub(crate) hc: usize,
    pub(crate) iters: u32,
    pub(crate) hash_layers: usize,
    pub(crate) vocab: usize,
    /// Compression ratio of each layer: 0, 4 or 128.
    pub(crate) ratios: Vec<u32>,
}

/// Compressor of attention entries or of index keys.
pub(crate) struct Compressor {
    pub(crate) wkv: Vec<u16>,
    pub(crate) wgate: Vec<u16>,
    pub(crate) ape: Vec<f32>,
    pub(crate) norm: Vec<f32>,
    pub(crate) state: Vec<f32>,
}

/// Weights, pools and states of a layer.
pub(crate) struct Layer {
    pub(crate) norms: [Vec<f32>; 2],
    pub(crate) hc_fn: [Vec<f32>; 2],
    pub(crate) hc_base: [Vec<f32>; 2],
    pub(crate) hc_scale: Vec<f32>,
    pub(crate) wq_a: Vec<u16>,
    pub(crate) wq_b: Vec<u16>,
    pub(crate) wkv: Vec<u16>,
    pub(crate) kv_norm: Vec<f32>,
    pub(crate) wo_a: Vec<Vec<u16>>,
    pub(crate) wo_b: Vec<u16>,
    pub(crate) sinks: Vec<f32>,
    /// Of attention entries, then of index keys.
    pub(crate) compressors: [Compressor; 2],
    pub(crate) index_wq_b: Vec<u16>,
    pub(crate) index_weights: Vec<u16>,
    pub(crate) gate: Vec<u16>,
    pub(crate) gate_bias: Vec<f32>,
    pub(crate) tid2eid: Vec<i32>,
    /// w1, w2, w3.
    pub(crate) experts: Vec<[Vec<u16>; 3]>,
    pub(crate) shared: [Vec<u16>; 3],
    pub(crate) swa: Vec<f32>,
    pub(crate) entries: Vec<f32>,
    pub(crate) keys: Vec<f32>,
    pub(crate) kv_layout: u32,
    pub(crate) key_layout: u32,
}

impl Layer {
    pub(crate) fn new(
        s: &Shape,
        layer: usize,
        positions: usize,
        [kv_layout, key_layout]: [u32; 2],
        r: &mut Random,
    ) -> Self {
        // The last page may be begun.
        let room = positions + super::args::PER_PAGE;
        let ratio = s.ratios[layer] as usize;
        let mix = (2 + s.hc) * s.hc;
        let mut hc_fn = || {
            let scale = ((s.hc * s.hidden) as f32).sqrt().recip();
            r.normals(mix * s.hc * s.hidden).iter().map(|v| v * scale).collect()
        };
        let hc_fn = [hc_fn(), hc_fn()];
        let mut compressor = |dim: usize| {
            let channels = dim * if ratio == 4 { 2 } else { 1 };
            Compressor {
                wkv: r.matrix(channels, s.hidden),
                wgate: r.matrix(channels, s.hidden),
                ape: r.normals(ratio * channels),
                norm: vec![1.0; dim],
                state: vec![f32::NAN; positions * 2 * channels],
            }
        };
        let compressors = [compressor(s.dim), compressor(s.index_dim)];
        let mut expert =
            |_| [r.matrix(s.inter, s.hidden), r.matrix(s.hidden, s.inter), r.matrix(s.inter, s.hidden)];
        let (experts, shared) = ((0..s.experts).map(&mut expert).collect(), expert(0));
        let distinct = |i: usize| (i / s.expert_topk * 5 + i % s.expert_topk * 3) % s.experts;
        Self {
            norms: [vec![1.0; s.hidden], vec![1.0; s.hidden]],
            hc_fn,
            hc_base: [r.normals(mix), r.normals(mix)],
            hc_scale: vec![0.5; 3],
            wq_a: r.matrix(s.q_rank, s.hidden),
            wq_b: r.matrix(s.heads * s.dim, s.q_rank),
            wkv: r.matrix(s.dim, s.hidden),
            kv_norm: vec![1.0; s.dim],
            wo_a: (0..s.o_groups).map(|_| r.matrix(s.o_rank, s.heads * s.dim / s.o_groups)).collect(),
            wo_b: r.matrix(s.hidden, s.o_groups * s.o_rank),
            sinks: r.normals(s.heads),
            compressors,
            index_wq_b: r.matrix(s.index_heads * s.index_dim, s.q_rank),
            index_weights: r.matrix(s.index_heads, s.hidden),
            gate: r.matrix(s.experts, s.hidden),
            gate_bias: r.normals(s.experts),
            tid2eid: (0..s.vocab * s.expert_topk).map(|i| distinct(i) as i32).collect(),
            experts,
            shared,
            // Room for the widest layout.
            swa: vec![f32::NAN; room * s.dim],
            entries: vec![f32::NAN; room * s.dim],
            keys: vec![f32::NAN; room * s.index_dim],
            kv_layout,
            key_layout,
        }
    }
}
