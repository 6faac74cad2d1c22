//! What a conversion has to do: one piece of work for each matrix and each other tensor.

use hotseam_model::Format;
use safetensors::Dtype;

use super::class::{self, Class};
use super::form::{Form, layout};
use crate::error::CheckpointError;
use crate::quantisation::Role;
use crate::shards::{Entry, Shards};

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: usize,
}

/// One piece of work.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) class: Class,
    pub(super) what: What,
    /// Tensors that come out of it.
    pub(super) out: Vec<Planned>,
    /// Place in the source, for reading in order.
    place: (usize, usize),
}

#[derive(Debug)]
pub(super) enum What {
    /// Copies the bytes of the tensors that come out.
    Copy,
    /// Stores a matrix in another format.
    Store { module: String, role: Role, shape: [usize; 2], from: Format, to: Format },
}

/// All work of a conversion, in the order of the source.
///
/// # Errors
/// [`CheckpointError::Unstorable`] if a matrix does not divide into the groups of its format.
pub(super) fn plan(shards: &Shards, form: Form) -> Result<Vec<Piece>, CheckpointError> {
    let mut pieces = Vec::new();
    for (name, entry) in &shards.tensors {
        let module = class::module(name);
        let place = (entry.shard, entry.offset);
        let class = Class::of(name);
        let Some(role) = class::role(module) else {
            pieces.push(Piece { class, what: What::Copy, out: vec![copied(name, entry)], place });
            continue;
        };
        if *name != format!("{module}.weight") {
            continue; // scales go with their weights
        }
        let (from, shape) = stored(shards, module, entry);
        let to = form.format(module, role, from);
        if from == to {
            let parts = shards.tensors.iter().filter(|(other, _)| class::module(other) == module);
            let out = parts.map(|(name, entry)| copied(name, entry)).collect();
            pieces.push(Piece { class, what: What::Copy, out, place });
            continue;
        }
        if !to.divides(shape[1]) {
            return Err(CheckpointError::Unstorable { name: name.clone(), format: to, k: shape[1] });
        }
        let out = layout(module, to, shape[0], shape[1])
            .into_iter()
            .map(|(name, dtype, shape)| {
                let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
                Planned { name, dtype, shape, bytes }
            })
            .collect();
        pieces.push(Piece {
            class,
            what: What::Store { module: module.to_owned(), role, shape, from, to },
            out,
            place,
        });
    }
    pieces.sort_by_key(|piece| piece.place);
    Ok(pieces)
}

fn copied(name: &str, entry: &Entry) -> Planned {
    Planned { name: name.to_owned(), dtype: entry.dtype, shape: entry.shape.clone(), bytes: entry.len }
}

/// Format and size of a matrix that the loader has read.
pub(crate) fn stored(shards: &Shards, module: &str, entry: &Entry) -> (Format, [usize; 2]) {
    let (n, columns) = match entry.shape[..] {
        [n, columns] => (n, columns),
        _ => (entry.shape.iter().product(), 1),
    };
    let nvfp4 = shards.tensors.contains_key(&format!("{module}.weight_scale"));
    let packed = if nvfp4 { Format::Nvfp4 } else { Format::Mxfp4 };
    match entry.dtype {
        Dtype::F32 => (Format::F32, [n, columns]),
        Dtype::F8_E4M3 => (Format::Fp8Block, [n, columns]),
        Dtype::F4 => (packed, [n, columns]),
        Dtype::I8 | Dtype::U8 => (packed, [n, 2 * columns]),
        _ => (Format::Bf16, [n, columns]),
    }
}
