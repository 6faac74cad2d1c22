//! The log of a search: append-only JSON lines from which it is resumed, replayed and undone.
//!
//! Recording is done at the border of the target: [`Recorder`] stands between a search and its target and writes down
//! every answer. A search is deterministic given the answers, so the same search over recorded answers is the same
//! search, and goes on where the answers end.
//!
//! Each run has a line before and a line after it, both synced to disk. A line before without one after is a run that
//! took the program, or the machine, down with it.

mod cache;
mod journal;
mod line;
mod list;
mod reader;
mod recorder;

use std::fs::File;
use std::io::{self, Write};

use sha2::{Digest as _, Sha256};

pub use cache::Cache;
pub use journal::Journal;
pub use line::{Answer, Begun, FORMAT, Failed, Header, Line};
pub use list::listing;
pub use reader::{Log, LogError, Recorded, Taken};
pub use recorder::Recorder;

/// Where lines go.
pub trait Sink: Write {
    /// Returns once everything written survives a crash of the machine.
    ///
    /// # Errors
    /// The error of the device.
    fn sync(&mut self) -> io::Result<()>;
}

impl Sink for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

impl Sink for Vec<u8> {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn sync(&mut self) -> io::Result<()> {
        (**self).sync()
    }
}

/// Identity of a question: the same key is the same question to the same target.
pub fn key(identity: &str, digest: &str, launch: u64, axes: &[(String, String)]) -> String {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    part(identity);
    part(digest);
    part(&launch.to_string());
    for (name, value) in axes {
        part(name);
        part(value);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::key;

    #[test]
    fn every_part_of_a_question_counts() {
        let axes = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let keys = [
            key("t", "d", 0, &[]),
            key("t", "d", 1, &[]),
            key("td", "", 0, &[]),
            key("", "td", 0, &[]),
            key("t", "d", 0, &axes("a", "b")),
            key("t", "d", 0, &axes("ab", "")),
        ];
        for (i, one) in keys.iter().enumerate() {
            assert_eq!(one.len(), 64);
            assert!(!keys[..i].contains(one), "{i}");
        }
    }
}
