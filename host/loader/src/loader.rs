//! The loader: plugin directories, the staging directory, and what has been opened.

use crate::error::LoadError;
use crate::open::{self, Source};
use crate::plugin::Plugin;
use crate::{resolve, stage};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::TempDir;

/// How strict the checks of files are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// Also refuse files that their group may write.
    pub strict: bool,
}

/// Opens plugins from a set of directories. All methods may be called from any thread; opening is serialised.
#[derive(Debug)]
pub struct Loader {
    dirs: Vec<PathBuf>,
    policy: Policy,
    staging: TempDir,
    opened: Mutex<HashMap<String, Arc<Plugin>>>,
}

impl Loader {
    /// A loader over `dirs`, searched in order, with the default policy.
    ///
    /// # Errors
    /// As [`Loader::with_policy`].
    pub fn new(dirs: Vec<PathBuf>) -> Result<Self, LoadError> {
        Self::with_policy(dirs, Policy::default())
    }

    /// A loader over `dirs`, searched in order. Makes a private staging directory (mode 0700) in the system's place
    /// for temporary files; it is removed with the loader.
    ///
    /// # Errors
    /// [`LoadError::Io`] if one of `dirs` is not a readable directory, or the staging directory cannot be made.
    pub fn with_policy(dirs: Vec<PathBuf>, policy: Policy) -> Result<Self, LoadError> {
        for dir in &dirs {
            dir.read_dir().map_err(|e| stage::io_error("plugins.dirs", "read the directory", dir, &e))?;
        }
        let staging = tempfile::Builder::new()
            .prefix("hotseam-plugins-")
            .tempdir()
            .map_err(|e| stage::io_error("staging", "make a directory in", &std::env::temp_dir(), &e))?;
        Ok(Self { dirs, policy, staging, opened: Mutex::default() })
    }

    /// Names of the plugin files in the directories, sorted. The files have not been checked or opened.
    pub fn names(&self) -> Vec<String> {
        resolve::list(&self.dirs)
    }

    /// The plugin directories.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Opens a variant by name (`indexer/cpu-stock`) or by the path of a file that ends in `.so`.
    ///
    /// The file is read each time, so a file that was replaced on disk gives the new code; the same content is opened
    /// once. May take milliseconds and runs code of the plugin; not for the step loop.
    ///
    /// # Errors
    /// Each reason has its own kind of [`LoadError`].
    pub fn open(&self, name: &str) -> Result<Arc<Plugin>, LoadError> {
        let found = resolve::resolve(name, &self.dirs)?;
        let checked = stage::read_checked(name, &found.path, &self.dirs, self.policy)?;

        // Held while the plugin is opened: two threads must not run its constructors and probe twice.
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let plugin = match opened.get(&checked.sha256) {
            Some(plugin) => plugin.clone(),
            None => {
                crate::elf::check(&checked.bytes).map_err(|what| LoadError::Open {
                    name: name.to_owned(),
                    path: found.path.clone(),
                    what,
                    next: "Rebuild or copy the file again.".to_owned(),
                })?;
                let staged = stage::put(name, self.staging.path(), &checked)?;
                let source = Source { name, path: &found.path, staged: &staged };
                let (entry, kind) = open::entry(source)?;
                let plugin = Plugin::check(source, entry, kind, checked.sha256.clone())?;
                tracing::info!(
                    name = plugin.name(), sha256 = plugin.sha256(), path = %found.path.display(), "plugin opened"
                );
                let plugin = Arc::new(plugin);
                opened.insert(checked.sha256, plugin.clone());
                plugin
            }
        };
        drop(opened);
        if !found.by_path {
            plugin.check_name(name, &found.path)?;
        }
        Ok(plugin)
    }

    /// Everything that has been opened, sorted by name and hash. Code stays mapped for the life of the process.
    pub fn opened(&self) -> Vec<Arc<Plugin>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let mut plugins: Vec<_> = opened.values().cloned().collect();
        plugins.sort_by(|a, b| (a.name(), a.sha256()).cmp(&(b.name(), b.sha256())));
        plugins
    }
}
