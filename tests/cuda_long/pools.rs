//! Memory of which a few parts, scattered over the whole of it, are in use.

use crate::ROPE_DIM;
use crate::kit::{Both, Kit, Place, read, tensor, write};
use fastrand::Rng;
use hotseam_abi::{PoolRef, TensorRef, device, dtype};
use hotseam_conformance::layouts::{EntryMut, Shape};
use hotseam_conformance::{Form, truth::layout};
use hotseam_cuda::Buffer;
use std::collections::HashSet;

/// Bytes that are looked at around a place that was not to be written.
const CANARY: usize = 256;
/// Such places, drawn at random.
const CANARIES: usize = 200;

/// Parts of equal size of a block of device memory. Those in use have a copy in host memory, one behind the other.
pub(crate) struct Scattered {
    memory: Buffer,
    part: usize,
    parts: usize,
    poison: u8,
    /// Where on the device each part in use is.
    pub(crate) places: Vec<usize>,
    pub(crate) host: Vec<u8>,
}

impl Scattered {
    /// `used` parts of `part` bytes in a block of about `bytes`, all poison. Among them are the first, the last and those at
    /// offsets of 2^31, 2^32 and 2^33, as far as there are so many.
    pub(crate) fn new(kit: &Kit, rng: &mut Rng, part: usize, bytes: usize, used: usize) -> Self {
        let parts = bytes / part;
        assert!(2 * used < parts, "{used} parts of {parts}");
        let mut seen = HashSet::new();
        let borders = [parts - 1, (1 << 32) / part, (1 << 31) / part, 0, (1 << 33) / part];
        let mut places: Vec<usize> =
            borders.into_iter().filter(|place| *place < parts && seen.insert(*place)).collect();
        while places.len() < used {
            let place = rng.usize(..parts);
            if seen.insert(place) {
                places.push(place);
            }
        }
        places.truncate(used);
        rng.shuffle(&mut places);
        let (memory, poison) = (kit.poisoned(parts * part, "a pool"), kit.poison());
        Self { memory, part, parts, poison, places, host: vec![poison; used * part] }
    }

    /// Copies what host memory has to the device.
    pub(crate) fn upload(&self) {
        for (place, bytes) in self.places.iter().zip(self.host.chunks_exact(self.part)) {
            write(self.memory.address() + (place * self.part) as u64, bytes);
        }
    }

    /// What the device has in the parts in use.
    pub(crate) fn download(&self) -> Vec<u8> {
        let of = |place: &usize| read(self.memory.address() + (place * self.part) as u64, self.part);
        self.places.iter().flat_map(of).collect()
    }

    /// The whole on the device as rows of f32, each a part.
    pub(crate) fn rows(&self, width: usize) -> TensorRef {
        tensor(device::CUDA, self.memory.address(), dtype::F32, &[self.parts, width])
    }

    /// Offset behind the last byte in use.
    pub(crate) fn reach(&self) -> usize {
        (self.places.iter().max().expect("a part") + 1) * self.part
    }

    /// Fails if memory that is not in use is no poison: around the parts in use, where their bytes would lie if offsets had
    /// 31 or 32 bits, and at random. `items` are ranges within the bytes of the parts in use.
    pub(crate) fn canaries(&self, what: &str, rng: &mut Rng, items: &[std::ops::Range<usize>]) {
        let all = self.parts * self.part;
        let mut at: Vec<usize> = Vec::new();
        for place in &self.places {
            at.extend([(place * self.part).saturating_sub(CANARY), (place + 1) * self.part]);
        }
        for item in items {
            let offset = self.places[item.start / self.part] * self.part + item.start % self.part;
            at.extend([offset % (1 << 31), offset % (1 << 32), offset + (1 << 31), offset + (1 << 32)]);
        }
        at.extend((0..CANARIES).map(|_| rng.usize(..all - CANARY)));
        let used: HashSet<usize> = self.places.iter().copied().collect();
        let mut seen = 0;
        for offset in at.into_iter().filter(|offset| offset + CANARY <= all) {
            let found: Vec<u8> = read(self.memory.address() + offset as u64, CANARY);
            let free = |i: usize| !used.contains(&((offset + i) / self.part));
            let bad = (0..CANARY).find(|i| free(*i) && found[*i] != self.poison);
            assert_eq!(bad, None, "{what}: a byte behind offset {offset} of {all} was written");
            seen += (0..CANARY).filter(|i| free(*i)).count();
        }
        assert!(seen > CANARIES * CANARY / 2, "{what}: {seen} bytes were looked at");
    }
}

/// A pool of entries, of whose pages a few are in use.
pub(crate) struct Far {
    pub(crate) form: Form,
    pub(crate) pages: Scattered,
}

impl Far {
    pub(crate) fn new(
        kit: &Kit,
        rng: &mut Rng,
        layout: u32,
        dim: usize,
        per_page: usize,
        bytes: usize,
        used: usize,
    ) -> Self {
        let shape = Shape { dim, rope_dim: ROPE_DIM };
        let parts = layout::parts(layout, shape).expect("a layout of the contract");
        let page_bytes = (per_page * (parts.data + parts.scale) + 12).next_multiple_of(16);
        let form = Form { layout, shape, parts, entries_per_page: per_page, page_bytes };
        Self { form, pages: Scattered::new(kit, rng, page_bytes, bytes, used) }
    }

    /// Writes values to a slot of host memory, whose pages are those in use.
    pub(crate) fn set(&mut self, slot: usize, values: &[f32]) {
        let (data, scale) = self.form.ranges(slot);
        let (head, tail) = self.pages.host.split_at_mut(scale.start);
        let entry = EntryMut { data: &mut head[data], scale: &mut tail[..scale.len()] };
        layout::encode(self.form.layout, ROPE_DIM, values, entry).expect("the layout was checked");
    }

    /// The slot on the device of one in host memory.
    pub(crate) fn slot(&self, host: usize) -> i32 {
        let per_page = self.form.entries_per_page;
        let slot = self.pages.places[host / per_page] * per_page + host % per_page;
        i32::try_from(slot).expect("slots are i32")
    }

    /// The pool as an argument; in host memory its pages in use begin at `host`.
    pub(crate) fn arg(&self, place: Place, host: *const u8, table: Option<&Table>) -> PoolRef {
        let (address, pages) = match place {
            device::CPU => (host as u64, self.pages.places.len()),
            _ => (self.pages.memory.address(), self.pages.parts),
        };
        PoolRef {
            bytes: tensor(place, address, dtype::U8, &[pages, self.form.page_bytes]),
            layout: self.form.layout,
            entries_per_page: self.form.entries_per_page as u32,
            dim: self.form.shape.dim as u32,
            rope_dim: self.form.shape.rope_dim as u32,
            data_bytes: self.form.parts.data as u32,
            scale_bytes: self.form.parts.scale as u32,
            table: table.map_or(std::ptr::null(), |t| t.of(place)),
            table_width: table.map_or(0, |t| t.width as u32),
        }
    }

    /// A page table of `seqs` sequences that are all the same: column `columns[i]` is page `i` of those in use.
    pub(crate) fn table(&self, columns: &[usize], seqs: usize) -> Table {
        let width = columns.iter().max().expect("a page") + 1;
        let rows = |page: &dyn Fn(usize) -> usize| {
            let mut row = vec![-1i32; width];
            columns.iter().enumerate().for_each(|(i, column)| row[*column] = page(i) as i32);
            row.repeat(seqs)
        };
        let host = rows(&|i| i);
        Table { host, device: Both::new(rows(&|i| self.pages.places[i])), width }
    }
}

/// A page table in the numbers of host memory and in those of the device.
pub(crate) struct Table {
    host: Vec<i32>,
    device: Both<i32>,
    width: usize,
}

impl Table {
    fn of(&self, place: Place) -> *const i32 {
        match place {
            device::CPU => self.host.as_ptr(),
            _ => self.device.pointer(place),
        }
    }
}
