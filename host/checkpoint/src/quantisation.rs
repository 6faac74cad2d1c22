//! What the configuration says about how matrices are stored: `quantization_config` of `config.json`, in DeepSeek's form
//! and with what NVIDIA's ModelOpt adds for NVFP4, and ModelOpt's own `hf_quant_config.json`.
//!
//! The tensors carry their types too. Both are read, and where they differ the checkpoint is refused.

use std::collections::BTreeSet;

use hotseam_model::{ConfigError, FP8_BLOCK, Format, NVFP4_GROUP};
use serde_json::{Value, json};

use crate::fields::{Fields, shorten};
use crate::pattern::{covers, ends};

/// Formats of a matrix that is not quantised.
const DENSE: [Format; 2] = [Format::Bf16, Format::F32];

/// Lists of modules that are not stored in FP8, as different programs spell them.
const FP8_EXCEPT: [&str; 2] = ["modules_to_not_convert", "ignored_layers"];

/// Lists of modules that are not stored in NVFP4.
const NVFP4_EXCEPT: [&str; 2] = ["ignore", "exclude_modules"];

/// Part of the model that a matrix belongs to, as far as storage goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A projection of attention or of the shared expert.
    Linear,
    /// Grouped output projection: DeepSeek's conversion for its own inference code turns it to bf16 and leaves the
    /// configuration as it was.
    OutputA,
    /// A projection of a compressor: bf16 also in checkpoints of FP8.
    Compressor,
    /// A matrix of a routed expert.
    Expert,
}

/// Formats that the configuration allows for a matrix, and the field that says so.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stated {
    pub(crate) formats: Vec<Format>,
    pub(crate) field: String,
}

/// How matrices are stored, as the configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Quantisation {
    base: Option<Base>,
    nvfp4: Option<Nvfp4>,
}

/// Storage of what is not NVFP4.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Base {
    /// Whether projections are FP8; else they are not quantised.
    fp8: bool,
    /// Storage of routed experts, and the field that says so.
    experts: (Vec<Format>, String),
    /// Modules that are not quantised.
    except: Vec<String>,
}

/// Modules that are stored as NVFP4.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Nvfp4 {
    scope: Scope,
    /// Field that gives the scope.
    field: String,
    except: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Scope {
    /// Every matrix.
    All,
    /// Every routed expert.
    Experts,
    /// What the patterns cover.
    Modules(BTreeSet<String>),
}

impl Nvfp4 {
    fn names(&self, module: &str, role: Role) -> bool {
        match &self.scope {
            Scope::All => role != Role::Compressor,
            Scope::Experts => role == Role::Expert,
            Scope::Modules(patterns) => patterns.iter().any(|p| covers(p, module)),
        }
    }

    fn excludes(&self, module: &str) -> bool {
        self.except.iter().any(|p| covers(p, module))
    }
}

impl Quantisation {
    /// Reads `expert_dtype` and `quantization_config` of a whole `config.json`.
    pub(crate) fn read(config: &Fields) -> Result<Self, ConfigError> {
        let experts = expert_format(config)?;
        let Some(f) = config.object_or("quantization_config")? else { return Ok(Self::default()) };
        let inner = expert_format(&f)?;
        if let (Some((outer, _)), Some((inner, _))) = (&experts, &inner)
            && outer != inner
        {
            let expected = "the same as `quantization_config.expert_dtype`";
            return Err(config.error("expert_dtype", expected, text(config, "expert_dtype")));
        }
        let method = f.text_or("quant_method")?;
        let fp8 = match method {
            Some("fp8") => true,
            Some("modelopt" | "modelopt_fp4" | "nvfp4") => false,
            Some(other) => return Err(f.error("quant_method", "\"fp8\" or \"modelopt\"", other)),
            None => return Err(f.error("quant_method", "\"fp8\" or \"modelopt\"", "nothing")),
        };
        if fp8 {
            check_fp8(&f)?;
        }
        let nvfp4 = read_nvfp4(&f)?;
        if !fp8 && nvfp4.is_none() {
            return Err(f.error("quant_algo", "\"NVFP4\" or \"MIXED_PRECISION\"", "nothing"));
        }
        let mut except = Vec::new();
        for key in FP8_EXCEPT {
            except.extend(strings(&f, key)?.unwrap_or_default());
        }
        f.only("activation_scheme", &json!("dynamic"))?;
        f.finish(&["producer", "kv_cache_quant_algo", "kv_cache_scheme", "quant_library", "dequantize"])?;
        let unstated = || match fp8 {
            true => (vec![Format::Fp8Block], f.path("quant_method")),
            false => (DENSE.to_vec(), f.path("quant_method")),
        };
        let experts = inner.or(experts).unwrap_or_else(unstated);
        Ok(Self { base: Some(Base { fp8, experts, except }), nvfp4 })
    }

    /// Adds what `hf_quant_config.json` says; where both files say something it must be the same.
    pub(crate) fn add_modelopt(&mut self, file: &Value) -> Result<(), ConfigError> {
        let whole = || ConfigError::new("(whole file)", "a JSON object", shorten(file));
        let f = Fields::new(file.as_object().ok_or_else(whole)?, "");
        let inner =
            f.object_or("quantization")?.ok_or_else(|| f.error("quantization", "an object", "nothing"))?;
        f.finish(&["producer"])?;
        let found = read_nvfp4(&inner)?;
        inner.finish(&["kv_cache_quant_algo", "has_zero_point", "pre_quant_scale"])?;
        match (&self.nvfp4, found) {
            (Some(known), Some(found)) if known.scope != found.scope || known.except != found.except => {
                Err(inner.error(
                    "quant_algo",
                    "the same modules as `quantization_config` of config.json",
                    "others",
                ))
            }
            (None, Some(found)) => {
                self.nvfp4 = Some(found);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What is stated about a matrix; `None` if nothing is.
    pub(crate) fn stated(&self, module: &str, role: Role) -> Option<Stated> {
        let mut excluded = None;
        if let Some(nvfp4) = &self.nvfp4
            && nvfp4.names(module, role)
        {
            if !nvfp4.excludes(module) {
                return Some(Stated { formats: vec![Format::Nvfp4], field: nvfp4.field.clone() });
            }
            excluded = Some(nvfp4);
        }
        let Some(base) = &self.base else {
            // ModelOpt's file alone: it speaks of NVFP4 only, and leaves the rest as the source was.
            return excluded.map(|n| Stated {
                formats: vec![Format::Bf16, Format::F32, Format::Fp8Block, Format::Mxfp4],
                field: format!("{} and its exceptions", n.field),
            });
        };
        if base.except.iter().any(|p| covers(p, module) || ends(p, module)) {
            return Some(Stated { formats: DENSE.to_vec(), field: "modules_to_not_convert".to_owned() });
        }
        let (mut formats, field) = match role {
            Role::Expert => base.experts.clone(),
            _ if base.fp8 => (vec![Format::Fp8Block], "quantization_config.quant_method".to_owned()),
            _ => (DENSE.to_vec(), "quantization_config.quant_method".to_owned()),
        };
        // Compressors and wo_a appear in both forms; a list of exceptions allows what it names to be left alone.
        let either = matches!(role, Role::OutputA | Role::Compressor) || excluded.is_some();
        if either && formats[0] != DENSE[0] {
            formats.extend(DENSE);
        }
        Some(Stated { formats, field })
    }
}

/// `expert_dtype`, in the top level or inside `quantization_config`.
fn expert_format(f: &Fields) -> Result<Option<(Vec<Format>, String)>, ConfigError> {
    let formats = match f.text_or("expert_dtype")? {
        None => return Ok(None),
        Some("fp4") => vec![Format::Mxfp4],
        Some("fp8") => vec![Format::Fp8Block],
        Some("bf16" | "bfloat16") => DENSE.to_vec(),
        Some(other) => return Err(f.error("expert_dtype", "\"fp4\", \"fp8\" or \"bf16\"", other)),
    };
    Ok(Some((formats, f.path("expert_dtype"))))
}

/// The one form of FP8 that is read: E4M3 in blocks of 128 x 128 with UE8M0 scales.
fn check_fp8(f: &Fields) -> Result<(), ConfigError> {
    let wanted = [
        ("fmt", json!("e4m3")),
        ("weight_block_size", json!([FP8_BLOCK, FP8_BLOCK])),
        ("scale_fmt", json!("ue8m0")),
    ];
    for (key, value) in wanted {
        if f.get(key).is_none() {
            return Err(f.error(key, value.to_string(), "nothing"));
        }
        f.only(key, &value)?;
    }
    Ok(())
}

/// ModelOpt's fields; `None` if they say nothing of NVFP4.
fn read_nvfp4(f: &Fields) -> Result<Option<Nvfp4>, ConfigError> {
    let algo = f.text_or("quant_algo")?;
    let moe = f.text_or("moe_quant_algo")?;
    let layers = f.object_or("quantized_layers")?;
    f.only("group_size", &json!(NVFP4_GROUP))?;
    if let Some(groups) = f.object_or("config_groups")? {
        check_groups(&groups)?;
    }
    let mut except = BTreeSet::new();
    for key in NVFP4_EXCEPT {
        except.extend(strings(f, key)?.unwrap_or_default());
    }
    if let Some(other) = moe.filter(|algo| *algo != "NVFP4") {
        return Err(f.error("moe_quant_algo", "\"NVFP4\"", other));
    }
    let modules = layers.map(|l| read_layers(&l)).transpose()?;
    let (scope, field) = match (algo, modules, moe) {
        (Some("NVFP4"), None, _) => (Scope::All, "quant_algo"),
        (Some("MIXED_PRECISION" | "NVFP4"), Some(modules), _) => {
            (Scope::Modules(modules), "quantized_layers")
        }
        (Some("MIXED_PRECISION") | None, None, Some(_)) => (Scope::Experts, "moe_quant_algo"),
        (Some("MIXED_PRECISION"), None, None) => {
            return Err(f.error("quantized_layers", "an object, for MIXED_PRECISION", "nothing"));
        }
        (None, Some(_), _) => return Err(f.error("quant_algo", "\"MIXED_PRECISION\"", "nothing")),
        (None, None, None) => return Ok(None),
        (Some(other), ..) => return Err(f.error("quant_algo", "\"NVFP4\" or \"MIXED_PRECISION\"", other)),
    };
    Ok(Some(Nvfp4 { scope, field: f.path(field), except }))
}

/// `quantized_layers`: pattern to algorithm, all of them NVFP4.
fn read_layers(layers: &Fields) -> Result<BTreeSet<String>, ConfigError> {
    let mut modules = BTreeSet::new();
    for pattern in layers.keys() {
        let Some(one) = layers.object_or(pattern)? else { continue };
        one.only("quant_algo", &json!("NVFP4"))?;
        if one.get("quant_algo").is_none() {
            return Err(one.error("quant_algo", "\"NVFP4\"", "nothing"));
        }
        one.only("group_size", &json!(NVFP4_GROUP))?;
        one.finish(&["kv_cache_quant_algo"])?;
        modules.insert(pattern.to_owned());
    }
    Ok(modules)
}

/// `config_groups` repeats the numbers for other programs; its `targets` name classes of PyTorch and are not used.
fn check_groups(groups: &Fields) -> Result<(), ConfigError> {
    for name in groups.keys() {
        let Some(group) = groups.object_or(name)? else { continue };
        if let Some(weights) = group.object_or("weights")? {
            weights.only("num_bits", &json!(4))?;
            weights.only("type", &json!("float"))?;
            weights.only("group_size", &json!(NVFP4_GROUP))?;
        }
    }
    Ok(())
}

fn strings(f: &Fields, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
    let Some(list) = f.list_or(key)? else { return Ok(None) };
    let text = |(i, value): (usize, &Value)| {
        let found = value.as_str().map(str::to_owned);
        found.ok_or_else(|| f.error(&format!("{key}[{i}]"), "a module pattern", shorten(value)))
    };
    list.iter().enumerate().map(text).collect::<Result<_, _>>().map(Some)
}

fn text(f: &Fields, key: &str) -> String {
    f.get(key).map_or("nothing".to_owned(), shorten)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> Result<Quantisation, ConfigError> {
        Quantisation::read(&Fields::new(config.as_object().unwrap(), ""))
    }

    fn official(changes: Value) -> Value {
        let mut config = json!({ "expert_dtype": "fp4", "quantization_config": {
            "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "scale_fmt": "ue8m0",
            "activation_scheme": "dynamic" } });
        let map = config["quantization_config"].as_object_mut().unwrap();
        for (key, value) in changes.as_object().unwrap() {
            map.insert(key.clone(), value.clone());
        }
        map.retain(|_, value| !value.is_null());
        config
    }

    fn nvidia() -> Value {
        official(json!({
            "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": null,
            "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
            "producer": { "name": "modelopt", "version": "x" },
            "quantized_layers": { "layers.1.ffn.experts": { "quant_algo": "NVFP4", "group_size": 16 } },
            "config_groups": { "group_0": { "targets": ["Linear"],
                "weights": { "dynamic": false, "num_bits": 4, "type": "float", "group_size": 16 } } },
        }))
    }

    fn formats(q: &Quantisation, module: &str, role: Role) -> Vec<Format> {
        q.stated(module, role).unwrap().formats
    }

    #[test]
    fn the_official_form() {
        let q = read(official(json!({}))).unwrap();
        assert_eq!(formats(&q, "layers.0.attn.wq_a", Role::Linear), [Format::Fp8Block]);
        assert_eq!(formats(&q, "layers.0.ffn.experts.1.w1", Role::Expert), [Format::Mxfp4]);
        assert_eq!(q.stated("layers.0.ffn.experts.1.w1", Role::Expert).unwrap().field, "expert_dtype");
        let either = [Format::Fp8Block, Format::Bf16, Format::F32];
        assert_eq!(formats(&q, "layers.0.attn.wo_a", Role::OutputA), either);
        assert_eq!(formats(&q, "layers.2.attn.compressor.wkv", Role::Compressor), either);
        let q = read(official(json!({ "modules_to_not_convert": ["layers.0.attn", "wo_b"] }))).unwrap();
        assert_eq!(formats(&q, "layers.0.attn.wq_a", Role::Linear), DENSE);
        assert_eq!(formats(&q, "layers.1.attn.wo_b", Role::Linear), DENSE);
        assert_eq!(formats(&q, "layers.1.attn.wq_a", Role::Linear), [Format::Fp8Block]);
        assert_eq!(read(json!({ "expert_dtype": "fp4" })).unwrap().stated("x", Role::Expert), None);
    }

    #[test]
    fn the_form_of_modelopt() {
        let mut q = read(nvidia()).unwrap();
        assert_eq!(formats(&q, "layers.1.ffn.experts.0.w2", Role::Expert), [Format::Nvfp4]);
        assert_eq!(
            formats(&q, "layers.0.ffn.experts.0.w2", Role::Expert),
            [Format::Mxfp4],
            "not in the list"
        );
        assert_eq!(formats(&q, "layers.1.attn.wq_a", Role::Linear), [Format::Fp8Block]);
        let mut file = json!({ "producer": {}, "quantization": { "quant_algo": "MIXED_PRECISION", "group_size": 16,
            "kv_cache_quant_algo": null,
            "quantized_layers": { "layers.1.ffn.experts": { "quant_algo": "NVFP4", "group_size": 16 } },
            "exclude_modules": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"] } });
        let before = q.clone();
        q.add_modelopt(&file).unwrap();
        assert_eq!(q, before);
        let mut alone = Quantisation::default();
        alone.add_modelopt(&file).unwrap();
        assert_eq!(formats(&alone, "layers.1.ffn.experts.0.w2", Role::Expert), [Format::Nvfp4]);
        assert_eq!(alone.stated("layers.1.attn.wq_a", Role::Linear), None);
        file["quantization"]["exclude_modules"] = json!(["head"]);
        assert_eq!(q.add_modelopt(&file).unwrap_err().field, "quantization.quant_algo");

        let q = read(json!({ "quantization_config": { "quant_method": "modelopt", "quant_algo": "NVFP4",
            "ignore": ["*.attn.*"] } }))
        .unwrap();
        assert_eq!(formats(&q, "layers.1.ffn.experts.0.w2", Role::Expert), [Format::Nvfp4]);
        assert_eq!(formats(&q, "layers.1.attn.wq_a", Role::Linear), DENSE);
    }

    #[test]
    fn excluded_experts_may_stay_as_they_were() {
        let mut config = nvidia();
        config["quantization_config"]["ignore"] = json!(["layers.1.ffn.experts.0.*"]);
        let q = read(config).unwrap();
        let formats_of = |module| formats(&q, module, Role::Expert);
        assert_eq!(formats_of("layers.1.ffn.experts.0.w1"), [Format::Mxfp4, Format::Bf16, Format::F32]);
        assert_eq!(formats_of("layers.1.ffn.experts.1.w1"), [Format::Nvfp4]);
    }

    #[test]
    fn other_methods_and_numbers_are_refused() {
        for (change, field) in [
            (json!({ "quant_method": "compressed-tensors" }), "quant_method"),
            (json!({ "quant_method": null }), "quant_method"),
            (json!({ "fmt": "e5m2" }), "fmt"),
            (json!({ "weight_block_size": [32, 32] }), "weight_block_size"),
            (json!({ "weight_block_size": null }), "weight_block_size"),
            (json!({ "scale_fmt": "float" }), "scale_fmt"),
            (json!({ "scale_fmt": null }), "scale_fmt"),
            (json!({ "activation_scheme": "static" }), "activation_scheme"),
            (json!({ "expert_dtype": "int4" }), "expert_dtype"),
            (json!({ "bits": 4 }), "bits"),
            (json!({ "quant_algo": "W4A16_AWQ" }), "quant_algo"),
            (json!({ "quant_algo": "MIXED_PRECISION" }), "quantized_layers"),
            (json!({ "quantized_layers": {} }), "quant_algo"),
            (json!({ "moe_quant_algo": "MXFP8" }), "moe_quant_algo"),
            (json!({ "group_size": 32 }), "group_size"),
            (json!({ "ignore": ["a", 3] }), "ignore[1]"),
            (
                json!({ "config_groups": { "g": { "weights": { "num_bits": 8 } } } }),
                "config_groups.g.weights.num_bits",
            ),
            (
                json!({ "quant_algo": "MIXED_PRECISION", "quantized_layers": { "a": { "quant_algo": "FP8" } } }),
                "quantized_layers.a.quant_algo",
            ),
        ] {
            let error = read(official(change)).unwrap_err();
            assert_eq!(error.field, format!("quantization_config.{field}"), "{error}");
        }
        assert_eq!(read(official(json!({ "expert_dtype": "fp8" }))).unwrap_err().field, "expert_dtype");
        let modelopt = json!({ "quantization_config": { "quant_method": "modelopt" } });
        assert_eq!(read(modelopt).unwrap_err().field, "quantization_config.quant_algo");
    }
}
