//! CPU arithmetic without knowledge of models or plugins: matrix products, norms, rope, number formats and a
//! thread pool.
//!
//! Two promises hold for every function here and are tested bit for bit:
//!
//! - **Batch invariance.** A result does not depend on how many rows, heads or keys are computed together, on
//!   how the work is tiled, or on how many threads take part. Every sum has one fixed order, see [`lanes`].
//! - **One arithmetic.** The AVX-512, AVX2 and portable paths execute the same operations in the same order, because
//!   all are compiled from the same generic kernels. Packed weights give the bits of their f32 form. Matrix tiles
//!   ([`Amx`]) break this promise, and only this one, for who asks for them.
//!
//! Shapes are row-major and lengths are checked on entry: a caller that passes a slice of the wrong length has
//! a bug, and the function panics with a message that names the argument and both lengths.

pub mod bf16;
pub mod e4m3;
pub mod formats;

mod act;
mod amx;
mod checksum;
mod exp;
mod gather;
mod hadamard;
mod isa;
pub mod lanes;
mod linear;
mod norm;
#[cfg(target_os = "linux")]
mod numa;
mod parallel;
mod pool;
mod rope;
mod vector;
pub mod widen;

#[cfg(test)]
mod testing;

pub use act::{sigmoid, sqrt_softplus, swiglu};
pub use amx::{Amx, NoAmx, WithAmx};
pub use checksum::{Checksum, checksum};
pub use exp::{exp, exp_in_place};
pub use gather::{gather_accumulate, gather_scores};
pub use hadamard::hadamard;
pub use isa::{Kernel, dispatch};
pub use linear::{Linear, Mat, Weight, dequantise, linear, linear_grouped, linear_into, linears};
pub use norm::rms_norm;
pub use parallel::{Parallel, Serial};
pub use pool::Pool;
pub use rope::rope;
pub use vector::{axpy, dot, dot_rows, max, scale, sum, weighted_sum_rows};
