//! UE8M0 scales: a byte `b` means `2^(b - 127)`, 255 is NaN. No sign, no zero.

/// The code that is not a number.
pub const NAN: u8 = 255;

/// The value of a scale; exact (0 is 2^-127, a subnormal f32), NaN for 255.
#[inline]
pub const fn decode(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        NAN => f32::NAN,
        _ => f32::from_bits((code as u32) << 23),
    }
}

/// The smallest scale that is not below `value`: rounding up keeps `amax / scale` within the range of the element
/// format, as DeepSeek's quantisers do. Exact for powers of two. Zero and values below 2^-127 become 2^-127,
/// values above 2^127 become 2^127; a negative value or a NaN becomes [`NAN`].
#[inline]
pub fn encode(value: f32) -> u8 {
    if value.is_nan() || value < 0.0 {
        return NAN;
    }
    let bits = value.to_bits() & 0x7fff_ffff;
    let (exponent, mantissa) = ((bits >> 23) as u8, bits & 0x7f_ffff);
    match exponent {
        // Subnormal: 2^-127 is the mantissa's top bit.
        0 => u8::from(mantissa > 1 << 22),
        _ => (exponent + u8::from(mantissa != 0 && exponent < 254)).min(254),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_is_a_power_of_two_and_survives_the_round_trip() {
        for code in 0..=254u8 {
            assert_eq!(f64::from(decode(code)), 2f64.powi(i32::from(code) - 127), "{code}");
            assert_eq!(encode(decode(code)), code);
        }
        assert!(decode(NAN).is_nan());
    }

    #[test]
    fn encodes_the_next_power_of_two() {
        for code in 0..254u8 {
            assert_eq!(encode(decode(code).next_up()), code + 1, "above {code}");
            assert_eq!(encode(decode(code + 1).next_down()), code + 1, "below {}", code + 1);
        }
        assert_eq!((encode(0.0), encode(-0.0), encode(f32::MIN_POSITIVE / 4.0)), (0, 0, 0));
        assert_eq!((encode(f32::MAX), encode(f32::INFINITY)), (254, 254));
        assert_eq!((encode(-1.0), encode(f32::NAN), encode(f32::NEG_INFINITY)), (NAN, NAN, NAN));
    }
}
