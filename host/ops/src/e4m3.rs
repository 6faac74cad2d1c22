//! FP8 E4M3 (the "FN" form): 4 exponent bits with bias 7, 3 mantissa bits, no infinity, largest value 448.

/// Largest finite value.
pub const MAX: f32 = 448.0;
/// What a NaN becomes.
const NAN: u8 = 0x7f;
/// Smallest normal value, 2^-6; below it values are multiples of 2^-9.
const MIN_NORMAL: f32 = 0.015_625;

/// Nearest E4M3, ties to even; values beyond 448 and infinities become 448 with their sign, a NaN becomes 0x7f.
#[inline]
pub fn encode(value: f32) -> u8 {
    if value.is_nan() {
        return NAN;
    }
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let size = value.abs().min(MAX);
    let code = if size < MIN_NORMAL {
        // The last place of 2^14 + x is 2^-9, so the sum rounds x to a multiple of that; 8 of them carry into
        // the smallest normal value.
        ((size + 16384.0).to_bits() & 0xf) as u8
    } else {
        // Drop 20 mantissa bits to the nearest even; a carry moves into the exponent, which is what it should do.
        let bits = size.to_bits();
        let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
        ((rounded >> 20) - ((127 - 7) << 3)) as u8
    };
    sign | code
}

/// The value of E4M3 bits; exact.
#[inline]
pub const fn decode(code: u8) -> f32 {
    VALUES[code as usize]
}

/// Encodes a slice.
///
/// # Panics
/// If the lengths differ.
pub fn narrow(from: &[f32], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "e4m3::narrow: lengths");
    for (to, &from) in to.iter_mut().zip(from) {
        *to = encode(from);
    }
}

/// Decodes a slice.
///
/// # Panics
/// If the lengths differ.
pub fn widen(from: &[u8], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "e4m3::widen: lengths");
    for (to, &from) in to.iter_mut().zip(from) {
        *to = decode(from);
    }
}

/// The value of every code.
static VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code >> 3 & 0xf) as u32, (code & 7) as u32);
        let size = if exponent == 0 {
            mantissa as f32 / 512.0
        } else if exponent == 15 && mantissa == 7 {
            f32::NAN
        } else {
            f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20)
        };
        values[code] = if code < 128 { size } else { -size };
        code += 1;
    }
    values
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The nearest of all 127 values that are not negative, found by looking at each; the even code of a tie.
    fn slow(value: f32) -> u8 {
        if value.is_nan() {
            return 0x7f;
        }
        let size = f64::from(value.abs());
        let distance = |code: u8| {
            // By definition of the format, not by the table.
            let (e, m) = (i32::from(code >> 3), f64::from(code & 7));
            let decoded = if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) };
            (decoded - size).abs()
        };
        let mut best = 0u8;
        for code in 1..=0x7e {
            let (a, b) = (distance(code), distance(best));
            if a < b || (a == b && code % 2 == 0) {
                best = code;
            }
        }
        if size > 448.0 {
            best = 0x7e;
        }
        best | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn every_code_survives_the_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        let mut wide = vec![0.0; 256];
        let mut back = vec![0; 256];
        widen(&all, &mut wide);
        narrow(&wide, &mut back);
        for (&code, &got) in all.iter().zip(&back) {
            assert_eq!(got, if code & 0x7f == 0x7f { 0x7f } else { code }, "{code:#04x}");
        }
        assert_eq!((decode(0x7e), decode(0x08), decode(0x01)), (MAX, MIN_NORMAL, 1.0 / 512.0));
    }

    #[test]
    fn encodes_like_the_slow_reference() {
        // Every bf16, with lower halves that land on, just below and just above the ties.
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x8000, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                assert_eq!(encode(value), slow(value), "{value:e}");
            }
        }
    }
}
