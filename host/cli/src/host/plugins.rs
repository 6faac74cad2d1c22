//! From the section `plugins` of a configuration to a loader.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use hotseam_config::{PluginPolicy, PluginsSection};
use hotseam_loader::signature::PublicKey;
use hotseam_loader::{LoadError, Loader, LoaderConfig, Policy, Probe, Trust};

use crate::failure::Failure;

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

/// A loader as the section says.
///
/// # Errors
/// Usage, if a directory or key cannot be used.
pub(crate) fn loader(section: &PluginsSection) -> Result<Loader, Failure> {
    let keys = section.keys.iter().map(|path| PublicKey::read(path)).collect::<Result<Vec<_>, _>>();
    let trust = match section.policy {
        PluginPolicy::Open => Trust::Open,
        PluginPolicy::Manifest => Trust::Manifest,
        PluginPolicy::Signed => Trust::Signed,
    };
    let config = LoaderConfig {
        dirs: plugin_dirs(&section.dirs)?,
        policy: Policy::new(trust, keys.map_err(Failure::usage)?),
        probe: section.probe.enabled.then(|| probe(section)).transpose()?,
        state_dir: section.state_dir(),
    };
    match Loader::with_config(config.clone()) {
        // Nobody asked for this directory by name: a read-only home is no reason to stop.
        Err(error) if section.state_dir.is_none() && is_about(&error, config.state_dir.as_deref()) => {
            tracing::warn!(%error, "verdicts and quarantine are kept for this run only");
            Loader::with_config(LoaderConfig { state_dir: None, ..config }).map_err(Failure::usage)
        }
        loader => loader.map_err(Failure::usage),
    }
}

fn is_about(error: &LoadError, dir: Option<&Path>) -> bool {
    matches!(error, LoadError::Io { path, .. } | LoadError::Path { path, .. } if Some(path.as_path()) == dir)
}

/// A probe by `hotseam plugin probe`.
fn probe(section: &PluginsSection) -> anyhow::Result<Probe> {
    let args = ["plugin", "probe"].map(OsString::from).to_vec();
    let mut probe = Probe::new(this_program()?, args);
    probe.timeout = Duration::from_secs_f64(section.probe.timeout_seconds);
    probe.memory = (section.probe.memory_mb as u64).saturating_mul(1 << 20);
    Ok(probe)
}

fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}
