//! Outputs of a call as numbers.

use hotseam_abi::PoolRef;
use hotseam_conformance::layouts::{self, Shape};
use hotseam_conformance::truth::{layout, numbers};
use hotseam_engine::observe::{Entry, Kind, Place, PoolLayout};

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
        Kind::Entry(entry) => {
            inner = vec![("channel", entry.dim)];
            Data::Floats(entries(entry, bytes)?)
        }
    };
    let width = inner.iter().map(|(_, n)| n).product();
    let items = place.items.iter().map(|(item, _)| *item).collect();
    Ok(Values { name: place.name, axis: place.axis, inner, items, width, data })
}

/// The layout `id` for the entries of `pool`.
///
/// # Errors
/// If truth does not know the layout, or it cannot hold the entries.
pub(crate) fn pool_layout(pool: &PoolRef, id: u32) -> Result<PoolLayout, String> {
    let shape = Shape { dim: pool.dim as usize, rope_dim: pool.rope_dim as usize };
    let parts = layout::parts(id, shape).map_err(|e| e.message)?;
    Ok(PoolLayout { id, data_bytes: parts.data, scale_bytes: parts.scale })
}

/// Gathered entries as values, turned back if they are rotated.
fn entries(kind: Entry, bytes: &[u8]) -> Result<Vec<f32>, String> {
    let size = (kind.data_bytes + kind.scale_bytes).max(1);
    let mut values = vec![0f32; bytes.len() / size * kind.dim];
    for (bytes, out) in bytes.chunks_exact(size).zip(values.chunks_exact_mut(kind.dim.max(1))) {
        let (data, scale) = bytes.split_at(kind.data_bytes);
        plain(kind.layout, kind.rope_dim, layouts::Entry { data, scale }, out)?;
    }
    Ok(values)
}

/// Reads an entry, turned back if it is rotated, so that layouts can be compared.
///
/// # Errors
/// If truth does not know the layout.
pub(crate) fn plain(
    id: u32,
    rope_dim: usize,
    entry: layouts::Entry<'_>,
    out: &mut [f32],
) -> Result<(), String> {
    layout::decode(id, rope_dim, entry, out).map_err(|e| e.message)?;
    if layout::rotates(id) {
        numbers::hadamard(out);
    }
    Ok(())
}
