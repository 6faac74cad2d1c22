//! A device and its primary context.

use crate::driver::{Version, available};
use crate::error::{CudaError, Result, check};
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute as Attribute};
use std::ffi::CStr;

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Name, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability: 90 for 9.0.
    pub sm: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of the L2 cache.
    pub l2: u64,
    /// Clock of the multiprocessors, in kHz.
    pub clock_khz: u32,
    /// Clock of the memory, in kHz.
    pub memory_clock_khz: u32,
    /// Version of CUDA that the driver knows.
    pub driver: Version,
}

/// A device whose primary context is retained. The context is shared with every other user of the device in this process.
#[derive(Debug)]
pub struct Device {
    ordinal: u32,
    device: CUdevice,
    context: CUcontext,
    facts: Facts,
}

// SAFETY: a context may be used from any thread; what is current is the thread's own.
unsafe impl Send for Device {}
// SAFETY: as above; nothing in it is written after it is made.
unsafe impl Sync for Device {}

impl Device {
    /// Retains the primary context of device `ordinal` and makes it current on this thread.
    ///
    /// # Errors
    /// If there is no driver, or no such device, or the driver refuses.
    pub fn open(ordinal: u32) -> Result<Self> {
        let driver = available()?;
        let (mut device, mut context, mut count) = (0, std::ptr::null_mut(), 0);
        // SAFETY: the pointers are to writable values of the right types, here and below.
        unsafe {
            check("cuDeviceGetCount", sys::cuDeviceGetCount(&raw mut count))?;
            if ordinal >= count as u32 {
                return Err(CudaError::NoDevice { ordinal, count: count as u32 });
            }
            check("cuDeviceGet", sys::cuDeviceGet(&raw mut device, ordinal as i32))?;
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        }
        let mut opened = Self { ordinal, device, context, facts: Facts::none(driver) };
        opened.make_current()?;
        opened.facts = opened.ask(driver)?;
        Ok(opened)
    }

    /// Makes the context current on this thread.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the context is retained.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Number of the device.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// What the device is.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Free and total bytes of memory.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn memory(&self) -> Result<(u64, u64)> {
        memory_info()
    }

    /// Waits for everything that was enqueued on the device.
    ///
    /// # Errors
    /// Also tells of failures of what was enqueued earlier.
    pub fn synchronize(&self) -> Result<()> {
        self.make_current()?;
        // SAFETY: the context is current.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    fn ask(&self, driver: Version) -> Result<Facts> {
        let mut name = [0; 256];
        let mut memory = 0;
        // SAFETY: the buffer has the length that is given; the integer is writable.
        unsafe {
            check(
                "cuDeviceGetName",
                sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, self.device),
            )?;
            check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&raw mut memory, self.device))?;
        }
        let number = |attribute| attribute_of(self.device, attribute);
        use Attribute::*;
        Ok(Facts {
            // SAFETY: the driver wrote a terminated text.
            name: unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned(),
            sm: capability_of(self.device)?,
            multiprocessors: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            memory: memory as u64,
            l2: u64::from(number(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
            clock_khz: number(CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_clock_khz: number(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            driver,
        })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`. A refusal changes nothing for the process, which ends or goes on without it.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl Facts {
    fn none(driver: Version) -> Self {
        let name = String::new();
        Self { name, sm: 0, multiprocessors: 0, memory: 0, l2: 0, clock_khz: 0, memory_clock_khz: 0, driver }
    }
}

/// Compute capability of every device, in their order. Makes no context, and asks a driver of any version.
///
/// # Errors
/// If there is no driver, or it refuses.
pub fn capabilities() -> Result<Vec<u32>> {
    match available() {
        Ok(_) | Err(CudaError::OldDriver { .. }) => {}
        Err(error) => return Err(error),
    }
    let mut count = 0;
    // SAFETY: the driver has started; the integer is writable.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    let of_device = |ordinal| {
        let mut device = 0;
        // SAFETY: as above.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, ordinal) })?;
        capability_of(device)
    };
    (0..count).map(of_device).collect()
}

fn capability_of(device: CUdevice) -> Result<u32> {
    let major = attribute_of(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    Ok(major * 10 + attribute_of(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)
}

fn attribute_of(device: CUdevice, attribute: Attribute) -> Result<u32> {
    let mut value = 0;
    // SAFETY: the integer is writable.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) })?;
    Ok(value as u32)
}

/// Compute capability of the device whose context is current.
pub(crate) fn current_sm() -> Result<u32> {
    let mut device = 0;
    // SAFETY: the integer is writable.
    check("cuCtxGetDevice", unsafe { sys::cuCtxGetDevice(&raw mut device) })?;
    capability_of(device)
}

/// Number of the current context. No other context of this process has it, before or after.
pub(crate) fn current_context() -> Result<u64> {
    let (mut context, mut id) = (std::ptr::null_mut(), 0);
    // SAFETY: the pointers are to writable values of the right types.
    unsafe {
        check("cuCtxGetCurrent", sys::cuCtxGetCurrent(&raw mut context))?;
        check("cuCtxGetId", sys::cuCtxGetId(context, &raw mut id))?;
    }
    Ok(id)
}

/// Free and total bytes of the device whose context is current.
pub(crate) fn memory_info() -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the integers are writable.
    check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free as u64, total as u64))
}
