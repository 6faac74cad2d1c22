//! The registered regions, and checked copies between their two sides.

use hotseam_sdk::abi::{Region, component};
use hotseam_sdk::views::Put;
use hotseam_sdk::{Error, Result};
use std::collections::HashMap;

/// Regions by component and layer.
#[derive(Debug, Default)]
pub struct Regions(HashMap<(u32, u32), Region>);

// SAFETY: the pointers are used by whoever holds the lock around the regions, or a pin on an item; the memory belongs to
// the host, which allows the transport's threads to use it (contract).
unsafe impl Send for Regions {}

/// Name of a component and layer for messages.
pub(crate) fn name(component: u32, layer: u32) -> String {
    match component::NAMES.get(component as usize) {
        Some(known) => format!("{known} of layer {layer}"),
        None => format!("component {component} of layer {layer}"),
    }
}

impl Regions {
    /// Takes the regions over.
    ///
    /// # Errors
    /// If two regions have the same component and layer, or a side that has items is missing or too large to address.
    ///
    /// # Safety
    /// Both sides of every region are valid for their items as long as the result lives.
    pub unsafe fn new(regions: &[Region]) -> Result<Self> {
        let mut map = HashMap::with_capacity(regions.len());
        for region in regions {
            let what = name(region.component, region.layer);
            for (side, missing, items) in [
                ("sending", region.src.is_null(), region.src_items),
                ("receiving", region.dst.is_null(), region.dst_items),
            ] {
                if missing && items > 0 {
                    return Err(Error::argument(format!(
                        "{what}: the {side} side has {items} items and no memory"
                    )));
                }
                let bytes =
                    items.checked_mul(region.item_bytes).and_then(|bytes| isize::try_from(bytes).ok());
                if bytes.is_none() {
                    return Err(Error::argument(format!(
                        "{what}: {items} items of {} bytes on the {side} side are more than memory",
                        region.item_bytes
                    )));
                }
            }
            if map.insert((region.component, region.layer), *region).is_some() {
                return Err(Error::argument(format!("{what} is registered twice")));
            }
        }
        Ok(Self(map))
    }

    /// The region of a component and layer.
    ///
    /// # Errors
    /// If it is not registered.
    pub fn get(&self, component: u32, layer: u32) -> Result<&Region> {
        self.0.get(&(component, layer)).ok_or_else(|| {
            let what = name(component, layer);
            Error::argument(format!("{what} is not registered; {} regions are", self.0.len()))
        })
    }

    /// All regions.
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.0.values()
    }

    /// Refuses a put with an item outside the sending side, or, where `both` says that it is here as well, outside the
    /// receiving side.
    ///
    /// # Errors
    /// The first such item, or that the region is not registered.
    pub fn check(&self, put: &Put<'_>, both: bool) -> Result<&Region> {
        let region = self.get(put.component, put.layer)?;
        inside(region, "src", put.src_items, region.src_items)?;
        if both {
            inside(region, "dst", put.dst_items, region.dst_items)?;
        }
        Ok(region)
    }

    /// Copies item `src_items[i]` to `dst_items[i]` for every `i`; returns the bytes moved.
    ///
    /// # Errors
    /// If the component and layer are not registered, or an item is outside its side; nothing is written then.
    pub fn copy(&self, put: &Put<'_>) -> Result<u64> {
        let region = self.check(put, true)?;
        let bytes = region.item_bytes as usize;
        for run in put.runs() {
            // SAFETY: all items are inside their sides, checked above; the sides may overlap, so this is a move.
            unsafe {
                let (src, dst) =
                    (region.src.add(run.src as usize * bytes), region.dst.add(run.dst as usize * bytes));
                src.copy_to(dst, run.items * bytes);
            }
        }
        Ok(region.item_bytes * put.src_items.len() as u64)
    }
}

/// Refuses an item that is not below `limit`.
pub(crate) fn inside(region: &Region, side: &str, items: &[i32], limit: u64) -> Result<()> {
    let outside = |item: &i32| u64::try_from(*item).map_or(true, |item| item >= limit);
    match items.iter().position(outside) {
        None => Ok(()),
        Some(i) => {
            let (what, item) = (name(region.component, region.layer), items[i]);
            Err(Error::argument(format!("{what}: {side}_items[{i}] is {item}, expected 0 to {limit} - 1")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: usize = 24;

    fn region(component: u32, layer: u32, src: &[u8], dst: &mut [u8]) -> Region {
        Region {
            component,
            layer,
            src: src.as_ptr(),
            dst: dst.as_mut_ptr(),
            item_bytes: ITEM as u64,
            src_items: (src.len() / ITEM) as u64,
            dst_items: (dst.len() / ITEM) as u64,
            src_offset: 0,
            src_fd: -1,
        }
    }

    fn put<'a>(component: u32, layer: u32, src_items: &'a [i32], dst_items: &'a [i32]) -> Put<'a> {
        Put { room: 1, component, layer, src_items, dst_items, peer: 0 }
    }

    #[test]
    fn items_go_where_they_should_and_nowhere_else() {
        let src: Vec<u8> = (0..5 * ITEM).map(|i| i as u8).collect();
        let mut dst = vec![0xee; 7 * ITEM];
        // SAFETY: both sides outlive the regions.
        let regions = unsafe { Regions::new(&[region(component::C4, 2, &src, &mut dst)]) }.unwrap();
        assert_eq!(regions.copy(&put(component::C4, 2, &[4, 0, 2], &[1, 6, 3])), Ok(3 * ITEM as u64));
        for item in 0..7 {
            let expected = match item {
                1 => &src[4 * ITEM..5 * ITEM],
                6 => &src[..ITEM],
                3 => &src[2 * ITEM..3 * ITEM],
                _ => &[0xee; ITEM],
            };
            assert_eq!(&dst[item * ITEM..(item + 1) * ITEM], expected, "item {item}");
        }
        assert_eq!(regions.copy(&put(component::C4, 2, &[], &[])), Ok(0));
    }

    #[test]
    fn bad_requests_name_the_thing_and_write_nothing() {
        let src = vec![1; 5 * ITEM];
        let mut dst = vec![0; 7 * ITEM];
        // SAFETY: both sides outlive the regions.
        let regions = unsafe { Regions::new(&[region(component::SWA, 3, &src, &mut dst)]) }.unwrap();
        for (layer, from, to, text) in [
            (3, [0, 5], [0, 1], "swa of layer 3: src_items[1] is 5, expected 0 to 5 - 1"),
            (3, [0, 4], [0, 7], "swa of layer 3: dst_items[1] is 7, expected 0 to 7 - 1"),
            (3, [0, -1], [0, 1], "swa of layer 3: src_items[1] is -1, expected 0 to 5 - 1"),
            (4, [0, 1], [0, 1], "swa of layer 4 is not registered; 1 regions are"),
        ] {
            let error = regions.copy(&put(component::SWA, layer, &from, &to)).unwrap_err();
            assert_eq!(error.message, text);
        }
        assert!(dst.iter().all(|b| *b == 0));
    }

    #[test]
    fn regions_are_checked_when_they_are_registered() {
        let src = vec![1; 2 * ITEM];
        let mut dst = vec![0; 2 * ITEM];
        let good = region(component::INDEX_KEYS, 2, &src, &mut dst);
        let lost = Region { dst: std::ptr::null_mut(), ..good };
        let huge = Region { src_items: u64::MAX / 2, ..good };
        for (regions, text) in [
            (&[good, good][..], "index_keys of layer 2 is registered twice"),
            (&[lost][..], "index_keys of layer 2: the receiving side has 2 items and no memory"),
            (&[huge][..], "items of 24 bytes on the sending side are more than memory"),
        ] {
            // SAFETY: the regions are not used.
            let error = unsafe { Regions::new(regions) }.unwrap_err();
            assert!(error.message.contains(text), "{}", error.message);
        }
    }
}
