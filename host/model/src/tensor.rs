//! A tensor: element type, shape and shared bytes.

use std::fmt;
use std::sync::Arc;

/// Element type of a [`Tensor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision, 4 bytes.
    F32,
    /// The upper half of a single, 2 bytes.
    Bf16,
    /// Signed 32-bit integer, 4 bytes.
    I32,
    /// Floating point of 4 exponent and 3 mantissa bits (the "FN" form), 1 byte.
    E4m3,
    /// Power of two, exponent biased by 127, 1 byte.
    E8m0,
    /// Byte: two packed e2m1 codes, the earlier one in the lower half.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::Bf16 => 2,
            Self::E4m3 | Self::E8m0 | Self::U8 => 1,
        }
    }

    /// Address alignment, in bytes, of a [`Tensor`] of this type: 4, so that kernels load whole words, but none for
    /// one-byte types, which must not be copied wherever they lie in a file.
    fn alignment(self) -> usize {
        if self.size() == 1 { 1 } else { 4 }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::E4m3 => "e4m3",
            Self::E8m0 => "e8m0",
            Self::U8 => "u8",
        })
    }
}

/// Bytes that do not make up the tensor they were offered for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The shape has more bytes than memory can address.
    #[error("shape {shape:?} of {dtype} has more bytes than memory can address")]
    TooLarge {
        /// Element type.
        dtype: DType,
        /// Offending shape.
        shape: Vec<usize>,
    },
    /// The data is shorter or longer than the shape.
    #[error("shape {shape:?} of {dtype} needs {expected} bytes, found {found}")]
    Length {
        /// Element type.
        dtype: DType,
        /// Declared shape.
        shape: Vec<usize>,
        /// Bytes that the shape needs.
        expected: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// Bytes offered for elements of several bytes each.
    #[error("expected a one-byte element type, found {dtype}")]
    Wide {
        /// Element type.
        dtype: DType,
    },
}

/// Row-major tensor over shared, immutable, little-endian bytes. A clone shares them. Data of wide types starts at a
/// multiple of 4 bytes, data of one-byte types anywhere.
#[derive(Clone)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Bytes of the data.
    len: usize,
    data: Data,
    /// Where a copy of the data is in device memory; 0 for nowhere.
    device: u64,
}

#[derive(Clone)]
enum Data {
    /// Whole words, so the data is aligned whatever its element type.
    Owned(Arc<[u32]>),
    /// Part of something shared, a mapped file for example.
    Region { owner: Arc<dyn AsRef<[u8]> + Send + Sync>, offset: usize },
}

impl Tensor {
    /// Tensor of `f32` values; `values.len()` must be the product of `shape`.
    ///
    /// # Errors
    /// [`TensorError`] if it is not.
    pub fn from_f32(shape: Vec<usize>, values: &[f32]) -> Result<Self, TensorError> {
        let len = check_len(DType::F32, &shape, size_of_val(values))?;
        let words = values.iter().map(|v| v.to_bits()).collect();
        Ok(Self { dtype: DType::F32, shape, len, data: Data::Owned(words), device: 0 })
    }

    /// Tensor of `bf16` bit patterns; `values.len()` must be the product of `shape`.
    ///
    /// # Errors
    /// [`TensorError`] if it is not.
    pub fn from_bf16(shape: Vec<usize>, values: &[u16]) -> Result<Self, TensorError> {
        let len = check_len(DType::Bf16, &shape, size_of_val(values))?;
        let words = values
            .chunks(2)
            .map(|pair| u32::from(pair[0]) | u32::from(pair.get(1).copied().unwrap_or(0)) << 16)
            .collect();
        Ok(Self { dtype: DType::Bf16, shape, len, data: Data::Owned(words), device: 0 })
    }

    /// Tensor of `i32` values; `values.len()` must be the product of `shape`.
    ///
    /// # Errors
    /// [`TensorError`] if it is not.
    pub fn from_i32(shape: Vec<usize>, values: &[i32]) -> Result<Self, TensorError> {
        let len = check_len(DType::I32, &shape, size_of_val(values))?;
        let words = values.iter().map(|v| v.cast_unsigned()).collect();
        Ok(Self { dtype: DType::I32, shape, len, data: Data::Owned(words), device: 0 })
    }

    /// Tensor of a one-byte type; `bytes.len()` must be the product of `shape`.
    ///
    /// # Errors
    /// [`TensorError`] if it is not, or if elements of `dtype` are wider.
    pub fn from_bytes(dtype: DType, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Self, TensorError> {
        let len = check_len(dtype, &shape, bytes.len())?;
        if dtype.size() != 1 {
            return Err(TensorError::Wide { dtype });
        }
        Ok(Self { dtype, shape, len, data: Data::Region { owner: Arc::new(bytes), offset: 0 }, device: 0 })
    }

    /// Tensor over bytes `offset..` of `owner`, shared without a copy where they are aligned as the type needs, else
    /// copied. `owner.as_ref()` must return the same bytes each time.
    ///
    /// # Errors
    /// [`TensorError`] if the shape needs more bytes than there are after `offset`.
    pub fn from_region(
        dtype: DType,
        shape: Vec<usize>,
        owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
        offset: usize,
    ) -> Result<Self, TensorError> {
        let len = byte_len(dtype, &shape)?;
        let rest = (*owner).as_ref().get(offset..).unwrap_or(&[]);
        let Some(bytes) = rest.get(..len) else {
            return Err(TensorError::Length { dtype, shape, expected: len, found: rest.len() });
        };
        let data = if bytes.as_ptr().addr().is_multiple_of(dtype.alignment()) {
            Data::Region { owner, offset }
        } else {
            Data::Owned(bytes.chunks(4).map(word).collect())
        };
        Ok(Self { dtype, shape, len, data, device: 0 })
    }

    /// A copy of `bytes`.
    ///
    /// # Errors
    /// If they are not those of the shape.
    pub(crate) fn copied(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Result<Self, TensorError> {
        let len = check_len(dtype, &shape, bytes.len())?;
        Ok(Self { dtype, shape, len, data: Data::Owned(bytes.chunks(4).map(word).collect()), device: 0 })
    }

    /// The bytes `range` as a tensor of `shape`; shared where they are a region of something larger.
    ///
    /// # Errors
    /// If they are not there, or not those of the shape.
    pub(crate) fn part(&self, shape: Vec<usize>, range: std::ops::Range<usize>) -> Result<Self, TensorError> {
        let (dtype, found) = (self.dtype, self.len);
        let Some(bytes) = self.bytes().get(range.clone()) else {
            return Err(self.too_short(shape, range.end, found));
        };
        match &self.data {
            Data::Owned(_) => Self::copied(dtype, shape, bytes),
            Data::Region { owner, offset } => {
                Self::from_region(dtype, shape, Arc::clone(owner), offset + range.start)
            }
        }
    }

    pub(crate) fn too_short(&self, shape: Vec<usize>, expected: usize, found: usize) -> TensorError {
        TensorError::Length { dtype: self.dtype, shape, expected, found }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len / self.dtype.size()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the data.
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// The data as bytes, little-endian.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            // SAFETY: a u32 is four initialised bytes, and u8 has no alignment of its own.
            Data::Owned(words) => unsafe { &words.align_to::<u8>().1[..self.len] },
            Data::Region { owner, offset } => &(**owner).as_ref()[*offset..*offset + self.len],
        }
    }

    /// Address of the data, a multiple of 4 unless elements have one byte. It is valid as long as this tensor or a clone of it lives.
    pub fn bytes_ptr(&self) -> *const u8 {
        self.bytes().as_ptr()
    }

    /// Address of a copy of the data in device memory; 0 if there is none.
    pub fn device_address(&self) -> u64 {
        self.device
    }

    /// Says where a copy of the data is in device memory. Whoever says it keeps the copy as long as this tensor and its clones
    /// are used.
    pub fn set_device_address(&mut self, address: u64) {
        self.device = address;
    }

    /// The values of an f32 tensor.
    ///
    /// # Panics
    /// If the element type is another.
    pub fn f32(&self) -> &[f32] {
        self.expect(DType::F32);
        // SAFETY: every bit pattern is an f32; `align_to` keeps to aligned memory.
        unsafe { aligned(self.bytes().align_to::<f32>()) }
    }

    /// The bit patterns of a bf16 tensor.
    ///
    /// # Panics
    /// If the element type is another.
    pub fn bf16(&self) -> &[u16] {
        self.expect(DType::Bf16);
        // SAFETY: every bit pattern is a u16; `align_to` keeps to aligned memory.
        unsafe { aligned(self.bytes().align_to::<u16>()) }
    }

    /// The values of an i32 tensor.
    ///
    /// # Panics
    /// If the element type is another.
    pub fn i32(&self) -> &[i32] {
        self.expect(DType::I32);
        // SAFETY: every bit pattern is an i32; `align_to` keeps to aligned memory.
        unsafe { aligned(self.bytes().align_to::<i32>()) }
    }

    /// A copy of an f32 or bf16 tensor as f32 values; exact for both.
    ///
    /// # Panics
    /// On a tensor of another type: codes mean nothing without their scales, see [`crate::Matrix`].
    pub fn to_f32_vec(&self) -> Vec<f32> {
        match self.dtype {
            DType::F32 => self.f32().to_vec(),
            DType::Bf16 => self.bf16().iter().map(|&v| f32::from_bits(u32::from(v) << 16)).collect(),
            other => panic!("tensor of {other} read as floating point"),
        }
    }

    fn expect(&self, dtype: DType) {
        assert!(self.dtype == dtype, "tensor of {} read as {dtype}", self.dtype);
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype, self.shape)
    }
}

/// Little-endian word of one to four bytes, the rest zero.
fn word(bytes: &[u8]) -> u32 {
    let mut full = [0; 4];
    full[..bytes.len()].copy_from_slice(bytes);
    u32::from_le_bytes(full)
}

/// The middle of `align_to`. Constructors admit only aligned data, so the ends are empty.
fn aligned<'a, T>((head, body, tail): (&'a [u8], &'a [T], &'a [u8])) -> &'a [T] {
    assert!(head.is_empty() && tail.is_empty(), "owner of a tensor region moved its bytes");
    body
}

fn byte_len(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
    shape
        .iter()
        .try_fold(dtype.size(), |bytes, &n| bytes.checked_mul(n))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| TensorError::TooLarge { dtype, shape: shape.to_vec() })
}

fn check_len(dtype: DType, shape: &[usize], found: usize) -> Result<usize, TensorError> {
    let expected = byte_len(dtype, shape)?;
    if expected == found {
        Ok(expected)
    } else {
        Err(TensorError::Length { dtype, shape: shape.to_vec(), expected, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_each_element_type() {
        let f = Tensor::from_f32(vec![2, 2], &[1.5, -0.0, f32::NAN, 3.0e38]).unwrap();
        assert_eq!(f.f32()[0], 1.5);
        assert!(f.f32()[1].is_sign_negative() && f.f32()[2].is_nan());
        let b = Tensor::from_bf16(vec![3], &[0x3f80, 0xc000, 0x7f80]).unwrap();
        assert_eq!(b.bf16(), [0x3f80, 0xc000, 0x7f80]);
        assert_eq!(b.byte_len(), 6);
        assert_eq!(b.to_f32_vec(), [1.0, -2.0, f32::INFINITY]);
        let i = Tensor::from_i32(vec![2], &[-1, i32::MAX]).unwrap();
        assert_eq!(i.i32(), [-1, i32::MAX]);
    }

    #[test]
    fn regions_share_when_aligned_and_copy_when_not() {
        let bytes: Arc<Vec<u8>> = Arc::new((0..64).collect());
        let base = (*bytes).as_ptr().addr();
        for offset in 0..8 {
            let t = Tensor::from_region(DType::Bf16, vec![5], bytes.clone(), offset).unwrap();
            assert_eq!(t.bytes(), &bytes[offset..offset + 10]);
            assert!(t.bytes_ptr().addr().is_multiple_of(4));
            let shared = t.bytes_ptr().addr() == base + offset;
            assert_eq!(shared, (base + offset).is_multiple_of(4), "offset {offset}");
            assert_eq!(t.bf16()[0], u16::from_le_bytes([offset as u8, offset as u8 + 1]));
            assert_eq!(t.clone().bytes_ptr(), t.bytes_ptr());
            let codes = Tensor::from_region(DType::U8, vec![2, 5], bytes.clone(), offset).unwrap();
            assert_eq!(codes.bytes_ptr().addr(), base + offset, "one-byte types are always shared");
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        assert!(matches!(
            Tensor::from_f32(vec![2, 3], &[0.0; 5]),
            Err(TensorError::Length { expected: 24, found: 20, .. })
        ));
        let owner: Arc<Vec<u8>> = Arc::new(vec![0; 16]);
        assert!(matches!(
            Tensor::from_region(DType::F32, vec![4], owner.clone(), 4),
            Err(TensorError::Length { expected: 16, found: 12, .. })
        ));
        assert!(matches!(
            Tensor::from_region(DType::F32, vec![1], owner.clone(), usize::MAX),
            Err(TensorError::Length { found: 0, .. })
        ));
        assert!(matches!(
            Tensor::from_region(DType::F32, vec![usize::MAX, 2], owner, 0),
            Err(TensorError::TooLarge { .. })
        ));
        assert_eq!(Tensor::from_bytes(DType::E4m3, vec![3], vec![1, 2, 3]).unwrap().bytes(), [1, 2, 3]);
        assert!(matches!(
            Tensor::from_bytes(DType::E8m0, vec![4], vec![0; 3]),
            Err(TensorError::Length { expected: 4, found: 3, .. })
        ));
        assert_eq!(
            Tensor::from_bytes(DType::Bf16, vec![2], vec![0; 4]).unwrap_err(),
            TensorError::Wide { dtype: DType::Bf16 }
        );
    }

    #[test]
    #[should_panic(expected = "tensor of bf16 read as f32")]
    fn reading_another_type_panics() {
        let t = Tensor::from_bf16(vec![2], &[0, 0]).unwrap();
        assert_eq!(t.f32().len(), 1);
    }
}
