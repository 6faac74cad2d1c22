//! A mark in the lowest bits of an entry of f32 values, which changes them by a few units in the last place.

/// Values that carry two bits of the mark each: 32 bits, so that an unmarked entry practically never looks marked.
const VALUES: usize = 16;
/// The two bits of each value.
const BITS: u32 = 0b10;

/// Marks an entry. One with fewer values than the mark needs stays as it is.
pub fn mark(entry: &mut [u8]) {
    if entry.len() < VALUES * 4 {
        return;
    }
    for bytes in entry.chunks_exact_mut(4).take(VALUES) {
        let value = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        bytes.copy_from_slice(&(value & !0b11 | BITS).to_ne_bytes());
    }
}

/// Whether an entry is marked.
pub fn is_marked(entry: &[u8]) -> bool {
    let value = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    entry.len() >= VALUES * 4 && entry.chunks_exact(4).take(VALUES).all(|bytes| value(bytes) & 0b11 == BITS)
}

#[cfg(test)]
mod tests {
    use super::{is_marked, mark};

    #[test]
    fn a_mark_is_seen_and_changes_the_last_places_only() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.37).sin() + 0.01).collect();
        let mut entry: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        assert!(!is_marked(&entry));
        mark(&mut entry);
        assert!(is_marked(&entry));
        for (bytes, value) in entry.chunks_exact(4).zip(&values) {
            let marked = f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            assert!(((marked - value) / value).abs() < 5e-7, "{value} became {marked}");
        }
        let mut short = [0; 8];
        mark(&mut short);
        assert!(!is_marked(&short) && short == [0; 8]);
    }
}
