//! The part of the TVM-FFI C ABI that a call needs, as `tvm/ffi/c_api.h` and DLPack 1.1 have it (64-bit).

use std::ffi::c_void;

/// Major and minor version whose layouts these are.
pub(crate) const VERSION: (u32, u32) = (0, 1);
/// `kTVMFFINone`.
const NONE: i32 = 0;
/// `kTVMFFIDLTensorPtr`.
const DL_TENSOR: i32 = 7;
/// `kTVMFFIStaticObjectBegin`: from here on a value is an object with a reference count.
const FIRST_OBJECT: i32 = 64;
/// Bytes of `TVMFFIObject`, in front of the error cell.
const OBJECT_HEADER: usize = 24;

/// `TVMFFIAny`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Any {
    type_index: i32,
    zero_padding: u32,
    value: *mut c_void,
}

impl Any {
    /// Nothing; what a result must be before the call.
    pub(crate) const NONE: Self = Self { type_index: NONE, zero_padding: 0, value: std::ptr::null_mut() };

    /// A borrowed tensor. It is valid as long as the tensor stays where it is.
    pub(crate) fn tensor<const N: usize>(tensor: &mut Tensor<N>) -> Self {
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

/// A contiguous f32 tensor of `N` dimensions on the CPU, with its shape.
#[derive(Debug)]
pub(crate) struct Tensor<const N: usize> {
    raw: DlTensor,
    shape: [i64; N],
    strides: [i64; N],
}

impl<const N: usize> Tensor<N> {
    /// Describes memory that is read, or written if the kernel's contract says so.
    pub(crate) fn new(data: *const f32, shape: [usize; N]) -> Self {
        let shape = shape.map(|n| n as i64);
        let mut strides = [1; N];
        for d in (1..N).rev() {
            strides[d - 1] = strides[d] * shape[d];
        }
        let raw = DlTensor {
            data: data.cast_mut().cast(),
            device_type: 1,
            device_id: 0,
            ndim: N as i32,
            code: 2,
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
