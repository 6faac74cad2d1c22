//! Writes shards whose tensors come one at a time: all sizes are known before, so the header goes first and each tensor
//! to its place.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::work::{Piece, Planned};
use crate::error::CheckpointError;

/// Pieces that go into one shard, and its file name.
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) pieces: std::ops::Range<usize>,
}

/// Cuts pieces into shards of at most `limit` bytes of data; a piece is not cut, so that weights and scales stay together.
pub(super) fn cut(pieces: &[Piece], limit: usize) -> Vec<Shard> {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    let mut room = 0;
    for (number, piece) in pieces.iter().enumerate() {
        let bytes = piece.out.iter().map(|t| t.bytes).sum::<usize>();
        match ranges.last_mut() {
            Some(range) if bytes <= room => {
                range.end = number + 1;
                room -= bytes;
            }
            _ => {
                ranges.push(number..number + 1);
                room = limit.saturating_sub(bytes);
            }
        }
    }
    let count = ranges.len();
    let name = |i: usize| format!("model-{:05}-of-{count:05}.safetensors", i + 1);
    ranges.into_iter().enumerate().map(|(i, pieces)| Shard { name: name(i), pieces }).collect()
}

/// A shard that is being written.
pub(super) struct Writer {
    path: PathBuf,
    file: File,
    /// Where each tensor begins in the file.
    places: std::collections::HashMap<String, (u64, usize)>,
}

impl Writer {
    /// Creates the file and writes its header.
    pub(super) fn create<'a>(
        path: &Path,
        tensors: impl Iterator<Item = &'a Planned>,
    ) -> Result<Self, CheckpointError> {
        // Wide elements first: then each tensor is aligned to its element size, as readers like it.
        let mut order: Vec<&Planned> = tensors.collect();
        order.sort_by(|a, b| b.dtype.bitsize().cmp(&a.dtype.bitsize()).then_with(|| a.name.cmp(&b.name)));
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
        let mut end = 0;
        for t in &order {
            let start = end;
            end += t.bytes;
            let info =
                json!({ "dtype": t.dtype.to_string(), "shape": t.shape, "data_offsets": [start, end] });
            header.insert(t.name.clone(), info);
        }
        let mut text = serde_json::Value::Object(header).to_string();
        text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
        let mut places = std::collections::HashMap::new();
        let mut place = 8 + text.len() as u64;
        for t in order {
            places.insert(t.name.clone(), (place, t.bytes));
            place += t.bytes as u64;
        }
        let write = || {
            let mut file = File::create_new(path)?;
            file.write_all(&(text.len() as u64).to_le_bytes())?;
            file.write_all(text.as_bytes())?;
            file.set_len(place)?;
            Ok(file)
        };
        let file = write().map_err(|source| CheckpointError::Write { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file, places })
    }

    /// Writes one tensor of those that were announced.
    pub(super) fn put(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let mut write = || {
            let announced = self.places.remove(name).filter(|(_, len)| *len == bytes.len());
            let Some((place, _)) = announced else {
                let text = format!("tensor `{name}` of {} bytes was not announced", bytes.len());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            };
            self.file.seek(SeekFrom::Start(place))?;
            self.file.write_all(bytes)
        };
        write().map_err(|source| CheckpointError::Write { path: self.path.clone(), source })
    }

    /// Puts the data on the disk.
    pub(super) fn finish(self) -> Result<(), CheckpointError> {
        let missing = self.places.into_keys().min();
        let done = match missing {
            None => self.file.sync_all(),
            Some(name) => Err(io::Error::other(format!("tensor `{name}` was announced and never came"))),
        };
        done.map_err(|source| CheckpointError::Write { path: self.path, source })
    }
}
