//! Values of a random model: streams, scales, and the list of tensors.
//!
//! Each tensor has its own stream, seeded by model and tensor name, so adding one changes no other. A normal value is
//! the sum of twelve 16-bit integers (mean and variance are exact), so no library's logarithm or cosine takes part.

use hotseam_model::{LayerClass, ModelConfig};
use safetensors::Dtype;

use super::{NamedTensor, Preset};
use hotseam_model::number::bf16;

/// Every tensor of a preset, in the order of layers.
pub(super) fn tensors(preset: Preset) -> Vec<NamedTensor> {
    let mut builder = Builder { preset, tensors: Vec::new() };
    builder.model(&preset.config());
    builder.tensors
}

/// SplitMix64.
pub(super) struct Stream(u64);

impl Stream {
    /// Seeded with the FNV-1a hash of `name`.
    pub(super) fn new(name: &str) -> Self {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Near-normal value of mean 0 and variance 1, within +-6.
    pub(super) fn normal(&mut self) -> f32 {
        let sum: u64 =
            (0..3).map(|_| self.next()).map(|z| (0..4).map(|i| (z >> (16 * i)) & 0xffff).sum::<u64>()).sum();
        // Twelve values of mean 65535/2; each over 65536 has variance 1/12. All steps are exact.
        (sum as i64 - 6 * 65535) as f32 / 65536.0
    }
}

/// Fills every tensor of a model.
struct Builder {
    preset: Preset,
    tensors: Vec<NamedTensor>,
}

impl Builder {
    fn stream(&self, name: &str) -> Stream {
        Stream::new(&format!("{}/{name}", self.preset))
    }

    fn push(&mut self, name: &str, dtype: Dtype, shape: &[usize], data: Vec<u8>) {
        self.tensors.push(NamedTensor { name: name.to_owned(), dtype, shape: shape.to_vec(), data });
    }

    /// bf16 matrix `[out, in]`; each output of unit inputs has standard deviation `gain`.
    fn matrix(&mut self, name: &str, shape: [usize; 2], gain: f32) {
        let scale = gain / (shape[1] as f32).sqrt();
        self.half(name, &shape, 0.0, scale);
    }

    fn half(&mut self, name: &str, shape: &[usize], mean: f32, scale: f32) {
        let mut stream = self.stream(name);
        let count = shape.iter().product();
        let data =
            (0..count).flat_map(|_| bf16::from_f32(mean + stream.normal() * scale).to_le_bytes()).collect();
        self.push(name, Dtype::BF16, shape, data);
    }

    /// f32 tensor around `mean(flat index)`.
    fn single(&mut self, name: &str, shape: &[usize], scale: f32, mean: impl Fn(usize) -> f32) {
        let mut stream = self.stream(name);
        let count = shape.iter().product();
        let data = (0..count).flat_map(|i| (mean(i) + stream.normal() * scale).to_le_bytes()).collect();
        self.push(name, Dtype::F32, shape, data);
    }

    fn model(&mut self, cfg: &ModelConfig) {
        let (vocab, hidden, m) = (cfg.vocab_size, cfg.hidden_size, cfg.hc_mult);
        self.half("embed.weight", &[vocab, hidden], 0.0, 1.0);
        for layer in 0..cfg.num_hidden_layers {
            self.layer(cfg, layer);
        }
        self.half("norm.weight", &[hidden], 1.0, 0.1);
        self.matrix("head.weight", [vocab, hidden], 3.0);
        self.single("hc_head_fn", &[m, m * hidden], 1.0 / ((m * hidden) as f32).sqrt(), |_| 0.0);
        self.single("hc_head_base", &[m], 0.5, |_| -1.0);
        self.single("hc_head_scale", &[1], 0.0, |_| 0.5);
        self.half("mtp.0.enorm.weight", &[hidden], 1.0, 0.1);
    }

    fn layer(&mut self, cfg: &ModelConfig, layer: usize) {
        let p = format!("layers.{layer}");
        let a = format!("{p}.attn");
        let f = format!("{p}.ffn");
        let (hidden, class) = (cfg.hidden_size, cfg.class(layer));
        let heads_dim = cfg.num_attention_heads * cfg.head_dim;
        let o_rank = cfg.o_groups * cfg.o_lora_rank;
        self.half(&format!("{p}.attn_norm.weight"), &[hidden], 1.0, 0.1);
        self.half(&format!("{p}.ffn_norm.weight"), &[hidden], 1.0, 0.1);
        self.hc(cfg, &format!("{p}.hc_attn"));
        self.hc(cfg, &format!("{p}.hc_ffn"));
        self.matrix(&format!("{a}.wq_a.weight"), [cfg.q_lora_rank, hidden], 1.0);
        self.half(&format!("{a}.q_norm.weight"), &[cfg.q_lora_rank], 1.0, 0.1);
        self.matrix(&format!("{a}.wq_b.weight"), [heads_dim, cfg.q_lora_rank], 1.0);
        self.matrix(&format!("{a}.wkv.weight"), [cfg.head_dim, hidden], 1.0);
        // Twice the usual norm: attention scores spread by 2 instead of 1, so single entries count.
        self.half(&format!("{a}.kv_norm.weight"), &[cfg.head_dim], 2.0, 0.2);
        self.matrix(&format!("{a}.wo_a.weight"), [o_rank, heads_dim / cfg.o_groups], 1.0);
        self.matrix(&format!("{a}.wo_b.weight"), [hidden, o_rank], 1.0);
        self.single(&format!("{a}.attn_sink"), &[cfg.num_attention_heads], 1.0, |_| 0.0);
        if class != LayerClass::Window {
            self.compressor(cfg, layer, &format!("{a}.compressor"), cfg.head_dim, 2.0);
        }
        if class == LayerClass::Csa {
            let rows = cfg.index_n_heads * cfg.index_head_dim;
            self.matrix(&format!("{a}.indexer.wq_b.weight"), [rows, cfg.q_lora_rank], 1.0);
            self.matrix(&format!("{a}.indexer.weights_proj.weight"), [cfg.index_n_heads, hidden], 1.0);
            self.compressor(cfg, layer, &format!("{a}.indexer.compressor"), cfg.index_head_dim, 1.0);
        }
        self.matrix(&format!("{f}.gate.weight"), [cfg.n_routed_experts, hidden], 1.0);
        if cfg.is_hash(layer) {
            self.tid2eid(cfg, &format!("{f}.gate.tid2eid"));
        } else {
            self.single(&format!("{f}.gate.bias"), &[cfg.n_routed_experts], 0.2, |_| 0.0);
        }
        for e in 0..cfg.n_routed_experts {
            self.expert(cfg, &format!("{f}.experts.{e}"));
        }
        self.expert(cfg, &format!("{f}.shared_experts"));
    }

    /// Starts near a plain residual network, plus noise that makes every mixing matrix asymmetric.
    fn hc(&mut self, cfg: &ModelConfig, prefix: &str) {
        let m = cfg.hc_mult;
        let rows = (2 + m) * m;
        let mean = |i: usize| match i {
            _ if i < m => -1.1,
            _ if i < 2 * m => 0.0,
            _ if (i - 2 * m).is_multiple_of(m + 1) => 3.0, // diagonal of the mixing matrix
            _ => 0.0,
        };
        let scale = 1.0 / ((m * cfg.hidden_size) as f32).sqrt();
        self.single(&format!("{prefix}_fn"), &[rows, m * cfg.hidden_size], scale, |_| 0.0);
        self.single(&format!("{prefix}_base"), &[rows], 0.7, mean);
        self.single(&format!("{prefix}_scale"), &[3], 0.1, |_| 0.5);
    }

    fn compressor(&mut self, cfg: &ModelConfig, layer: usize, prefix: &str, width: usize, norm: f32) {
        let wide = cfg.coff(layer) * width;
        self.single(&format!("{prefix}.ape"), &[cfg.ratio(layer) as usize, wide], 1.0, |_| 0.0);
        self.matrix(&format!("{prefix}.wkv.weight"), [wide, cfg.hidden_size], 1.0);
        self.matrix(&format!("{prefix}.wgate.weight"), [wide, cfg.hidden_size], 1.0);
        self.half(&format!("{prefix}.norm.weight"), &[width], norm, 0.1 * norm);
    }

    /// Different experts for each token.
    fn tid2eid(&mut self, cfg: &ModelConfig, name: &str) {
        let mut stream = self.stream(name);
        let mut experts: Vec<i64> = (0..cfg.n_routed_experts as i64).collect();
        let mut data = Vec::new();
        for _ in 0..cfg.vocab_size {
            for k in 0..cfg.num_experts_per_tok {
                let rest = (experts.len() - k) as u64;
                experts.swap(k, k + (stream.next() % rest) as usize);
                data.extend(experts[k].to_le_bytes());
            }
        }
        self.push(name, Dtype::I64, &[cfg.vocab_size, cfg.num_experts_per_tok], data);
    }

    fn expert(&mut self, cfg: &ModelConfig, prefix: &str) {
        let (inner, hidden) = (cfg.moe_intermediate_size, cfg.hidden_size);
        self.matrix(&format!("{prefix}.w1.weight"), [inner, hidden], 1.5);
        self.matrix(&format!("{prefix}.w3.weight"), [inner, hidden], 1.5);
        self.matrix(&format!("{prefix}.w2.weight"), [hidden, inner], 1.0);
    }
}
