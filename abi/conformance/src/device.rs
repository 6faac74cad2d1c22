//! Cases on a CUDA device: every buffer has a copy there while the case is called.
//!
//! Structs of arguments stay in host memory, as the contract says; what they point to is the copy.

use crate::buffer::{Buffer, GUARD, LINE, Place, Role};
use crate::runner::Case;
use hotseam_abi::{MIN_WORKSPACE, StepCtx};
use hotseam_cuda::{CudaError, Device, Event, Stream, copy_from_device, copy_to_device, fill};
use std::cell::RefCell;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// Bytes on either side of the workspace that nobody may write; a multiple of its alignment.
const FENCE: usize = 4096;
const FENCE_BYTE: u8 = 0xa5;

/// Bytes for the buffers of a case to begin with; most cases need less.
const ARENA: usize = 8 << 20;

/// What the workspace holds before a call, by turns: NaN, which a maximum ignores, and a large number, which it does not.
const UNDEFINED: [u8; 2] = [0xff, 0x7e];

/// Memory and a stream of a device, for the cases of any number of checks one after another.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Arc<Device>,
    stream: Stream,
    events: [Event; 2],
    /// Fence, [`MIN_WORKSPACE`] bytes, fence.
    workspace: hotseam_cuda::Buffer,
    arena: RefCell<Arena>,
}

#[derive(Debug)]
struct Arena {
    memory: hotseam_cuda::Buffer,
    /// What is copied there and back.
    image: Vec<u32>,
    calls: usize,
}

/// What to do about a failure of the driver.
pub(crate) const LOOK_CLOSER: &str = "Run it under compute-sanitizer, or on the device that scripts/cuda-emulator makes, to \
                                      see where.";

/// Why a call on a device did not pass.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The driver refuses, or tells of a failure of what was enqueued.
    Driver(CudaError),
    /// The variant did what it must not.
    Variant(String),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variant(what) => f.write_str(what),
            Self::Driver(error @ CudaError::Call { .. }) => {
                write!(f, "failed on the device: {error}. {LOOK_CLOSER}")
            }
            Self::Driver(error) => error.fmt(f),
        }
    }
}

impl From<CudaError> for Failed {
    fn from(error: CudaError) -> Self {
        Self::Driver(error)
    }
}

impl DeviceMemory {
    /// Takes about 40 MiB of the device, and makes its context current on this thread.
    ///
    /// # Errors
    /// If the device has not so much memory, or the driver refuses.
    pub fn new(device: Arc<Device>) -> hotseam_cuda::Result<Self> {
        device.make_current()?;
        let bytes = MIN_WORKSPACE as usize + 2 * FENCE;
        let workspace = hotseam_cuda::Buffer::new(bytes, "the workspace of the cases")?;
        fill(workspace.address(), FENCE_BYTE, bytes)?;
        let memory = hotseam_cuda::Buffer::new(ARENA, "the buffers of the cases")?;
        let arena = RefCell::new(Arena { memory, image: Vec::new(), calls: 0 });
        Ok(Self { device, stream: Stream::new()?, events: [Event::new()?, Event::new()?], workspace, arena })
    }

    /// Makes the context current on this thread.
    pub(crate) fn make_current(&self) -> hotseam_cuda::Result<()> {
        self.device.make_current()
    }

    /// Runs `call` with the buffers of `case` on the device; its outputs are as the call left them there. Returns the
    /// code of the call and the seconds that the stream was busy with it.
    pub(crate) fn run<C: Case>(
        &self,
        case: &mut C,
        ctx: StepCtx,
        call: impl FnOnce(&mut C, &StepCtx) -> i32,
    ) -> Result<(i32, f64), Failed> {
        self.place(&case.buffers())?;
        case.readdress();
        let done = self.run_placed(case, ctx, call);
        case.buffers().iter().for_each(|buffer| buffer.place.set(None));
        case.readdress();
        done
    }

    fn run_placed<C: Case>(
        &self,
        case: &mut C,
        ctx: StepCtx,
        call: impl FnOnce(&mut C, &StepCtx) -> i32,
    ) -> Result<(i32, f64), Failed> {
        self.upload(&case.buffers())?;
        let workspace = self.workspace.address() + FENCE as u64;
        let ctx = StepCtx {
            stream: self.stream.raw(),
            workspace: workspace as *mut c_void,
            workspace_bytes: MIN_WORKSPACE,
            ..ctx
        };
        let [begin, end] = &self.events;
        begin.record(self.stream.raw())?;
        let code = call(case, &ctx);
        if code != hotseam_abi::OK {
            // What the variant says of its failure says more than what the driver says afterwards.
            let _ = self.stream.synchronize();
            return Ok((code, 0.0));
        }
        end.record(self.stream.raw())?;
        self.stream.synchronize()?;
        let seconds = end.seconds_since(begin)?;
        self.download(case)?;
        self.check_fences()?;
        Ok((code, seconds))
    }

    /// Gives each buffer a place, one behind the other. The first word inside the guards lies a word behind a line, so that
    /// it is aligned to 4 bytes and to no more, as in host memory.
    fn place(&self, buffers: &[&Buffer]) -> Result<(), Failed> {
        let line = LINE / 4;
        let (mut end, mut firsts) = (0usize, Vec::with_capacity(buffers.len()));
        for buffer in buffers {
            let first = (end + GUARD).next_multiple_of(line) + usize::from(!buffer.on_line);
            firsts.push(first);
            end = first + buffer.words().len() + GUARD;
        }
        let mut arena = self.arena.borrow_mut();
        if arena.memory.bytes() < 4 * end {
            // The old block goes first: a device that has room for one of them has enough.
            let what = "the buffers of the cases";
            arena.memory = hotseam_cuda::Buffer::new(0, what)?;
            arena.memory = hotseam_cuda::Buffer::new((4 * end).next_power_of_two(), what)?;
        }
        arena.image.clear();
        arena.image.resize(end, 0);
        for (buffer, first) in buffers.iter().zip(firsts) {
            let address = arena.memory.address() + 4 * first as u64;
            buffer.place.set(Some(Place { device: self.device.ordinal(), address }));
        }
        Ok(())
    }

    fn upload(&self, buffers: &[&Buffer]) -> Result<(), Failed> {
        let mut arena = self.arena.borrow_mut();
        let arena = &mut *arena;
        for buffer in buffers {
            let at = words_of(buffer, arena.memory.address());
            arena.image[at].copy_from_slice(buffer.guarded());
        }
        copy_to_device(arena.memory.address(), &arena.image)?;
        let undefined = UNDEFINED[arena.calls % UNDEFINED.len()];
        arena.calls += 1;
        // Last, since it waits for the default stream: a copy may have returned before all of it has arrived, and the
        // stream of the call does not wait for that.
        fill(self.workspace.address() + FENCE as u64, undefined, MIN_WORKSPACE as usize)?;
        Ok(())
    }

    /// Takes the outputs of the case back, and sees whether the inputs are what they were.
    fn download<C: Case>(&self, case: &mut C) -> Result<(), Failed> {
        let mut arena = self.arena.borrow_mut();
        let arena = &mut *arena;
        let base = arena.memory.address();
        copy_from_device(&mut arena.image, base)?;
        let mut outputs = 0;
        for buffer in case.buffers() {
            if buffer.role == Role::Output {
                outputs += 1;
                continue;
            }
            let (found, words) = (&arena.image[words_of(buffer, base)], buffer.words().len());
            let Some(at) = found.iter().zip(buffer.guarded()).position(|(a, b)| a != b) else { continue };
            let (name, at) = (buffer.name, at as isize - GUARD as isize);
            let what = if (0..words as isize).contains(&at) { "changed its input" } else { "wrote outside" };
            return Err(Failed::Variant(format!("{what} `{name}`: word {at} of {words}")));
        }
        let found = case.outputs();
        assert_eq!(found.len(), outputs, "a case must name all of its outputs");
        for buffer in found {
            let at = words_of(buffer, base);
            buffer.guarded_mut().copy_from_slice(&arena.image[at]);
        }
        Ok(())
    }

    fn check_fences(&self) -> Result<(), Failed> {
        let mut fence = [0u8; FENCE];
        for (offset, side) in [(0, "before"), (FENCE as u64 + MIN_WORKSPACE, "behind")] {
            let address = self.workspace.address() + offset;
            copy_from_device(&mut fence, address)?;
            if let Some(at) = fence.iter().position(|byte| *byte != FENCE_BYTE) {
                fill(address, FENCE_BYTE, FENCE)?;
                let far = if offset == 0 { FENCE - at } else { at };
                return Err(Failed::Variant(format!(
                    "wrote outside the workspace: {far} bytes {side} its {MIN_WORKSPACE}"
                )));
            }
        }
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // What it consists of is given back to the context that is current.
        let _ = self.device.make_current();
    }
}

/// Words of the arena at `base` that a placed buffer and its guards take.
fn words_of(buffer: &Buffer, base: u64) -> std::ops::Range<usize> {
    let place = buffer.place.get().expect("the buffers of a case on a device are placed");
    let begin = ((place.address - base) / 4) as usize - GUARD;
    begin..begin + buffer.guarded().len()
}
