//! bfloat16: the upper half of an f32.

/// The value of bf16 bits; exact.
#[inline(always)]
pub fn to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Nearest bf16, ties to even; too large values become infinite. A NaN stays a NaN, made quiet, with its sign
/// and the upper bits of its payload.
#[inline(always)]
pub fn from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let bits = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    (bits >> 16) as u16
}

/// Widens a slice.
///
/// # Panics
/// If the lengths differ.
pub fn widen(from: &[u16], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "bf16::widen: lengths");
    for (to, &from) in to.iter_mut().zip(from) {
        *to = to_f32(from);
    }
}

/// Rounds a slice.
///
/// # Panics
/// If the lengths differ.
pub fn narrow(from: &[f32], to: &mut [u16]) {
    assert_eq!(from.len(), to.len(), "bf16::narrow: lengths");
    for (to, &from) in to.iter_mut().zip(from) {
        *to = from_f32(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_survives_the_round_trip() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let mut wide = vec![0.0; all.len()];
        let mut back = vec![0; all.len()];
        widen(&all, &mut wide);
        narrow(&wide, &mut back);
        for (&bits, &got) in all.iter().zip(&back) {
            let quiet = if to_f32(bits).is_nan() { bits | 0x40 } else { bits };
            assert_eq!(got, quiet, "{bits:#06x}");
        }
    }

    #[test]
    fn rounds_to_nearest_even() {
        // Between every two neighbours: below the middle, the middle, above it.
        for low in 0..0x7f80u16 {
            let base = u32::from(low) << 16;
            let even = low + low % 2;
            for sign in [0u16, 0x8000] {
                let top = u32::from(sign) << 16;
                let round = |low_half: u32| from_f32(f32::from_bits(base | low_half | top));
                assert_eq!(round(0x7fff), low | sign);
                assert_eq!(round(0x8000), even | sign);
                assert_eq!(round(0x8001), (low + 1) | sign);
            }
        }
        assert_eq!(from_f32(f32::MAX), 0x7f80);
        assert!(to_f32(from_f32(f32::from_bits(0x7f80_0001))).is_nan());
        assert!(to_f32(from_f32(f32::from_bits(0xffff_ffff))).is_nan());
    }
}
