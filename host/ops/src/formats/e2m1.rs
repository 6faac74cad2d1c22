//! FP4 E2M1: 2 exponent bits with bias 1, 1 mantissa bit, no infinity and no NaN, largest value 6.
//!
//! Two numbers share a byte; the first is in the low nibble.

/// Largest value.
pub const MAX: f32 = 6.0;

/// The value of the low four bits of `code`; exact.
#[inline]
pub const fn decode(code: u8) -> f32 {
    let (exponent, mantissa) = ((code >> 1 & 3) as u32, (code & 1) as u32);
    let size = if exponent == 0 {
        mantissa as f32 * 0.5
    } else {
        f32::from_bits((exponent + 127 - 1) << 23 | mantissa << 22)
    };
    if code & 8 == 0 { size } else { -size }
}

/// Nearest E2M1 in the low four bits, ties to the even mantissa. Values beyond 6 and infinities become 6 with
/// their sign. The format has no NaN: a NaN becomes 6 with its sign, so that it stays visible.
#[inline]
pub fn encode(value: f32) -> u8 {
    let size = value.abs();
    // The middles between neighbours. A middle itself belongs to the even code, which is above every other one.
    let above = u8::from(size > 0.25)
        + u8::from(size >= 0.75)
        + u8::from(size > 1.25)
        + u8::from(size >= 1.75)
        + u8::from(size > 2.5)
        + u8::from(size >= 3.5)
        + u8::from(size > 5.0);
    let code = if size.is_nan() { 7 } else { above };
    code | if value.is_sign_negative() { 8 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_value_and_survives_the_round_trip() {
        let expected = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for code in 0..16u8 {
            let value = decode(code);
            assert_eq!(value.abs(), expected[usize::from(code & 7)], "{code:#x}");
            assert_eq!(value.is_sign_negative(), code >= 8, "{code:#x}");
            assert_eq!(encode(value), code);
            assert_eq!(decode(code | 0xf0).to_bits(), value.to_bits(), "upper bits are not looked at");
        }
    }

    #[test]
    fn encodes_the_nearest_and_ties_to_even() {
        for low in 0..7u8 {
            let middle = (decode(low) + decode(low + 1)) / 2.0;
            let even = low + low % 2;
            for sign in [0, 8] {
                let signed = |x: f32| if sign == 0 { x } else { -x };
                assert_eq!(encode(signed(middle)), even | sign, "{middle}");
                assert_eq!(encode(signed(middle.next_down())), low | sign, "below {middle}");
                assert_eq!(encode(signed(middle.next_up())), (low + 1) | sign, "above {middle}");
            }
        }
        assert_eq!((encode(1e30), encode(f32::NEG_INFINITY), encode(f32::NAN)), (7, 15, 7));
    }
}
