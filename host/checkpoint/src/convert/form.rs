//! Storage forms that a checkpoint can be written in, and the configuration that goes with each.

use std::fmt;
use std::str::FromStr;

use hotseam_model::{DType, FP8_BLOCK, Format, Matrix, NVFP4_GROUP};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use crate::quantisation::Role;
use crate::random::NamedTensor;

/// A form in which projections and experts are stored. Everything else stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// No quantisation: bf16.
    Bf16,
    /// DeepSeek's: projections FP8 in blocks, routed experts MXFP4.
    Fp8Mxfp4,
    /// NVIDIA's: projections FP8 in blocks, routed experts NVFP4.
    Nvfp4,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::Fp8Mxfp4, Self::Nvfp4];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp8Mxfp4 => "fp8-mxfp4",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// Format of a matrix; `stored` is what it has now.
    pub(crate) fn format(self, module: &str, role: Role, stored: Format) -> Format {
        match (self, role) {
            (Self::Bf16, _) => Format::Bf16,
            // Compressors are not quantised in any published form.
            (_, Role::Compressor) if stored == Format::F32 => Format::F32,
            (_, Role::Compressor) => Format::Bf16,
            (_, Role::Linear | Role::OutputA) => Format::Fp8Block,
            // NVIDIA leaves multi-token prediction as DeepSeek published it.
            (Self::Nvfp4, Role::Expert) if !module.starts_with("mtp.") => Format::Nvfp4,
            (_, Role::Expert) => Format::Mxfp4,
        }
    }

    /// `config.json` with the fields that state this form in place of those that it had.
    pub fn config(self, config: &Value) -> Value {
        let mut config = config.clone();
        let Some(map) = config.as_object_mut() else { return config };
        let layers = map.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
        map.shift_remove("quantization_config");
        map.shift_remove("expert_dtype");
        if self == Self::Bf16 {
            return config;
        }
        let mut quantization = json!({
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        });
        if let (Self::Nvfp4, Some(fields)) = (self, quantization.as_object_mut()) {
            let one = json!({ "quant_algo": "NVFP4", "group_size": NVFP4_GROUP });
            let modules: Map<String, Value> =
                (0..layers).map(|layer| (format!("layers.{layer}.ffn.experts"), one.clone())).collect();
            let more = json!({
                "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "kv_cache_quant_algo": null,
                "group_size": NVFP4_GROUP, "quantized_layers": modules,
                "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
            });
            fields.extend(more.as_object().cloned().unwrap_or_default());
        }
        map.insert("expert_dtype".to_owned(), json!("fp4"));
        map.insert("quantization_config".to_owned(), quantization);
        config
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Form {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|t| t.name() == s)
            .ok_or_else(|| format!("expected one of {known}, found `{s}`"))
    }
}

/// Element type and shape of each tensor that stores a matrix `[n, k]`, with its name.
pub(crate) fn layout(module: &str, format: Format, n: usize, k: usize) -> Vec<(String, Dtype, Vec<usize>)> {
    let (_, data) = format.data(n, k);
    let weights = match format {
        Format::F32 => Dtype::F32,
        Format::Bf16 => Dtype::BF16,
        Format::Fp8Block => Dtype::F8_E4M3,
        Format::Mxfp4 => Dtype::I8, // DeepSeek's container of two codes
        Format::Nvfp4 => Dtype::U8, // ModelOpt's
    };
    let mut parts = vec![(format!("{module}.weight"), weights, data.to_vec())];
    if let Some((dtype, shape)) = format.scales(n, k) {
        let (suffix, dtype) = match dtype {
            DType::E4m3 => ("weight_scale", Dtype::F8_E4M3),
            _ => ("scale", Dtype::F8_E8M0),
        };
        parts.push((format!("{module}.{suffix}"), dtype, shape.to_vec()));
    }
    if format == Format::Nvfp4 {
        parts.push((format!("{module}.weight_scale_2"), Dtype::F32, Vec::new()));
    }
    parts
}

/// The bytes of a matrix, part by part in the order of [`layout`]; f32 and bf16 are little-endian.
pub(crate) fn parts(matrix: &Matrix) -> Vec<Vec<u8>> {
    let mut data = vec![matrix.data.bytes().to_vec()];
    data.extend(matrix.scales.iter().map(|scales| scales.bytes().to_vec()));
    if matrix.format == Format::Nvfp4 {
        data.push(matrix.global_scale.to_le_bytes().to_vec());
    }
    data
}

/// The tensors that store a matrix.
pub(crate) fn tensors(module: &str, matrix: &Matrix) -> Vec<NamedTensor> {
    let all = layout(module, matrix.format, matrix.n, matrix.k).into_iter().zip(parts(matrix));
    all.map(|((name, dtype, shape), data)| NamedTensor { name, dtype, shape, data }).collect()
}
