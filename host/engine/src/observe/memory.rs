//! Where the arguments of a call point: to host memory, or to that of a device.

use super::block::Block;
use hotseam_abi::{StepCtx, TensorRef, device};
use hotseam_cuda::{Buffer, CudaError, copy_from_device_on, copy_to_device_on};
use hotseam_slots::Args;

/// The memory that every tensor and list of a call lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Of the host.
    Host,
    /// Of the CUDA device whose context is current. What is read is what the work on the stream leaves there.
    Device {
        /// The stream of the call.
        stream: u64,
    },
}

/// A tensor that every call of the op has.
fn tensor<'a>(args: Args<'a>) -> &'a TensorRef {
    match args {
        Args::Store(a) => &a.kv,
        Args::Compress(a) => &a.kv,
        Args::Core(a) => &a.q,
        Args::Select(a) => &a.x,
        Args::Route(a) => &a.x,
        Args::Experts(a) => &a.x,
        Args::Pre(a) => &a.streams,
        Args::Post(a) => &a.streams,
        Args::Head(a) => &a.streams,
    }
}

impl Memory {
    /// That of a call.
    pub fn of(args: Args<'_>, ctx: &StepCtx) -> Self {
        match tensor(args).device {
            device::CUDA => Self::Device { stream: ctx.stream },
            _ => Self::Host,
        }
    }

    /// A copy of `n` values at `from`, which may be null or dangling if there are none.
    ///
    /// # Errors
    /// If the device failed, under this or under what was enqueued before.
    ///
    /// # Safety
    /// In this memory there are `n` values at `from`, of any bits of which `T` can be, and nothing but the stream writes them.
    pub unsafe fn read<T: Copy>(self, from: *const T, n: usize) -> Result<Vec<T>, CudaError> {
        if n == 0 || from.is_null() {
            return Ok(Vec::new());
        }
        match self {
            // SAFETY: the caller's contract.
            Self::Host => Ok(unsafe { std::slice::from_raw_parts(from, n) }.to_vec()),
            Self::Device { stream } => {
                let mut values = Vec::with_capacity(n);
                copy_from_device_on(&mut values.spare_capacity_mut()[..n], from as u64, stream)?;
                // SAFETY: all `n` were copied.
                unsafe { values.set_len(n) };
                Ok(values)
            }
        }
    }

    /// Writes values to `to`, in order with the stream.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Safety
    /// In this memory there is room for the values at `to`, and nothing but the stream touches it.
    pub unsafe fn write<T: Copy>(self, to: *mut T, values: &[T]) -> Result<(), CudaError> {
        match self {
            Self::Host => {
                // SAFETY: the caller's contract.
                unsafe { std::ptr::copy(values.as_ptr(), to, values.len()) };
                Ok(())
            }
            Self::Device { stream } => copy_to_device_on(to as u64, values, stream),
        }
    }
}

/// Bytes of one's own in some memory, to be given to calls there. Aligned to 64.
#[derive(Debug)]
pub struct Room {
    memory: Memory,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Host(Block),
    Device(Buffer),
}

impl Room {
    /// A copy of `bytes`.
    ///
    /// # Errors
    /// If the device failed, or has not the memory.
    pub fn of(memory: Memory, bytes: &[u8]) -> Result<Self, CudaError> {
        let own = match memory {
            Memory::Host => Bytes::Host(Block::copy_of(bytes)),
            Memory::Device { .. } => {
                Bytes::Device(Buffer::new(bytes.len(), "inputs of a call that is looked at")?)
            }
        };
        let mut room = Self { memory, bytes: own };
        room.write(0, bytes)?;
        Ok(room)
    }

    /// Where it is.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// The first byte.
    pub fn ptr(&self) -> *mut u8 {
        match &self.bytes {
            Bytes::Host(block) => block.bytes().as_ptr().cast_mut(),
            Bytes::Device(buffer) => buffer.address() as *mut u8,
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Host(block) => block.len(),
            Bytes::Device(buffer) => buffer.bytes(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Overwrites the bytes from `at` on.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(at + bytes.len() <= self.len(), "{} bytes at {at} of {}", bytes.len(), self.len());
        match &mut self.bytes {
            Bytes::Host(block) => {
                block.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            // SAFETY: the buffer is as large, as was checked.
            Bytes::Device(buffer) => unsafe {
                self.memory.write((buffer.address() as *mut u8).wrapping_add(at), bytes)
            },
        }
    }

    /// The `n` bytes from `at` on.
    ///
    /// # Errors
    /// If the device failed, under this or under what was enqueued before.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(&self, at: usize, n: usize) -> Result<Vec<u8>, CudaError> {
        assert!(at + n <= self.len(), "{n} bytes at {at} of {}", self.len());
        // SAFETY: the bytes are the room's own.
        unsafe { self.memory.read(self.ptr().cast_const().wrapping_add(at), n) }
    }
}
