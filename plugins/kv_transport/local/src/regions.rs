//! The registered regions, and checked copies between their two sides.

use hotseam_sdk::abi::{Region, component};
use hotseam_sdk::{Error, Result};
use std::collections::HashMap;

/// Regions by component and layer.
#[derive(Debug, Default)]
pub(crate) struct Regions(HashMap<(u32, u32), Region>);

// SAFETY: the pointers are used only through `copy`, whose caller holds the lock around the regions; the memory belongs
// to the host, which allows the transport's thread to use it (contract).
unsafe impl Send for Regions {}

/// Name of a component and layer for messages.
fn name(component: u32, layer: u32) -> String {
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
    pub(crate) unsafe fn new(regions: &[Region]) -> Result<Self> {
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

    /// Copies item `src_items[i]` to `dst_items[i]` for every `i`; returns the bytes moved.
    ///
    /// # Errors
    /// If the component and layer are not registered, or an item is outside its side; nothing is written then.
    pub(crate) fn copy(
        &self,
        component: u32,
        layer: u32,
        src_items: &[i32],
        dst_items: &[i32],
    ) -> Result<u64> {
        let Some(region) = self.0.get(&(component, layer)) else {
            return Err(Error::argument(format!(
                "{} is not registered; {} regions are",
                name(component, layer),
                self.0.len()
            )));
        };
        let outside = |items: &[i32], limit: u64| {
            items
                .iter()
                .copied()
                .enumerate()
                .find(|(_, item)| u64::try_from(*item).map_or(true, |item| item >= limit))
        };
        for (side, items, limit) in
            [("src", src_items, region.src_items), ("dst", dst_items, region.dst_items)]
        {
            if let Some((i, item)) = outside(items, limit) {
                let what = name(component, layer);
                return Err(Error::argument(format!(
                    "{what}: {side}_items[{i}] is {item}, expected 0 to {limit} - 1"
                )));
            }
        }
        let bytes = region.item_bytes as usize;
        for (src, dst) in src_items.iter().zip(dst_items) {
            // SAFETY: both items are inside their sides, checked above; the sides may overlap, so this is a move.
            unsafe {
                region.src.add(*src as usize * bytes).copy_to(region.dst.add(*dst as usize * bytes), bytes);
            }
        }
        Ok(region.item_bytes * src_items.len() as u64)
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
        }
    }

    #[test]
    fn items_go_where_they_should_and_nowhere_else() {
        let src: Vec<u8> = (0..5 * ITEM).map(|i| i as u8).collect();
        let mut dst = vec![0xee; 7 * ITEM];
        // SAFETY: both sides outlive the regions.
        let regions = unsafe { Regions::new(&[region(component::C4, 2, &src, &mut dst)]) }.unwrap();
        assert_eq!(regions.copy(component::C4, 2, &[4, 0, 2], &[1, 6, 3]), Ok(3 * ITEM as u64));
        for item in 0..7 {
            let expected = match item {
                1 => &src[4 * ITEM..5 * ITEM],
                6 => &src[..ITEM],
                3 => &src[2 * ITEM..3 * ITEM],
                _ => &[0xee; ITEM],
            };
            assert_eq!(&dst[item * ITEM..(item + 1) * ITEM], expected, "item {item}");
        }
        assert_eq!(regions.copy(component::C4, 2, &[], &[]), Ok(0));
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
            let error = regions.copy(component::SWA, layer, &from, &to).unwrap_err();
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
