//! `mhc.post` by a kernel that was compiled against TVM-FFI; `pre` and `head` come from stock.
//!
//! The kernel is a function `(f [rows, hidden], post [rows, hc], comb [rows, hc, hc], streams [rows, hc, hidden])` of
//! contiguous f32 tensors on the CPU, exported with `TVM_FFI_DLL_EXPORT_TYPED_FUNC`, that overwrites `streams` as the
//! contract says of `mhc.post`. It may read padded rows and write anything there.

use hotseam_sdk::{Ctx, Host, Mhc, Plugin, Result, export_plugin, views};
use hotseam_tvm_ffi::{Any, Element, Files, Kernel, Place, Tensor};

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
        let Options { module, module_sha256, function, runtime, runtime_sha256 } = options;
        let files = Files { module, module_sha256, runtime, runtime_sha256 };
        Ok(Self { kernel: Kernel::load(&files, function)? })
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
        let (cpu, f32) = (Place::Cpu, Element::F32);
        let mut f = Tensor::new(cpu, f32, a.f.as_ptr().cast(), [n, hidden]);
        let mut post = Tensor::new(cpu, f32, a.post.as_ptr().cast(), [n, hc]);
        let mut comb = Tensor::new(cpu, f32, a.comb.as_ptr().cast(), [n, hc, hc]);
        let mut streams = Tensor::new(cpu, f32, a.streams.as_mut_ptr().cast(), [n, hc, hidden]);
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
