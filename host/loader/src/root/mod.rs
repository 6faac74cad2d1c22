//! Versions of what a plugin hands over.
//!
//! A published version never changes; new needs are a new version beside it. The host works with the newest and wraps
//! the entries of older ones, so a plugin that was built against an older version goes on. A plugin that only has newer
//! versions than the host's is refused by number, before its layouts are looked at.

mod v1;

use crate::error::LoadError;
use crate::open::{Source, no_entry};
use crate::report;
use abi_stable::library::{AbiHeader, AbiHeaderRef, LibHeader, LibraryError};
use hotseam_abi::PluginV1;
use std::ffi::c_void;

/// What the names of all root modules begin with; that of version 1 is this, later ones go on with `_v<version>`.
const FAMILY: &str = "hotseam_plugin";

/// One version, and how an entry of it becomes what the host works with.
pub(crate) struct Root<E> {
    /// Its number.
    pub(crate) version: u32,
    /// Name of the abi_stable root module.
    pub(crate) module: &'static str,
    /// Name of the C entry.
    pub(crate) symbol: &'static str,
    /// Checks the layouts, runs the plugin's root module function and wraps the entry.
    pub(crate) from_rust: fn(Source<'_>, &'static LibHeader) -> Result<E, LoadError>,
    /// Checks and wraps a C entry whose numbers are right.
    pub(crate) from_c: fn(Source<'_>, *const c_void) -> Result<E, LoadError>,
    /// Checks the numbers at the head of an entry.
    pub(crate) numbers: fn(Source<'_>, *const c_void) -> Result<(), LoadError>,
}

/// The versions of this host, newest first.
pub(crate) const ROOTS: &[Root<&'static PluginV1>] = &[v1::ROOT];

/// Name of the C entry of a version.
pub(crate) fn symbol(version: u32) -> String {
    format!("{FAMILY}_v{version}")
}

/// Takes the entry of a plugin with an abi_stable root module.
pub(crate) fn rust<E>(source: Source<'_>, header: AbiHeaderRef, roots: &[Root<E>]) -> Result<E, LoadError> {
    let library = header.upgrade().map_err(|error| from_library(source, error))?;
    let (name, path) = (source.name.to_owned(), source.path.to_owned());
    if library.layout().is_none() {
        return Err(LoadError::Layout {
            name,
            path,
            what: "expected the layouts of all types, found an export without them".to_owned(),
            report: "none".to_owned(),
        });
    }
    let module = library.root_mod_consts().name();
    let module = module.as_str();
    match roots.iter().find(|root| root.module == module) {
        Some(root) => (root.from_rust)(source, library),
        None if module.starts_with(FAMILY) => Err(none_fits(source, roots, module)),
        // Not of this family: the layouts say where it differs.
        None => match roots.last() {
            Some(oldest) => (oldest.from_rust)(source, library),
            None => Err(none_fits(source, roots, module)),
        },
    }
}

/// The refusal of a plugin that has no version in common with the host.
pub(crate) fn none_fits<E>(source: Source<'_>, roots: &[Root<E>], found: &str) -> LoadError {
    let tried = roots.iter().map(|root| root.version.to_string()).collect::<Vec<_>>().join(", ");
    let what = format!("no version of the entry fits: tried {tried}, found {found}");
    LoadError::Entry { name: source.name.to_owned(), path: source.path.to_owned(), what }
}

pub(crate) fn from_library(source: Source<'_>, error: LibraryError) -> LoadError {
    let (name, path) = (source.name.to_owned(), source.path.to_owned());
    match error {
        LibraryError::InvalidAbiHeader(found) => {
            let host = AbiHeader::VALUE;
            let magic = |header: &AbiHeader| String::from_utf8_lossy(&header.magic_string).trim().to_owned();
            let what = if found.magic_string == host.magic_string {
                format!(
                    "expected abi_stable {}.{}, found {}.{}",
                    host.abi_major, host.abi_minor, found.abi_major, found.abi_minor
                )
            } else {
                format!("expected a header of `{}`, found one of `{}`", magic(&host), magic(&found))
            };
            LoadError::Header { name, path, what }
        }
        LibraryError::AbiInstability(errors) => {
            let text = errors.to_string();
            let report = report::keep(&text).unwrap_or_else(|e| format!("not written ({e})"));
            LoadError::Layout { name, path, what: report::summary(&text), report }
        }
        LibraryError::IncompatibleVersionNumber { expected_version, actual_version, .. } => {
            let what = format!("expected hotseam-abi {expected_version}, found {actual_version}");
            LoadError::Header { name, path, what }
        }
        LibraryError::RootModule { err, .. } => {
            no_entry(source, format!("its root module function failed: {err}"))
        }
        other => LoadError::Header { name, path, what: report::one_line(&other.to_string()) },
    }
}

#[cfg(test)]
mod tests;
