//! From the section `plugins` of a configuration to a loader.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use hotseam_config::{PluginPolicy, PluginsSection};
use hotseam_loader::signature::PublicKey;
use hotseam_loader::{LoadError, Loader, LoaderConfig, Policy, Probe, Trust};

/// Plugin directories: those given, or the directory of this program.
///
/// # Errors
/// If this program does not know where it is.
pub(crate) fn plugin_dirs(given: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let program = this_program()?;
    let dir = program.parent().ok_or_else(|| anyhow!("{} has no directory", program.display()))?;
    Ok(vec![dir.to_owned()])
}

/// What of the section cannot be used, and why.
pub(crate) struct Unusable {
    /// Such as `plugins.keys[0]`.
    pub(crate) field: String,
    pub(crate) error: anyhow::Error,
}

/// A loader as the section says.
///
/// # Errors
/// The field whose directory, key or policy cannot be used.
pub(crate) fn loader(section: &PluginsSection) -> Result<Loader, Unusable> {
    let key = |(index, path): (usize, &PathBuf)| {
        let unusable =
            |error| Unusable { field: format!("plugins.keys[{index}]"), error: anyhow!("{error}") };
        PublicKey::read(path).map_err(unusable)
    };
    let keys = section.keys.iter().enumerate().map(key).collect::<Result<Vec<_>, _>>()?;
    let trust = match section.policy {
        PluginPolicy::Open => Trust::Open,
        PluginPolicy::Manifest => Trust::Manifest,
        PluginPolicy::Signed => Trust::Signed,
    };
    let of_section = |error| Unusable { field: "plugins".to_owned(), error };
    let config = LoaderConfig {
        dirs: plugin_dirs(&section.dirs).map_err(of_section)?,
        policy: Policy::new(trust, keys),
        probe: section.probe.enabled.then(|| probe(section)).transpose().map_err(of_section)?,
        state_dir: section.state_dir(),
    };
    let unusable = |error| Unusable { field: field(&error), error: anyhow!(error) };
    match Loader::with_config(config.clone()) {
        // Nobody asked for this directory by name: a read-only home is no reason to stop.
        Err(error) if section.state_dir.is_none() && is_about(&error, config.state_dir.as_deref()) => {
            tracing::warn!(%error, "verdicts and quarantine are kept for this run only");
            Loader::with_config(LoaderConfig { state_dir: None, ..config }).map_err(unusable)
        }
        loader => loader.map_err(unusable),
    }
}

fn is_about(error: &LoadError, dir: Option<&Path>) -> bool {
    matches!(error, LoadError::Io { path, .. } | LoadError::Path { path, .. } if Some(path.as_path()) == dir)
}

/// The field that an error of a new loader is about: it stands where other errors name the plugin.
fn field(error: &LoadError) -> String {
    match error {
        LoadError::Io { name, .. } | LoadError::Path { name, .. } | LoadError::Signature { name, .. }
            if name.starts_with("plugins.") =>
        {
            name.clone()
        }
        _ => "plugins".to_owned(),
    }
}

/// A probe by `hotseam plugin probe`.
fn probe(section: &PluginsSection) -> anyhow::Result<Probe> {
    let args = ["plugin", "probe"].map(OsString::from).to_vec();
    let mut probe = Probe::new(this_program()?, args);
    probe.timeout = Duration::from_secs_f64(section.probe.timeout_seconds);
    probe.memory = (section.probe.memory_mb as u64).saturating_mul(1 << 20);
    Ok(probe)
}

pub(super) fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}
