//! What a plugin author links: traits to implement, safe views of the arguments, and [`export_plugin!`].
//!
//! A plugin implements [`Plugin`] and the trait of its seam, then exports itself:
//!
//! ```ignore
//! hotseam_sdk::export_plugin! {
//!     seam: attention, plugin: Stock, ops: [store, compress, core],
//!     name: "attention/my-kernel", description: "what is special about it", base: "attention/cpu-stock",
//!     options: r#"{"splits": {"type": "integer", "default": 4, "help": "key splits of a row"}}"#,
//!     cpu: r#"["avx2"]"#
//! }
//! ```
//! Ops that are not listed fall to `base`. The shims check every argument before a plugin sees it (shape, dtype,
//! contiguity, alignment), turn a returned [`Error`] into code and text, and a panic into
//! [`hotseam_abi::ERR_PANIC`].

pub mod cuda;
mod error;
mod export;
mod host;
pub mod layouts;
pub mod shims;
mod tensor;
mod traits;
pub mod views;

pub use error::{Error, Result};
pub use host::{Ctx, Host, SharedMut};
pub use hotseam_abi as abi;
pub use hotseam_ops as ops;
pub use traits::{Attention, Indexer, Info, KvTransport, Mhc, Moe, NoOptions, Plugin};
