//! The part of the TVM-FFI C ABI that a call needs, as `tvm/ffi/c_api.h` and DLPack 1.1 have it (64-bit).

use std::ffi::c_void;

/// Major and minor version whose layouts these are.
pub(crate) const VERSION: (u32, u32) = (0, 1);
/// `kTVMFFINone`, `kTVMFFIInt` and `kTVMFFIBool`.
const NONE: i32 = 0;
const INT: i32 = 1;
const BOOL: i32 = 2;
/// `kTVMFFIDLTensorPtr`.
const DL_TENSOR: i32 = 7;
/// `kTVMFFIStaticObjectBegin`: from here on a value is an object with a reference count.
const FIRST_OBJECT: i32 = 64;
/// Bytes of `TVMFFIObject`, in front of the error cell.
const OBJECT_HEADER: usize = 24;

/// `TVMFFIAny`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Any {
    type_index: i32,
    zero_padding: u32,
    value: *mut c_void,
}

impl Any {
    /// Nothing; what a result must be before the call.
    pub const NONE: Self = Self { type_index: NONE, zero_padding: 0, value: std::ptr::null_mut() };

    /// An integer.
    pub fn int(value: i64) -> Self {
        Self { type_index: INT, zero_padding: 0, value: std::ptr::without_provenance_mut(value as usize) }
    }

    /// A truth value.
    pub fn bool(value: bool) -> Self {
        Self { type_index: BOOL, zero_padding: 0, value: std::ptr::without_provenance_mut(value.into()) }
    }

    /// A borrowed tensor. It is valid as long as the tensor stays where it is.
    pub fn tensor<const N: usize>(tensor: &mut Tensor<N>) -> Self {
        tensor.raw.shape = tensor.shape.as_ptr();
        tensor.raw.strides = tensor.strides.as_ptr();
        Self { type_index: DL_TENSOR, zero_padding: 0, value: (&raw mut tensor.raw).cast() }
    }

    /// The object that the caller owns, if the value is one.
    pub(crate) fn object(&self) -> Option<*mut c_void> {
        (self.type_index >= FIRST_OBJECT).then_some(self.value)
    }
}

/// `DLTensor`.
#[repr(C)]
#[derive(Debug)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

const _: () = assert!(size_of::<DlTensor>() == 48 && size_of::<Any>() == 16);

/// What a tensor's elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// 32-bit floating point.
    F32,
    /// 32-bit signed integer.
    I32,
}

impl Element {
    /// `DLDataTypeCode`.
    fn code(self) -> u8 {
        match self {
            Self::I32 => 0,
            Self::F32 => 2,
        }
    }
}

/// Where a tensor's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In host memory.
    Cpu,
    /// On the CUDA device of this ordinal.
    Cuda(u32),
}

impl Place {
    /// `DLDeviceType` and the number of the device.
    pub(crate) fn device(self) -> (i32, i32) {
        match self {
            Self::Cpu => (1, 0),
            Self::Cuda(ordinal) => (2, ordinal as i32),
        }
    }
}

/// A contiguous tensor of `N` dimensions, with its shape.
#[derive(Debug)]
pub struct Tensor<const N: usize> {
    raw: DlTensor,
    shape: [i64; N],
    strides: [i64; N],
}

impl<const N: usize> Tensor<N> {
    /// Describes memory that is read, or written if the kernel's contract says so.
    pub fn new(place: Place, element: Element, data: *const c_void, shape: [usize; N]) -> Self {
        let shape = shape.map(|n| n as i64);
        let mut strides = [1; N];
        for d in (1..N).rev() {
            strides[d - 1] = strides[d] * shape[d];
        }
        let (device_type, device_id) = place.device();
        let raw = DlTensor {
            data: data.cast_mut(),
            device_type,
            device_id,
            ndim: N as i32,
            code: element.code(),
            bits: 32,
            lanes: 1,
            shape: std::ptr::null(),
            strides: std::ptr::null(),
            byte_offset: 0,
        };
        Self { raw, shape, strides }
    }
}

/// `TVMFFISafeCallType`.
pub(crate) type SafeCall =
    unsafe extern "C" fn(handle: *mut c_void, args: *const Any, num_args: i32, result: *mut Any) -> i32;
/// `TVMFFIGetVersion`; the version is three numbers.
pub(crate) type GetVersion = unsafe extern "C" fn(version: *mut [u32; 3]);
/// `TVMFFIErrorMoveFromRaised`.
pub(crate) type MoveError = unsafe extern "C" fn(result: *mut *mut c_void);
/// `TVMFFIObjectDecRef`.
pub(crate) type Release = unsafe extern "C" fn(object: *mut c_void) -> i32;

/// `TVMFFIEnvSetStream`; the stream before goes to `before` unless that is null.
pub(crate) type SetStream = unsafe extern "C" fn(
    device_type: i32,
    device_id: i32,
    stream: *mut c_void,
    before: *mut *mut c_void,
) -> i32;

/// `TVMFFIByteArray`.
#[repr(C)]
struct Bytes {
    data: *const u8,
    size: usize,
}

impl Bytes {
    /// # Safety
    /// The bytes are valid.
    unsafe fn text(&self) -> String {
        if self.data.is_null() {
            return String::new();
        }
        // SAFETY: the caller's contract.
        String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(self.data, self.size) }).into_owned()
    }
}

/// "kind: message" of an error object.
///
/// # Safety
/// `error` is a live error object of [`VERSION`].
pub(crate) unsafe fn error_text(error: *const c_void) -> String {
    // SAFETY: the error cell, which starts with kind and message, follows the header of the object.
    unsafe {
        let cell = error.cast::<u8>().add(OBJECT_HEADER).cast::<Bytes>();
        format!("{}: {}", (*cell).text(), (*cell.add(1)).text())
    }
}
