//! The quantisers give the codes and scales that torch's casts give.

use std::path::Path;

use hotseam_checkpoint::quantise::{global_scale, quantise};
use hotseam_model::{Format, Matrix};
use serde_json::Value;
use sha2::{Digest, Sha256};

const SIZE: usize = 256;

/// The inputs of scripts/goldens/formats.py: integers of a SplitMix64 stream times powers of two that differ by row; short
/// ones in every fourth row, so that many values are ties; groups of zeros.
fn inputs() -> Vec<f32> {
    let mut state = 0x5eedu64;
    let mut values = vec![0.0; SIZE * SIZE];
    for (at, value) in values.iter_mut().enumerate() {
        let (row, column) = (at / SIZE, at % SIZE);
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let short = row % 4 == 3;
        let integer = if short { (z >> 59) as i64 - 16 } else { (z >> 40) as i64 - (1 << 23) };
        let power = (row % 9) as i32 * 3 - 12 - if short { 2 } else { 23 };
        let zero = (128..160).contains(&column) || (row == 5 && (32..64).contains(&column));
        *value = if zero { 0.0 } else { integer as f32 * 2f32.powi(power) };
    }
    values
}

fn made(format: Format) -> (Matrix, Value) {
    let values = inputs();
    let largest = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/formats/values.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let matrix = quantise(format, &values, [SIZE, SIZE], global_scale(largest), 2).unwrap();
    (matrix, golden["quantised"][format.name()].clone())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn codes_and_scales_are_those_of_torch() {
    for format in [Format::Fp8Block, Format::Mxfp4, Format::Nvfp4] {
        let (matrix, golden) = made(format);
        assert_eq!(golden["scales"], hex(matrix.scales.as_ref().unwrap().bytes()), "{format} scales");
        assert_eq!(golden["codes"], hex(matrix.data.bytes()), "{format} codes");
        if format == Format::Nvfp4 {
            assert_eq!(golden["factor"], format!("{:08x}", matrix.global_scale.to_bits()));
        }
    }
}

/// What a format can hold exactly comes back exactly, so quantising again changes nothing.
#[test]
fn quantising_twice_changes_nothing() {
    for format in [Format::Fp8Block, Format::Mxfp4] {
        let (matrix, _) = made(format);
        let values = matrix.to_f32_vec();
        let again = quantise(format, &values, [SIZE, SIZE], 1.0, 1).unwrap();
        assert_eq!(again.to_f32_vec(), values, "{format}");
    }
}
