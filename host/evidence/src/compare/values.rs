//! Outputs of a call as numbers.

use hotseam_abi::layout::{KEY_BF16, KEY_FP8_HADAMARD};
use hotseam_conformance::truth::{layout, numbers};
use hotseam_engine::observe::{Kind, Place};

/// One output of a call, decoded.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    pub(crate) name: &'static str,
    /// What an item is: `row` or `entry`.
    pub(crate) axis: &'static str,
    /// Axes inside an item.
    pub(crate) inner: Vec<(&'static str, usize)>,
    /// Row or entry number of each item.
    pub(crate) items: Vec<usize>,
    /// Elements of an item.
    pub(crate) width: usize,
    pub(crate) data: Data,
}

#[derive(Debug, Clone)]
pub(crate) enum Data {
    Floats(Vec<f32>),
    Ids(Vec<i32>),
}

impl Values {
    pub(crate) fn floats(&self) -> Option<&[f32]> {
        match &self.data {
            Data::Floats(values) => Some(values),
            Data::Ids(_) => None,
        }
    }

    pub(crate) fn ids(&self) -> Option<&[i32]> {
        match &self.data {
            Data::Ids(values) => Some(values),
            Data::Floats(_) => None,
        }
    }
}

/// Decodes gathered outputs. Entries of a rotated layout are turned back, so that layouts can be compared.
///
/// # Errors
/// If an entry is in a layout that truth does not know.
pub(crate) fn decode(places: &[Place], outputs: &[Vec<u8>]) -> Result<Vec<Values>, String> {
    places.iter().zip(outputs).map(|(place, bytes)| one(place, bytes)).collect()
}

fn one(place: &Place, bytes: &[u8]) -> Result<Values, String> {
    let words = || bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
    let mut inner = place.inner.clone();
    let data = match place.kind {
        Kind::F32 => Data::Floats(words().map(f32::from_ne_bytes).collect()),
        Kind::I32 => Data::Ids(words().map(i32::from_ne_bytes).collect()),
        Kind::Entry { layout } => {
            let dim = dim(layout, place.item_bytes)?;
            inner = vec![("channel", dim)];
            Data::Floats(entries(layout, dim, place.item_bytes, bytes)?)
        }
    };
    let width = inner.iter().map(|(_, n)| n).product();
    let items = place.items.iter().map(|(item, _)| *item).collect();
    Ok(Values { name: place.name, axis: place.axis, inner, items, width, data })
}

/// Values of an entry of `bytes` bytes.
pub(crate) fn dim(id: u32, bytes: usize) -> Result<usize, String> {
    let dim = match id {
        KEY_BF16 => bytes / 2,
        KEY_FP8_HADAMARD => bytes.saturating_sub(4),
        _ => bytes / 4,
    };
    match layout::entry_bytes(id, dim) {
        Ok(n) if n == bytes => Ok(dim),
        Ok(n) => Err(format!("an entry of layout {id} has {bytes} bytes, expected {n} for {dim} values")),
        Err(error) => Err(error.message),
    }
}

fn entries(id: u32, dim: usize, size: usize, bytes: &[u8]) -> Result<Vec<f32>, String> {
    let mut values = vec![0f32; bytes.len() / size.max(1) * dim];
    for (entry, out) in bytes.chunks_exact(size.max(1)).zip(values.chunks_exact_mut(dim.max(1))) {
        layout::decode(id, entry, out).map_err(|e| e.message)?;
        if id == KEY_FP8_HADAMARD {
            numbers::hadamard(out);
        }
    }
    Ok(values)
}
