//! Memory that is handed to a variant: guarded on both sides, poisoned where nothing has been written.

use hotseam_abi::{TensorRef, device, dtype};
use std::cell::Cell;

/// Guard words on each side; odd, so that data is aligned to 4 bytes and to no more.
pub(crate) const GUARD: usize = 33;

/// Bytes that buffers on a device are laid out by.
pub(crate) const LINE: usize = 16;

/// Fills outputs and everything that must not be read: NaN as f32, as two bf16, and in the last byte as e4m3; no
/// possible index as i32.
pub(crate) const POISON: u32 = 0x7fc1_7fc1;

/// Whether the variant may write a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Input,
    Output,
}

/// Where a copy of a buffer lies on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Ordinal of the device.
    pub(crate) device: u32,
    /// Address of the first word inside the guards.
    pub(crate) address: u64,
}

/// 4-byte words between guards.
///
/// While it has a place on a device, the arguments that are made of it point there; content is always that of host memory.
#[derive(Debug, Clone)]
pub(crate) struct Buffer {
    /// Name of the argument.
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    /// Words of a row of the batch; 0 if the buffer is not by row.
    pub(crate) row_words: usize,
    /// Whether the first word inside lies on a [`LINE`] of a device, else a word behind one.
    pub(crate) on_line: bool,
    /// Set while a case is called on a device.
    pub(crate) place: Cell<Option<Place>>,
    words: Vec<u32>,
}

fn guard_word(i: usize) -> u32 {
    0x7fa0_0000 | ((i as u32).wrapping_mul(2_654_435_761) >> 12)
}

impl Buffer {
    fn new(name: &'static str, role: Role, content: impl ExactSizeIterator<Item = u32>) -> Self {
        let n = content.len();
        let mut words: Vec<u32> = (0..GUARD).map(guard_word).collect();
        words.extend(content);
        words.extend((GUARD + n..2 * GUARD + n).map(guard_word));
        Self { name, role, row_words: 0, on_line: false, place: Cell::new(None), words }
    }

    /// An f32 input.
    pub(crate) fn f32s(name: &'static str, values: Vec<f32>) -> Self {
        Self::new(name, Role::Input, values.into_iter().map(f32::to_bits))
    }

    /// An i32 input.
    pub(crate) fn i32s(name: &'static str, values: Vec<i32>) -> Self {
        Self::new(name, Role::Input, values.into_iter().map(|v| v as u32))
    }

    /// A bf16 input of an even number of elements.
    pub(crate) fn bf16s(name: &'static str, values: &[u16]) -> Self {
        assert!(values.len().is_multiple_of(2), "{name}: {} bf16 elements do not fill words", values.len());
        let word = |pair: &[u16]| {
            u32::from_ne_bytes([
                pair[0].to_ne_bytes()[0],
                pair[0].to_ne_bytes()[1],
                pair[1].to_ne_bytes()[0],
                pair[1].to_ne_bytes()[1],
            ])
        };
        Self::new(name, Role::Input, values.chunks_exact(2).map(word))
    }

    /// An input of bytes, filled up to whole words with poison.
    pub(crate) fn bytes_of(name: &'static str, bytes: &[u8]) -> Self {
        let poison = POISON.to_ne_bytes();
        let word = |chunk: &[u8]| {
            u32::from_ne_bytes(std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(poison[i])))
        };
        Self::new(name, Role::Input, bytes.chunks(4).map(word))
    }

    /// `n` poisoned words.
    pub(crate) fn poisoned(name: &'static str, role: Role, n: usize) -> Self {
        Self::new(name, role, (0..n).map(|_| POISON))
    }

    /// A poisoned output of `rows` rows.
    pub(crate) fn out(name: &'static str, rows: usize, row_words: usize) -> Self {
        Self::poisoned(name, Role::Output, rows * row_words).by_row(row_words)
    }

    /// Says that a row of the batch has `row_words` words.
    pub(crate) fn by_row(self, row_words: usize) -> Self {
        Self { row_words, ..self }
    }

    /// Says that on a device the first word inside lies at a multiple of [`LINE`] bytes, for structs with addresses.
    pub(crate) fn on_lines(self) -> Self {
        Self { on_line: true, ..self }
    }

    pub(crate) fn with_role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// The words inside the guards.
    pub(crate) fn words(&self) -> &[u32] {
        &self.words[GUARD..self.words.len() - GUARD]
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u32] {
        let end = self.words.len() - GUARD;
        &mut self.words[GUARD..end]
    }

    /// All words, guards included.
    pub(crate) fn guarded(&self) -> &[u32] {
        &self.words
    }

    /// As [`Buffer::guarded`].
    pub(crate) fn guarded_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    pub(crate) fn f32(&self) -> &[f32] {
        let words = self.words();
        // SAFETY: f32 and u32 have the same size and alignment, and every bit pattern is an f32.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
    }

    pub(crate) fn f32_mut(&mut self) -> &mut [f32] {
        let words = self.words_mut();
        // SAFETY: as in `f32`.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
    }

    pub(crate) fn i32(&self) -> &[i32] {
        let words = self.words();
        // SAFETY: i32 and u32 have the same size and alignment, and every bit pattern is an i32.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let words = self.words();
        // SAFETY: any initialised memory is bytes.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 4) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let words = self.words_mut();
        // SAFETY: any initialised memory is bytes, and any bytes are words.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 4) }
    }

    /// First word inside the guards.
    pub(crate) fn ptr<T>(&mut self) -> *mut T {
        match self.place.get() {
            None => self.words[GUARD..].as_mut_ptr().cast(),
            Some(place) => place.address as *mut T,
        }
    }

    /// A contiguous tensor over the buffer.
    pub(crate) fn tensor(&mut self, dtype: u32, shape: &[usize]) -> TensorRef {
        TensorRef { data: self.ptr(), ..self.view(dtype, shape) }
    }

    /// A contiguous tensor over the buffer that nothing writes through.
    pub(crate) fn view(&self, dtype: u32, shape: &[usize]) -> TensorRef {
        let mut t = TensorRef { dtype, ndim: shape.len() as u32, ..TensorRef::NONE };
        (t.data, t.device, t.device_id) = match self.place.get() {
            None => (self.words().as_ptr().cast_mut().cast(), device::CPU, 0),
            Some(place) => (place.address as *mut _, device::CUDA, place.device),
        };
        t.shape = [1; 4];
        let mut stride = 1;
        for (d, extent) in shape.iter().enumerate().rev() {
            t.shape[d] = *extent as i64;
            t.strides[d] = stride;
            stride *= *extent as i64;
        }
        t
    }

    /// An f32 tensor over the buffer.
    pub(crate) fn tensor_f32(&mut self, shape: &[usize]) -> TensorRef {
        self.tensor(dtype::F32, shape)
    }

    /// Offset, in words from the first word inside, of the first guard word that was overwritten.
    pub(crate) fn damage(&self) -> Option<isize> {
        let end = self.words.len() - GUARD;
        let bad = |i: &usize| self.words[*i] != guard_word(*i);
        (0..GUARD).chain(end..self.words.len()).find(bad).map(|i| i as isize - GUARD as isize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_outside_are_found_and_writes_inside_are_not() {
        let mut b = Buffer::out("out", 2, 3);
        assert!(b.f32().iter().all(|v| v.is_nan()));
        assert_eq!(b.ptr::<f32>().addr() % 8, 4, "aligned to no more than a word");
        b.f32_mut().fill(1.0);
        assert_eq!(b.damage(), None);
        let end = b.words.len();
        b.words[GUARD + 6] = 0;
        assert_eq!(b.damage(), Some(6));
        b.words[GUARD + 6] = guard_word(GUARD + 6);
        b.words[end - 1] = POISON;
        assert_eq!(b.damage(), Some(6 + GUARD as isize - 1));
        b.words[GUARD - 1] = 0;
        assert_eq!(b.damage(), Some(-1));
    }

    #[test]
    fn arguments_point_to_the_place_and_content_is_the_hosts() {
        let mut b = Buffer::f32s("q", vec![1.0; 6]);
        let host = b.ptr::<f32>();
        b.place.set(Some(Place { device: 1, address: 4096 }));
        let t = b.tensor_f32(&[2, 3]);
        assert_eq!((t.data.addr(), t.device, t.device_id), (4096, device::CUDA, 1));
        assert_eq!((b.ptr::<f32>().addr(), b.f32()), (4096, [1.0; 6].as_slice()));
        b.place.set(None);
        assert_eq!((b.ptr::<f32>(), b.tensor_f32(&[6]).device), (host, device::CPU));
    }

    #[test]
    fn tensors_are_contiguous() {
        let mut b = Buffer::f32s("q", vec![0.0; 24]);
        let t = b.tensor_f32(&[2, 3, 4]);
        assert_eq!((t.shape, t.strides, t.ndim), ([2, 3, 4, 1], [12, 4, 1, 1], 3));
    }
}
