//! The truth: every op of every seam, plainly.
//!
//! Inputs are the f32, bf16 and pool bytes that a variant sees; sums, softmax and norms run in f64 and are rounded to
//! f32 where the contract names an output. Nothing here calls the arithmetic of `hotseam-ops` or the layout code of the
//! SDK: an arbiter that shares code with the accused finds nothing. Only the argument views, which check shapes, are
//! shared. Rows are spread over [`Parallel`](hotseam_sdk::ops::Parallel); no result depends on how.

mod attention;
mod compress;
mod indexer;
pub mod layout;
mod mhc;
mod moe;
pub mod numbers;

pub use attention::{core, inverse_rope, mass, store};
pub use compress::compress;
pub use indexer::{scores, select};
pub use mhc::{mhc_head, mhc_post, mhc_pre};
pub use moe::{experts, route, router_scores};
