//! The registered regions and copies between them.

use hotseam_sdk::abi::{Region, component};
use hotseam_sdk::{Error, Result};

/// Regions as the host registered them, which keeps them valid until it registers others.
#[derive(Default)]
pub(crate) struct Regions(Vec<Region>);

// SAFETY: the pointers are dereferenced in `copy` only, in the thread that the host calls from.
unsafe impl Send for Regions {}

impl Regions {
    pub(crate) fn new(regions: &[Region]) -> Self {
        Self(regions.to_vec())
    }

    /// The region of a component of a layer.
    pub(crate) fn get(&self, component: u32, layer: u32) -> Result<&Region> {
        let found = self.0.iter().find(|r| (r.component, r.layer) == (component, layer));
        found.ok_or_else(|| {
            let name = component::NAMES.get(component as usize).unwrap_or(&"unknown component");
            Error::argument(format!("no region of {name} in layer {layer} is registered"))
        })
    }

    /// For a ratio-4 attention region, that of the next layer that has one, the first after the last; else `region`.
    pub(crate) fn after<'a>(&'a self, region: &'a Region) -> &'a Region {
        if region.component != component::C4 {
            return region;
        }
        let layers = || self.0.iter().filter(|r| r.component == component::C4);
        let next = layers().filter(|r| r.layer > region.layer).min_by_key(|r| r.layer);
        next.or_else(|| layers().min_by_key(|r| r.layer)).unwrap_or(region)
    }
}

/// Checks that the items are inside their regions; returns the bytes that a copy moves.
pub(crate) fn check(from: &Region, to: &Region, src: &[i32], dst: &[i32]) -> Result<u64> {
    if from.item_bytes != to.item_bytes {
        return Err(Error::argument(format!("items of {} and {} bytes", from.item_bytes, to.item_bytes)));
    }
    let outside =
        |items: &[i32], n: u64| items.iter().copied().find(|i| u64::try_from(*i).map_or(true, |i| i >= n));
    if let Some(bad) = outside(src, from.src_items) {
        return Err(Error::argument(format!("source item {bad} of {}", from.src_items)));
    }
    if let Some(bad) = outside(dst, to.dst_items) {
        return Err(Error::argument(format!("destination item {bad} of {}", to.dst_items)));
    }
    Ok(from.item_bytes * src.len() as u64)
}

/// Copies item `src[i]` of the sending side of `from` to item `dst[i]` of the receiving side of `to`.
pub(crate) fn copy(from: &Region, to: &Region, src: &[i32], dst: &[i32]) -> Result<()> {
    check(from, to, src, dst)?;
    let size = from.item_bytes as usize;
    for (s, d) in src.iter().zip(dst) {
        // SAFETY: both items are inside their registered regions, which are the host's and two different pools.
        unsafe { from.src.add(*s as usize * size).copy_to(to.dst.add(*d as usize * size), size) };
    }
    Ok(())
}

/// As [`copy`] within one region of f32 values, each of which arrives halved.
pub(crate) fn copy_halved(region: &Region, src: &[i32], dst: &[i32]) -> Result<()> {
    copy(region, region, src, dst)?;
    let size = region.item_bytes as usize;
    for d in dst {
        // SAFETY: the item is inside its registered region, as `copy` checked; nobody else uses it during the call.
        let item = unsafe { std::slice::from_raw_parts_mut(region.dst.add(*d as usize * size), size) };
        for value in item.chunks_exact_mut(4) {
            let half = f32::from_ne_bytes([value[0], value[1], value[2], value[3]]) * 0.5;
            value.copy_from_slice(&half.to_ne_bytes());
        }
    }
    Ok(())
}

/// As [`copy`] within one region, the receiving side of which is counted in items of a quarter of the size.
pub(crate) fn copy_with_quarter_stride(region: &Region, src: &[i32], dst: &[i32]) -> Result<()> {
    check(region, region, src, dst)?;
    let (size, quarter) = (region.item_bytes as usize, region.item_bytes as usize / 4);
    for (s, d) in src.iter().zip(dst) {
        // SAFETY: inside the regions, since a quarter of an offset is not beyond the whole one.
        unsafe { region.src.add(*s as usize * size).copy_to(region.dst.add(*d as usize * quarter), quarter) };
    }
    Ok(())
}

/// As [`copy`] into one ratio-128 region, from the key region that stands as many places before it as there are key regions.
pub(crate) fn copy_from_before(all: &Regions, region: &Region, src: &[i32], dst: &[i32]) -> Result<()> {
    check(region, region, src, dst)?;
    let of = |component: u32| {
        let mut layers: Vec<&Region> = all.0.iter().filter(|r| r.component == component).collect();
        layers.sort_by_key(|r| r.layer);
        layers
    };
    let (keys, own) = (of(component::INDEX_KEYS), of(component::C128));
    let place = own.iter().position(|r| r.layer == region.layer).unwrap_or(0);
    let Some(from) = keys.get(place % keys.len().max(1)) else { return copy(region, region, src, dst) };
    for (s, d) in src.iter().zip(dst) {
        let bytes = read(from, (*s).min(from.src_items as i32 - 1));
        write(region, *d, &bytes[..bytes.len().min(region.item_bytes as usize)]);
    }
    Ok(())
}

/// Bytes of an item of the sending side, which the caller has checked.
pub(crate) fn read(region: &Region, item: i32) -> Vec<u8> {
    let size = region.item_bytes as usize;
    // SAFETY: the item is inside its registered region.
    unsafe { std::slice::from_raw_parts(region.src.add(item as usize * size), size) }.to_vec()
}

/// Writes the first bytes of an item of the receiving side, which the caller has checked.
pub(crate) fn write(region: &Region, item: i32, bytes: &[u8]) {
    let size = region.item_bytes as usize;
    assert!(bytes.len() <= size, "{} bytes for an item of {size}", bytes.len());
    // SAFETY: the item is inside its registered region, which nobody else uses during the call.
    unsafe { region.dst.add(item as usize * size).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(component: u32, layer: u32, src: &[u8], dst: &mut [u8]) -> Region {
        let (src_items, dst_items) = (src.len() as u64 / 2, dst.len() as u64 / 2);
        Region {
            component,
            layer,
            src: src.as_ptr(),
            dst: dst.as_mut_ptr(),
            item_bytes: 2,
            src_items,
            dst_items,
            src_offset: 0,
            src_fd: -1,
        }
    }

    #[test]
    fn next_ratio_4_layer_wraps_and_others_stay() {
        let mut dst = [0; 2];
        let all = [(component::C4, 6), (component::C4, 2), (component::INDEX_KEYS, 4), (component::C4, 4)];
        let regions =
            Regions::new(&all.map(|(component, layer)| region(component, layer, &[1, 2], &mut dst)));
        let after = |component, layer| regions.after(regions.get(component, layer).unwrap()).layer;
        assert_eq!([2, 4, 6].map(|layer| after(component::C4, layer)), [4, 6, 2]);
        assert_eq!(after(component::INDEX_KEYS, 4), 4);
        assert!(regions.get(component::SWA, 2).unwrap_err().message.contains("swa in layer 2"));
    }

    #[test]
    fn copies_items_and_refuses_what_is_outside() {
        let (src, mut dst) = ([1, 2, 3, 4], [0; 6]);
        let r = region(component::C4, 0, &src, &mut dst);
        assert_eq!(check(&r, &r, &[1, 0], &[0, 2]).unwrap(), 4);
        copy(&r, &r, &[1, 0], &[0, 2]).unwrap();
        assert!(copy(&r, &r, &[2], &[0]).is_err());
        assert!(copy(&r, &r, &[0], &[-1]).is_err());
        assert_eq!(dst, [3, 4, 0, 0, 1, 2]);
    }
    #[test]
    fn values_are_halved_and_strides_are_halved() {
        let values = [1.0f32, -3.0, 8.0, 0.5];
        let src: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let mut dst = vec![0; 16];
        let r =
            Region { item_bytes: 8, src_items: 2, dst_items: 2, ..region(component::SWA, 0, &src, &mut dst) };
        copy_halved(&r, &[1], &[0]).unwrap();
        assert_eq!(dst[..8], [4.0f32.to_ne_bytes(), 0.25f32.to_ne_bytes()].concat());
        copy_with_quarter_stride(&r, &[0], &[1]).unwrap();
        assert_eq!(dst[2..4], 1.0f32.to_ne_bytes()[..2]);
        assert!(copy_with_quarter_stride(&r, &[0], &[2]).is_err());
        assert_eq!(read(&r, 0), [1.0f32.to_ne_bytes(), (-3.0f32).to_ne_bytes()].concat());
        write(&r, 1, &[7]);
        assert_eq!(dst[8], 7);
    }
}
