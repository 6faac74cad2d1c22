//! `mhc.post` by a kernel that was compiled against TVM-FFI; `pre` and `head` come from stock.
//!
//! The kernel is a function `(f [rows, hidden], post [rows, hc], comb [rows, hc, hc], streams [rows, hc, hidden])` of
//! contiguous f32 tensors on the CPU, exported with `TVM_FFI_DLL_EXPORT_TYPED_FUNC`, that overwrites `streams` as the
//! contract says of `mhc.post`. It may read padded rows and write anything there. Neither Python nor the package that
//! the runtime comes from is needed to run it: `libtvm_ffi.so` is.
//!
//! The hashes of module and runtime are options, so that they are part of the variant's hash, and no code runs that the
//! operator did not name.

mod ffi;
mod kernel;
mod library;

use ffi::{Any, Tensor};
use hotseam_sdk::{Ctx, Error, Host, Mhc, Plugin, Result, export_plugin, views};
use kernel::Kernel;
use library::Library;

/// Options of the variant.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Absolute path of the compiled kernel.
    pub module: String,
    /// Its sha256 in lower-case hexadecimal digits.
    pub module_sha256: String,
    /// Name under which it exports the function.
    pub function: String,
    /// Absolute path of `libtvm_ffi.so`.
    pub runtime: String,
    /// Its sha256 in lower-case hexadecimal digits.
    pub runtime_sha256: String,
}

/// The variant `mhc/tvm-ffi`.
#[derive(Debug)]
pub struct TvmFfi {
    kernel: Kernel,
}

impl TvmFfi {
    /// Maps runtime and module, in this order, and finds the function.
    ///
    /// # Errors
    /// If an option is empty or names a file of another content, or the module is not for this runtime.
    pub fn load(options: &Options) -> Result<Self> {
        for (name, value) in [("module", &options.module), ("runtime", &options.runtime)] {
            if value.is_empty() {
                return Err(Error::unsupported(format!("option {name} is empty, expected an absolute path")));
            }
        }
        let runtime = Library::open("runtime", &options.runtime, &options.runtime_sha256)?;
        let module = Library::open("module", &options.module, &options.module_sha256)?;
        Ok(Self { kernel: Kernel::new(&runtime, &module, &options.function)? })
    }

    /// Runs the kernel on `[rows, hc, hidden]` streams.
    ///
    /// # Errors
    /// What the kernel raised.
    pub fn run(&self, a: &mut views::MhcPost<'_>) -> Result<()> {
        let (n, hc, hidden) = (a.rows.len(), a.hc, a.hidden);
        if n == 0 {
            return Ok(());
        }
        let mut f = Tensor::new(a.f.as_ptr(), [n, hidden]);
        let mut post = Tensor::new(a.post.as_ptr(), [n, hc]);
        let mut comb = Tensor::new(a.comb.as_ptr(), [n, hc, hc]);
        let mut streams = Tensor::new(a.streams.as_mut_ptr(), [n, hc, hidden]);
        let args =
            [Any::tensor(&mut f), Any::tensor(&mut post), Any::tensor(&mut comb), Any::tensor(&mut streams)];
        // SAFETY: the tensors live to the end of this function; the view checked shapes, and lends `streams` for writing.
        unsafe { self.kernel.call(&args) }
    }
}

impl Plugin for TvmFfi {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        Self::load(&options)
    }
}

impl Mhc for TvmFfi {
    fn post(&self, _ctx: &Ctx, mut a: views::MhcPost<'_>) -> Result<()> {
        self.run(&mut a)
    }
}

export_plugin! {
    seam: mhc, plugin: TvmFfi, ops: [post],
    name: "mhc/tvm-ffi", description: "mhc.post by a kernel compiled against TVM-FFI", base: "mhc/cpu-stock",
    options: r#"{"module": {"type": "string", "default": "", "help": "absolute path of the compiled kernel"}, "module_sha256": {"type": "string", "default": "", "help": "sha256 of the kernel, hexadecimal"}, "function": {"type": "string", "default": "mhc_post", "help": "exported name of (f, post, comb, streams)"}, "runtime": {"type": "string", "default": "", "help": "absolute path of libtvm_ffi.so"}, "runtime_sha256": {"type": "string", "default": "", "help": "sha256 of the runtime, hexadecimal"}}"#,
    cpu: "[]"
}
