//! A call's arguments with outputs of their own, so that any variant can run on the same inputs and hurt nobody.

use super::block::Block;
use super::memory::Memory;
use super::places::{Place, places, rows};
use hotseam_abi::{
    CompressArgs, CoreArgs, ExpertsArgs, MhcHeadArgs, MhcPostArgs, MhcPreArgs, PoolRef, RouteArgs, TensorRef,
};
use hotseam_cuda::{Buffer, CudaError};
use hotseam_slots::{Args, OwnedArgs};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Layout of the entries that a variant writes, where it is not that of the call's pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLayout {
    /// One of [`hotseam_abi::layout`].
    pub id: u32,
    /// Bytes of the data part of an entry.
    pub data_bytes: usize,
    /// Bytes of its scale part.
    pub scale_bytes: usize,
}

impl PoolLayout {
    /// Bytes of a page without padding.
    pub fn page_bytes(&self, entries_per_page: usize) -> usize {
        entries_per_page * (self.data_bytes + self.scale_bytes)
    }
}

/// An output buffer.
#[derive(Debug)]
struct Output {
    name: &'static str,
    /// In host memory what the call writes to; else what the buffer holds before the call, guards and all.
    block: Block,
    /// What it holds before the call; poison if absent.
    initial: Option<Vec<u8>>,
    /// What a call on a device writes to.
    buffer: Option<Buffer>,
}

impl Output {
    /// Address of the first byte.
    fn base(&self) -> usize {
        match &self.buffer {
            Some(buffer) => buffer.address() as usize + self.block.start(),
            None => self.block.bytes().as_ptr().addr(),
        }
    }

    /// What it holds now, guards and all.
    fn now(&self, memory: Memory) -> Result<Cow<'_, Block>, CudaError> {
        let Some(buffer) = &self.buffer else { return Ok(Cow::Borrowed(&self.block)) };
        let mut block = self.block.clone();
        // SAFETY: the buffer is as large as the block.
        let bytes = unsafe { memory.read(buffer.address() as *const u8, buffer.bytes())? };
        block.raw_mut().copy_from_slice(&bytes);
        Ok(Cow::Owned(block))
    }

    /// Lets it hold again what it held before the call.
    fn reset(&mut self, memory: Memory) -> Result<(), CudaError> {
        match (&self.buffer, &self.initial) {
            // SAFETY: as in `now`.
            (Some(buffer), _) => unsafe { memory.write(buffer.address() as *mut u8, self.block.raw()) },
            (None, Some(bytes)) => {
                self.block.bytes_mut().copy_from_slice(bytes);
                Ok(())
            }
            (None, None) => {
                self.block.poison();
                Ok(())
            }
        }
    }
}

/// A write to memory that the call had no business with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// Name of the argument.
    pub output: &'static str,
    /// Where, in words.
    pub place: String,
}

/// Scratch outputs of one call. Inputs are the call's own, so it must not outlive the call, and it must be used before
/// the call itself runs where an op works in place.
///
/// Pools become small: the pages that the call writes, each between two pages that nobody may write, with slots
/// renumbered and page offsets kept. State rows likewise: the rows read, copied, and the rows written. `mhc.post` works
/// in place on a copy of the streams, as the engine has it. All of it is in the memory of the call.
#[derive(Debug)]
pub struct Scratch {
    args: OwnedArgs,
    memory: Memory,
    outputs: Vec<Output>,
    places: Vec<Place>,
    /// Renumbered tables; the arguments point into them.
    _tables: Vec<Table>,
}

/// A list of numbers that arguments point to.
#[derive(Debug)]
#[allow(dead_code, reason = "they are kept for their memory")]
enum Table {
    Host(Vec<i32>),
    Device(Buffer),
}

impl Scratch {
    /// Scratch outputs for a call whose arguments are in `memory`.
    ///
    /// # Errors
    /// If the device failed, or has not the memory.
    ///
    /// # Safety
    /// The arguments are as the contract says, in `memory`, for as long as the scratch lives.
    pub unsafe fn new(args: Args<'_>, memory: Memory, layout: Option<PoolLayout>) -> Result<Self, CudaError> {
        // SAFETY: the caller's contract.
        unsafe { Self::build(args, memory, layout, false) }
    }

    /// As [`Scratch::new`], in host memory.
    ///
    /// # Safety
    /// As [`Scratch::new`].
    pub unsafe fn on_host(args: Args<'_>, layout: Option<PoolLayout>) -> Self {
        // SAFETY: the caller's contract.
        match unsafe { Self::new(args, Memory::Host, layout) } {
            Ok(scratch) => scratch,
            Err(error) => unreachable!("no device was asked for anything: {error}"),
        }
    }

    /// As [`Scratch::new`], for a variant that is not trusted: there is room for a whole row before and after every
    /// output.
    ///
    /// # Errors
    /// As [`Scratch::new`].
    ///
    /// # Safety
    /// As [`Scratch::new`].
    pub(crate) unsafe fn strict(args: Args<'_>, memory: Memory) -> Result<Self, CudaError> {
        // SAFETY: the caller's contract.
        unsafe { Self::build(args, memory, None, true) }
    }

    /// # Safety
    /// As [`Scratch::new`].
    unsafe fn build(
        args: Args<'_>,
        memory: Memory,
        layout: Option<PoolLayout>,
        strict: bool,
    ) -> Result<Self, CudaError> {
        let mut new = Builder { outputs: Vec::new(), tables: Vec::new(), memory, strict };
        // SAFETY: the caller's contract, here and below.
        let n = unsafe { rows(args.batch()) };
        let args = match args {
            Args::Store(a) => {
                let mut a = *a;
                // SAFETY: as above.
                let slots = unsafe { memory.read(a.out_slots, n)? };
                (a.pool, a.out_slots) = new.pool(&a.pool, &slots, layout)?;
                OwnedArgs::Store(Box::new(a))
            }
            // SAFETY: as above.
            Args::Compress(a) => OwnedArgs::Compress(Box::new(unsafe { new.compress(*a, n, layout)? })),
            Args::Core(a) => OwnedArgs::Core(Box::new(CoreArgs { out: new.tensor("out", a.out)?, ..*a })),
            Args::Select(a) => {
                let mut a = *a;
                a.ids = new.words("ids", n, a.topk as usize)?.cast();
                if !a.scores.is_null() {
                    a.scores = new.words("scores", n, a.scores_width as usize)?.cast();
                }
                OwnedArgs::Select(Box::new(a))
            }
            Args::Route(a) => {
                let topk = a.topk as usize;
                let (ids, weights) =
                    (new.words("ids", n, topk)?.cast(), new.words("weights", n, topk)?.cast());
                OwnedArgs::Route(Box::new(RouteArgs { ids, weights, ..*a }))
            }
            Args::Experts(a) => {
                OwnedArgs::Experts(Box::new(ExpertsArgs { out: new.tensor("out", a.out)?, ..*a }))
            }
            Args::Pre(a) => OwnedArgs::Pre(Box::new(MhcPreArgs {
                x: new.tensor("x", a.x)?,
                post: new.tensor("post", a.post)?,
                comb: new.tensor("comb", a.comb)?,
                ..*a
            })),
            Args::Post(a) => {
                // SAFETY: as above.
                let streams = unsafe {
                    memory.read(a.streams.data.cast::<u8>().cast_const(), 4 * elements(&a.streams))?
                };
                let margin = if strict { streams.len().checked_div(n).unwrap_or(0) } else { 0 };
                let mut block = Block::with_margin(streams.len(), margin);
                block.bytes_mut().copy_from_slice(&streams);
                let data = new.push("out", block, Some(streams))?;
                let out = TensorRef { data: data.cast(), ..a.streams };
                OwnedArgs::Post(Box::new(MhcPostArgs { streams: out, out, ..*a }))
            }
            Args::Head(a) => OwnedArgs::Head(Box::new(MhcHeadArgs { x: new.tensor("x", a.x)?, ..*a })),
        };
        // SAFETY: the arguments are the scratch's own, with inputs that are valid while it lives.
        let places = unsafe { places(args.args(), memory)? };
        Ok(Self { args, memory, outputs: new.outputs, places, _tables: new.tables })
    }

    /// The arguments.
    pub fn args(&self) -> Args<'_> {
        self.args.args()
    }

    /// Where the outputs are.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// The outputs, in the order of [`places`] of the call itself.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// All outputs as bytes, in the order of [`Scratch::places`].
    ///
    /// # Errors
    /// If the device failed, under this or under the call.
    pub fn outputs(&self) -> Result<Vec<Vec<u8>>, CudaError> {
        // SAFETY: the places are in the scratch's own blocks, which are borrowed.
        self.places.iter().map(|place| unsafe { place.gather(self.memory) }).collect()
    }

    /// Poisons the outputs again, for another run.
    ///
    /// # Errors
    /// If the device failed.
    pub fn reset(&mut self) -> Result<(), CudaError> {
        self.outputs.iter_mut().try_for_each(|output| output.reset(self.memory))
    }

    /// The first write past a buffer, or to an entry or state row that is not the call's to write.
    ///
    /// # Errors
    /// If the device failed, under this or under the call.
    pub fn stray(&self) -> Result<Option<Stray>, CudaError> {
        let mut seen = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            seen.push((output, output.now(self.memory)?));
        }
        for (output, block) in &seen {
            if let Some(offset) = block.damage() {
                let (at, side) = match offset {
                    o if o < 0 => (-o, "before the start"),
                    o => (o - block.len() as isize, "past the end"),
                };
                return Ok(Some(Stray { output: output.name, place: format!("{at} bytes {side}") }));
            }
        }
        let stray = seen.iter().find_map(|(output, block)| {
            let place = self.places.iter().find(|p| p.name == output.name)?;
            outside(output, block.bytes(), place)
        });
        Ok(stray)
    }

    /// Copies the outputs to those of `args`, which are of the call that this is the scratch of.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Safety
    /// `args` are as the contract says, in the memory of this scratch, and nothing else touches their outputs meanwhile.
    pub unsafe fn commit(&self, args: Args<'_>) -> Result<(), CudaError> {
        // SAFETY: the caller's contract.
        let own = unsafe { places(args, self.memory)? };
        for (to, bytes) in own.iter().zip(self.outputs()?) {
            // SAFETY: the caller's contract.
            unsafe { to.scatter(self.memory, &bytes)? };
        }
        Ok(())
    }
}

/// The first byte of a buffer, which holds `bytes`, that is in none of the place's items and was written.
fn outside(output: &Output, bytes: &[u8], place: &Place) -> Option<Stray> {
    let size = place.item_bytes;
    if size == 0 || output.block.len() == place.items.len() * size {
        return None;
    }
    let base = output.base();
    let mut mine = vec![false; bytes.len()];
    for range in place.ranges(base) {
        mine[range].fill(true);
    }
    let poison = super::POISON.to_ne_bytes();
    let untouched = |i: usize, byte: u8| match &output.initial {
        Some(initial) => byte == initial[i],
        None => byte == poison[i % 4],
    };
    let (found, _) = bytes.iter().enumerate().find(|(i, byte)| !mine[*i] && !untouched(*i, **byte))?;
    let near = place.ranges(base).map(|range| range.start).min_by_key(|at| at.abs_diff(found)).unwrap_or(0);
    // Slots lie one after another by their data.
    let data = (size - place.apart_bytes).max(1);
    let (distance, side) = match found > near {
        true => ((found - near) / data, "after"),
        false => ((near - found).div_ceil(data), "before"),
    };
    Some(Stray {
        output: output.name,
        place: format!("slot {distance} {side} the nearest that the call writes"),
    })
}

fn elements(t: &TensorRef) -> usize {
    (0..t.ndim.min(4) as usize).map(|d| t.shape[d].max(0) as usize).product()
}

struct Builder {
    outputs: Vec<Output>,
    tables: Vec<Table>,
    memory: Memory,
    /// Whether there is a margin of a row around rows.
    strict: bool,
}

impl Builder {
    fn push(
        &mut self,
        name: &'static str,
        mut block: Block,
        initial: Option<Vec<u8>>,
    ) -> Result<*mut u8, CudaError> {
        let (data, buffer) = match self.memory {
            Memory::Host => (block.ptr(), None),
            Memory::Device { .. } => {
                let buffer = self.buffer(block.raw())?;
                ((buffer.address() as usize + block.start()) as *mut u8, Some(buffer))
            }
        };
        self.outputs.push(Output { name, block, initial, buffer });
        Ok(data)
    }

    /// A copy of values on the device, in order with the call's stream.
    fn buffer<T: Copy>(&self, values: &[T]) -> Result<Buffer, CudaError> {
        let buffer = Buffer::new(size_of_val(values), "outputs of a call that is looked at")?;
        // SAFETY: the buffer is as large.
        unsafe { self.memory.write(buffer.address() as *mut T, values)? };
        Ok(buffer)
    }

    fn words(&mut self, name: &'static str, rows: usize, width: usize) -> Result<*mut u8, CudaError> {
        let margin = if self.strict { 4 * width } else { 0 };
        self.push(name, Block::with_margin(4 * rows * width, margin), None)
    }

    fn tensor(&mut self, name: &'static str, like: TensorRef) -> Result<TensorRef, CudaError> {
        let (rows, all) = (like.shape[0].max(0) as usize, elements(&like));
        let data = self.words(name, rows, all.checked_div(rows).unwrap_or(0))?.cast();
        Ok(TensorRef { data, ..like })
    }

    fn table(&mut self, values: Vec<i32>) -> Result<*const i32, CudaError> {
        Ok(match self.memory {
            Memory::Host => {
                let data = values.as_ptr();
                self.tables.push(Table::Host(values));
                data
            }
            Memory::Device { .. } => {
                let buffer = self.buffer(&values)?;
                let data = buffer.address() as *const i32;
                self.tables.push(Table::Device(buffer));
                data
            }
        })
    }

    /// A small pool for `slots`, and the slots in it.
    fn pool(
        &mut self,
        pool: &PoolRef,
        slots: &[i32],
        layout: Option<PoolLayout>,
    ) -> Result<(PoolRef, *const i32), CudaError> {
        let per_page = (pool.entries_per_page as usize).max(1);
        // The call's own pages keep their padding, which nobody may write.
        let page_bytes = match layout {
            Some(layout) => layout.page_bytes(per_page),
            None => pool.bytes.shape[1].max(0) as usize,
        };
        let used: BTreeSet<usize> =
            slots.iter().filter(|s| **s >= 0).map(|s| *s as usize / per_page).collect();
        let index: BTreeMap<usize, usize> =
            used.into_iter().enumerate().map(|(i, page)| (page, 2 * i + 1)).collect();
        let moved = slots.iter().map(|slot| match *slot {
            s if s < 0 => s,
            s => (index[&(s as usize / per_page)] * per_page + s as usize % per_page) as i32,
        });
        let moved = moved.collect();
        let pages = 2 * index.len() + 1;
        let data = self.push("pool", Block::poisoned(pages * page_bytes), None)?;
        let mut small = *pool;
        if let Some(layout) = layout {
            (small.layout, small.data_bytes, small.scale_bytes) =
                (layout.id, layout.data_bytes as u32, layout.scale_bytes as u32);
        }
        small.bytes.data = data.cast();
        small.bytes.shape = [pages as i64, page_bytes as i64, 1, 1];
        small.bytes.strides = [page_bytes as i64, 1, 1, 1];
        Ok((small, self.table(moved)?))
    }

    /// # Safety
    /// The arguments are as the contract says.
    unsafe fn compress(
        &mut self,
        mut a: CompressArgs,
        n: usize,
        layout: Option<PoolLayout>,
    ) -> Result<CompressArgs, CudaError> {
        let memory = self.memory;
        let entries = a.n_entries as usize;
        let width = (a.ratio * (1 + a.overlap)) as usize;
        // SAFETY: the caller's contract.
        let (slots, sources, dst) = unsafe {
            (
                memory.read(a.out_slots, entries)?,
                memory.read(a.sources, entries * width)?,
                memory.read(a.state_dst, n)?,
            )
        };
        (a.pool, a.out_slots) = self.pool(&a.pool, &slots, layout)?;
        let row_bytes = 4 * a.state.shape[1].max(0) as usize;
        let read = sources.iter().filter(|s| **s <= -2).map(|s| -(s + 2));
        let known: BTreeSet<i32> = read.chain(dst.iter().copied().filter(|d| *d >= 0)).collect();
        // A row that nobody may write lies at either end.
        let index: BTreeMap<i32, i32> = known.iter().zip(1..).map(|(row, i)| (*row, i)).collect();
        let total = index.len() + 2;
        let mut initial = Block::poisoned(total * row_bytes).bytes().to_vec();
        for source in sources.iter().filter(|s| **s <= -2) {
            let row = -(source + 2);
            // SAFETY: the caller's contract: sources name rows of the state.
            let bytes = unsafe {
                memory
                    .read(a.state.data.cast::<u8>().cast_const().add(row as usize * row_bytes), row_bytes)?
            };
            initial[index[&row] as usize * row_bytes..][..row_bytes].copy_from_slice(&bytes);
        }
        let data = self.push("state", Block::copy_of(&initial), Some(initial))?;
        a.state.data = data.cast();
        a.state.shape[0] = total as i64;
        a.sources = self
            .table(sources.iter().map(|s| if *s <= -2 { -(index[&-(s + 2)] + 2) } else { *s }).collect())?;
        a.state_dst = self.table(dst.iter().map(|d| if *d >= 0 { index[d] } else { *d }).collect())?;
        Ok(a)
    }
}
