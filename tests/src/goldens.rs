//! Goldens made with transformers by `scripts/make-goldens`.

use crate::{Checkpoint, root};
use serde::Deserialize;

#[derive(Deserialize)]
struct Meta {
    file: String,
    tokens: String,
    lengths: Vec<usize>,
    vocab: usize,
}

/// Logits after the first `length` tokens of a text, for several lengths.
pub struct Ladder {
    /// The text; prompts are its prefixes.
    pub tokens: Vec<u32>,
    /// (length, `[vocab]` logits of the last row).
    pub rungs: Vec<(usize, Vec<f32>)>,
}

/// The ladder of a checkpoint.
pub fn ladder(checkpoint: Checkpoint) -> Ladder {
    let dir = root().join("tests/goldens");
    let read =
        |name: &str| std::fs::read(dir.join(name)).unwrap_or_else(|e| panic!("tests/goldens/{name}: {e}"));
    let meta: Meta =
        serde_json::from_slice(&read(&format!("{}.json", checkpoint.name()))).expect("golden meta data");
    let tokens =
        read(&meta.tokens).chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).collect();
    let values: Vec<f32> =
        read(&meta.file).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let rungs =
        meta.lengths.iter().copied().zip(values.chunks_exact(meta.vocab).map(<[f32]>::to_vec)).collect();
    Ladder { tokens, rungs }
}
