//! Saved prefill states, so that arms which differ only in decode cells share one prefill.
//!
//! A state is known by everything that made its bytes: prompt, chunk sizes, digest of the whole prefill assignment
//! (design decision 3). Reuse needs equality of all of it.

use crate::request::Request;
use hotseam_kv::Saved;
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// Identity of a saved prefill.
pub(crate) type Key = [u8; 32];

/// The key of a request's prompt, prefilled by the assignment with this digest.
pub(crate) fn key(request: &Request, prefill_digest: hotseam_slots::Digest) -> Key {
    let mut hash = Sha256::new();
    hash.update((request.prompt.len() as u64).to_le_bytes());
    request.prompt.iter().for_each(|t| hash.update(t.to_le_bytes()));
    hash.update((request.chunks.len() as u64).to_le_bytes());
    request.chunks.iter().for_each(|c| hash.update((*c as u64).to_le_bytes()));
    hash.update(prefill_digest.bytes());
    hash.finalize().into()
}

/// A prefilled prompt.
#[derive(Debug)]
pub(crate) struct Prefilled {
    pub(crate) kv: Saved,
    /// Logits of the last row.
    pub(crate) logits: Vec<f32>,
    /// Chunks it took.
    pub(crate) chunks: u32,
    used: u64,
}

/// Bounded by bytes; the least recently used goes first.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    limit: usize,
    bytes: usize,
    clock: u64,
    entries: HashMap<Key, Prefilled>,
}

impl PrefixCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, clock: 0, entries: HashMap::new() }
    }

    pub(crate) fn get(&mut self, key: &Key) -> Option<&Prefilled> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(entry)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.bytes = 0;
        self.entries.clear();
    }

    pub(crate) fn put(&mut self, key: Key, kv: Saved, logits: &[f32], chunks: u32) {
        let bytes = kv.bytes() + logits.len() * 4;
        if bytes > self.limit || self.entries.contains_key(&key) {
            return;
        }
        while self.bytes + bytes > self.limit {
            let Some(oldest) = self.entries.iter().min_by_key(|(_, e)| e.used).map(|(k, _)| *k) else {
                break;
            };
            if let Some(gone) = self.entries.remove(&oldest) {
                self.bytes -= gone.kv.bytes() + gone.logits.len() * 4;
            }
        }
        self.clock += 1;
        self.bytes += bytes;
        self.entries.insert(key, Prefilled { kv, logits: logits.to_vec(), chunks, used: self.clock });
    }
}
