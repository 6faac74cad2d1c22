//! Weights out of mapped files into memory of the process.

use std::io;
use std::sync::Arc;

use hotseam_model::{Tensor, Weights};
use memmap2::MmapMut;

/// Distance between tensors: a cache line.
const ALIGN: usize = 64;

/// Copies every tensor into one block of memory, in the order in which a step reads them, and asks for huge pages. A step
/// that is bound by memory may then wait less for page tables; the price is the bytes themselves, since what is mapped from
/// a file can be dropped and read again by the system and a copy cannot. Returns the size of the block.
///
/// # Errors
/// If the system has no such memory; the weights are then as before.
pub fn copy_resident(weights: &mut Weights) -> io::Result<usize> {
    let mut tensors = weights.tensors_mut();
    let places: Vec<usize> = (tensors.iter())
        .scan(0usize, |end, tensor| {
            let place = *end;
            *end += tensor.byte_len().next_multiple_of(ALIGN);
            Some(place)
        })
        .collect();
    let size = places.last().zip(tensors.last()).map_or(0, |(place, last)| place + last.byte_len());
    let mut block = MmapMut::map_anon(size.max(1))?;
    // A system without huge pages refuses: what follows is right then too, and as slow as before.
    #[cfg(target_os = "linux")]
    let _ = block.advise(memmap2::Advice::HugePage);
    for (tensor, place) in tensors.iter().zip(&places) {
        block[*place..place + tensor.byte_len()].copy_from_slice(tensor.bytes());
    }
    let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(block.make_read_only()?);
    for (tensor, place) in tensors.iter_mut().zip(places) {
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        **tensor = Tensor::from_region(dtype, shape, Arc::clone(&owner), place).map_err(io::Error::other)?;
    }
    Ok(size)
}
