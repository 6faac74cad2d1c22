//! The CPU kernels that the cpu-* variants and the planted faults share.
//!
//! Every kernel is a free function over the host's threads and the view of an op, for example
//! [`attention::core`]`(ctx.host(), &mut view)`. It takes the view by reference, so that a variant can change an input
//! before the call or an output after it.
//!
//! What holds for all of them:
//! * **Batch invariance.** The bits of a row do not depend on the other rows, on how a prompt is cut into chunks, or on
//!   the number of threads: prefill and decode run the same arithmetic per row, in one fixed order.
//! * **No allocation once warm.** Working memory comes from [`scratch`], which grows to the largest shape seen.
//! * **Padding.** A row whose position is -1 never changes another row, whatever its inputs hold.

pub mod attention;
mod compress;
pub mod indexer;
pub mod mhc;
pub mod moe;
mod runs;
pub mod scratch;

pub use compress::compress;
