//! Values of the small number formats that checkpoints use. All are exact in f32.

/// Largest E4M3 value.
pub const E4M3_MAX: f32 = 448.0;
/// Largest E2M1 value.
pub const E2M1_MAX: f32 = 6.0;

/// Magnitudes of E2M1, by the lower three bits of a code; bit 3 is the sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The value of the lower four bits of `code` as E2M1: 1 sign, 2 exponent and 1 mantissa bits, no infinity, no NaN.
#[inline]
pub fn e2m1(code: u8) -> f32 {
    let size = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { size } else { -size }
}

/// The value of an E4M3 code (the "FN" form: bias 7, largest value 448, no infinity; 0x7f and 0xff are NaN).
#[inline]
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 0xf), u32::from(code & 7));
    let size = match exponent {
        0 => mantissa as f32 / 512.0,
        15 if mantissa == 7 => f32::NAN,
        _ => f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// The value of a UE8M0 code: 2^(code - 127); 255 is NaN.
#[inline]
pub fn ue8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22), // 2^-127 has no normal form
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_mean_what_the_formats_define() {
        for code in 0..=255u8 {
            let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
            let (e, m) = (i32::from(code >> 3 & 15), f64::from(code & 7));
            let defined = match e {
                0 => sign * m / 8.0 * 2f64.powi(-6),
                15 if m == 7.0 => f64::NAN,
                _ => sign * (1.0 + m / 8.0) * 2f64.powi(e - 7),
            };
            let found = f64::from(e4m3(code));
            assert!(found == defined || found.is_nan() && defined.is_nan(), "{code:#x}: {found} {defined}");
            if code < 255 {
                assert_eq!(f64::from(ue8m0(code)), 2f64.powi(i32::from(code) - 127), "{code}");
            }
        }
        assert!(ue8m0(255).is_nan());
        for code in 0..16u8 {
            let (e, m) = (i32::from(code >> 1 & 3), f32::from(code & 1));
            let size = if e == 0 { m / 2.0 } else { (1.0 + m / 2.0) * 2f32.powi(e - 1) };
            assert_eq!(e2m1(code), if code < 8 { size } else { -size });
            assert_eq!(e2m1(code | 0xf0), e2m1(code), "the upper half of a byte plays no part");
        }
        assert!(e2m1(8).is_sign_negative() && e4m3(0x80).is_sign_negative());
        assert_eq!((e4m3(0x7e), e2m1(7)), (E4M3_MAX, E2M1_MAX));
    }
}
