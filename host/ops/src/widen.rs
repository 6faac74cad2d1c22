//! Codes of small formats to f32, a slice at a time, by arithmetic on their bits: the reader's side of quantised pools.
//! Every result has the bits of the table lookup times the scale.

use crate::e4m3 as format;
use crate::isa::{Kernel, dispatch};
use crate::lanes::Lanes;

/// `out = value(code) * scale` for E4M3 codes.
///
/// # Panics
/// If the lengths differ.
pub fn e4m3(codes: &[u8], scale: f32, out: &mut [f32]) {
    assert_eq!(codes.len(), out.len(), "widen::e4m3: lengths");
    dispatch(E4m3 { codes, scale, out });
}

struct E4m3<'a> {
    codes: &'a [u8],
    scale: f32,
    out: &'a mut [f32],
}

impl Kernel for E4m3<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let nan = self.codes.iter().fold(false, |found, code| found | (code & 0x7f == 0x7f));
        if nan {
            for (out, code) in self.out.iter_mut().zip(self.codes) {
                *out = format::decode(*code) * self.scale;
            }
            return;
        }
        // Exponent and mantissa at their place in an f32 are the value times 2^-120, subnormal codes included.
        let up = f32::from_bits((127 + 120) << 23);
        for (out, code) in self.out.iter_mut().zip(self.codes) {
            let bits = (i32::from(*code as i8) << 20) as u32 & 0x87f0_0000;
            *out = f32::from_bits(bits) * up * self.scale;
        }
    }
}

/// `out = value(code) * scale` for E2M1 codes, two a byte, the first in the low nibble.
///
/// # Panics
/// If there are not two values for each byte.
pub fn e2m1(codes: &[u8], scale: f32, out: &mut [f32]) {
    assert_eq!(2 * codes.len(), out.len(), "widen::e2m1: lengths");
    dispatch(E2m1 { codes, scale, out });
}

struct E2m1<'a> {
    codes: &'a [u8],
    scale: f32,
    out: &'a mut [f32],
}

impl Kernel for E2m1<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        // As above: the value times 2^-126.
        let up = f32::from_bits((127 + 126) << 23);
        let (pairs, _) = self.out.as_chunks_mut::<2>();
        for (pair, codes) in pairs.iter_mut().zip(self.codes) {
            let codes = u32::from(*codes);
            let low = (codes & 7) << 22 | (codes & 8) << 28;
            let high = (codes & 0x70) << 18 | (codes & 0x80) << 24;
            *pair = [f32::from_bits(low) * up * self.scale, f32::from_bits(high) * up * self.scale];
        }
    }
}

/// bf16 values in the byte order of the machine.
///
/// # Panics
/// If there are not two bytes for each value.
pub fn bf16(bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), 2 * out.len(), "widen::bf16: lengths");
    dispatch(Bf16 { bytes, out });
}

struct Bf16<'a> {
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl Kernel for Bf16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let (pairs, _) = self.bytes.as_chunks::<2>();
        for (out, pair) in self.out.iter_mut().zip(pairs) {
            *out = f32::from_bits(u32::from(u16::from_ne_bytes(*pair)) << 16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    fn same(a: &[f32], b: &[f32]) -> bool {
        a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
    }

    #[test]
    fn e4m3_is_the_table_times_the_scale() {
        let all: Vec<u8> = (0..=255).collect();
        let numbers: Vec<u8> = all.iter().copied().filter(|c| c & 0x7f != 0x7f).collect();
        for codes in [&all, &numbers] {
            for scale in [1.0, 2f32.powi(-22), 2f32.powi(100), 0.3, f32::NAN] {
                let want: Vec<f32> = codes.iter().map(|c| format::decode(*c) * scale).collect();
                for (isa, run) in Isa::all() {
                    let mut out = vec![7.0; codes.len()];
                    run.run(E4m3 { codes, scale, out: &mut out });
                    assert!(same(&out, &want), "{isa}, scale {scale}");
                }
            }
        }
    }

    #[test]
    fn e2m1_is_the_format_times_the_scale() {
        let grid = [0.0f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let value =
            |code: u8| if code & 8 == 0 { grid[usize::from(code)] } else { -grid[usize::from(code & 7)] };
        let codes: Vec<u8> = (0..=255).collect();
        for scale in [1.0, 2f32.powi(-126), 2f32.powi(100), 0.3, f32::NAN] {
            let want: Vec<f32> =
                codes.iter().flat_map(|c| [value(c & 15) * scale, value(c >> 4) * scale]).collect();
            for (isa, run) in Isa::all() {
                let mut out = vec![7.0; 512];
                run.run(E2m1 { codes: &codes, scale, out: &mut out });
                assert!(same(&out, &want), "{isa}, scale {scale}");
            }
        }
    }

    #[test]
    fn bf16_is_the_upper_half() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        let mut out = vec![7.0; 1 << 16];
        bf16(&bytes, &mut out);
        assert!(out.iter().zip(0u32..).all(|(v, bits)| v.to_bits() == bits << 16));
    }
}
