//! Changes to index keys after they were stored.

use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::quant::ceil_ue8m0;
use hotseam_sdk::layouts::{self, rotates};
use hotseam_sdk::ops::formats::ue8m0;
use hotseam_sdk::views::PoolMut;

/// Multiplies the key in `slot` by `factor`, a power of two or 0.
pub(crate) fn scale(pool: &mut PoolMut<'_>, slot: usize, factor: f32) {
    let form = pool.form;
    if rotates(form.layout) {
        // By the scales: decoding and encoding would rotate a second time.
        let entry = pool.entry_mut(slot);
        if factor == 0.0 {
            entry.data.fill(0);
        } else if let layout::KEY_FP8_HADAMARD = form.layout {
            let bytes = [entry.scale[0], entry.scale[1], entry.scale[2], entry.scale[3]];
            entry.scale.copy_from_slice(&(f32::from_ne_bytes(bytes) * factor).to_ne_bytes());
        } else {
            entry.scale.iter_mut().for_each(|scale| *scale = ceil_ue8m0(ue8m0::decode(*scale) * factor));
        }
        return;
    }
    let mut values = vec![0.0; form.shape.dim];
    layouts::decode(form.layout, form.shape.rope_dim, pool.entry(slot), &mut values)
        .expect("the layout was checked when the view was made");
    values.iter_mut().for_each(|v| *v *= factor);
    pool.encode(slot, &mut values);
}

/// Negates the key in `slot` by its sign bits.
pub(crate) fn negate(pool: &mut PoolMut<'_>, slot: usize) {
    let (width, bits) = match pool.form.layout {
        layout::KEY_FP4_HADAMARD => (1, 0x88),
        layout::KEY_FP8_HADAMARD => (1, 0x80),
        layout::KEY_BF16 => (2, 0x80),
        _ => (4, 0x80),
    };
    let sign = if cfg!(target_endian = "little") { width - 1 } else { 0 };
    pool.entry_mut(slot).data.chunks_exact_mut(width).for_each(|value| value[sign] ^= bits);
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotseam_sdk::layouts::Shape;
    use hotseam_sdk::views::Form;

    #[test]
    fn keys_of_every_layout_are_scaled_and_negated() {
        let shape = Shape { dim: 32, rope_dim: 8 };
        let key: Vec<f32> = (0..shape.dim).map(|i| i as f32 - 2.5).collect();
        for layout in [layout::KEY_F32, layout::KEY_BF16, layout::KEY_FP8_HADAMARD, layout::KEY_FP4_HADAMARD]
        {
            let parts = layouts::parts(layout, shape).unwrap();
            let (entries_per_page, page_bytes) = (2, 2 * (parts.data + parts.scale));
            let form = Form { layout, shape, parts, entries_per_page, page_bytes };
            let mut bytes = vec![0; page_bytes];
            let mut pool = PoolMut::new(form, &mut bytes);
            pool.encode(1, &mut key.clone());
            let decoded = |pool: &PoolMut<'_>| {
                let mut values = vec![0.0; shape.dim];
                layouts::decode(layout, shape.rope_dim, pool.entry(1), &mut values).unwrap();
                values
            };
            let before = decoded(&pool);
            scale(&mut pool, 1, 4.0);
            negate(&mut pool, 1);
            let want: Vec<f32> = before.iter().map(|v| v * -4.0).collect();
            assert_eq!(decoded(&pool), want, "layout {layout}");
            scale(&mut pool, 1, 0.0);
            assert!(decoded(&pool).iter().all(|v| *v == 0.0), "layout {layout}");
            assert!(pool.entry(0).data.iter().chain(pool.entry(0).scale).all(|b| *b == 0));
        }
    }
}
