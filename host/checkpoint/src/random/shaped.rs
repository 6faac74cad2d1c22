//! Random weights in the shapes of any configuration, however large: for measurements, where the time of a step is that of its
//! bytes and not of what they say. Tensors lie in a few blocks of memory, and layers that are alike share theirs, so that a model
//! of hundreds of gigabytes takes a few.

use super::fill::Stream;
use hotseam_model::number::bf16;
use hotseam_model::{
    Compressor, DType, Expert, Format, Hc, Indexer, LayerClass, LayerWeights, Matrix, MatrixError,
    ModelConfig, Tensor, TensorError, Weights,
};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Bytes between the starts of two tensors in a block, and around its end: neighbours differ.
const STEP: usize = 4096 + 64;

/// Why shapes cannot be filled.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ShapedError {
    /// A tensor's shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A matrix's shape in its format.
    #[error(transparent)]
    Matrix(#[from] MatrixError),
}

type Result<T> = std::result::Result<T, ShapedError>;

/// Formats of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formats {
    /// Of projections and the shared expert.
    pub dense: Format,
    /// Of routed experts.
    pub experts: Format,
}

/// Random bytes of one meaning.
struct Block {
    bytes: Arc<Vec<u8>>,
    next: usize,
}

impl Block {
    fn new(len: usize, mut byte: impl FnMut(u64) -> u8, name: &str) -> Self {
        let mut stream = Stream::new(name);
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            let word = stream.next();
            bytes.extend((0..8).map(|i| byte(word >> (8 * i) & 0xff)));
        }
        Self { bytes: Arc::new(bytes), next: 0 }
    }

    /// A tensor from the next place on where it fits.
    fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let len = shape.iter().product::<usize>() * dtype.size();
        self.next += STEP;
        if self.next + len > self.bytes.len() {
            self.next %= STEP;
        }
        Ok(Tensor::from_region(dtype, shape.to_vec(), self.bytes.clone(), self.next)?)
    }
}

struct Source {
    /// e4m3 codes and pairs of e2m1 codes: no NaN among them.
    codes: Block,
    /// Powers of two around 2^-6.
    scales: Block,
    /// bf16 values of a few hundredths.
    halves: Block,
    formats: Formats,
}

impl Source {
    fn half(&mut self, n: usize, k: usize) -> Result<Tensor> {
        self.halves.tensor(DType::Bf16, &[n, k])
    }

    fn matrix(&mut self, format: Format, n: usize, k: usize) -> Result<Matrix> {
        let scales = |of: &mut Block, format: Format| -> Result<Tensor> {
            match format.scales(n, k) {
                Some((dtype, shape)) => of.tensor(dtype, &shape),
                None => unreachable!("formats of codes have scales"),
            }
        };
        let (dtype, shape) = format.data(n, k);
        Ok(match format {
            Format::F32 | Format::Bf16 => Matrix::dense(self.half(n, k)?)?,
            Format::Fp8Block => {
                Matrix::fp8(self.codes.tensor(dtype, &shape)?, scales(&mut self.scales, format)?)?
            }
            Format::Mxfp4 => {
                Matrix::mxfp4(self.codes.tensor(dtype, &shape)?, scales(&mut self.scales, format)?)?
            }
            Format::Nvfp4 => {
                Matrix::nvfp4(self.codes.tensor(dtype, &shape)?, scales(&mut self.codes, format)?, 1e-4)?
            }
        })
    }

    fn dense(&mut self, n: usize, k: usize) -> Result<Matrix> {
        self.matrix(self.formats.dense, n, k)
    }

    /// A vector of one value.
    fn flat(n: usize, value: f32) -> Result<Tensor> {
        Ok(Tensor::from_f32(vec![n], &vec![value; n])?)
    }

    /// Normal values times `scale`.
    fn normal(name: &str, shape: &[usize], scale: f32) -> Result<Tensor> {
        let mut stream = Stream::new(name);
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| stream.normal() * scale).collect();
        Ok(Tensor::from_f32(shape.to_vec(), &values)?)
    }

    fn hc(name: &str, outputs: usize, scales: usize, c: &ModelConfig) -> Result<Hc> {
        let width = c.hc_mult * c.hidden_size;
        Ok(Hc {
            fn_weight: Self::normal(name, &[outputs, width], (width as f32).sqrt().recip())?,
            base: Self::normal(name, &[outputs], 0.5)?,
            scale: Self::flat(scales, 1.0)?,
        })
    }

    fn compressor(&mut self, ratio: usize, groups: usize, dim: usize, hidden: usize) -> Result<Compressor> {
        Ok(Compressor {
            ape: Self::normal("ape", &[ratio, groups * dim], 0.1)?,
            wkv: Matrix::dense(self.half(groups * dim, hidden)?)?,
            wgate: Matrix::dense(self.half(groups * dim, hidden)?)?,
            norm: Self::flat(dim, 1.0)?,
        })
    }

    fn expert(&mut self, format: Format, c: &ModelConfig) -> Result<Expert> {
        let (hidden, inter) = (c.hidden_size, c.moe_intermediate_size);
        Ok(Expert {
            w1: self.matrix(format, inter, hidden)?,
            w2: self.matrix(format, hidden, inter)?,
            w3: self.matrix(format, inter, hidden)?,
        })
    }

    fn layer(&mut self, c: &ModelConfig, layer: usize) -> Result<LayerWeights> {
        let (class, hidden, dim) = (c.class(layer), c.hidden_size, c.head_dim);
        let (heads, outputs) = (c.num_attention_heads, (2 + c.hc_mult) * c.hc_mult);
        let ratio = c.ratio(layer) as usize;
        let mut ids = Stream::new("tid2eid");
        let (n, topk) = (c.n_routed_experts, c.num_experts_per_tok);
        let table = || {
            // Neighbours from a random one on, so that those of a token differ.
            let rows = (0..c.vocab_size).map(|_| ids.next() as usize % n);
            let values: Vec<i32> =
                rows.flat_map(|first| (0..topk).map(move |i| ((first + i) % n) as i32)).collect();
            Ok::<_, ShapedError>(Tensor::from_i32(vec![c.vocab_size, topk], &values)?)
        };
        Ok(LayerWeights {
            attn_norm: Self::flat(hidden, 1.0)?,
            ffn_norm: Self::flat(hidden, 1.0)?,
            hc_attn: Self::hc("hc_attn", outputs, 3, c)?,
            hc_ffn: Self::hc("hc_ffn", outputs, 3, c)?,
            wq_a: self.dense(c.q_lora_rank, hidden)?,
            q_norm: Self::flat(c.q_lora_rank, 1.0)?,
            wq_b: self.dense(heads * dim, c.q_lora_rank)?,
            wkv: self.dense(dim, hidden)?,
            kv_norm: Self::flat(dim, 1.0)?,
            wo_a: self.dense(c.o_groups * c.o_lora_rank, heads * dim / c.o_groups)?,
            wo_b: self.dense(hidden, c.o_groups * c.o_lora_rank)?,
            attn_sink: Self::normal("sinks", &[heads], 1.0)?,
            compressor: match class {
                LayerClass::Window => None,
                _ => Some(self.compressor(ratio, c.coff(layer), dim, hidden)?),
            },
            indexer: match class {
                LayerClass::Csa => Some(Indexer {
                    wq_b: self.dense(c.index_n_heads * c.index_head_dim, c.q_lora_rank)?,
                    weights_proj: self.half(c.index_n_heads, hidden)?,
                    compressor: self.compressor(ratio, c.coff(layer), c.index_head_dim, hidden)?,
                }),
                _ => None,
            },
            gate: self.half(n, hidden)?,
            gate_bias: if c.is_hash(layer) { None } else { Some(Self::normal("bias", &[n], 0.01)?) },
            tid2eid: c.is_hash(layer).then(table).transpose()?,
            experts: (0..n).map(|_| self.expert(self.formats.experts, c)).collect::<Result<_>>()?,
            shared: self.expert(self.formats.dense, c)?,
        })
    }
}

/// Weights for `c`. Layers of one class and one way of routing share their tensors.
///
/// # Errors
/// If a size does not divide into the groups of a format.
pub fn shaped(c: &ModelConfig, formats: Formats) -> Result<Weights> {
    let largest = [
        c.num_attention_heads * c.head_dim * c.q_lora_rank,
        c.o_groups * c.o_lora_rank * c.hidden_size,
        c.num_attention_heads * c.head_dim * c.o_lora_rank,
        c.hidden_size * c.moe_intermediate_size,
        c.index_n_heads * c.index_head_dim * c.q_lora_rank,
    ];
    let largest = largest.into_iter().max().unwrap_or(0);
    let halves = 2 * largest.max(c.vocab_size * c.hidden_size).max(2 * c.head_dim * c.hidden_size);
    // Room for many starts, so that hundreds of experts are all different.
    let spread = 2048 * STEP;
    let code = |byte: u64| if byte & 0x7f >= 0x60 { byte as u8 & 0x9f } else { byte as u8 };
    let mut high = Stream::new("halves");
    let mut odd = false;
    let half = move |byte: u64| {
        odd = !odd;
        match odd {
            true => byte as u8,
            false => (bf16::from_f32(high.normal() * 0.02) >> 8) as u8,
        }
    };
    let mut source = Source {
        codes: Block::new(largest + spread, code, "codes"),
        scales: Block::new(largest / 32 + spread, |byte| 119 + (byte % 4) as u8, "scales"),
        halves: Block::new(halves + spread, half, "halves"),
        formats,
    };
    let mut kinds: HashMap<(LayerClass, bool), LayerWeights> = HashMap::new();
    let mut layers = Vec::with_capacity(c.num_hidden_layers);
    for layer in 0..c.num_hidden_layers {
        let kind = (c.class(layer), c.is_hash(layer));
        let made = match kinds.entry(kind) {
            Entry::Occupied(made) => made.get().clone(),
            Entry::Vacant(new) => new.insert(source.layer(c, layer)?).clone(),
        };
        layers.push(made);
    }
    Ok(Weights {
        embed: source.half(c.vocab_size, c.hidden_size)?,
        norm: Source::flat(c.hidden_size, 1.0)?,
        head: source.half(c.vocab_size, c.hidden_size)?,
        hc_head: Source::hc("hc_head", c.hc_mult, 1, c)?,
        layers,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Preset;
    use super::*;

    #[test]
    fn every_shape_is_filled_and_layers_alike_are_one() {
        let c = Preset::FlashLike.config();
        let formats = Formats { dense: Format::Fp8Block, experts: Format::Mxfp4 };
        let weights = shaped(&c, formats).unwrap();
        assert_eq!(weights.layers.len(), c.num_hidden_layers);
        let (a, b) = (&weights.layers[4], &weights.layers[6]);
        assert_eq!((c.class(4), c.is_hash(4)), (c.class(6), c.is_hash(6)));
        assert_eq!(a.experts[3].w1.data.bytes_ptr(), b.experts[3].w1.data.bytes_ptr());
        assert_ne!(a.experts[3].w1.data.bytes_ptr(), a.experts[4].w1.data.bytes_ptr());
        assert_eq!(a.experts[0].w2.format, Format::Mxfp4);
        assert!(a.wq_a.data.bytes().iter().all(|code| code & 0x7f != 0x7f), "no NaN");
        let values = weights.embed.bf16().iter().map(|half| f32::from_bits(u32::from(*half) << 16));
        assert!(values.into_iter().all(|value| value.abs() < 1.0));
    }
}
