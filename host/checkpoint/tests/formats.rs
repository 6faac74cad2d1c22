//! A checkpoint that torch wrote reads as torch reads it, and a loader with a fault in it does not.

mod common;

use common::formats_dir as dir;
use hotseam_checkpoint::{Checkpoint, read};
use hotseam_model::number::{e2m1, e4m3, ue8m0};
use hotseam_model::{DType, Format, LayerWeights, Matrix, Tensor};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn golden() -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir().join("values.json")).unwrap()).unwrap()
}

fn loaded() -> Checkpoint {
    read(&dir(), |_, _| ()).unwrap()
}

/// Every quantised matrix of a layer, by its name in the golden.
fn matrices(index: usize, layer: &mut LayerWeights) -> Vec<(String, &mut Matrix)> {
    let p = format!("layers.{index}");
    let mut all = vec![
        (format!("{p}.attn.wq_a"), &mut layer.wq_a),
        (format!("{p}.attn.wq_b"), &mut layer.wq_b),
        (format!("{p}.attn.wkv"), &mut layer.wkv),
        (format!("{p}.attn.wo_a"), &mut layer.wo_a),
        (format!("{p}.attn.wo_b"), &mut layer.wo_b),
    ];
    if let Some(indexer) = &mut layer.indexer {
        all.push((format!("{p}.attn.indexer.wq_b"), &mut indexer.wq_b));
    }
    let experts = layer.experts.iter_mut().enumerate().map(|(e, expert)| (format!("experts.{e}"), expert));
    for (place, expert) in experts.chain([("shared_experts".to_owned(), &mut layer.shared)]) {
        all.push((format!("{p}.ffn.{place}.w1"), &mut expert.w1));
        all.push((format!("{p}.ffn.{place}.w2"), &mut expert.w2));
        all.push((format!("{p}.ffn.{place}.w3"), &mut expert.w3));
    }
    all
}

/// The first difference between a checkpoint and the golden; `None` if there is none.
fn difference(found: &mut Checkpoint) -> Option<String> {
    let golden = golden();
    let mut compared = 0;
    for (index, layer) in found.weights.layers.iter_mut().enumerate() {
        for (name, matrix) in matrices(index, layer) {
            let expected = &golden["matrices"][&name];
            if expected["shape"] != serde_json::json!([matrix.n, matrix.k]) {
                return Some(format!("{name}: shape [{}, {}]", matrix.n, matrix.k));
            }
            let values = matrix.to_f32_vec();
            for (at, bits) in expected["samples"].as_object().unwrap() {
                let value = values[at.parse::<usize>().unwrap()];
                if format!("{:08x}", value.to_bits()) != bits.as_str().unwrap() {
                    return Some(format!("{name}[{at}]: {value:e}, torch has bits {bits}"));
                }
            }
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            if hex(&bytes) != expected["sha256"] {
                return Some(format!("{name}: the digest of its values"));
            }
            compared += 1;
        }
    }
    assert_eq!(compared, golden["matrices"].as_object().unwrap().len(), "the golden has other matrices");
    let table = found.weights.layers[0].tid2eid.as_ref().unwrap();
    if serde_json::json!(table.i32()) != golden["tid2eid"] {
        return Some("tid2eid".to_owned());
    }
    None
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn values_are_those_of_torch() {
    let bytes = std::fs::read(dir().join("model.safetensors")).unwrap();
    assert_eq!(golden()["weights_sha256"], hex(&bytes), "run scripts/make-goldens formats");
    assert_eq!(difference(&mut loaded()), None);
}

#[test]
fn every_format_and_container_is_there() {
    let mut found = loaded();
    let list = hotseam_checkpoint::list(&dir()).unwrap();
    for dtype in ["F32", "BF16", "F8_E4M3", "F8_E8M0", "I8", "U8", "F4", "I64"] {
        assert!(list.iter().any(|t| t.dtype == dtype), "{dtype}");
    }
    let formats = |layer: &mut LayerWeights| -> Vec<Format> {
        matrices(0, layer).iter().map(|(_, matrix)| matrix.format).collect()
    };
    let (first, second) = (formats(&mut found.weights.layers[0]), formats(&mut found.weights.layers[1]));
    assert!(first.contains(&Format::Fp8Block) && first.contains(&Format::Mxfp4), "{first:?}");
    assert!(second.contains(&Format::Fp8Block) && second.contains(&Format::Nvfp4), "{second:?}");
    assert_eq!(found.weights.layers[0].wq_a.data.dtype, DType::E4m3);
    let notes = found.notes.join("; ");
    assert!(notes.contains("1 tensors of multi-token prediction"), "{notes}");
    assert!(notes.contains("6 scales of activations"), "{notes}");
}

/// By the definition of each format, one value at a time, and not by rows.
#[test]
fn values_are_those_of_the_definition() {
    let mut found = loaded();
    for (index, layer) in found.weights.layers.iter_mut().enumerate() {
        for (name, m) in matrices(index, layer) {
            let values = m.to_f32_vec();
            let scales = m.scales.as_ref().unwrap().bytes();
            let data = m.data.bytes();
            let nibble = |row: usize, column: usize| {
                let byte = data[row * (m.k / 2) + column / 2];
                if column.is_multiple_of(2) { byte & 15 } else { byte >> 4 }
            };
            for row in 0..m.n {
                for column in 0..m.k {
                    let expected = match m.format {
                        Format::Fp8Block => {
                            let scale = scales[(row / 128) * m.k.div_ceil(128) + column / 128];
                            f64::from(e4m3::decode(data[row * m.k + column]))
                                * f64::from(ue8m0::decode(scale))
                        }
                        Format::Mxfp4 => {
                            let scale = scales[row * (m.k / 32) + column / 32];
                            f64::from(e2m1::decode(nibble(row, column))) * f64::from(ue8m0::decode(scale))
                        }
                        _ => {
                            let scale = scales[row * (m.k / 16) + column / 16];
                            let factor = f64::from(e4m3::decode(scale)) * f64::from(m.global_scale);
                            f64::from((f64::from(e2m1::decode(nibble(row, column))) * factor) as f32)
                        }
                    };
                    assert_eq!(f64::from(values[row * m.k + column]), expected, "{name} [{row}, {column}]");
                }
            }
        }
    }
}

/// Puts a fault into what was loaded; the golden must see it.
#[track_caller]
fn seen(fault: impl Fn(&mut Checkpoint), place: &str) {
    let mut found = loaded();
    fault(&mut found);
    let difference = difference(&mut found);
    assert!(
        difference.as_ref().is_some_and(|d| d.contains(place)),
        "the golden does not see it: {difference:?}"
    );
}

fn bytes(tensor: &Tensor, shape: Vec<usize>, change: impl Fn(usize, u8) -> u8) -> Tensor {
    let data = tensor.bytes().iter().enumerate().map(|(i, &b)| change(i, b)).collect();
    Tensor::from_bytes(tensor.dtype, shape, data).unwrap()
}

#[test]
fn swapped_nibbles_are_seen() {
    for layer in 0..2 {
        seen(
            |c| {
                let data = &mut c.weights.layers[layer].experts[1].w2.data;
                *data = bytes(data, data.shape.clone(), |_, b| b.rotate_left(4));
            },
            &format!("layers.{layer}.ffn.experts.1.w2"),
        );
    }
}

/// NVFP4 read with the groups of MXFP4: two groups of 16 share the scale of the first, and the other way round.
#[test]
fn groups_of_the_wrong_length_are_seen() {
    seen(
        |c| {
            let m = &mut c.weights.layers[1].experts[0].w1;
            let old = m.scales.clone().unwrap();
            let half = |i: usize, _| old.bytes()[i / (m.k / 16) * (m.k / 16) + (i % (m.k / 16)) / 2 * 2];
            m.scales = Some(bytes(&old, old.shape.clone(), half));
        },
        "layers.1.ffn.experts.0.w1",
    );
    seen(
        |c| {
            let m = &mut c.weights.layers[0].experts[0].w1;
            let old = m.scales.clone().unwrap();
            // Scale i of a row is used for values 16 i: the reader runs through the scales twice as fast.
            let fast = |i: usize, _| old.bytes()[(2 * i).min(old.len() - 1)];
            m.scales = Some(bytes(&old, old.shape.clone(), fast));
        },
        "layers.0.ffn.experts.0.w1",
    );
}

#[test]
fn a_dropped_global_scale_is_seen() {
    seen(|c| c.weights.layers[1].experts[1].w3.global_scale = 1.0, "layers.1.ffn.experts.1.w3");
    // That of another matrix of the expert, which a fused kernel may take.
    seen(
        |c| {
            let expert = &mut c.weights.layers[1].experts[1];
            expert.w3.global_scale = expert.w1.global_scale;
        },
        "layers.1.ffn.experts.1.w3",
    );
}

#[test]
fn swapped_gate_and_up_are_seen() {
    for layer in 0..2 {
        for expert in 0..2 {
            seen(
                |c| {
                    let expert = &mut c.weights.layers[layer].experts[expert];
                    std::mem::swap(&mut expert.w1, &mut expert.w3);
                },
                &format!("layers.{layer}.ffn.experts.{expert}.w1"),
            );
        }
        seen(
            |c| {
                let shared = &mut c.weights.layers[layer].shared;
                std::mem::swap(&mut shared.w1, &mut shared.w3);
            },
            &format!("layers.{layer}.ffn.shared_experts.w1"),
        );
    }
}

#[test]
fn a_shifted_token_table_is_seen() {
    seen(
        |c| {
            let table = c.weights.layers[0].tid2eid.as_mut().unwrap();
            let mut ids = table.i32().to_vec();
            ids.rotate_right(1);
            *table = Tensor::from_i32(table.shape.clone(), &ids).unwrap();
        },
        "tid2eid",
    );
}

/// Scales of blocks taken by columns, or one block too far.
#[test]
fn scales_of_other_blocks_are_seen() {
    seen(
        |c| {
            let m = &mut c.weights.layers[0].wo_b;
            let old = m.scales.clone().unwrap();
            assert_eq!(old.shape, [2, 2]);
            m.scales = Some(bytes(&old, old.shape.clone(), |i, _| old.bytes()[[0, 2, 1, 3][i]]));
        },
        "layers.0.attn.wo_b",
    );
    seen(
        |c| {
            let m = &mut c.weights.layers[1].wo_b;
            let old = m.scales.clone().unwrap();
            m.scales = Some(bytes(&old, old.shape.clone(), |i, _| old.bytes()[(i + 1) % 4]));
        },
        "layers.1.attn.wo_b",
    );
}
