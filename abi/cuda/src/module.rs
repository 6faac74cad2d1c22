//! Kernels: machine code for a device, and launches.

use crate::device::{current_context, current_sm};
use crate::error::{CudaError, Result, check};
use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchConfig, CUmodule, CUresult, CUstream,
};
use std::ffi::{CString, c_void};
use std::sync::{Mutex, PoisonError};

/// Machine code for one compute capability.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    /// Compute capability: 90 for 9.0. Such code runs on no other.
    pub sm: u32,
    /// The cubin.
    pub bytes: &'static [u8],
}

/// Code that is loaded into a context. Like that of a plugin's file it is never unloaded: the driver makes others wait while it loads
/// or unloads, and a variant that comes back, or one more instance of it, finds its code there.
#[derive(Debug, Clone, Copy)]
pub struct Module(CUmodule);

// SAFETY: a module may be used from any thread whose context is the one it was loaded into.
unsafe impl Send for Module {}
// SAFETY: as above; it is not changed.
unsafe impl Sync for Module {}

/// What was loaded, by the number of the context, which no later one has, and the address of the image.
static LOADED: Mutex<Vec<((u64, usize), Module)>> = Mutex::new(Vec::new());

impl Module {
    /// The image that is for the current device, loaded into the current context if it is not there. May synchronise the device; not
    /// for the step loop.
    ///
    /// # Errors
    /// If no image is for the device, or the driver refuses it.
    pub fn load(images: &[Image]) -> Result<Self> {
        let sm = current_sm()?;
        let Some(image) = images.iter().find(|image| image.sm == sm) else {
            return Err(CudaError::NoImage {
                have: images.iter().map(|image| image.sm).collect(),
                found: sm,
            });
        };
        let key = (current_context()?, image.bytes.as_ptr().addr());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, module)) = loaded.iter().find(|(other, _)| *other == key) {
            return Ok(*module);
        }
        let mut module = std::ptr::null_mut();
        // SAFETY: an image is a whole cubin, which carries its own length.
        check("cuModuleLoadData", unsafe {
            sys::cuModuleLoadData(&raw mut module, image.bytes.as_ptr().cast())
        })?;
        loaded.push((key, Self(module)));
        Ok(Self(module))
    }

    /// The kernel of that name, ready to be launched.
    ///
    /// # Errors
    /// If the module has none.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let missing = || CudaError::NoKernel { name: name.to_owned() };
        let text = CString::new(name).map_err(|_| missing())?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the pointer is writable; the name is terminated.
        match unsafe { sys::cuModuleGetFunction(&raw mut function, self.0, text.as_ptr()) } {
            CUresult::CUDA_ERROR_NOT_FOUND => return Err(missing()),
            code => check("cuModuleGetFunction", code)?,
        }
        // The driver would load it with its first launch, in a step.
        // SAFETY: the function was just given.
        check("cuFuncLoad", unsafe { sys::cuFuncLoad(function) })?;
        Ok(Kernel(function))
    }
}

/// A function of a module.
#[derive(Debug, Clone, Copy)]
pub struct Kernel(CUfunction);

// SAFETY: as for a module.
unsafe impl Send for Kernel {}
// SAFETY: as for a module.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Lets a launch take up to `bytes` of dynamic shared memory, where that is more than 48 KiB.
    ///
    /// # Errors
    /// If the device has not so much.
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function stays as long as its context.
        check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(self.0, attribute, bytes as i32) })
    }

    /// Enqueues the kernel with one argument, which is copied. It begins when what is on the stream before it has ended. A grid
    /// without blocks enqueues nothing.
    ///
    /// # Safety
    /// `params` is what the kernel takes, byte for byte, and the memory that it names is valid until the kernel has run.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn launch<P: Copy>(
        &self,
        stream: u64,
        grid: [u32; 3],
        threads: u32,
        dynamic_shared: u32,
        params: &P,
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.enqueue(stream, grid, threads, dynamic_shared, params, false) }
    }

    /// As [`Kernel::launch`], but its blocks may be set up while the kernel before it on the stream still runs.
    ///
    /// # Safety
    /// As [`Kernel::launch`], and every thread of the kernel waits for what is before it by itself, with `griddepcontrol.wait`,
    /// before it touches memory that something on the stream writes or reads.
    ///
    /// # Errors
    /// If the driver refuses.
    pub unsafe fn launch_early<P: Copy>(
        &self,
        stream: u64,
        grid: [u32; 3],
        threads: u32,
        dynamic_shared: u32,
        params: &P,
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.enqueue(stream, grid, threads, dynamic_shared, params, true) }
    }

    /// # Safety
    /// As [`Kernel::launch`], or [`Kernel::launch_early`] if `early`.
    unsafe fn enqueue<P: Copy>(
        &self,
        stream: u64,
        grid: [u32; 3],
        threads: u32,
        dynamic_shared: u32,
        params: &P,
        early: bool,
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let mut argument = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let value = CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let mut attribute = CUlaunchAttribute { id, pad: [0; 4], value };
        let [x, y, z] = grid;
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: dynamic_shared,
            hStream: stream as CUstream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(early),
        };
        // SAFETY: the caller's contract; the driver copies the argument and the configuration before it returns.
        check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(&raw const config, self.0, argument.as_mut_ptr(), std::ptr::null_mut())
        })
    }
}
