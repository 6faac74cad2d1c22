//! Zeroed memory that costs nothing until it is touched.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

const ALIGN: usize = 64;

/// A fixed block, aligned to 64 bytes. Its address does not change.
#[derive(Debug)]
pub(crate) struct Memory {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: a plain owned block.
unsafe impl Send for Memory {}
// SAFETY: the engine thread alone reads and writes pools, and hands them to plugins for the length of a call.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` zero bytes. Large blocks come straight from the system and are mapped page by page when touched.
    pub(crate) fn zeroed(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), ALIGN).expect("pool sizes are far below isize::MAX");
        // SAFETY: the layout has a non-zero size.
        let ptr = unsafe { alloc_zeroed(layout) };
        if ptr.is_null() {
            handle_alloc_error(layout);
        }
        Self { ptr, layout }
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.ptr
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout.
        unsafe { dealloc(self.ptr, self.layout) }
    }
}
