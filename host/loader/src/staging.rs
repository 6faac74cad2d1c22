//! The directory of staged copies. It is marked as in use, so that what a killed process left is known and removed by the next.

use crate::error::LoadError;
use crate::stage::io_error;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tempfile::TempDir;

/// Beginning of the names of such directories.
const PREFIX: &str = "hotseam-plugins-";
/// The file in a directory that its owner has locked.
const OWNER: &str = "owner";

/// A private directory, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Staging {
    dir: TempDir,
    /// Locked as long as the process lives.
    _owner: File,
}

impl Staging {
    /// Makes a directory in the system's place for temporary files, and removes those there that nobody owns any more.
    pub(crate) fn new() -> Result<Self, LoadError> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(place: &Path) -> Result<Self, LoadError> {
        sweep(place);
        let failed = |e: io::Error| io_error("staging", "make a directory in", place, &e);
        // Otherwise others may look into it.
        let private = Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(place);
        let dir = dir.map_err(failed)?;
        let owner = own(dir.path()).map_err(failed)?;
        Ok(Self { dir, _owner: owner })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Marks a directory as this process's. The file gets its name once it is locked, so that nobody finds it unlocked.
fn own(dir: &Path) -> io::Result<File> {
    let early = dir.join("owner.new");
    let file = File::create_new(&early)?;
    file.lock()?;
    std::fs::rename(&early, dir.join(OWNER))?;
    Ok(file)
}

/// Removes directories of this user whose owner is gone. What cannot be read or removed stays.
fn sweep(place: &Path) {
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let is_ours = |m: std::fs::Metadata| m.is_dir() && m.uid() == user && m.mode() & 0o077 == 0;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) || !entry.metadata().is_ok_and(is_ours) {
            continue;
        }
        let Ok(owner) = File::open(entry.path().join(OWNER)) else { continue };
        if owner.try_lock().is_ok() {
            // Another process may be removing it as well.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_without_an_owner_are_removed_and_others_stay() {
        let place = tempfile::tempdir().expect("a directory");
        let count = || std::fs::read_dir(place.path()).expect("listed").count();
        let first = Staging::new_in(place.path()).expect("made");
        // A process that is killed unlocks the file and removes nothing.
        let killed = Staging::new_in(place.path()).expect("made");
        std::fs::write(killed.path().join("x.so"), b"code").expect("written");
        assert_eq!(killed.path().metadata().expect("there").mode() & 0o777, 0o700);
        let left = killed.dir.keep();
        drop(killed._owner);
        let unmarked = place.path().join(format!("{PREFIX}unmarked"));
        std::fs::create_dir(&unmarked).expect("made");
        std::fs::set_permissions(&unmarked, Permissions::from_mode(0o700)).expect("chmod");
        assert_eq!(count(), 3);
        let second = Staging::new_in(place.path()).expect("made");
        assert!(!left.exists() && first.path().exists() && unmarked.exists());
        drop((first, second));
        assert_eq!(count(), 1);
    }
}
