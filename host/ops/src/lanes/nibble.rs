//! Tables that turn a four-bit code into the upper half of an f32: the value of the code times a scale.

use crate::e4m3;
use crate::formats::{e2m1, ue8m0};

/// The upper two bytes of sixteen f32 whose lower bytes are zero, by code.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct NibbleTable {
    /// Sign and the upper seven bits of the exponent.
    pub(super) high: [u8; 16],
    /// The last bit of the exponent and the upper seven bits of the mantissa.
    pub(super) low: [u8; 16],
}

impl NibbleTable {
    /// The values of all E2M1 codes times a scale.
    ///
    /// Both products that are needed fit in bf16: powers of two leave the two significant bits of E2M1 alone, and
    /// an E4M3 scale makes them six; neither gets below 2^-133, the last place of bf16.
    const fn new(scale: f32) -> Self {
        let (mut high, mut low) = ([0; 16], [0; 16]);
        let mut code = 0;
        while code < 16 {
            let bits = (e2m1::decode(code as u8) * scale).to_bits();
            assert!(bits & 0xffff == 0 || scale.is_nan());
            high[code] = (bits >> 24) as u8;
            low[code] = (bits >> 16) as u8;
            code += 1;
        }
        Self { high, low }
    }

    /// The value of a code.
    #[inline(always)]
    pub(crate) fn value(&self, code: u8) -> f32 {
        let at = usize::from(code & 15);
        f32::from_bits(u32::from(self.high[at]) << 24 | u32::from(self.low[at]) << 16)
    }
}

/// One table for each UE8M0 scale.
pub(crate) static UE8M0: [NibbleTable; 256] = {
    let mut tables = [NibbleTable::new(1.0); 256];
    let mut code = 0;
    while code < 256 {
        tables[code] = NibbleTable::new(ue8m0::decode(code as u8));
        code += 1;
    }
    tables
};

/// One table for each E4M3 scale.
pub(crate) static E4M3: [NibbleTable; 256] = {
    let mut tables = [NibbleTable::new(1.0); 256];
    let mut code = 0;
    while code < 256 {
        tables[code] = NibbleTable::new(e4m3::decode(code as u8));
        code += 1;
    }
    tables
};
