//! How kernels ask for threads without knowing who owns them.

use std::ops::Range;

use crate::Amx;

/// Something that can run a body over a range of indices, perhaps on several threads.
pub trait Parallel: Sync {
    /// Number of threads that may run a body at once, the caller included; at least 1.
    fn threads(&self) -> usize;

    /// Calls `body` with disjoint ranges that together cover `0..n`, and returns when all calls have returned.
    ///
    /// `grain` is the number of indices that are worth handing to a thread. Each range starts at a multiple of
    /// it, but may hold more than `grain` indices: an implementation may merge pieces. With `n == 0` the body
    /// is not called. If a body panics, the panic reaches the caller.
    fn run(&self, n: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync));

    /// Matrix tiles that products with packed and bf16 weights use. Sums are then made in another order: as exact, but
    /// other bits than everywhere else. Nobody has them who did not ask for them, see [`crate::WithAmx`].
    fn amx(&self) -> Option<Amx> {
        None
    }
}

/// Runs everything on the calling thread, in one piece.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial;

impl Parallel for Serial {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, n: usize, _grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        if n > 0 {
            body(0..n);
        }
    }
}
