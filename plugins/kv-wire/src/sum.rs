//! The checksum of a frame's bytes: Fletcher's two sums in sixteen lanes of words, which vector units add as fast as memory
//! gives them, under XXH64. One changed word is always seen; other damage with odds of those of 32 bits and better.

use hotseam_ops::Checksum;

const LANES: usize = 16;
const STRIPE: usize = 4 * LANES;

/// A sum in the making. Lane i sums words i, i + 16, ..; `second` sums the first sums, and so the places of the words.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sum {
    first: [u32; LANES],
    second: [u32; LANES],
    total: u64,
    rest: Vec<u8>,
}

impl Sum {
    /// Adds bytes that follow those before.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if !self.rest.is_empty() {
            let n = bytes.len().min(STRIPE - self.rest.len());
            self.rest.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if self.rest.len() < STRIPE {
                return;
            }
            let whole = std::mem::take(&mut self.rest);
            self.stripes(&whole);
        }
        let whole = bytes.len() / STRIPE * STRIPE;
        self.stripes(&bytes[..whole]);
        self.rest.extend_from_slice(&bytes[whole..]);
    }

    fn stripes(&mut self, bytes: &[u8]) {
        let (mut first, mut second) = (self.first, self.second);
        for stripe in bytes.chunks_exact(STRIPE) {
            for (lane, word) in stripe.chunks_exact(4).enumerate() {
                let word = u32::from_le_bytes(word.try_into().expect("chunks of 4"));
                first[lane] = first[lane].wrapping_add(word);
                second[lane] = second[lane].wrapping_add(first[lane]);
            }
        }
        (self.first, self.second) = (first, second);
    }

    /// The sum of all bytes so far.
    pub(crate) fn finish(&self) -> u64 {
        let mut sum = Checksum::default();
        self.first.iter().chain(&self.second).for_each(|lane| sum.update(&lane.to_le_bytes()));
        sum.update(&self.total.to_le_bytes());
        sum.update(&self.rest);
        sum.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> u64 {
        let mut sum = Sum::default();
        sum.update(bytes);
        sum.finish()
    }

    #[test]
    fn pieces_make_the_same_sum_and_damage_another() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let want = of(&bytes);
        for piece in [1, 63, 64, 65, 200] {
            let mut sum = Sum::default();
            bytes.chunks(piece).for_each(|part| sum.update(part));
            assert_eq!(sum.finish(), want, "pieces of {piece}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut hurt = bytes.clone();
            hurt[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(&hurt), want, "bit {bit}");
        }
        // Stripes, words and bytes that change places; bytes that come or go.
        for (from, to, n) in [(0, 64, 64), (0, 4, 4), (128, 640, 64), (990, 995, 5), (0, 1, 1)] {
            let mut hurt = bytes.clone();
            (0..n).for_each(|i| hurt.swap(from + i, to + i));
            assert_ne!(of(&hurt), want, "{from} {to} {n}");
        }
        assert_ne!(of(&[&[0], &bytes[..]].concat()), want);
        assert_ne!(of(&[&bytes[..], &[0]].concat()), want);
        assert_ne!(of(&[0; 64]), of(&[0; 128]));
    }
}
