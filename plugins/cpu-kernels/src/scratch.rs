//! Working memory that survives the call: buffers of this thread that grow to the largest size seen.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

/// Buffers of a thread that nobody holds.
type Shelf<T> = RefCell<Vec<Vec<T>>>;

/// A type that scratch buffers can hold.
pub trait Element: Copy + Default + 'static {
    /// The free buffers of this thread.
    #[doc(hidden)]
    fn shelf() -> &'static LocalKey<Shelf<Self>>;
}

macro_rules! element {
    ($type:ty) => {
        impl Element for $type {
            fn shelf() -> &'static LocalKey<Shelf<Self>> {
                thread_local! {
                    static SHELF: Shelf<$type> = const { RefCell::new(Vec::new()) };
                }
                &SHELF
            }
        }
    };
}

element!(f32);
element!(u32);
element!(u64);
element!(usize);

/// A borrowed buffer; it goes back to its thread when it is dropped.
#[derive(Debug)]
pub struct Lease<T: Element> {
    buffer: Vec<T>,
    len: usize,
}

/// A buffer of `len` elements with unspecified contents, numbers of an earlier call as a rule.
pub fn lease<T: Element>(len: usize) -> Lease<T> {
    let mut buffer = T::shelf().with_borrow_mut(|shelf| {
        // The smallest buffer that is long enough, else the longest: so a stable call pattern stops growing.
        let fits = (0..shelf.len()).filter(|i| shelf[*i].len() >= len).min_by_key(|i| shelf[*i].len());
        let best = fits.or_else(|| (0..shelf.len()).max_by_key(|i| shelf[*i].len()));
        best.map(|i| shelf.swap_remove(i)).unwrap_or_default()
    });
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    Lease { buffer, len }
}

impl<T: Element> Deref for Lease<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.buffer[..self.len]
    }
}

impl<T: Element> DerefMut for Lease<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.buffer[..self.len]
    }
}

impl<T: Element> Drop for Lease<T> {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        // At the end of a thread the shelf may be gone already; then the buffer is simply freed.
        let _ = T::shelf().try_with(|shelf| shelf.borrow_mut().push(buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again() {
        let first = lease::<u64>(1000);
        let at = first.as_ptr();
        drop(first);
        let (big, small) = (lease::<u64>(900), lease::<u64>(10));
        assert_eq!(big.as_ptr(), at, "the free buffer that is long enough is taken");
        assert_eq!((big.len(), small.len()), (900, 10));
        assert_ne!(small.as_ptr(), at);
    }

    #[test]
    fn the_best_fit_is_taken() {
        let (a, b) = (lease::<u32>(500), lease::<u32>(50));
        let (large, small) = (a.as_ptr(), b.as_ptr());
        drop(a);
        drop(b);
        let again = lease::<u32>(40);
        assert_eq!(again.as_ptr(), small);
        assert_eq!(lease::<u32>(60).as_ptr(), large);
    }
}
