//! Answers shared by searches: one file an answer in a directory.

use std::fs;
use std::io;
use std::path::PathBuf;

use hotseam_target::Outcome;
use serde::{Deserialize, Serialize};

/// A directory of answers by key. Only for exact oracles: a draw is not worth another one.
#[derive(Debug, Clone)]
pub struct Cache {
    dir: PathBuf,
}

/// What is kept of one answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) outcome: Outcome,
    pub(super) not_run: Option<Vec<usize>>,
}

impl Cache {
    /// The cache in `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    /// The answer to `key`; a damaged file is no answer.
    pub(super) fn get(&self, key: &str) -> Option<Kept> {
        serde_json::from_slice(&fs::read(self.path(key)).ok()?).ok()
    }

    /// Keeps an answer. The file appears whole or not at all.
    pub(super) fn put(&self, key: &str, kept: &Kept) -> io::Result<()> {
        let scratch = self.dir.join(format!("{key}.{}.part", std::process::id()));
        fs::write(&scratch, serde_json::to_vec(kept)?)?;
        fs::rename(&scratch, self.path(key))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(format!("{key}.json"))
    }
}
