//! The attention seam: storing window entries, and attention over window, compressed entries and sink.

mod core;
mod products;
mod store;

pub use self::core::core;
pub use store::store;
