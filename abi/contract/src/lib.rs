//! The contract between the Hotseam host and its plugins: `repr(C)` types and entry points, no logic.
//!
//! A plugin is a `cdylib` that serves one *seam* (`attention`, `indexer`, `moe`, `mhc`, `kv_transport`) by filling
//! one [`PluginV1`]. A Rust plugin hands it over through an abi_stable root module ([`PluginMod`]), whose layout
//! check covers every type below; a C or C++ plugin exports the symbol [`C_ENTRY_SYMBOL`] instead.
//!
//! # Rules that hold for every function
//! * **Thread**: step functions run on the engine thread, or on one thread the host names; never two at once on one
//!   instance. Inside a call a plugin spreads work only through [`HostServicesV1::parallel_for`]; it owns no pool. A transport
//!   may have threads that serve its connections; they end with the instance.
//! * **Device**: the manifest says where a variant runs. On a device the argument structs themselves ([`StepCtx`], the `Args`,
//!   [`Batch`], [`PoolRef`], ..) are host memory, and every array that they point to is device memory: the data of tensors,
//!   positions, spans, tables, index lists, ids. A call reads the structs before it returns and the arrays on the stream;
//!   it cannot trust the values of an array, so an index out of range names nothing. The primary context of the device is
//!   current on the thread of every call but `probe`.
//! * **Stream**: `StepCtx::stream` is 0 on the CPU. On a device a call enqueues on that stream and does not wait; it makes
//!   no other stream, synchronises nothing and allocates nothing, so that a graph can be captured from it and replayed with
//!   other values in the same arrays.
//! * **Workspace**: `StepCtx::workspace` is memory of the device that a call may use until the next call of the step. A call
//!   works in pieces where it would like more.
//! * **Allocation**: step functions do not allocate once warm; scratch that grows to the largest shape seen is allowed.
//! * **Aliasing**: outputs never alias inputs unless the argument says so.
//! * **Zero rows**: `Batch::n_rows == 0` is legal, writes nothing and returns [`OK`].
//! * **-1** in an index list means "no entry"; a row whose position is -1 is padding: its outputs are not read.
//! * **NaN** in an input may give NaN in the same row's output; it never changes another row, and an index that is
//!   selected from scores is never chosen because its score is NaN.
//! * **Return**: [`OK`] or a positive error code; the text goes to [`HostServicesV1::error`] before returning.
//!   A panic must not cross: the SDK turns it into [`ERR_PANIC`].
//! * Every argument struct starts with `size`, the number of bytes its writer knew.
//!
//! The contract is a draft until the tag `abi-1.0`; until then each change raises [`CONTRACT`].

mod args;
mod plugin;
mod tensor;

pub use args::*;
pub use plugin::*;
pub use tensor::*;

/// Number of this contract draft. Host and plugin must have the same number.
pub const CONTRACT: u32 = 4;

/// Name of the symbol by which a C or C++ plugin hands over its [`PluginV1`]:
/// `const PluginV1 *hotseam_plugin_v1(void)`.
pub const C_ENTRY_SYMBOL: &str = "hotseam_plugin_v1";

/// Success.
pub const OK: i32 = 0;
/// The plugin panicked; the instance is not used again.
pub const ERR_PANIC: i32 = 1;
/// An argument is outside what the plugin supports (shape, dtype, layout); nothing was written.
pub const ERR_ARGUMENT: i32 = 2;
/// The plugin cannot run on this machine or with these options.
pub const ERR_UNSUPPORTED: i32 = 3;
/// Any other failure inside the plugin.
pub const ERR_INTERNAL: i32 = 4;
