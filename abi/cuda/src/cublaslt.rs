//! cuBLASLt, opened when it is first asked for: products of bf16 matrices with f32 sums.

use crate::error::CudaError;
use crate::memory::Buffer;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::OnceLock;

/// Names of the library, in the order in which they are tried.
const NAMES: [&str; 3] = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];
/// Bytes that an algorithm may use beside the matrices: what NVIDIA advises for Hopper.
const WORKSPACE: usize = 32 << 20;

// Numbers of `cublasLt.h`, `cublas_api.h` and `library_types.h`.
const COMPUTE_32F: c_int = 68;
const R_32F: c_int = 0;
const R_16BF: c_int = 14;
const DESC_TRANSA: c_int = 3;
const OP_T: c_int = 1;
const PREF_MAX_WORKSPACE_BYTES: c_int = 1;
const STATUS_NOT_SUPPORTED: c_int = 15;

/// Why cuBLASLt cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LtError {
    /// It is not there.
    #[error(
        "cuBLASLt is not there, searched {}. Install CUDA's cuBLAS, or name its directory in LD_LIBRARY_PATH",
        NAMES.join(", ")
    )]
    Missing,
    /// The library of that name is another one.
    #[error("{name} is not cuBLASLt: it has no {lacks}. Take its directory out of LD_LIBRARY_PATH")]
    Foreign {
        /// The name that it was found under.
        name: &'static str,
        /// The function that it lacks.
        lacks: &'static str,
    },
    /// There is not the memory for it.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// A call failed.
    #[error("{call}: {text}")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// What the library says of its result.
        text: String,
    },
}

type Opaque = *mut c_void;

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Algo([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Heuristic {
    algo: Algo,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Heuristic>() == 96);

macro_rules! functions {
    ($($field:ident = $name:ident($($argument:ty),* $(,)?) -> $result:ty;)+) => {
        #[derive(Debug, Clone, Copy)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)+
        }

        impl Functions {
            fn find(library: &Library, name: &'static str) -> Result<Self, LtError> {
                Ok(Self { $(
                    // SAFETY: the function has this type in every version of these names.
                    $field: *unsafe { library.get(stringify!($name).as_bytes()) }
                        .map_err(|_| LtError::Foreign { name, lacks: stringify!($name) })?,
                )+ })
            }
        }
    };
}

functions! {
    create = cublasLtCreate(*mut Opaque) -> c_int;
    destroy = cublasLtDestroy(Opaque) -> c_int;
    status = cublasLtGetStatusString(c_int) -> *const c_char;
    desc_create = cublasLtMatmulDescCreate(*mut Opaque, c_int, c_int) -> c_int;
    desc_set = cublasLtMatmulDescSetAttribute(Opaque, c_int, *const c_void, usize) -> c_int;
    desc_destroy = cublasLtMatmulDescDestroy(Opaque) -> c_int;
    layout_create = cublasLtMatrixLayoutCreate(*mut Opaque, c_int, u64, u64, i64) -> c_int;
    layout_destroy = cublasLtMatrixLayoutDestroy(Opaque) -> c_int;
    preference_create = cublasLtMatmulPreferenceCreate(*mut Opaque) -> c_int;
    preference_set = cublasLtMatmulPreferenceSetAttribute(Opaque, c_int, *const c_void, usize) -> c_int;
    preference_destroy = cublasLtMatmulPreferenceDestroy(Opaque) -> c_int;
    heuristic = cublasLtMatmulAlgoGetHeuristic(
        Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, Opaque, c_int, *mut Heuristic, *mut c_int,
    ) -> c_int;
    matmul = cublasLtMatmul(
        Opaque, Opaque, *const c_void, *const c_void, Opaque, *const c_void, Opaque, *const c_void, *const c_void, Opaque,
        *mut c_void, Opaque, *const Algo, *mut c_void, usize, *mut c_void,
    ) -> c_int;
}

impl Functions {
    /// The library of this machine. The answer is that of the first question.
    fn open() -> Result<&'static Self, LtError> {
        static ANSWER: OnceLock<Result<Functions, LtError>> = OnceLock::new();
        let look = || {
            // SAFETY: its constructors run; it is the library that the machine's linker is set up to find.
            let opened = NAMES.iter().find_map(|name| Some((*name, unsafe { Library::new(*name) }.ok()?)));
            let (name, library) = opened.ok_or(LtError::Missing)?;
            // Its functions are used to the end of the process.
            Self::find(Box::leak(Box::new(library)), name)
        };
        ANSWER.get_or_init(look).as_ref().map_err(Clone::clone)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), LtError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the library gives a static, terminated text for every code.
        let text = unsafe { CStr::from_ptr((self.status)(code)) };
        Err(LtError::Call { call, text: text.to_string_lossy().into_owned() })
    }
}

/// A product `y = x w^T`: `x` `[rows, k]` and `w` `[n, k]` bf16, `y` `[rows, n]` f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    /// Values from a row of `x` to the next.
    pub x_pitch: usize,
    /// Values from a row of `y` to the next.
    pub y_pitch: usize,
}

/// How the library makes a product.
#[derive(Debug)]
pub struct Plan {
    functions: &'static Functions,
    desc: Opaque,
    /// Of `w`, `x` and `y`.
    layouts: [Opaque; 3],
    algo: Algo,
}

// SAFETY: descriptors are plain memory of the library, and belong to who has the plan.
unsafe impl Send for Plan {}

/// The library, a handle for the current context and the memory of its algorithms.
#[derive(Debug)]
pub struct CublasLt {
    functions: &'static Functions,
    handle: Opaque,
    workspace: Buffer,
}

// SAFETY: a handle may be used from any thread.
unsafe impl Send for CublasLt {}

impl CublasLt {
    /// Opens it for the current context.
    ///
    /// # Errors
    /// If the library is not there or refuses, or there is not the memory.
    pub fn open() -> Result<Self, LtError> {
        let functions = Functions::open()?;
        let workspace = Buffer::new(WORKSPACE, "the workspace of cuBLASLt")?;
        let mut handle = null_mut();
        // SAFETY: the pointer is writable; a context is current.
        functions.check("cublasLtCreate", unsafe { (functions.create)(&raw mut handle) })?;
        Ok(Self { functions, handle, workspace })
    }

    /// Finds how a product is made; `None` if the library has no way.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn plan(&self, product: Product) -> Result<Option<Plan>, LtError> {
        let f = self.functions;
        let Product { rows, n, k, x_pitch, y_pitch } = product;
        let mut plan = Plan { functions: f, desc: null_mut(), layouts: [null_mut(); 3], algo: Algo([0; 8]) };
        // The library counts columns first: `y` of `[n, rows]` is the transpose of `w` `[k, n]`, times `x` `[k, rows]`.
        let shapes = [(R_16BF, k, n, k), (R_16BF, k, rows, x_pitch), (R_32F, n, rows, y_pitch)];
        // SAFETY: pointers are to locals of the sizes given, and descriptors are alive until the plan is dropped.
        unsafe {
            f.check("cublasLtMatmulDescCreate", (f.desc_create)(&raw mut plan.desc, COMPUTE_32F, R_32F))?;
            let set = |attribute, value: &c_int| {
                let code = (f.desc_set)(plan.desc, attribute, from_ref(value).cast(), size_of::<c_int>());
                f.check("cublasLtMatmulDescSetAttribute", code)
            };
            set(DESC_TRANSA, &OP_T)?;
            for (layout, (kind, height, width, pitch)) in plan.layouts.iter_mut().zip(shapes) {
                let code =
                    (f.layout_create)(from_mut(layout), kind, height as u64, width as u64, pitch as i64);
                f.check("cublasLtMatrixLayoutCreate", code)?;
            }
            let mut preference = null_mut();
            f.check("cublasLtMatmulPreferenceCreate", (f.preference_create)(&raw mut preference))?;
            let most = self.workspace.bytes();
            let code = (f.preference_set)(
                preference,
                PREF_MAX_WORKSPACE_BYTES,
                from_ref(&most).cast(),
                size_of::<usize>(),
            );
            let mut found =
                Heuristic { algo: plan.algo, workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };
            let (mut count, [w, x, y]) = (0, plan.layouts);
            let asked = f.check("cublasLtMatmulPreferenceSetAttribute", code).map(|()| {
                let out = (&raw mut found, &raw mut count);
                (f.heuristic)(self.handle, plan.desc, w, x, y, y, preference, 1, out.0, out.1)
            });
            let _ = (f.preference_destroy)(preference);
            // A shape that it cannot do is a failure of this call, or no answer.
            if asked? != 0 || count == 0 || found.state != 0 {
                return Ok(None);
            }
            plan.algo = found.algo;
        }
        Ok(Some(plan))
    }

    /// Enqueues a product; with `add`, it is added to what `y` holds. `false` if the library finds only now that it has no way to make
    /// it, which its search does not always tell.
    ///
    /// # Errors
    /// If the library refuses.
    ///
    /// # Safety
    /// The addresses are of device memory of the shapes of the plan, which is one of this handle, and is valid until it is done.
    pub unsafe fn product(
        &self,
        plan: &Plan,
        [w, x, y]: [u64; 3],
        add: bool,
        stream: u64,
    ) -> Result<bool, LtError> {
        let (one, beta) = (1.0f32, if add { 1.0f32 } else { 0.0 });
        let [of_w, of_x, of_y] = plan.layouts;
        let y = y as *mut c_void;
        // SAFETY: the caller's contract; the factors live through the call, which copies them.
        let code = unsafe {
            (self.functions.matmul)(
                self.handle,
                plan.desc,
                from_ref(&one).cast(),
                w as *const c_void,
                of_w,
                x as *const c_void,
                of_x,
                from_ref(&beta).cast(),
                y,
                of_y,
                y,
                of_y,
                &raw const plan.algo,
                self.workspace.address() as *mut c_void,
                self.workspace.bytes(),
                stream as *mut c_void,
            )
        };
        match code {
            STATUS_NOT_SUPPORTED => Ok(false),
            code => self.functions.check("cublasLtMatmul", code).map(|()| true),
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: each was created once, or is null.
        unsafe {
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                (self.functions.layout_destroy)(layout);
            }
            if !self.desc.is_null() {
                (self.functions.desc_destroy)(self.desc);
            }
        }
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: created once.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}
