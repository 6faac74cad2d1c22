//! The probe: a plugin's code first runs in a child process that may die of it.
//!
//! The child is a program of the host that calls [`answer`]. It reads one request from stdin and writes JSON lines to
//! stdout: the stages that it begins, and at the end a verdict or an error in the form that the host itself would have
//! given. A child that ends without either, or does not end in time, has been taken down by the plugin.

mod child;
mod parent;

pub use child::answer;
pub(crate) use parent::{Failed, Suspect};

use crate::plugin::Entry;
use crate::sidecar::Mirror;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// How plugins are probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Program that calls [`answer`].
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Time for the whole probe of one plugin.
    pub timeout: Duration,
    /// Address space of the child, in bytes.
    pub memory: u64,
}

impl Probe {
    /// A probe by this program and arguments, with 60 s and 4 GiB.
    pub fn new(program: PathBuf, args: Vec<OsString>) -> Self {
        Self { program, args, timeout: Duration::from_secs(60), memory: 4 << 30 }
    }

    /// Name of this build of the program: another build may come to another verdict.
    pub(crate) fn host(&self) -> String {
        let facts = self.program.metadata().map(|m| format!("{} {} {}", m.len(), m.mtime(), m.mtime_nsec()));
        let text = format!("{} {}", env!("CARGO_PKG_VERSION"), facts.unwrap_or_default());
        crate::stage::sha256_hex(text.as_bytes())[..16].to_owned()
    }
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Hash of the plugin file.
    pub sha256: String,
    /// By which entry the plugin is taken.
    pub entry: Entry,
    /// What the binary says of itself.
    pub mirror: Mirror,
    /// Why no instance could be made with the default options; other options may do.
    pub create_error: Option<String>,
    /// What the quick cases of conformance said of that instance.
    pub conformance: Option<Conformance>,
    /// Duration of the probe in milliseconds, start of the child included.
    pub milliseconds: u64,
}

/// What the quick cases of conformance said. A variant that fails them is not refused here: that is the matter of the
/// swap that puts it to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conformance {
    /// Cases that were run.
    pub cases: usize,
    /// Those that failed.
    pub failed: usize,
    /// The first that failed, and how.
    pub first: Option<String>,
}

/// What the child is asked.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    name: String,
    path: PathBuf,
    staged: PathBuf,
    sha256: String,
    seconds: u64,
    memory: u64,
}

/// One line of the child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Message {
    Stage(String),
    Refused { code: u16, message: String },
    Verdict(Box<Verdict>),
}
