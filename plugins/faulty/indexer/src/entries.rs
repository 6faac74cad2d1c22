//! Changes to index keys after they were stored.

use hotseam_sdk::abi::layout;
use hotseam_sdk::views::PoolMut;
use hotseam_sdk::{Result, layouts};

/// Multiplies the key in `slot` by `factor`.
pub(crate) fn scale(pool: &mut PoolMut<'_>, slot: usize, dim: usize, factor: f32) -> Result<()> {
    let layout = pool.layout;
    let entry = pool.entry_mut(slot);
    if layout == layout::KEY_FP8_HADAMARD {
        // The scale follows the codes; decoding and encoding would rotate a second time.
        let scale = &mut entry[dim..dim + 4];
        let value = f32::from_ne_bytes([scale[0], scale[1], scale[2], scale[3]]) * factor;
        scale.copy_from_slice(&value.to_ne_bytes());
        return Ok(());
    }
    let mut values = vec![0.0; dim];
    layouts::decode(layout, entry, &mut values)?;
    values.iter_mut().for_each(|v| *v *= factor);
    layouts::encode(layout, &mut values, entry)
}

/// Negates the key in `slot` by its sign bits.
pub(crate) fn negate(pool: &mut PoolMut<'_>, slot: usize, dim: usize) {
    let (width, codes) = match pool.layout {
        layout::KEY_FP8_HADAMARD => (1, dim),
        layout::KEY_BF16 => (2, dim * 2),
        _ => (4, dim * 4),
    };
    let sign = if cfg!(target_endian = "little") { width - 1 } else { 0 };
    pool.entry_mut(slot)[..codes].chunks_exact_mut(width).for_each(|value| value[sign] ^= 0x80);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_layout_are_scaled_and_negated() {
        let dim = 8;
        let key: Vec<f32> = (0..dim).map(|i| i as f32 - 2.5).collect();
        for layout in [layout::KEY_F32, layout::KEY_BF16, layout::KEY_FP8_HADAMARD] {
            let entry_bytes = layouts::entry_bytes(layout, dim).unwrap();
            let mut bytes = vec![0; 2 * entry_bytes];
            layouts::encode(layout, &mut key.clone(), &mut bytes[entry_bytes..]).unwrap();
            let decoded = |bytes: &[u8]| {
                let mut values = vec![0.0; dim];
                layouts::decode(layout, &bytes[entry_bytes..], &mut values).unwrap();
                values
            };
            let before = decoded(&bytes);
            let mut pool = PoolMut { bytes: &mut bytes, entry_bytes, layout };
            scale(&mut pool, 1, dim, 4.0).unwrap();
            negate(&mut pool, 1, dim);
            assert!(bytes[..entry_bytes].iter().all(|b| *b == 0));
            let want: Vec<f32> = before.iter().map(|v| v * -4.0).collect();
            assert_eq!(decoded(&bytes), want, "layout {layout}");
        }
    }
}
