//! One opened plugin file.

use crate::Options;
use crate::error::LoadError;
use crate::instance::{Instance, Shape};
use crate::manifest::Manifest;
use crate::open::Source;
use crate::sidecar::Mirror;
use crate::{machine, services};
use hotseam_abi::{OK, PluginV1, seam};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// By which entry the host took a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Entry {
    /// abi_stable root module; layouts were checked.
    Rust,
    /// The C symbol; only sizes and numbers were checked.
    C,
}

/// An opened plugin: its code is mapped and its entry has passed the checks.
pub struct Plugin {
    entry: &'static PluginV1,
    kind: Entry,
    sha256: String,
    path: PathBuf,
    manifest: Manifest,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("name", &self.manifest.name)
            .field("sha256", &self.sha256)
            .field("path", &self.path)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Plugin {
    /// Checks what the entry says of itself, and asks it whether it can run here.
    pub(crate) fn check(
        source: Source<'_>,
        entry: &'static PluginV1,
        kind: Entry,
        sha256: String,
    ) -> Result<Self, LoadError> {
        let (name, path) = (source.name, source.path);
        (source.stage)("manifest");
        if entry.host_services > services::VERSION {
            let (expected, found) = (services::VERSION, entry.host_services);
            return Err(LoadError::HostServices { name: name.to_owned(), expected, found });
        }
        // SAFETY: the contract says that the manifest is static text.
        let text = unsafe { services::text(entry.manifest) };
        let manifest = Manifest::parse(&text).map_err(|what| LoadError::Manifest {
            name: name.to_owned(),
            path: path.to_owned(),
            what,
        })?;
        check_seam(name, entry, &manifest)?;
        check_panic(name, kind, manifest.panic.as_deref())?;
        machine::check(name, path, &manifest.requires)?;

        (source.stage)("probe");
        services::take_error();
        let code = (entry.probe)(services::host_services());
        if code != OK {
            let reason = error_text();
            return Err(LoadError::Probe { name: name.to_owned(), code, reason });
        }
        Ok(Self { entry, kind, sha256, path: path.to_owned(), manifest })
    }

    /// What the binary says of itself.
    pub fn mirror(&self) -> Mirror {
        Mirror::of(self.entry, &self.manifest)
    }

    /// Variant name, from the manifest.
    pub fn name(&self) -> &str {
        &self.manifest.name
    }

    /// Number of the seam, one of [`hotseam_abi::seam`].
    pub fn seam(&self) -> u32 {
        self.entry.seam
    }

    /// Hash of the file, lower-case hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The file it was first opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// By which entry it was taken.
    pub fn kind(&self) -> Entry {
        self.kind
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The entry; mapped for the life of the process.
    pub fn entry(&self) -> &'static PluginV1 {
        self.entry
    }

    /// Makes an instance from `options`, for pool entries of a shape. May take long; not for the step loop. If the plugin
    /// runs on a CUDA device, its context is current on this thread afterwards.
    ///
    /// # Errors
    /// [`LoadError::Option`] and [`LoadError::Device`] before any code of the plugin runs, [`LoadError::Create`] after.
    pub fn create(self: &Arc<Self>, options: &Options, shape: Shape) -> Result<Instance, LoadError> {
        Instance::create(self.clone(), self.manifest.canonical(options)?, shape)
    }
}

/// The text of the last error, or words that say that there is none.
pub(crate) fn error_text() -> String {
    let text = services::take_error();
    if text.is_empty() { "the plugin gave no reason".to_owned() } else { text }
}

fn check_seam(name: &str, entry: &PluginV1, manifest: &Manifest) -> Result<(), LoadError> {
    let error = |expected: String, found: String, next: &str| {
        Err(LoadError::Seam { name: name.to_owned(), expected, found, next: next.to_owned() })
    };
    let tables = [
        entry.attention.is_some(),
        entry.indexer.is_some(),
        entry.moe.is_some(),
        entry.mhc.is_some(),
        entry.kv_transport.is_some(),
    ];
    let Some((seam, &filled)) = seam::NAMES.get(entry.seam as usize).zip(tables.get(entry.seam as usize))
    else {
        let known = format!("a number from 0 to {} ({})", seam::NAMES.len() - 1, seam::NAMES.join(", "));
        return error(known, entry.seam.to_string(), "Correct `seam` in the plugin's entry.");
    };
    if !filled {
        let others: Vec<_> = seam::NAMES.iter().zip(tables).filter(|(_, t)| *t).map(|(n, _)| *n).collect();
        let found = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        return error(
            format!("a table of functions for {seam}"),
            found,
            "Fill the table of the seam that the entry names.",
        );
    }
    // A directory that is called like a seam holds variants of that seam; others, like `faulty`, hold any.
    let dir = manifest.name.split('/').next().unwrap_or_default();
    if seam::NAMES.contains(&dir) && dir != *seam {
        return error(
            format!("{dir}, as its name says"),
            (*seam).to_owned(),
            "Correct the name or the seam.",
        );
    }
    Ok(())
}

/// A plugin that aborts on panic takes the server with it, so it is refused.
fn check_panic(name: &str, kind: Entry, strategy: Option<&str>) -> Result<(), LoadError> {
    let present = match (kind, strategy) {
        (_, Some("unwind")) | (Entry::C, None) => return Ok(()),
        (_, Some(other)) => format!("`panic: {other}` in the manifest"),
        (Entry::Rust, None) => "no `panic` in the manifest".to_owned(),
    };
    Err(LoadError::Requirement {
        name: name.to_owned(),
        needed: "a build with the panic strategy unwind, so that a panic fails one call and not the server"
            .to_owned(),
        present,
        next: "Build the plugin with `panic = \"unwind\"`.".to_owned(),
    })
}
