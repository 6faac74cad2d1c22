//! The indexer seam: which compressed entries each row attends. Its `compress` is [`crate::compress`].

mod queries;
mod score;
mod select;
mod topk;

pub use select::select;
