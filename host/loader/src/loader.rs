//! The loader: plugin directories, the staging directory, and what has been opened.

use crate::error::LoadError;
use crate::open::{self, Source};
use crate::plugin::Plugin;
use crate::policy::Policy;
use crate::probe::{Failed, Probe, Suspect, Verdict};
use crate::resolve::{self, Resolved};
use crate::root::ROOTS;
use crate::sidecar::Mirror;
use crate::staging::Staging;
use crate::state::{Quarantined, State};
use crate::verify::{self, Checked, Sidecars};
use crate::{elf, stage};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a loader works with.
#[derive(Debug, Clone, Default)]
pub struct LoaderConfig {
    /// Plugin directories, searched in order.
    pub dirs: Vec<PathBuf>,
    /// What is asked of files.
    pub policy: Policy,
    /// How code is tried in a child process before it runs here; `None` trusts it.
    pub probe: Option<Probe>,
    /// Directory of verdicts and of the quarantine; `None` keeps the quarantine in memory and no verdicts.
    pub state_dir: Option<PathBuf>,
}

/// Opens plugins from a set of directories. All methods may be called from any thread; opening is serialised.
#[derive(Debug)]
pub struct Loader {
    config: LoaderConfig,
    staging: Staging,
    state: State,
    opening: Mutex<()>,
    opened: Mutex<HashMap<String, Arc<Plugin>>>,
}

/// What is known of a plugin file without its code being mapped here.
#[derive(Debug, Clone)]
pub struct Description {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Its hash, lower-case hexadecimal.
    pub sha256: String,
    /// What the binary says of itself.
    pub mirror: Mirror,
    /// Whether a sidecar fits it.
    pub sidecar: bool,
    /// Id of the trusted key that signed the sidecar.
    pub signer: Option<String>,
    /// What the probe said; `None` if there is none.
    pub verdict: Option<Verdict>,
}

impl Loader {
    /// A loader over `dirs`, searched in order, with the default policy and no probe.
    ///
    /// # Errors
    /// As [`Loader::with_config`].
    pub fn new(dirs: Vec<PathBuf>) -> Result<Self, LoadError> {
        Self::with_config(LoaderConfig { dirs, ..LoaderConfig::default() })
    }

    /// A loader over `dirs`, searched in order, with no probe.
    ///
    /// # Errors
    /// As [`Loader::with_config`].
    pub fn with_policy(dirs: Vec<PathBuf>, policy: Policy) -> Result<Self, LoadError> {
        Self::with_config(LoaderConfig { dirs, policy, ..LoaderConfig::default() })
    }

    /// A loader. Makes a private staging directory (mode 0700) in the system's place for temporary files; it is removed
    /// with the loader, or by the next process if this one is killed.
    ///
    /// # Errors
    /// [`LoadError::Io`] if a plugin directory is not readable, or a directory cannot be made; [`LoadError::Path`] if
    /// the state directory is open to others; [`LoadError::Signature`] if the policy asks for signatures and trusts no
    /// key.
    pub fn with_config(config: LoaderConfig) -> Result<Self, LoadError> {
        for dir in &config.dirs {
            dir.read_dir().map_err(|e| stage::io_error("plugins.dirs", "read the directory", dir, &e))?;
        }
        config.policy.check()?;
        let state = State::open(config.state_dir.clone())?;
        Ok(Self {
            config,
            staging: Staging::new()?,
            state,
            opening: Mutex::default(),
            opened: Mutex::default(),
        })
    }

    /// Another loader with the same configuration, which has opened nothing yet.
    ///
    /// # Errors
    /// As [`Loader::with_config`].
    pub fn again(&self) -> Result<Self, LoadError> {
        Self::with_config(self.config.clone())
    }

    /// Names of the plugin files in the directories, sorted. The files have not been checked or opened.
    pub fn names(&self) -> Vec<String> {
        resolve::list(&self.config.dirs)
    }

    /// The plugin directories.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.config.dirs
    }

    /// The state directory, which is this user's alone.
    pub fn state_dir(&self) -> Option<&Path> {
        self.state.dir()
    }

    /// What is asked of files.
    pub fn policy(&self) -> &Policy {
        &self.config.policy
    }

    /// Opens a variant by name (`indexer/cpu-stock`) or by the path of a file that ends in `.so`.
    ///
    /// The file is read each time, so a file that was replaced on disk gives the new code; the same content is opened
    /// once. May take milliseconds, with a probe seconds, and runs code of the plugin; not for the step loop.
    ///
    /// # Errors
    /// Each reason has its own kind of [`LoadError`].
    pub fn open(&self, name: &str) -> Result<Arc<Plugin>, LoadError> {
        let found = resolve::resolve(name, &self.config.dirs)?;
        let checked = verify::read(name, &found, &self.config.dirs, &self.config.policy, Sidecars::Check)?;
        self.check_quarantine(name, &found.path, &checked.sha256)?;

        // Held while the plugin is opened: two threads must not run its constructors and probe twice.
        let opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.map().get(&checked.sha256).cloned();
        let plugin = match known {
            Some(plugin) => plugin,
            None => {
                let plugin = Arc::new(self.open_new(name, &found, &checked)?);
                self.map().insert(checked.sha256.clone(), plugin.clone());
                plugin
            }
        };
        drop(opening);
        if !found.by_path {
            plugin.mirror().check_name(name, &found.path)?;
        }
        if let Some(sidecar) = &checked.sidecar {
            sidecar.mirror.check(name, &found.path, &plugin.mirror())?;
        }
        Ok(plugin)
    }

    fn open_new(&self, name: &str, found: &Resolved, checked: &Checked) -> Result<Plugin, LoadError> {
        let staged = self.stage(name, found, checked)?;
        self.probe(name, found, checked, &staged)?;
        let source = Source { name, path: &found.path, staged: &staged, stage: &|_| {} };
        let (entry, kind) = open::entry(source, ROOTS)?;
        let plugin = Plugin::check(source, entry, kind, checked.sha256.clone())?;
        tracing::info!(
            name = plugin.name(), sha256 = plugin.sha256(), path = %found.path.display(), "plugin opened"
        );
        Ok(plugin)
    }

    fn stage(&self, name: &str, found: &Resolved, checked: &Checked) -> Result<PathBuf, LoadError> {
        elf::check(&checked.bytes).map_err(|what| LoadError::Open {
            name: name.to_owned(),
            path: found.path.clone(),
            what,
            next: "Rebuild or copy the file again.".to_owned(),
        })?;
        stage::put(name, self.staging.path(), checked)
    }

    /// The verdict of the probe, remembered or new; `None` without a probe.
    fn probe(
        &self,
        name: &str,
        found: &Resolved,
        checked: &Checked,
        staged: &Path,
    ) -> Result<Option<Verdict>, LoadError> {
        let Some(probe) = &self.config.probe else { return Ok(None) };
        let host = probe.host();
        if let Some(verdict) = self.state.verdict(&checked.sha256, &host) {
            return Ok(Some(verdict));
        }
        let suspect = Suspect { name, path: &found.path, staged, sha256: &checked.sha256 };
        match probe.run(suspect) {
            Ok(verdict) => {
                tracing::debug!(name, milliseconds = verdict.milliseconds, "plugin probed");
                self.state.remember(&verdict, &host);
                Ok(Some(verdict))
            }
            Err(Failed::Error(error)) => Err(*error),
            Err(Failed::Crashed(what)) => {
                let reason = format!("its probe {what}");
                let entry = self.state.quarantine(name, &checked.sha256, &reason)?;
                let next = format!("The hash {} is in quarantine; {}", checked.sha256, entry.next());
                Err(LoadError::Crashed { name: name.to_owned(), path: found.path.clone(), what, next })
            }
        }
    }

    /// Looks at a plugin without keeping it. With a probe its code does not run in this process.
    ///
    /// # Errors
    /// As [`Loader::open`]; with [`Sidecars::Ignore`] without those about sidecars and signatures.
    pub fn describe(&self, name: &str, sidecars: Sidecars) -> Result<Description, LoadError> {
        let found = resolve::resolve(name, &self.config.dirs)?;
        let checked = verify::read(name, &found, &self.config.dirs, &self.config.policy, sidecars)?;
        self.check_quarantine(name, &found.path, &checked.sha256)?;
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let staged = self.stage(name, &found, &checked)?;
        let verdict = self.probe(name, &found, &checked, &staged)?;
        let mirror = match &verdict {
            Some(verdict) => verdict.mirror.clone(),
            None => self.open_new(name, &found, &checked)?.mirror(),
        };
        if !found.by_path {
            mirror.check_name(name, &found.path)?;
        }
        if let Some(sidecar) = &checked.sidecar {
            sidecar.mirror.check(name, &found.path, &mirror)?;
        }
        let size = checked.bytes.len() as u64;
        let (sidecar, signer) = (checked.sidecar.is_some(), checked.signer);
        Ok(Description { path: found.path, size, sha256: checked.sha256, mirror, sidecar, signer, verdict })
    }

    /// Everything that has been opened, sorted by name and hash. Code stays mapped for the life of the process.
    pub fn opened(&self) -> Vec<Arc<Plugin>> {
        let mut plugins: Vec<_> = self.map().values().cloned().collect();
        plugins.sort_by(|a, b| (a.name(), a.sha256()).cmp(&(b.name(), b.sha256())));
        plugins
    }

    /// Puts a hash into quarantine: it is not opened any more, by this server or another with the same state directory.
    /// Instances that live go on.
    ///
    /// # Errors
    /// [`LoadError::Io`] if it cannot be written.
    pub fn quarantine(&self, name: &str, sha256: &str, reason: &str) -> Result<(), LoadError> {
        let entry = self.state.quarantine(name, sha256, reason)?;
        tracing::warn!(name, sha256, reason = entry.reason, "plugin in quarantine");
        Ok(())
    }

    /// The hashes in quarantine, the oldest first.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.state.all_quarantined()
    }

    /// Lifts the quarantine of a hash; false if it was in none.
    ///
    /// # Errors
    /// [`LoadError::Io`] if its file cannot be removed.
    pub fn forgive(&self, sha256: &str) -> Result<bool, LoadError> {
        self.state.forgive(sha256)
    }

    fn check_quarantine(&self, name: &str, path: &Path, sha256: &str) -> Result<(), LoadError> {
        let Some(entry) = self.state.quarantined(sha256)? else { return Ok(()) };
        Err(LoadError::Quarantined {
            name: name.to_owned(),
            path: path.to_owned(),
            what: format!("the hash {sha256} is in quarantine: {}", entry.reason),
            next: entry.next(),
        })
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, Arc<Plugin>>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
