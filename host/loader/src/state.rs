//! What is remembered of plugin files from one run to the next: verdicts of the probe, and hashes in quarantine.
//!
//! One file a hash, written whole and renamed into place, so that servers may share the directory and an operator can
//! lift a quarantine with `rm`.

use crate::error::LoadError;
use crate::probe::Verdict;
use crate::stage::io_error;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const QUARANTINE: &str = "quarantine";
const VERDICTS: &str = "verdicts";

/// A hash that is not loaded any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Hash of the plugin file.
    pub sha256: String,
    /// Name under which it was loaded.
    pub name: String,
    /// Why it is here.
    pub reason: String,
    /// When it was put here, in seconds since 1970.
    pub when: u64,
    /// File that holds it there; `None` if it is remembered for the life of this process only.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

impl Quarantined {
    /// What to do to try the hash again.
    pub(crate) fn next(&self) -> String {
        match &self.file {
            Some(file) => format!("remove {} to try again.", file.display()),
            None => "start again to try again.".to_owned(),
        }
    }
}

/// The state directory, or the memory of this process.
#[derive(Debug)]
pub(crate) struct State {
    dir: Option<PathBuf>,
    memory: Mutex<HashMap<String, Quarantined>>,
}

impl State {
    /// Opens `dir`, which is made if it is not there and must be nobody else's to write.
    pub(crate) fn open(dir: Option<PathBuf>) -> Result<Self, LoadError> {
        if let Some(dir) = &dir {
            let io = |what, e: std::io::Error| io_error("plugins.state_dir", what, dir, &e);
            for path in [dir.clone(), dir.join(QUARANTINE), dir.join(VERDICTS)] {
                DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|e| io("make", e))?;
            }
            let meta = dir.metadata().map_err(|e| io("look at", e))?;
            // SAFETY: geteuid has no preconditions and cannot fail.
            let me = unsafe { libc::geteuid() };
            if meta.uid() != me || meta.mode() & 0o022 != 0 {
                return Err(LoadError::Path {
                    name: "plugins.state_dir".to_owned(),
                    path: dir.clone(),
                    rule: format!("it must belong to user {me} and be writable by nobody else"),
                    found: format!("user {}, mode {:04o}", meta.uid(), meta.mode() & 0o7777),
                    next: "Choose another directory: a verdict that others may write is worth nothing."
                        .to_owned(),
                });
            }
        }
        Ok(Self { dir, memory: Mutex::default() })
    }

    pub(crate) fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    fn quarantine_file(&self, sha256: &str) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(QUARANTINE).join(format!("{sha256}.json")))
    }

    /// Puts a hash into quarantine. The first reason stays.
    pub(crate) fn quarantine(
        &self,
        name: &str,
        sha256: &str,
        reason: &str,
    ) -> Result<Quarantined, LoadError> {
        if let Some(known) = self.quarantined(sha256)? {
            return Ok(known);
        }
        let entry = Quarantined {
            sha256: sha256.to_owned(),
            name: name.to_owned(),
            reason: reason.to_owned(),
            when: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            file: self.quarantine_file(sha256),
        };
        match &entry.file {
            Some(file) => write(name, file, &entry)?,
            None => {
                self.memory().insert(sha256.to_owned(), entry.clone());
            }
        }
        Ok(entry)
    }

    /// The hash's entry, if it is in quarantine. A file that cannot be read keeps its hash in quarantine.
    pub(crate) fn quarantined(&self, sha256: &str) -> Result<Option<Quarantined>, LoadError> {
        let Some(file) = self.quarantine_file(sha256) else {
            return Ok(self.memory().get(sha256).cloned());
        };
        match std::fs::read(&file) {
            Ok(bytes) => Ok(Some(entry(sha256, file, &bytes))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error("plugins.state_dir", "read", &file, &e)),
        }
    }

    /// All hashes in quarantine, the oldest first.
    pub(crate) fn all_quarantined(&self) -> Vec<Quarantined> {
        let mut all: Vec<Quarantined> = match &self.dir {
            None => self.memory().values().cloned().collect(),
            Some(dir) => {
                let files = dir.join(QUARANTINE).read_dir().into_iter().flatten().flatten().map(|e| e.path());
                files
                    .filter_map(|file| {
                        let sha256 = file.file_name()?.to_str()?.strip_suffix(".json")?.to_owned();
                        let bytes = std::fs::read(&file).ok()?;
                        Some(entry(&sha256, file, &bytes))
                    })
                    .collect()
            }
        };
        all.sort_by(|a, b| (a.when, &a.sha256).cmp(&(b.when, &b.sha256)));
        all
    }

    /// Lifts the quarantine of a hash; false if it was in none.
    pub(crate) fn forgive(&self, sha256: &str) -> Result<bool, LoadError> {
        let Some(file) = self.quarantine_file(sha256) else {
            return Ok(self.memory().remove(sha256).is_some());
        };
        match std::fs::remove_file(&file) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(io_error("plugins.state_dir", "remove", &file, &e)),
        }
    }

    /// The remembered verdict of `host` on a hash.
    pub(crate) fn verdict(&self, sha256: &str, host: &str) -> Option<Verdict> {
        let bytes = std::fs::read(self.verdict_file(sha256, host)?).ok()?;
        // A file that does not fit is as good as none: the probe is run again.
        serde_json::from_slice::<Verdict>(&bytes).ok().filter(|verdict| verdict.sha256 == sha256)
    }

    /// Remembers a verdict. That it cannot be written costs a probe the next time.
    pub(crate) fn remember(&self, verdict: &Verdict, host: &str) {
        if let Some(file) = self.verdict_file(&verdict.sha256, host)
            && let Err(error) = write(&verdict.mirror.manifest.name, &file, verdict)
        {
            tracing::warn!(%error, "a verdict of the probe is not remembered");
        }
    }

    fn verdict_file(&self, sha256: &str, host: &str) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(VERDICTS).join(format!("{sha256}-{host}.json")))
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, HashMap<String, Quarantined>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry(sha256: &str, file: PathBuf, bytes: &[u8]) -> Quarantined {
    let read = serde_json::from_slice::<Quarantined>(bytes).unwrap_or_else(|e| Quarantined {
        sha256: String::new(),
        name: String::new(),
        reason: format!("the reason cannot be read ({e})"),
        when: 0,
        file: None,
    });
    Quarantined { sha256: sha256.to_owned(), file: Some(file), ..read }
}

fn write(name: &str, file: &Path, value: &impl Serialize) -> Result<(), LoadError> {
    let io = |e: std::io::Error| io_error(name, "write", file, &e);
    let dir = file.parent().unwrap_or(Path::new("."));
    let mut partial = tempfile::NamedTempFile::new_in(dir).map_err(io)?;
    let text = serde_json::to_vec_pretty(value).map_err(|e| io(e.into()))?;
    // Synced, because the next thing that happens may be a crash.
    partial.write_all(&text).and_then(|()| partial.as_file().sync_all()).map_err(io)?;
    partial.persist(file).map(|_| ()).map_err(|e| io(e.error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarantine_outlives_the_process_and_ends_with_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = State::open(Some(dir.path().join("a/b"))).expect("opened");
        assert_eq!(state.quarantined("ab12").expect("read"), None);
        let entry = state.quarantine("moe/x", "ab12", "killed by SIGSEGV").expect("written");
        state.quarantine("moe/x", "ab12", "another reason").expect("kept");

        let again = State::open(Some(dir.path().join("a/b"))).expect("opened");
        let found = again.quarantined("ab12").expect("read").expect("there");
        assert_eq!((found.reason.as_str(), found.name.as_str()), ("killed by SIGSEGV", "moe/x"));
        assert_eq!(again.all_quarantined(), [found]);
        let file = entry.file.expect("a file");
        std::fs::write(&file, "not JSON").expect("written");
        assert!(again.quarantined("ab12").expect("read").is_some(), "an unreadable reason is no pardon");
        assert!(again.forgive("ab12").expect("removed"));
        assert!(!again.forgive("ab12").expect("gone"));
        assert_eq!(again.quarantined("ab12").expect("read"), None);
    }

    #[test]
    fn without_a_directory_it_lasts_as_long_as_the_process() {
        let state = State::open(None).expect("opened");
        state.quarantine("moe/x", "ab12", "why").expect("remembered");
        assert_eq!(state.all_quarantined().len(), 1);
        assert!(state.forgive("ab12").expect("forgiven"));
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o770)).expect("chmod");
        let error = State::open(Some(dir.path().to_owned())).expect_err("refused");
        assert_eq!(error.code(), 101);
        assert!(error.to_string().contains("mode 0770"), "{error}");
    }
}
