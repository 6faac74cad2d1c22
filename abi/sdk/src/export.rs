//! The export macro.

/// Panic strategy of this build, as a literal for the manifest.
#[cfg(panic = "unwind")]
#[doc(hidden)]
#[macro_export]
macro_rules! __panic_strategy {
    () => {
        "unwind"
    };
}

/// Panic strategy of this build, as a literal for the manifest.
#[cfg(not(panic = "unwind"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __panic_strategy {
    () => {
        "abort"
    };
}

/// JSON of an optional base.
#[doc(hidden)]
#[macro_export]
macro_rules! __base {
    () => {
        "null"
    };
    ($base:literal) => {
        concat!("\"", $base, "\"")
    };
}

/// The vtable of a seam with the listed ops.
#[doc(hidden)]
#[macro_export]
macro_rules! __vtable {
    (cpu, $seam:ident, $table:ident, $empty:expr, $plugin:ty, $($op:ident),+) => {{
        static TABLE: $crate::abi::$table = {
            let mut table = $empty;
            $(table.$op = Some($crate::shims::$seam::$op::<$plugin>);)+
            table
        };
        Some(&TABLE)
    }};
    (cuda, $seam:ident, $table:ident, $empty:expr, $plugin:ty, $($op:ident),+) => {{
        static TABLE: $crate::abi::$table = {
            let mut table = $empty;
            $(table.$op = Some($crate::cuda::shims::$seam::$op::<$plugin>);)+
            table
        };
        Some(&TABLE)
    }};
}

/// The five seam pointers of a [`hotseam_abi::PluginV1`], of which one is set.
#[doc(hidden)]
#[macro_export]
macro_rules! __with_seam {
    ($device:ident, attention, $entry:ident, $plugin:ty, $($op:ident),+) => {
        $entry.seam = $crate::abi::seam::ATTENTION;
        $entry.attention = $crate::__vtable!($device, attention, AttentionV1,
            $crate::abi::AttentionV1 { store: None, compress: None, core: None }, $plugin, $($op),+);
    };
    ($device:ident, indexer, $entry:ident, $plugin:ty, $($op:ident),+) => {
        $entry.seam = $crate::abi::seam::INDEXER;
        $entry.indexer = $crate::__vtable!($device, indexer, IndexerV1,
            $crate::abi::IndexerV1 { compress: None, select: None }, $plugin, $($op),+);
    };
    ($device:ident, moe, $entry:ident, $plugin:ty, $($op:ident),+) => {
        $entry.seam = $crate::abi::seam::MOE;
        $entry.moe = $crate::__vtable!($device, moe, MoeV1,
            $crate::abi::MoeV1 { route: None, experts: None }, $plugin, $($op),+);
    };
    ($device:ident, mhc, $entry:ident, $plugin:ty, $($op:ident),+) => {
        $entry.seam = $crate::abi::seam::MHC;
        $entry.mhc = $crate::__vtable!($device, mhc, MhcV1,
            $crate::abi::MhcV1 { pre: None, post: None, head: None }, $plugin, $($op),+);
    };
    (cpu, kv_transport, $entry:ident, $plugin:ty, $($op:ident),+) => {
        $entry.seam = $crate::abi::seam::KV_TRANSPORT;
        $entry.kv_transport = $crate::__vtable!(cpu, kv_transport, KvTransportV1,
            $crate::abi::KvTransportV1 {
                register: None, put: None, poll: None, cancel: None,
                endpoint: None, connect: None, accept: None, close: None,
            }, $plugin, $($op),+);
    };
}

/// Exports a plugin: the static entry, the abi_stable root module and the C symbol. See the crate documentation.
///
/// `options` is a JSON object `{name: {type: "boolean" | "integer" | "number" | "string", default, values?, help}}`,
/// `cpu` a JSON list of the CPU features that [`Plugin::probe`](crate::Plugin::probe) asks for. A plugin whose ops run on a
/// CUDA device has `driver` (oldest version of CUDA that its kernels load on, such as `"13.0"`) and `sm` (a JSON list of compute
/// capabilities) in their place, and implements the traits of [`crate::cuda`].
#[macro_export]
macro_rules! export_plugin {
    (
        seam: $seam:ident, plugin: $plugin:ty, ops: [$($op:ident),+ $(,)?],
        name: $name:literal, description: $description:literal,
        $(base: $base:literal,)?
        options: $options:literal, cpu: $cpu:literal $(,)?
    ) => {
        $crate::__export!(
            cpu, $seam, $plugin, [$($op),+], $name, $description, $crate::__base!($($base)?), $options,
            concat!("{\"cpu\":", $cpu, "}")
        );
    };
    (
        seam: $seam:ident, plugin: $plugin:ty, ops: [$($op:ident),+ $(,)?],
        name: $name:literal, description: $description:literal,
        $(base: $base:literal,)?
        options: $options:literal, driver: $driver:literal, sm: $sm:literal $(,)?
    ) => {
        $crate::__export!(
            cuda, $seam, $plugin, [$($op),+], $name, $description, $crate::__base!($($base)?), $options,
            concat!("{\"cuda\":{\"driver_min\":\"", $driver, "\",\"sm\":", $sm, "}}")
        );
    };
}

/// What [`export_plugin!`] makes.
#[doc(hidden)]
#[macro_export]
macro_rules! __export {
    (
        $device:ident, $seam:ident, $plugin:ty, [$($op:ident),+], $name:literal, $description:literal, $base:expr,
        $options:literal, $requires:expr
    ) => {
        const MANIFEST: &str = concat!(
            "{\"name\":\"", $name, "\",\"version\":\"", env!("CARGO_PKG_VERSION"), "\",\"description\":\"", $description,
            "\",\"base\":", $base, ",\"device\":\"", stringify!($device), "\",\"options\":", $options, ",\"requires\":",
            $requires, ",\"panic\":\"", $crate::__panic_strategy!(), "\"}"
        );

        static PLUGIN: $crate::abi::PluginV1 = {
            let mut entry = $crate::abi::PluginV1 {
                size: size_of::<$crate::abi::PluginV1>() as u32,
                contract: $crate::abi::CONTRACT,
                seam: 0,
                host_services: 1,
                manifest: $crate::abi::Text { ptr: MANIFEST.as_ptr(), len: MANIFEST.len() },
                probe: $crate::shims::probe::<$plugin>,
                create: $crate::shims::create::<$plugin>,
                info: $crate::shims::info::<$plugin>,
                destroy: $crate::shims::destroy::<$plugin>,
                attention: None,
                indexer: None,
                moe: None,
                mhc: None,
                kv_transport: None,
            };
            $crate::__with_seam!($device, $seam, entry, $plugin, $($op),+);
            entry
        };

        extern "C" fn plugin_v1() -> &'static $crate::abi::PluginV1 {
            &PLUGIN
        }

        /// Entry for hosts that do not read abi_stable headers; see `hotseam_abi::C_ENTRY_SYMBOL`.
        #[unsafe(no_mangle)]
        pub extern "C" fn hotseam_plugin_v1() -> *const $crate::abi::PluginV1 {
            &PLUGIN
        }

        #[abi_stable::export_root_module]
        fn root_module() -> $crate::abi::PluginMod {
            use abi_stable::prefix_type::PrefixTypeTrait;
            $crate::abi::PluginModVal { plugin_v1 }.leak_into_prefix()
        }
    };
}
