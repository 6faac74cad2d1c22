//! What a KV hand-off has moved.

use super::memory::Memory;
use hotseam_abi::Region;
use hotseam_kv::Transfer;

/// One component of one layer after it was moved and before decode reads it: item `i` of the sending store and its copy
/// in the receiving store. Items are pages or state rows.
#[derive(Debug)]
pub struct Handed<'a> {
    /// One of [`hotseam_abi::component`].
    pub component: u32,
    /// Layer number.
    pub layer: u32,
    region: &'a Region,
    transfer: &'a Transfer,
    /// Where both stores are.
    memory: Memory,
}

impl<'a> Handed<'a> {
    /// `None` if the numbers of the transfer are not in the region.
    fn new(memory: Memory, region: &'a Region, transfer: &'a Transfer) -> Option<Self> {
        let inside = |items: &[i32], n: u64| items.iter().all(|i| *i >= 0 && (*i as u64) < n);
        let fits = inside(&transfer.src, region.src_items) && inside(&transfer.dst, region.dst_items);
        let (component, layer) = (transfer.component, transfer.layer);
        fits.then_some(Self { component, layer, region, transfer, memory })
    }

    /// Those of `transfers` whose region is among `regions`, which are in `memory`.
    pub(crate) fn all(memory: Memory, regions: &'a [Region], transfers: &'a [Transfer]) -> Vec<Self> {
        let region = |t: &Transfer| regions.iter().find(|r| (r.component, r.layer) == (t.component, t.layer));
        transfers.iter().filter_map(|t| Self::new(memory, region(t)?, t)).collect()
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.transfer.src.len()
    }

    /// Bytes of an item.
    pub fn item_bytes(&self) -> usize {
        self.region.item_bytes as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.transfer.src.is_empty()
    }

    /// Numbers of the items in the sending and in the receiving store.
    pub fn items(&self) -> (&'a [i32], &'a [i32]) {
        (&self.transfer.src, &self.transfer.dst)
    }

    /// Addresses of item 0 in the sending and in the receiving store: those of the pools in the arguments of calls.
    pub fn bases(&self) -> (usize, usize) {
        (self.region.src.addr(), self.region.dst.addr())
    }

    /// Bytes of an item as the prefill side has them; none if a device failed, which the next step tells.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn sent(&self, item: usize) -> Vec<u8> {
        self.read(self.region.src, self.transfer.src[item])
    }

    /// Bytes of an item as the decode side has them; none if a device failed.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn received(&self, item: usize) -> Vec<u8> {
        self.read(self.region.dst.cast_const(), self.transfer.dst[item])
    }

    /// Replaces an item as the decode side has it.
    ///
    /// # Panics
    /// If there is no such item, or it has another length.
    pub fn replace(&mut self, item: usize, bytes: &[u8]) {
        let length = self.region.item_bytes as usize;
        assert!(bytes.len() == length, "an item of {} bytes for one of {length}", bytes.len());
        let to = self.region.dst.wrapping_add(self.transfer.dst[item] as usize * length);
        // SAFETY: the item is in the region, its pages were just opened for this sequence, and the transport is done.
        if let Err(error) = unsafe { self.memory.write(to, bytes) } {
            tracing::warn!(%error, "an item of a hand-off cannot be replaced");
        }
    }

    fn read(&self, base: *const u8, item: i32) -> Vec<u8> {
        let length = self.region.item_bytes as usize;
        let from = base.wrapping_add(item as usize * length);
        // SAFETY: the item is in the region, which is memory of a store that nothing writes during a hand-off.
        unsafe { self.memory.read(from, length) }.unwrap_or_else(|error| {
            tracing::warn!(%error, "an item of a hand-off cannot be read");
            Vec::new()
        })
    }
}
