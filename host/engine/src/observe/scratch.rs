//! A call's arguments with outputs of their own, so that any variant can run on the same inputs and hurt nobody.

use super::block::Block;
use super::places::{Place, places, rows, slice};
use hotseam_abi::{
    CompressArgs, CoreArgs, ExpertsArgs, MhcHeadArgs, MhcPostArgs, MhcPreArgs, PoolRef, RouteArgs,
    SelectArgs, StoreArgs, TensorRef,
};
use hotseam_slots::Args;
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

#[derive(Debug)]
enum Owned {
    Store(Box<StoreArgs>),
    Compress(Box<CompressArgs>),
    Core(Box<CoreArgs>),
    Select(Box<SelectArgs>),
    Route(Box<RouteArgs>),
    Experts(Box<ExpertsArgs>),
    Pre(Box<MhcPreArgs>),
    Post(Box<MhcPostArgs>),
    Head(Box<MhcHeadArgs>),
}

/// An output buffer.
#[derive(Debug)]
struct Output {
    name: &'static str,
    block: Block,
    /// What it holds before the call; poison if absent.
    initial: Option<Vec<u8>>,
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
/// in place on a copy of the streams, as the engine has it.
#[derive(Debug)]
pub struct Scratch {
    args: Owned,
    outputs: Vec<Output>,
    /// Renumbered tables; the arguments point into them.
    _tables: Vec<Vec<i32>>,
}

impl Scratch {
    /// Scratch outputs for a call.
    ///
    /// # Safety
    /// The arguments are as the contract says for as long as the scratch lives.
    pub unsafe fn new(args: Args<'_>, layout: Option<PoolLayout>) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::build(args, layout, false) }
    }

    /// As [`Scratch::new`], for a variant that is not trusted: there is room for a whole row before and after every
    /// output.
    ///
    /// # Safety
    /// As [`Scratch::new`].
    pub(crate) unsafe fn strict(args: Args<'_>) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::build(args, None, true) }
    }

    /// # Safety
    /// As [`Scratch::new`].
    unsafe fn build(args: Args<'_>, layout: Option<PoolLayout>, strict: bool) -> Self {
        let mut new = Builder { outputs: Vec::new(), tables: Vec::new(), strict };
        // SAFETY: the caller's contract, here and below.
        let n = unsafe { rows(args.batch()) };
        let args = match args {
            Args::Store(a) => {
                let mut a = *a;
                // SAFETY: as above.
                (a.pool, a.out_slots) = new.pool(&a.pool, unsafe { slice(a.out_slots, n) }, layout);
                Owned::Store(Box::new(a))
            }
            // SAFETY: as above.
            Args::Compress(a) => Owned::Compress(Box::new(unsafe { new.compress(*a, n, layout) })),
            Args::Core(a) => Owned::Core(Box::new(CoreArgs { out: new.tensor("out", a.out), ..*a })),
            Args::Select(a) => {
                let mut a = *a;
                a.ids = new.words("ids", n, a.topk as usize).cast();
                if !a.scores.is_null() {
                    a.scores = new.words("scores", n, a.scores_width as usize).cast();
                }
                Owned::Select(Box::new(a))
            }
            Args::Route(a) => {
                let topk = a.topk as usize;
                let (ids, weights) = (new.words("ids", n, topk).cast(), new.words("weights", n, topk).cast());
                Owned::Route(Box::new(RouteArgs { ids, weights, ..*a }))
            }
            Args::Experts(a) => Owned::Experts(Box::new(ExpertsArgs { out: new.tensor("out", a.out), ..*a })),
            Args::Pre(a) => Owned::Pre(Box::new(MhcPreArgs {
                x: new.tensor("x", a.x),
                post: new.tensor("post", a.post),
                comb: new.tensor("comb", a.comb),
                ..*a
            })),
            Args::Post(a) => {
                // SAFETY: as above.
                let streams = unsafe { slice(a.streams.data.cast::<u8>(), 4 * elements(&a.streams)) };
                let margin = if strict { streams.len().checked_div(n).unwrap_or(0) } else { 0 };
                let mut block = Block::with_margin(streams.len(), margin);
                block.bytes_mut().copy_from_slice(streams);
                let data = new.push("out", block, Some(streams.to_vec()));
                let out = TensorRef { data: data.cast(), ..a.streams };
                Owned::Post(Box::new(MhcPostArgs { streams: out, out, ..*a }))
            }
            Args::Head(a) => Owned::Head(Box::new(MhcHeadArgs { x: new.tensor("x", a.x), ..*a })),
        };
        Self { args, outputs: new.outputs, _tables: new.tables }
    }

    /// The arguments.
    pub fn args(&self) -> Args<'_> {
        match &self.args {
            Owned::Store(a) => Args::Store(a),
            Owned::Compress(a) => Args::Compress(a),
            Owned::Core(a) => Args::Core(a),
            Owned::Select(a) => Args::Select(a),
            Owned::Route(a) => Args::Route(a),
            Owned::Experts(a) => Args::Experts(a),
            Owned::Pre(a) => Args::Pre(a),
            Owned::Post(a) => Args::Post(a),
            Owned::Head(a) => Args::Head(a),
        }
    }

    /// The outputs, in the order of [`places`] of the call itself.
    pub fn places(&self) -> Vec<Place> {
        // SAFETY: the arguments are the scratch's own, with inputs that are valid while it lives.
        unsafe { places(self.args()) }
    }

    /// All outputs as bytes, in the order of [`Scratch::places`].
    pub fn outputs(&self) -> Vec<Vec<u8>> {
        // SAFETY: the places are in the scratch's own blocks, which are borrowed.
        self.places().iter().map(|place| unsafe { place.gather() }).collect()
    }

    /// Poisons the outputs again, for another run.
    pub fn reset(&mut self) {
        for output in &mut self.outputs {
            match &output.initial {
                Some(bytes) => output.block.bytes_mut().copy_from_slice(bytes),
                None => output.block.poison(),
            }
        }
    }

    /// The first write past a buffer, or to an entry or state row that is not the call's to write.
    pub fn stray(&self) -> Option<Stray> {
        for output in &self.outputs {
            if let Some(offset) = output.block.damage() {
                let (at, side) = match offset {
                    o if o < 0 => (-o, "before the start"),
                    o => (o - output.block.len() as isize, "past the end"),
                };
                return Some(Stray { output: output.name, place: format!("{at} bytes {side}") });
            }
        }
        let places = self.places();
        for output in &self.outputs {
            let Some(place) = places.iter().find(|p| p.name == output.name) else { continue };
            if let Some(stray) = outside(output, place) {
                return Some(stray);
            }
        }
        None
    }

    /// Copies the outputs to those of `args`, which are of the call that this is the scratch of.
    ///
    /// # Safety
    /// `args` are as the contract says, and nothing else touches their outputs meanwhile.
    pub unsafe fn commit(&self, args: Args<'_>) {
        // SAFETY: the caller's contract.
        for (to, bytes) in unsafe { places(args) }.iter().zip(self.outputs()) {
            // SAFETY: the caller's contract.
            unsafe { to.scatter(&bytes) };
        }
    }
}

/// The first byte of a buffer that is in none of the place's items and was written.
fn outside(output: &Output, place: &Place) -> Option<Stray> {
    let size = place.item_bytes;
    if size == 0 || output.block.len() == place.items.len() * size {
        return None;
    }
    let bytes = output.block.bytes();
    let base = bytes.as_ptr().addr();
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
    tables: Vec<Vec<i32>>,
    /// Whether there is a margin of a row around rows.
    strict: bool,
}

impl Builder {
    fn push(&mut self, name: &'static str, mut block: Block, initial: Option<Vec<u8>>) -> *mut u8 {
        let data = block.ptr();
        self.outputs.push(Output { name, block, initial });
        data
    }

    fn words(&mut self, name: &'static str, rows: usize, width: usize) -> *mut u8 {
        let margin = if self.strict { 4 * width } else { 0 };
        self.push(name, Block::with_margin(4 * rows * width, margin), None)
    }

    fn tensor(&mut self, name: &'static str, like: TensorRef) -> TensorRef {
        let (rows, all) = (like.shape[0].max(0) as usize, elements(&like));
        let data = self.words(name, rows, all.checked_div(rows).unwrap_or(0)).cast();
        TensorRef { data, ..like }
    }

    fn table(&mut self, values: Vec<i32>) -> *const i32 {
        self.tables.push(values);
        self.tables[self.tables.len() - 1].as_ptr()
    }

    /// A small pool for `slots`, and the slots in it.
    fn pool(&mut self, pool: &PoolRef, slots: &[i32], layout: Option<PoolLayout>) -> (PoolRef, *const i32) {
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
        let data = self.push("pool", Block::poisoned(pages * page_bytes), None);
        let mut small = *pool;
        if let Some(layout) = layout {
            (small.layout, small.data_bytes, small.scale_bytes) =
                (layout.id, layout.data_bytes as u32, layout.scale_bytes as u32);
        }
        small.bytes.data = data.cast();
        small.bytes.shape = [pages as i64, page_bytes as i64, 1, 1];
        small.bytes.strides = [page_bytes as i64, 1, 1, 1];
        (small, self.table(moved))
    }

    /// # Safety
    /// The arguments are as the contract says.
    unsafe fn compress(&mut self, mut a: CompressArgs, n: usize, layout: Option<PoolLayout>) -> CompressArgs {
        let entries = a.n_entries as usize;
        let width = (a.ratio * (1 + a.overlap)) as usize;
        // SAFETY: the caller's contract.
        let (slots, sources, dst) = unsafe {
            (slice(a.out_slots, entries), slice(a.sources, entries * width), slice(a.state_dst, n))
        };
        (a.pool, a.out_slots) = self.pool(&a.pool, slots, layout);
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
                slice(a.state.data.cast::<u8>().cast_const().add(row as usize * row_bytes), row_bytes)
            };
            initial[index[&row] as usize * row_bytes..][..row_bytes].copy_from_slice(bytes);
        }
        let data = self.push("state", Block::copy_of(&initial), Some(initial));
        a.state.data = data.cast();
        a.state.shape[0] = total as i64;
        a.sources =
            self.table(sources.iter().map(|s| if *s <= -2 { -(index[&-(s + 2)] + 2) } else { *s }).collect());
        a.state_dst = self.table(dst.iter().map(|d| if *d >= 0 { index[d] } else { *d }).collect());
        a
    }
}
