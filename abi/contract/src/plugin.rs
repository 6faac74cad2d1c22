//! The plugin entry: vtables, host services, root module.

use crate::args::*;
use crate::tensor::Text;
use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::package_version_strings;
use abi_stable::sabi_types::VersionStrings;
use core::ffi::c_void;

/// Seams, numbered.
pub mod seam {
    /// Attention backend.
    pub const ATTENTION: u32 = 0;
    /// C4 indexer.
    pub const INDEXER: u32 = 1;
    /// Mixture of experts.
    pub const MOE: u32 = 2;
    /// Manifold-constrained hyper-connections.
    pub const MHC: u32 = 3;
    /// Prefill-to-decode KV transport.
    pub const KV_TRANSPORT: u32 = 4;

    /// Names as they are printed, in the order of the numbers above.
    pub const NAMES: &[&str] = &["attention", "indexer", "moe", "mhc", "kv_transport"];
}

/// What an instance takes over from the host; bits of [`InfoV1::capabilities`]. The host skips exactly these.
pub mod capability {
    /// `attention.core` also applies the inverse rope to its output.
    pub const FUSES_INVERSE_ROPE: u64 = 1 << 0;
    /// `mhc.pre` also applies the RMS norm that follows it.
    pub const NORM_FUSED: u64 = 1 << 1;
    /// `moe.route` multiplies the weights by `routed_scale` in hash-routed layers.
    pub const ROUTE_SCALES_HASH: u64 = 1 << 2;
    /// `moe.route` multiplies the weights by `routed_scale` in top-k layers.
    pub const ROUTE_SCALES_TOPK: u64 = 1 << 3;
}

/// Log levels of [`HostServicesV1::log`].
pub mod log_level {
    /// Something failed.
    pub const ERROR: u32 = 1;
    /// Something is odd.
    pub const WARN: u32 = 2;
    /// Something happened.
    pub const INFO: u32 = 3;
    /// Detail for authors.
    pub const DEBUG: u32 = 4;
}

/// Body of a parallel loop: handles indices `begin .. end`. Must not unwind.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy)]
pub struct ParallelBody(pub extern "C" fn(data: *mut c_void, begin: usize, end: usize));

/// Services that the host gives to every plugin. Frozen for V1: a plugin must not read past `size`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct HostServicesV1 {
    /// Bytes of this struct.
    pub size: u32,
    /// Version of the services, 1.
    pub version: u32,
    /// Threads that `parallel_for` uses, the caller included.
    pub threads: u32,
    /// Passed back as the first argument of each service.
    pub ctx: *mut c_void,
    /// Writes a log line. Any thread.
    pub log: extern "C" fn(ctx: *mut c_void, level: u32, target: Text, message: Text),
    /// Sets the error text of the call that is running on this thread.
    pub error: extern "C" fn(ctx: *mut c_void, message: Text),
    /// Runs `body` over `0 .. n` in pieces of at least `grain`, on all threads, and waits. Not re-entrant.
    pub parallel_for:
        extern "C" fn(ctx: *mut c_void, n: usize, grain: usize, data: *mut c_void, body: ParallelBody),
}

/// What an instance says of itself after `create`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct InfoV1 {
    /// Bytes of this struct known to the host.
    pub size: u32,
    /// Bits of [`capability`].
    pub capabilities: u64,
    /// Bits of the phases served (`1 << phase`); a cell of another phase is refused.
    pub phases: u32,
    /// Layout of the entries this instance writes and reads ([`crate::layout`]); 0 for seams without a pool.
    pub layout: u32,
    /// Dimension the question is asked for (`head_dim` or `index_head_dim`); set by the host.
    pub dim: u32,
    /// Roped values of an entry (`qk_rope_head_dim`), the last ones; set by the host.
    pub rope_dim: u32,
    /// Bytes of the data part of an entry of `layout` ([`PoolRef`]); set by the plugin, 0 for seams without a pool.
    pub data_bytes: u32,
    /// Bytes of its scale part; set by the plugin.
    pub scale_bytes: u32,
}

/// Functions of the `attention` seam; a null function falls to the variant's base.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct AttentionV1 {
    /// See [`StoreArgs`].
    pub store: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const StoreArgs) -> i32>,
    /// See [`CompressArgs`].
    pub compress:
        Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const CompressArgs) -> i32>,
    /// See [`CoreArgs`].
    pub core: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const CoreArgs) -> i32>,
}

/// Functions of the `indexer` seam.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct IndexerV1 {
    /// See [`CompressArgs`].
    pub compress:
        Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const CompressArgs) -> i32>,
    /// See [`SelectArgs`].
    pub select: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const SelectArgs) -> i32>,
}

/// Functions of the `moe` seam.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct MoeV1 {
    /// See [`RouteArgs`].
    pub route: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const RouteArgs) -> i32>,
    /// See [`ExpertsArgs`].
    pub experts:
        Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const ExpertsArgs) -> i32>,
}

/// Functions of the `mhc` seam.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct MhcV1 {
    /// See [`MhcPreArgs`].
    pub pre: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const MhcPreArgs) -> i32>,
    /// See [`MhcPostArgs`].
    pub post: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const MhcPostArgs) -> i32>,
    /// See [`MhcHeadArgs`].
    pub head: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const MhcHeadArgs) -> i32>,
}

/// Functions of the `kv_transport` seam. They run on one host thread; `put` must not wait for completion. The last four come
/// together: a transport that lacks them has both sides in one process.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct KvTransportV1 {
    /// See [`RegisterArgs`].
    pub register:
        Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const RegisterArgs) -> i32>,
    /// See [`PutArgs`].
    pub put: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const PutArgs) -> i32>,
    /// See [`PollArgs`].
    pub poll: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *mut PollArgs) -> i32>,
    /// Gives a ticket up: after it returns the source is not read and the destination is not written any more, as far as they
    /// are registered here; a destination elsewhere is closed there. Unknown tickets are fine.
    pub cancel: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, ticket: u64) -> i32>,
    /// See [`EndpointArgs`].
    pub endpoint:
        Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *mut EndpointArgs) -> i32>,
    /// See [`ConnectArgs`].
    pub connect: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *mut ConnectArgs) -> i32>,
    /// See [`AcceptArgs`].
    pub accept: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *const AcceptArgs) -> i32>,
    /// See [`CloseArgs`].
    pub close: Option<extern "C" fn(this: *mut c_void, ctx: *const StepCtx, args: *mut CloseArgs) -> i32>,
}

/// Everything a plugin hands to the host. Static for the life of the process.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct PluginV1 {
    /// Bytes of this struct.
    pub size: u32,
    /// [`crate::CONTRACT`] of the build.
    pub contract: u32,
    /// One of [`seam`].
    pub seam: u32,
    /// Version of [`HostServicesV1`] the plugin needs.
    pub host_services: u32,
    /// JSON manifest: `name` (`seam/variant`), `version`, `description`, `base` (variant that serves the ops this one
    /// leaves null, or null), `device` (`cpu` or `cuda`: where its ops run), `options` (`{name: {type, default, values?,
    /// help}}`), `requires` (`{cpu: [features], libs: [names], cuda: {driver_min, sm: [capabilities]}}`, all optional),
    /// `panic` (panic strategy of the build).
    pub manifest: Text,
    /// Whether the plugin can run on this machine: [`crate::OK`], or a code with the reason given to
    /// [`HostServicesV1::error`]. Worker thread; may be slow.
    pub probe: extern "C" fn(host: *const HostServicesV1) -> i32,
    /// Makes an instance from a JSON object of options (each one known to the manifest). Worker thread; may allocate.
    pub create: extern "C" fn(host: *const HostServicesV1, options: Text, out: *mut *mut c_void) -> i32,
    /// Describes an instance. Any thread.
    pub info: extern "C" fn(this: *mut c_void, info: *mut InfoV1) -> i32,
    /// Ends an instance. Never called while a call on it runs; the code stays mapped.
    pub destroy: extern "C" fn(this: *mut c_void),
    /// Set if `seam` is attention.
    pub attention: Option<&'static AttentionV1>,
    /// Set if `seam` is indexer.
    pub indexer: Option<&'static IndexerV1>,
    /// Set if `seam` is moe.
    pub moe: Option<&'static MoeV1>,
    /// Set if `seam` is mhc.
    pub mhc: Option<&'static MhcV1>,
    /// Set if `seam` is kv_transport.
    pub kv_transport: Option<&'static KvTransportV1>,
}

// SAFETY: a PluginV1 holds function pointers and pointers to immutable statics.
unsafe impl Send for PluginV1 {}
// SAFETY: as above; nothing in it is written after it is built.
unsafe impl Sync for PluginV1 {}
// SAFETY: the services are callable from any thread, as their documentation says.
unsafe impl Send for HostServicesV1 {}
// SAFETY: as above.
unsafe impl Sync for HostServicesV1 {}

/// The abi_stable root module of a Rust plugin.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginMod)))]
#[sabi(missing_field(panic))]
pub struct PluginModVal {
    /// Returns the plugin's entry.
    #[sabi(last_prefix_field)]
    pub plugin_v1: extern "C" fn() -> &'static PluginV1,
}

impl RootModule for PluginMod {
    abi_stable::declare_root_module_statics! {PluginMod}
    const BASE_NAME: &'static str = "hotseam_plugin";
    const NAME: &'static str = "hotseam_plugin";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}
