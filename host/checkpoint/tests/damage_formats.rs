//! Damaged checkpoints of the packed formats: codes that are no numbers, parts that are missing or do not fit, and
//! configurations that contradict the tensors.

mod common;

use common::Files;
use hotseam_checkpoint::CheckpointError as E;
use hotseam_checkpoint::random::NamedTensor;
use hotseam_model::MatrixError;
use safetensors::Dtype;
use serde_json::{Value, json};

const FP8: &str = "layers.0.attn.wo_b";
const MXFP4: &str = "layers.0.ffn.experts.1.w1";
const NVFP4: &str = "layers.1.ffn.experts.1.w2";

fn part(module: &str, suffix: &str) -> String {
    format!("{module}.{suffix}")
}

#[test]
fn the_undamaged_files_read() {
    let files = Files::formats();
    files.write();
    assert_eq!(files.read().unwrap().weights.layers.len(), 2);
}

#[test]
fn codes_that_are_no_numbers_are_refused() {
    for (module, suffix, code, index, says) in [
        (FP8, "weight", 0x7f, 160 * 144 - 1, "expected a number, found NaN (code 0x7f)"),
        (FP8, "weight", 0xff, 5000, "found NaN (code 0xff)"),
        (FP8, "scale", 255, 3, "at most 2^119 (code 246), found NaN"),
        (FP8, "scale", 247, 0, "found 1.329228e36 (code 0xf7)"),
        (MXFP4, "scale", 255, 77, "at most 2^125 (code 252), found NaN"),
        (NVFP4, "weight_scale", 0x7f, 319, "a scale from 0 to 448, found NaN"),
        (NVFP4, "weight_scale", 0xff, 2, "a scale from 0 to 448, found NaN"),
        (NVFP4, "weight_scale", 0xb8, 0, "found -1e0"),
    ] {
        let mut files = Files::formats();
        let name = part(module, suffix);
        files.tensor(&name).data[index] = code;
        let error = files.fails();
        assert!(
            matches!(&error, E::Value { name: at, index: i, .. } if *at == name && *i == index),
            "{name}: {error}"
        );
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn factors_that_are_none_are_refused() {
    for factor in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX] {
        let mut files = Files::formats();
        let name = part(NVFP4, "weight_scale_2");
        files.tensor(&name).data = factor.to_le_bytes().to_vec();
        let error = files.fails();
        assert!(matches!(&error, E::Value { name: at, index: 0, .. } if *at == name), "{factor}: {error}");
    }
}

#[test]
fn a_part_without_its_partner_is_named() {
    for (gone, named, partner) in [
        (part(FP8, "scale"), part(FP8, "weight"), part(FP8, "scale")),
        (part(FP8, "weight"), part(FP8, "scale"), part(FP8, "weight")),
        (part(MXFP4, "weight"), part(MXFP4, "scale"), part(MXFP4, "weight")),
        (part(NVFP4, "weight"), part(NVFP4, "weight_scale"), part(NVFP4, "weight")),
        (part(NVFP4, "weight_scale_2"), part(NVFP4, "weight"), part(NVFP4, "weight_scale_2")),
    ] {
        let mut files = Files::formats();
        files.remove(&gone);
        let error = files.fails();
        assert!(
            matches!(&error, E::Alone { name, partner: p } if *name == named && *p == partner),
            "without {gone}: {error}"
        );
    }
    // Packed codes alone could be either format.
    let mut files = Files::formats();
    files.remove(&part(MXFP4, "scale"));
    let error = files.fails().to_string();
    assert!(error.contains(&part(MXFP4, "weight")) && error.contains("(MXFP4) or"), "{error}");
    let mut files = Files::formats();
    files.remove(&part(NVFP4, "weight_scale"));
    assert!(files.fails().to_string().contains("experts.1.w2.weight_scale` (NVFP4)"));
    // All parts of a matrix gone: an ordinary missing tensor.
    let mut files = Files::formats();
    files.remove(&part(FP8, "weight"));
    files.remove(&part(FP8, "scale"));
    assert!(matches!(files.fails(), E::MissingTensor { name, .. } if name == part(FP8, "weight")));
}

fn bf16(name: &str, shape: &[usize]) -> NamedTensor {
    let data = vec![0; 2 * shape.iter().product::<usize>()];
    NamedTensor { name: name.to_owned(), dtype: Dtype::BF16, shape: shape.to_vec(), data }
}

#[test]
fn scales_that_the_weights_do_not_have_are_refused() {
    // An FP8 scale beside bf16 weights; wo_a may be bf16.
    let mut files = Files::formats();
    *files.tensor("layers.0.attn.wo_a.weight") = bf16("layers.0.attn.wo_a.weight", &[144, 16]);
    let error = files.fails();
    assert!(matches!(&error, E::Needless { name, .. } if name == "layers.0.attn.wo_a.scale"), "{error}");
    files.remove("layers.0.attn.wo_a.scale");
    files.write();
    files.read().unwrap();
    // Scales of both FP4 formats on one matrix.
    let mut files = Files::formats();
    let mut twin = files.tensor(&part(MXFP4, "scale")).clone();
    twin.name = part(NVFP4, "scale");
    files.tensors.push(twin);
    let error = files.fails();
    assert!(matches!(&error, E::Needless { name, .. } if *name == part(NVFP4, "scale")), "{error}");
    // Scales of something that is no matrix with a format.
    let mut files = Files::formats();
    let mut stray = files.tensor(&part(FP8, "scale")).clone();
    stray.name = "layers.0.ffn.gate.scale".to_owned();
    files.tensors.push(stray);
    assert!(matches!(files.fails(), E::ExtraTensor { name, .. } if name == "layers.0.ffn.gate.scale"));
}

#[test]
fn shapes_and_types_that_do_not_fit_are_refused() {
    type Change = fn(&mut NamedTensor);
    let shapes: [(String, Change); 6] = [
        (part(FP8, "weight"), |t| t.shape.reverse()),
        (part(FP8, "scale"), |t| t.shape = vec![4, 1]),
        (part(MXFP4, "scale"), |t| t.shape.reverse()),
        (part(MXFP4, "weight"), |t| t.shape.reverse()),
        // 16 scales of a row taken for 32: as many bytes, another shape.
        (part(NVFP4, "weight_scale"), |t| t.shape = vec![t.shape[0] * 2, t.shape[1] / 2]),
        (part(NVFP4, "weight_scale_2"), |t| t.shape = vec![1, 1]),
    ];
    for (name, change) in shapes {
        let mut files = Files::formats();
        change(files.tensor(&name));
        let error = files.fails();
        assert!(matches!(&error, E::Shape { name: at, .. } if *at == name), "{name}: {error}");
    }
    let types = [
        (part(FP8, "weight"), Dtype::F8_E5M2),
        (part(FP8, "scale"), Dtype::F8_E4M3),
        (part(MXFP4, "scale"), Dtype::I8),
        (part(NVFP4, "weight_scale"), Dtype::F8_E8M0),
        (part(NVFP4, "weight_scale_2"), Dtype::I32),
        (part(NVFP4, "input_scale"), Dtype::U32),
    ];
    for (name, dtype) in types {
        let mut files = Files::formats();
        files.tensor(&name).dtype = dtype;
        let error = files.fails();
        assert!(
            matches!(&error, E::DType { name: at, found, .. } if *at == name && *found == dtype.to_string()),
            "{name}: {error}"
        );
    }
    // A geometry with rows that the groups do not divide.
    let mut files = Files::formats();
    files.config["moe_intermediate_size"] = json!(24);
    let error = files.fails();
    assert!(
        matches!(&error, E::Shape { .. } | E::Matrix { source: MatrixError::Group { .. }, .. }),
        "{error}"
    );
}

#[test]
fn configurations_that_contradict_the_tensors_are_refused() {
    type Change = fn(&mut Value);
    let cases: [(Change, &str, &str, &str); 6] = [
        (
            |c| c["expert_dtype"] = json!("fp8"),
            "layers.0.ffn.experts.0.w1.weight",
            "stored as mxfp4",
            "`expert_dtype` of the configuration says fp8",
        ),
        (
            |c| {
                c["quantization_config"]["quantized_layers"] =
                    json!({ "layers.*.ffn.experts": { "quant_algo": "NVFP4" } })
            },
            "layers.0.ffn.experts.0.w1.weight",
            "stored as mxfp4",
            "`quantization_config.quantized_layers` of the configuration says nvfp4",
        ),
        (
            |c| c["quantization_config"]["ignore"] = json!(["layers.1.ffn.experts.1.*"]),
            "layers.1.ffn.experts.1.w1.weight",
            "stored as nvfp4",
            "says mxfp4 or bf16 or f32",
        ),
        (
            |c| c["quantization_config"]["modules_to_not_convert"] = json!(["wkv"]),
            "layers.0.attn.wkv.weight",
            "stored as fp8",
            "`modules_to_not_convert` of the configuration says bf16 or f32",
        ),
        (
            |c| {
                c["quantization_config"] = json!({ "quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                    "ignore": ["*.attn.*"] });
            },
            "layers.0.attn.wq_a.weight",
            "stored as fp8",
            "says bf16 or f32",
        ),
        (
            |c| {
                c["quantization_config"] = json!({ "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
                    "weight_block_size": [128, 128] });
            },
            "layers.1.ffn.experts.0.w1.weight",
            "stored as nvfp4",
            "`expert_dtype` of the configuration says mxfp4",
        ),
    ];
    for (change, name, found, stated) in cases {
        let mut files = Files::formats();
        change(&mut files.config);
        let error = files.fails();
        assert!(matches!(&error, E::Contradiction { name: at, .. } if at == name), "{name}: {error}");
        assert!(error.to_string().contains(found) && error.to_string().contains(stated), "{error}");
    }
}

#[test]
fn unquantised_experts_need_a_list_that_names_them() {
    let unquantise = |files: &mut Files| {
        for (w, shape) in [("w1", [32, 160]), ("w2", [160, 32]), ("w3", [32, 160])] {
            let module = format!("layers.1.ffn.experts.0.{w}");
            for suffix in ["weight_scale", "weight_scale_2", "input_scale"] {
                files.remove(&part(&module, suffix));
            }
            *files.tensor(&part(&module, "weight")) = bf16(&part(&module, "weight"), &shape);
        }
    };
    let mut files = Files::formats();
    unquantise(&mut files);
    let error = files.fails();
    assert!(
        matches!(&error, E::Contradiction { name, .. } if name == "layers.1.ffn.experts.0.w1.weight"),
        "{error}"
    );
    files.config["quantization_config"]["ignore"] = json!(["layers.1.ffn.experts.0.*", "*.attn.*"]);
    files.write();
    files.read().unwrap();
    // Without a statement the tensors speak for themselves.
    files.config.as_object_mut().unwrap().remove("quantization_config");
    files.write();
    files.read().unwrap();
}

#[test]
fn modelopts_own_file_is_read_and_must_agree() {
    let name = "hf_quant_config.json";
    let statement = |layers: Value| {
        json!({ "producer": { "name": "modelopt" }, "quantization": { "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": null, "group_size": 16, "quantized_layers": layers,
            "exclude_modules": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"] } })
    };
    let one = json!({ "quant_algo": "NVFP4", "group_size": 16 });
    let files = Files::formats();
    files.write();
    let put = |value: &Value| std::fs::write(files.file(name), value.to_string()).unwrap();
    put(&statement(json!({ "layers.1.ffn.experts": one })));
    files.read().unwrap();
    put(&statement(json!({ "layers.0.ffn.experts": one })));
    let error = files.read().unwrap_err();
    assert!(matches!(&error, E::Config { path, .. } if *path == files.file(name)), "{error}");
    std::fs::write(files.file(name), "{").unwrap();
    assert!(matches!(files.read().unwrap_err(), E::Malformed { path, .. } if path == files.file(name)));

    // Alone, it states the experts of its layers and nothing else.
    let mut files = Files::formats();
    files.config.as_object_mut().unwrap().remove("quantization_config");
    files.write();
    std::fs::write(files.file(name), statement(json!({ "layers.0.ffn.experts": one })).to_string()).unwrap();
    let error = files.read().unwrap_err();
    assert!(
        matches!(&error, E::Contradiction { name, .. } if name == "layers.0.ffn.experts.0.w1.weight"),
        "{error}"
    );
}

#[test]
fn progress_reaches_every_tensor() {
    let files = Files::formats();
    files.write();
    let calls = std::cell::RefCell::new(Vec::new());
    hotseam_checkpoint::read(files.dir.path(), |done, total| calls.borrow_mut().push((done, total))).unwrap();
    let total = files.tensors.iter().filter(|t| !t.name.starts_with("mtp.")).count();
    let expected: Vec<(usize, usize)> = (1..=total).map(|done| (done, total)).collect();
    assert_eq!(calls.into_inner(), expected);
}

/// Any damaged byte of a header or of scales is an error or harmless, and none panics.
#[test]
fn random_damage_never_panics() {
    let files = Files::formats();
    files.write();
    let mut state = 11u64;
    let mut refused = 0;
    for round in 0..200 {
        let path = files.shard(1 + round % 2);
        let whole = std::fs::read(&path).unwrap();
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let limit = if round % 4 < 2 { 6000 } else { whole.len() };
        let mut bytes = whole.clone();
        bytes[(state >> 33) as usize % limit] ^= 1 << (state >> 61);
        std::fs::write(&path, bytes).unwrap();
        refused += usize::from(files.read().is_err());
        std::fs::write(&path, whole).unwrap();
    }
    files.read().unwrap();
    assert!(refused > 50, "only {refused} of 200 were refused");
}
