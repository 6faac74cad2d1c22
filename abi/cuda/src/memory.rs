//! Memory of the device whose context is current.

use crate::device::memory_info;
use crate::error::{CudaError, Result, check};
use cudarc::driver::sys::{self, CUcontext, CUresult, CUstream};

/// A block of device memory, aligned to 256 bytes. Its address does not change. Any thread may drop it.
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    bytes: usize,
    /// Address of the context that it belongs to.
    context: usize,
}

impl Buffer {
    /// `bytes` of undefined content; `what` names the block in the error.
    ///
    /// # Errors
    /// If the device has not so much.
    pub fn new(bytes: usize, what: &str) -> Result<Self> {
        let (mut address, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the pointer is writable.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&raw mut context) })?;
        let context = context.addr();
        // SAFETY: the integer is writable.
        match unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes.max(1)) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = memory_info()?;
                Err(CudaError::Memory { what: what.to_owned(), wanted: bytes as u64, free, total })
            }
            code => check("cuMemAlloc", code).map(|()| Self { address, bytes, context }),
        }
    }

    /// As [`Buffer::new`], of zeros.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    pub fn zeroed(bytes: usize, what: &str) -> Result<Self> {
        let buffer = Self::new(bytes, what)?;
        fill(buffer.address, 0, bytes)?;
        Ok(buffer)
    }

    /// A copy of host memory.
    ///
    /// # Errors
    /// As [`Buffer::new`].
    pub fn of<T: Copy>(values: &[T], what: &str) -> Result<Self> {
        let buffer = Self::new(size_of_val(values), what)?;
        copy_to_device(buffer.address, values)?;
        Ok(buffer)
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut before = std::ptr::null_mut();
        // SAFETY: allocated by `new` in that context, and nobody uses it any more. The driver waits for what was enqueued. If the
        // context has ended, its memory has too, and the driver refuses.
        unsafe {
            let entered = sys::cuCtxPushCurrent_v2(self.context as CUcontext);
            let _ = sys::cuMemFree_v2(self.address);
            if entered == CUresult::CUDA_SUCCESS {
                let _ = sys::cuCtxPopCurrent_v2(&raw mut before);
            }
        }
    }
}

/// Copies host memory to the device, and waits.
///
/// # Errors
/// If the driver refuses, or something enqueued earlier failed.
pub fn copy_to_device<T: Copy>(to: u64, from: &[T]) -> Result<()> {
    if from.is_empty() {
        return Ok(());
    }
    // SAFETY: the source is borrowed for its length; the driver checks the destination.
    unsafe {
        check("cuMemcpyHtoD", sys::cuMemcpyHtoD_v2(to, from.as_ptr().cast(), size_of_val(from)))?;
        // The driver returns once a small source has been staged; other streams would run before it has arrived.
        check("cuStreamSynchronize", sys::cuStreamSynchronize(std::ptr::null_mut()))
    }
}

/// Copies host memory to the device, after what is on `stream` and before what comes. The source may be changed once this
/// returns.
///
/// # Errors
/// If the driver refuses.
pub fn copy_to_device_on<T: Copy>(to: u64, from: &[T], stream: u64) -> Result<()> {
    if from.is_empty() {
        return Ok(());
    }
    // SAFETY: the source is borrowed for its length, and is not page-locked, so the driver has copied it when it returns; it
    // checks the destination. The stream is the caller's.
    check("cuMemcpyHtoDAsync", unsafe {
        sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), size_of_val(from), stream as CUstream)
    })
}

/// Copies device memory to the host, and waits.
///
/// # Errors
/// As [`copy_to_device`].
pub fn copy_from_device<T: Copy>(to: &mut [T], from: u64) -> Result<()> {
    if to.is_empty() {
        return Ok(());
    }
    // SAFETY: the destination is borrowed for its length, and every bit pattern that a kernel writes is taken as it is by
    // the plain numbers this is used with; the driver checks the source.
    check("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, size_of_val(to)) })
}

/// Copies device memory to the host, after what is on `stream`, and waits.
///
/// # Errors
/// If the driver refuses, or something that was enqueued earlier failed.
pub fn copy_from_device_on<T: Copy>(to: &mut [T], from: u64, stream: u64) -> Result<()> {
    if to.is_empty() {
        return Ok(());
    }
    // SAFETY: as in `copy_from_device`, and the destination is borrowed until the stream has been waited for. The stream is the
    // caller's.
    unsafe {
        let (data, stream) = (to.as_mut_ptr().cast(), stream as CUstream);
        check("cuMemcpyDtoHAsync", sys::cuMemcpyDtoHAsync_v2(data, from, size_of_val(to), stream))?;
        check("cuStreamSynchronize", sys::cuStreamSynchronize(stream))
    }
}

/// Copies within the device, on `stream`.
///
/// # Errors
/// If the driver refuses.
pub fn copy_on_device(to: u64, from: u64, bytes: usize, stream: u64) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the driver checks both addresses; the stream is the caller's.
    check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream as CUstream) })
}

/// Fills `bytes` of device memory with a byte, and waits.
///
/// # Errors
/// If the driver refuses.
pub fn fill(to: u64, byte: u8, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the driver checks the address.
    unsafe {
        check("cuMemsetD8", sys::cuMemsetD8_v2(to, byte, bytes))?;
        check("cuStreamSynchronize", sys::cuStreamSynchronize(std::ptr::null_mut()))
    }
}
