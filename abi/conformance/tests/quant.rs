//! The quantisers, truth's and the SDK's, against bytes that torch made (`scripts/goldens/quant.py`).

use hotseam_abi::layout::NAMES;
use hotseam_conformance::truth;
use hotseam_sdk::layouts::{self, Entry, EntryMut, Shape};
use serde_json::Value;

const ROPE: usize = 64;

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap().as_bytes();
    let digit = |b: u8| (b as char).to_digit(16).unwrap() as u8;
    hex.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn f32s(hex: &Value) -> Vec<f32> {
    bytes(hex).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Calls `check` with the number and shape of a layout, the values of an entry, and its bytes.
fn for_each_entry(mut check: impl FnMut(u32, Shape, &[f32], Entry<'_>)) {
    let golden: Value = serde_json::from_str(include_str!("quant.json")).unwrap();
    let mut seen = 0;
    for of_layout in golden["layouts"].as_array().unwrap() {
        let name = of_layout["layout"].as_str().unwrap();
        let (layout, _) = NAMES.iter().find(|(_, known)| *known == name).unwrap();
        let shape = Shape { dim: of_layout["dim"].as_u64().unwrap() as usize, rope_dim: ROPE };
        for entry in of_layout["entries"].as_array().unwrap() {
            let (values, data, scale) =
                (f32s(&entry["values"]), bytes(&entry["data"]), bytes(&entry["scale"]));
            check(*layout, shape, &values, Entry { data: &data, scale: &scale });
            seen += 1;
        }
    }
    assert_eq!(seen, 18);
}

#[test]
fn truth_and_sdk_write_the_bytes_of_torch() {
    for_each_entry(|layout, shape, values, want| {
        let parts = layouts::parts(layout, shape).unwrap();
        assert_eq!((parts.data, parts.scale), (want.data.len(), want.scale.len()), "layout {layout}");
        let (mut data, mut scale) = (vec![0xa5; parts.data], vec![0xa5; parts.scale]);
        let entry = EntryMut { data: &mut data, scale: &mut scale };
        truth::layout::encode(layout, ROPE, values, entry).unwrap();
        assert_eq!(Entry { data: &data, scale: &scale }, want, "truth, layout {layout}");
        let (mut data, mut scale) = (vec![0xa5; parts.data], vec![0xa5; parts.scale]);
        let entry = EntryMut { data: &mut data, scale: &mut scale };
        layouts::encode(layout, ROPE, &mut values.to_vec(), entry).unwrap();
        assert_eq!(Entry { data: &data, scale: &scale }, want, "sdk, layout {layout}");
    });
}

#[test]
fn truth_and_sdk_read_the_same_values() {
    for_each_entry(|layout, shape, _, entry| {
        let (mut a, mut b) = (vec![0.0; shape.dim], vec![1.0; shape.dim]);
        truth::layout::decode(layout, ROPE, entry, &mut a).unwrap();
        layouts::decode(layout, ROPE, entry, &mut b).unwrap();
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&a), bits(&b), "layout {layout}");
    });
}

#[test]
fn a_query_is_rounded_as_a_key_is() {
    for_each_entry(|layout, shape, values, key| {
        if !layouts::rotates(layout) {
            return;
        }
        let mut want = vec![0.0; shape.dim];
        layouts::decode(layout, ROPE, key, &mut want).unwrap();
        let (mut a, mut b) = (values.to_vec(), values.to_vec());
        truth::layout::query(layout, &mut a);
        layouts::quant::as_key(layout, &mut b, &mut vec![0; shape.dim]);
        assert_eq!((&a, &b), (&want, &want), "layout {layout}");
    });
}
