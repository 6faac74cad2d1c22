//! Memory for the outputs of a call: aligned, poisoned, between guard words.

/// Fills what has not been written: NaN as f32 and as two bf16, no possible index as i32.
pub const POISON: u32 = 0x7fc1_7fc1;

/// Least bytes of a guard on each side, and the alignment of the memory between them.
const GUARD: usize = 64;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u32; GUARD / 4]);

/// Bytes between two guards; the first is aligned to 64.
#[derive(Clone)]
pub struct Block {
    lines: Vec<Line>,
    len: usize,
    /// Lines of a guard.
    margin: usize,
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} bytes)", self.len)
    }
}

fn guard(line: usize) -> Line {
    let word = |i: usize| 0x7fa0_0000 | (((line * GUARD / 4 + i) as u32).wrapping_mul(2_654_435_761) >> 12);
    Line(std::array::from_fn(word))
}

impl Block {
    /// `len` poisoned bytes.
    pub fn poisoned(len: usize) -> Self {
        Self::with_margin(len, 0)
    }

    /// `len` poisoned bytes between guards of at least `margin` bytes, for callees that may miss by so much.
    pub fn with_margin(len: usize, margin: usize) -> Self {
        let (data, margin) = (len.div_ceil(GUARD), margin.div_ceil(GUARD).max(1));
        let mut lines = vec![Line([POISON; GUARD / 4]); data + 2 * margin + 1];
        // The last data line may end in the middle; what is left of it belongs to the guard.
        (0..margin).chain(margin + data..lines.len()).for_each(|i| lines[i] = guard(i));
        let mut block = Self { lines, len, margin };
        let (begin, end) = (block.start() + len, block.start() + data * GUARD);
        block.raw_mut()[begin..end].copy_from_slice(&TAIL[..end - begin]);
        block
    }

    /// Offset of the first byte between the guards.
    pub(super) fn start(&self) -> usize {
        self.margin * GUARD
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut block = Self::poisoned(bytes.len());
        block.bytes_mut().copy_from_slice(bytes);
        block
    }

    /// All of it, guards included.
    pub(super) fn raw(&self) -> &[u8] {
        // SAFETY: lines are plain words without padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * GUARD) }
    }

    /// As [`Block::raw`].
    pub(super) fn raw_mut(&mut self) -> &mut [u8] {
        // SAFETY: lines are plain words without padding, and any bytes are words.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.lines.len() * GUARD) }
    }

    /// The bytes between the guards.
    pub fn bytes(&self) -> &[u8] {
        &self.raw()[self.start()..self.start() + self.len]
    }

    /// The bytes between the guards.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, len) = (self.start(), self.len);
        &mut self.raw_mut()[start..start + len]
    }

    /// Poisons everything between the guards.
    pub fn poison(&mut self) {
        for (i, b) in self.bytes_mut().iter_mut().enumerate() {
            *b = POISON.to_ne_bytes()[i % 4];
        }
    }

    /// The first byte; valid until the block is dropped, wherever it moves.
    pub fn ptr(&mut self) -> *mut u8 {
        self.bytes_mut().as_mut_ptr()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Offset, from the first byte inside, of the first guard byte that was overwritten.
    pub fn damage(&self) -> Option<isize> {
        let (start, end, data) = (self.start(), self.start() + self.len, self.len.div_ceil(GUARD));
        let now = self.raw();
        let line = |i: usize| {
            let fresh = guard_bytes(&guard(i));
            (0..GUARD).find(|k| now[i * GUARD + k] != fresh[*k]).map(|k| i * GUARD + k)
        };
        let before = (0..self.margin).find_map(line);
        let tail = || (end..start + data * GUARD).find(|i| now[*i] != TAIL[*i - end]);
        let after = || (self.margin + data..self.lines.len()).find_map(line);
        before.or_else(tail).or_else(after).map(|i| i as isize - start as isize)
    }
}

/// What stands in a last data line after the data.
const TAIL: [u8; GUARD] = [0x7f; GUARD];

fn guard_bytes(line: &Line) -> [u8; GUARD] {
    let mut bytes = [0; GUARD];
    for (to, word) in bytes.chunks_exact_mut(4).zip(line.0) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_outside_are_found_and_writes_inside_are_not() {
        for len in [0, 4, 60, 64, 100] {
            let mut block = Block::poisoned(len);
            assert_eq!((block.len(), block.damage(), block.ptr().addr() % 64), (len, None, 0));
            assert!(block.bytes().chunks(4).all(|w| *w == POISON.to_ne_bytes()[..w.len()]));
            block.bytes_mut().fill(0);
            assert_eq!(block.damage(), None);
            for at in [-1isize, -64, len as isize, len as isize + 63] {
                let mut block = block.clone();
                let i = (block.start() as isize + at) as usize;
                block.raw_mut()[i] ^= 1;
                assert_eq!(block.damage(), Some(at), "{len} bytes");
            }
            block.poison();
            assert_eq!(block.bytes(), Block::poisoned(len).bytes());
        }
        assert_eq!(Block::copy_of(&[1, 2, 3]).bytes(), [1, 2, 3]);
    }

    #[test]
    fn a_wide_margin_is_watched_to_its_ends() {
        for at in [-200isize, -1, 10, 63, 64, 209] {
            let mut block = Block::with_margin(10, 200);
            let i = (block.start() as isize + at) as usize;
            block.raw_mut()[i] ^= 1;
            assert_eq!(block.damage(), Some(at));
        }
    }
}
