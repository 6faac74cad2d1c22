//! What a KV hand-off has moved.

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
}

impl<'a> Handed<'a> {
    /// `None` if the numbers of the transfer are not in the region.
    fn new(region: &'a Region, transfer: &'a Transfer) -> Option<Self> {
        let inside = |items: &[i32], n: u64| items.iter().all(|i| *i >= 0 && (*i as u64) < n);
        let fits = inside(&transfer.src, region.src_items) && inside(&transfer.dst, region.dst_items);
        fits.then_some(Self { component: transfer.component, layer: transfer.layer, region, transfer })
    }

    /// Those of `transfers` whose region is among `regions`.
    pub(crate) fn all(regions: &'a [Region], transfers: &'a [Transfer]) -> Vec<Self> {
        let region = |t: &Transfer| regions.iter().find(|r| (r.component, r.layer) == (t.component, t.layer));
        transfers.iter().filter_map(|t| Self::new(region(t)?, t)).collect()
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.transfer.src.len()
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

    /// Bytes of an item as the prefill side has them.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn sent(&self, item: usize) -> &[u8] {
        let at = self.transfer.src[item] as usize * self.region.item_bytes as usize;
        // SAFETY: the item is in the region, which is memory of a store that nothing writes during a hand-off.
        unsafe { std::slice::from_raw_parts(self.region.src.add(at), self.region.item_bytes as usize) }
    }

    /// Bytes of an item as the decode side has them, to be read or replaced.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn received(&mut self, item: usize) -> &mut [u8] {
        let at = self.transfer.dst[item] as usize * self.region.item_bytes as usize;
        // SAFETY: the item is in the region, its pages were just opened for this sequence, and the transport is done.
        unsafe { std::slice::from_raw_parts_mut(self.region.dst.add(at), self.region.item_bytes as usize) }
    }
}
