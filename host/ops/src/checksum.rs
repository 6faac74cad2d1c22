//! XXH64 (<https://github.com/Cyan4973/xxHash>, `doc/xxhash_spec.md`): tells bytes that were damaged, lost or exchanged on
//! their way. It is no protection against someone who wants two texts with one sum.

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

const STRIPE: usize = 32;

/// A checksum in the making.
#[derive(Debug, Clone)]
pub struct Checksum {
    lanes: [u64; 4],
    total: u64,
    rest: [u8; STRIPE],
    held: usize,
}

/// The checksum of some bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = Checksum::default();
    sum.update(bytes);
    sum.finish()
}

impl Default for Checksum {
    fn default() -> Self {
        let lanes = [P1.wrapping_add(P2), P2, 0, 0u64.wrapping_sub(P1)];
        Self { lanes, total: 0, rest: [0; STRIPE], held: 0 }
    }
}

fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

fn words(stripe: &[u8]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(stripe.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
    }
    words
}

impl Checksum {
    /// Adds bytes that follow those before.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.total = self.total.wrapping_add(bytes.len() as u64);
        if self.held > 0 {
            let n = bytes.len().min(STRIPE - self.held);
            self.rest[self.held..self.held + n].copy_from_slice(&bytes[..n]);
            self.held += n;
            bytes = &bytes[n..];
            if self.held < STRIPE {
                return;
            }
            self.held = 0;
            let whole = self.rest;
            self.stripes(&whole);
        }
        let whole = bytes.len() / STRIPE * STRIPE;
        self.stripes(&bytes[..whole]);
        let tail = &bytes[whole..];
        self.rest[..tail.len()].copy_from_slice(tail);
        self.held = tail.len();
    }

    fn stripes(&mut self, bytes: &[u8]) {
        let mut lanes = self.lanes;
        for stripe in bytes.chunks_exact(STRIPE) {
            for (lane, word) in lanes.iter_mut().zip(words(stripe)) {
                *lane = round(*lane, word);
            }
        }
        self.lanes = lanes;
    }

    /// The sum of all bytes so far.
    pub fn finish(&self) -> u64 {
        let [a, b, c, d] = self.lanes;
        let mut hash = match self.total >= STRIPE as u64 {
            true => {
                let sum = a.rotate_left(1).wrapping_add(b.rotate_left(7));
                let sum = sum.wrapping_add(c.rotate_left(12)).wrapping_add(d.rotate_left(18));
                let merge =
                    |hash: u64, lane: &u64| (hash ^ round(0, *lane)).wrapping_mul(P1).wrapping_add(P4);
                self.lanes.iter().fold(sum, merge)
            }
            false => P5,
        };
        hash = hash.wrapping_add(self.total);
        let eights = self.rest[..self.held].chunks_exact(8);
        let left = eights.remainder();
        for bytes in eights {
            let word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
            hash = (hash ^ round(0, word)).rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
        }
        let fours = left.chunks_exact(4);
        let ones = fours.remainder();
        for bytes in fours {
            let word = u64::from(u32::from_le_bytes(bytes.try_into().expect("chunks of 4")));
            hash = (hash ^ word.wrapping_mul(P1)).rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
        }
        for byte in ones {
            hash = (hash ^ u64::from(*byte).wrapping_mul(P5)).rotate_left(11).wrapping_mul(P1);
        }
        hash = (hash ^ (hash >> 33)).wrapping_mul(P2);
        hash = (hash ^ (hash >> 29)).wrapping_mul(P3);
        hash ^ (hash >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of the `xxhash` package of PyPI, version 3.6.
    #[test]
    fn sums_are_those_of_xxhash() {
        let counted: Vec<u8> = (0..1000u32).map(|i| (i * 7 + 3) as u8).collect();
        for (bytes, sum) in [
            (&b""[..], 0xef46_db37_51d8_e999),
            (b"a", 0xd24e_c4f1_a98c_6e5b),
            (b"abc", 0x44bc_2cf5_ad77_0999),
            (&counted[..4], 0x9bb6_4b7d_66ee_9fda),
            (&counted[..31], 0xa2aa_5f33_cc4a_6119),
            (&counted[..32], 0x23c3_c17e_f790_fd97),
            (&counted[..63], 0x5e3e_54b4_31c7_493c),
            (&counted, 0x5f23_5fa0_33f1_a3fb),
        ] {
            assert_eq!(checksum(bytes), sum, "{} bytes", bytes.len());
        }
    }

    #[test]
    fn pieces_make_the_same_sum() {
        let bytes: Vec<u8> = (0..777u32).map(|i| (i * i) as u8).collect();
        for piece in [1, 7, 31, 32, 33, 64, 500] {
            let mut sum = Checksum::default();
            bytes.chunks(piece).for_each(|part| sum.update(part));
            assert_eq!(sum.finish(), checksum(&bytes), "pieces of {piece}");
        }
    }
}
