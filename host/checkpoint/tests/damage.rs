//! Damaged checkpoints: every one is refused with a typed error that names the culprit, and none panics.

mod common;

use std::fs;

use common::Files;
use hotseam_checkpoint::CheckpointError as E;
use safetensors::Dtype;

/// A name for messages, and a change to a file's text.
type Edit = (&'static str, fn(String) -> String);

#[test]
fn a_missing_shard_is_named() {
    let tiny = Files::tiny();
    tiny.write();
    fs::remove_file(tiny.shard(2)).unwrap();
    let error = tiny.read().unwrap_err();
    assert!(
        matches!(&error, E::MissingShard { path, tensors, .. } if *path == tiny.shard(2) && *tensors > 10),
        "{error}"
    );
}

#[test]
fn an_empty_directory_says_what_is_expected() {
    let tiny = Files::tiny();
    assert!(matches!(tiny.read().unwrap_err(), E::Io { path, .. } if path.ends_with("config.json")));
    fs::write(tiny.file("config.json"), tiny.config.to_string()).unwrap();
    let error = tiny.read().unwrap_err();
    assert!(
        matches!(error, E::NoWeights { .. }) && error.to_string().contains("model.safetensors"),
        "{error}"
    );
}

#[test]
fn missing_and_extra_tensors_are_named() {
    let mut tiny = Files::tiny();
    tiny.tensors.retain(|t| t.name != "layers.1.attn.indexer.wq_b.weight");
    assert!(
        matches!(tiny.fails(), E::MissingTensor { name, .. } if name == "layers.1.attn.indexer.wq_b.weight")
    );

    let mut tiny = Files::tiny();
    tiny.tensor("layers.2.attn.compressor.ape").name = "layers.2.attn.compressor.aqe".to_owned();
    let error = tiny.fails();
    assert!(
        matches!(&error, E::MissingTensor { name, hint: Some(hint) }
            if name == "layers.2.attn.compressor.ape" && hint == "layers.2.attn.compressor.aqe"),
        "{error}"
    );

    let mut tiny = Files::tiny();
    let mut extra = tiny.tensor("norm.weight").clone();
    extra.name = "layers.7.attn_norm.weight".to_owned();
    tiny.tensors.push(extra);
    assert!(matches!(tiny.fails(), E::ExtraTensor { name, count: 1 } if name == "layers.7.attn_norm.weight"));
}

#[test]
fn one_name_in_two_shards_is_refused() {
    let mut tiny = Files::tiny();
    let twin = tiny.tensors[0].clone();
    tiny.tensors.push(twin);
    assert!(matches!(tiny.fails(), E::DuplicateTensor { name, .. } if name == "embed.weight"));
}

#[test]
fn a_wrong_shape_is_refused_even_with_the_same_size() {
    let mut tiny = Files::tiny();
    tiny.tensor("layers.0.attn.wq_a.weight").shape.reverse();
    let error = tiny.fails();
    assert!(
        matches!(&error, E::Shape { name, expected, found }
            if name == "layers.0.attn.wq_a.weight" && *expected == [16, 32] && *found == [32, 16]),
        "{error}"
    );
    let mut tiny = Files::tiny();
    tiny.config["hidden_size"] = 16.into();
    assert!(matches!(tiny.fails(), E::Shape { name, .. } if name == "embed.weight"));
}

#[test]
fn element_types_that_are_not_computed_with_are_refused() {
    for dtype in [Dtype::F16, Dtype::I16] {
        for (name, says) in [
            ("layers.0.attn.wkv.weight", "convert the checkpoint first"),
            ("embed.weight", "only projections"),
        ] {
            let mut tiny = Files::tiny();
            tiny.tensor(name).dtype = dtype;
            let error = tiny.fails();
            assert!(
                matches!(&error, E::DType { name: at, found, .. } if at == name && *found == dtype.to_string()),
                "{error}"
            );
            assert!(error.to_string().contains(says), "{error}");
        }
    }
    let mut tiny = Files::tiny();
    tiny.tensor("layers.0.ffn.gate.tid2eid").dtype = Dtype::F64;
    assert!(matches!(tiny.fails(), E::DType { name, .. } if name == "layers.0.ffn.gate.tid2eid"));
}

#[test]
fn experts_out_of_range_are_refused() {
    for (bad, index) in [(4i64, 7usize), (-1, 0), (i64::MAX, 127), (1 << 32, 5)] {
        let mut tiny = Files::tiny();
        let t = tiny.tensor("layers.0.ffn.gate.tid2eid");
        t.data[8 * index..8 * index + 8].copy_from_slice(&bad.to_le_bytes());
        let error = tiny.fails();
        assert!(
            matches!(&error, E::Value { name, index: at, expected, found }
                if name == "layers.0.ffn.gate.tid2eid" && *at == index && expected == "0 to 3" && *found == bad.to_string()),
            "{error}"
        );
    }
}

#[test]
fn values_that_are_not_finite_are_refused() {
    let mut tiny = Files::tiny();
    let nan = 0x7fc0u16.to_le_bytes();
    tiny.tensor("layers.1.attn_norm.weight").data[6..8].copy_from_slice(&nan);
    assert!(matches!(tiny.fails(), E::Value { name, index: 3, .. } if name == "layers.1.attn_norm.weight"));
    let mut tiny = Files::tiny();
    tiny.tensor("hc_head_scale").data.copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert!(matches!(tiny.fails(), E::Value { name, index: 0, .. } if name == "hc_head_scale"));
}

#[test]
fn every_truncation_is_refused() {
    let tiny = Files::tiny();
    tiny.write();
    let whole = fs::read(tiny.shard(1)).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for len in [0, 1, 7, 8, 9, header / 2, header - 1, header, header + 1, whole.len() / 2, whole.len() - 1] {
        fs::write(tiny.shard(1), &whole[..len]).unwrap();
        let error = tiny.read().unwrap_err();
        assert!(matches!(&error, E::Shard { path, .. } if *path == tiny.shard(1)), "{len} bytes: {error}");
    }
    let longer = [whole.as_slice(), &[0]].concat();
    fs::write(tiny.shard(1), longer).unwrap();
    assert!(matches!(tiny.read().unwrap_err(), E::Shard { .. }));
}

#[test]
fn hostile_headers_are_refused() {
    let t = |name: &str, dtype: &str, shape: &str, start: u64, end: u64| {
        format!("\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}")
    };
    let max = u64::MAX;
    for header in [
        "not json".to_owned(),
        "{\"a\":3}".to_owned(),
        format!("{{{}}}", t("a", "F99", "[4]", 0, 16)),
        format!("{{{}}}", t("a", "F32", "[-4]", 0, 16)),
        format!("{{{}}}", t("a", "F32", "[5]", 0, 16)),
        format!("{{{}}}", t("a", "F32", "[4]", 0, 32)),
        format!("{{{}}}", t("a", "F32", "[4]", 16, 0)),
        format!("{{{}}}", t("a", "F32", "[4]", max - 15, max)),
        format!("{{{}}}", t("a", "F32", &format!("[{max},{max}]"), 0, 16)),
        format!("{{{}}}", t("a", "F32", &format!("[{}]", 1u64 << 62), 0, 16)),
        format!("{{{},{}}}", t("a", "F32", "[2]", 0, 8), t("b", "F32", "[3]", 4, 16)),
        format!("{{{},{}}}", t("a", "F32", "[2]", 0, 8), t("b", "F32", "[1]", 12, 16)),
        format!("{{{},{}}}", t("a", "F32", "[4]", 0, 16), t("a", "F32", "[4]", 0, 16))
            .replace("16]}}", "20]}}"),
        "[".repeat(4096),
    ] {
        let tiny = Files::tiny();
        tiny.write();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend([0; 16]);
        fs::write(tiny.shard(1), bytes).unwrap();
        let error = tiny.read().unwrap_err();
        assert!(matches!(error, E::Shard { .. }), "{header:.80}: {error}");
    }
    for claimed in [0, 2, 100 << 20, 100 << 30, u64::MAX - 7, u64::MAX] {
        let tiny = Files::tiny();
        tiny.write();
        let mut bytes = fs::read(tiny.shard(1)).unwrap();
        bytes[..8].copy_from_slice(&claimed.to_le_bytes());
        fs::write(tiny.shard(1), bytes).unwrap();
        assert!(matches!(tiny.read().unwrap_err(), E::Shard { .. }), "{claimed}");
    }
}

#[test]
fn a_damaged_index_is_refused() {
    let index = "model.safetensors.index.json";
    let edits: [Edit; 7] = [
        ("cut off", |s| s[..s.len() / 2].to_owned()),
        ("no map", |s| s.replace("weight_map", "weight_mop")),
        ("empty map", |_| "{\"weight_map\": {}}".to_owned()),
        ("path", |s| s.replacen("model-00001-of-00002", "../model-00001-of-00002", 1)),
        ("number", |s| s.replacen("\"model-00001-of-00002.safetensors\"", "3", 1)),
        ("wrong shard", |s| s.replacen("model-00001-of-00002", "model-00002-of-00002", 1)),
        ("unlisted tensor", |s| s.replacen("embed.weight", "embod.weight", 1)),
    ];
    for (what, change) in edits {
        let tiny = Files::tiny();
        tiny.write();
        tiny.edit(index, change);
        let error = tiny.read().unwrap_err();
        assert!(matches!(&error, E::Malformed { path, .. } if *path == tiny.file(index)), "{what}: {error}");
    }
}

#[test]
fn config_errors_carry_the_path() {
    let mut tiny = Files::tiny();
    tiny.config["scoring_func"] = "softmax".into();
    let error = tiny.fails();
    assert!(matches!(&error, E::Config { source, .. } if source.field == "scoring_func"), "{error}");
    assert!(error.to_string().contains("config.json"), "{error}");
}

#[test]
fn directories_in_place_of_files_are_refused() {
    let tiny = Files::tiny();
    tiny.write();
    fs::remove_file(tiny.shard(1)).unwrap();
    fs::create_dir(tiny.shard(1)).unwrap();
    assert!(matches!(tiny.read().unwrap_err(), E::Io { path, .. } if path == tiny.shard(1)));
}

/// Any single damaged byte of the text parts is either harmless (a blank, or a field that is ignored) or an error.
#[test]
fn random_damage_never_panics() {
    let tiny = Files::tiny();
    tiny.write();
    let mut state = 7u64;
    let mut refused = 0;
    for round in 0..400 {
        let path = match round % 3 {
            0 => tiny.shard(1 + round / 3 % 2),
            1 => tiny.file("config.json"),
            _ => tiny.file("model.safetensors.index.json"),
        };
        let whole = fs::read(&path).unwrap();
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let limit = whole.len().min(4000);
        let mut bytes = whole.clone();
        bytes[(state >> 33) as usize % limit] ^= 1 << (state >> 61);
        fs::write(&path, bytes).unwrap();
        refused += usize::from(tiny.read().is_err());
        fs::write(&path, whole).unwrap();
    }
    tiny.read().unwrap();
    assert!(refused > 200, "only {refused} of 400 were refused");
}
