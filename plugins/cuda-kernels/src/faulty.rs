//! What the planted faults of `plugins/faulty-cuda` do beside the stock kernels. Nothing else uses it.

use crate::failed;
use crate::images::FAULTY;
use hotseam_cuda::{Buffer, Kernel, Module};
use hotseam_sdk::{Ctx, Error, Result};

/// Most numbers of a list that is cut.
const MOST: usize = 1 << 20;

/// The kernels, loaded into the current context.
#[derive(Debug)]
pub struct Faulty {
    rotate: Kernel,
    cut: Kernel,
    fill: Kernel,
    lists: Buffer,
}

/// `RotateParams` of `cuda/faulty.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rotate {
    ids: *mut i32,
    topk: u32,
}

/// `CutParams` of `cuda/faulty.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cut {
    ids: *const i32,
    out: *mut i32,
    width: u32,
}

/// `FillParams` of `cuda/faulty.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Fill {
    at: *mut f32,
    n: u32,
    value: f32,
}

impl Faulty {
    /// Loads them.
    ///
    /// # Errors
    /// If there is no machine code for the device, or the driver refuses it.
    pub fn load() -> Result<Self> {
        let module = Module::load(FAULTY).map_err(failed)?;
        let kernel = |name: &str| module.kernel(&format!("hotseam_faulty_{name}")).map_err(failed);
        let lists = Buffer::zeroed(4 * MOST, "the lists of a planted fault").map_err(failed)?;
        Ok(Self { rotate: kernel("rotate")?, cut: kernel("cut")?, fill: kernel("fill")?, lists })
    }

    /// Turns `[rows, topk]` ids round without a barrier.
    ///
    /// # Errors
    /// If the driver refuses.
    ///
    /// # Safety
    /// The ids are those of a call on a device.
    pub unsafe fn rotate(&self, ctx: &Ctx, ids: *mut i32, rows: u32, topk: u32) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let threads = 32 * topk.clamp(1, 32);
        // SAFETY: the caller's contract; the struct is the kernel's.
        unsafe {
            self.rotate
                .launch_early(ctx.stream(), [rows, 1, 1], threads, 0, &Rotate { ids, topk })
                .map_err(failed)
        }
    }

    /// A copy of `[rows, width]` ids, each row without its last half. It stands until the next one.
    ///
    /// # Errors
    /// If there are too many, or the driver refuses.
    ///
    /// # Safety
    /// As [`Self::rotate`].
    pub unsafe fn cut(&self, ctx: &Ctx, ids: *const i32, rows: u32, width: u32) -> Result<*const i32> {
        let out = self.lists.address() as *mut i32;
        if rows as usize * width as usize > MOST {
            return Err(Error::unsupported(format!("{rows} rows of {width} ids; this fault cuts {MOST}")));
        }
        if rows > 0 {
            let params = Cut { ids, out, width };
            // SAFETY: the caller's contract, and the buffer has room; the struct is the kernel's.
            unsafe { self.cut.launch_early(ctx.stream(), [rows, 1, 1], 256, 0, &params).map_err(failed)? };
        }
        Ok(out)
    }

    /// Writes `n` times `value` to `at`.
    ///
    /// # Errors
    /// If the driver refuses.
    ///
    /// # Safety
    /// There is device memory, if not of this call.
    pub unsafe fn fill(&self, ctx: &Ctx, at: *mut f32, n: u32, value: f32) -> Result<()> {
        let params = Fill { at, n, value };
        // SAFETY: the caller's contract; the struct is the kernel's.
        unsafe { self.fill.launch_early(ctx.stream(), [1, 1, 1], 32, 0, &params).map_err(failed) }
    }
}
