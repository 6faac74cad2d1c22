//! From a variant name or path to a file, and back.

use crate::error::LoadError;
use crate::suggest::did_you_mean;
use std::path::{Path, PathBuf};

const PREFIX: &str = "libhotseam_";
const SUFFIX: &str = ".so";

/// File name of a variant: `indexer/cpu-stock` is `libhotseam_indexer_cpu_stock.so`, as cargo names a cdylib.
/// `None` if `variant` is not of the form `dir/name` with letters, digits, `-` and `_`.
pub fn file_name(variant: &str) -> Option<String> {
    let (dir, name) = variant.split_once('/')?;
    let word =
        |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    (word(dir) && word(name))
        .then(|| format!("{PREFIX}{}_{}{SUFFIX}", dir.replace('-', "_"), name.replace('-', "_")))
}

/// Variant name of a plugin file, the reverse of [`file_name`]; `None` if the name is not one of a plugin.
///
/// `_` in a file name may have been `-` or `_`: the directory is matched against the seams first, and the rest is
/// read with `-` unless it is the name of a seam.
pub fn variant_name(file: &str) -> Option<String> {
    let stem = file.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let seams = hotseam_abi::seam::NAMES;
    let (dir, name) = seams
        .iter()
        .find_map(|s| stem.strip_prefix(s)?.strip_prefix('_').map(|rest| (*s, rest)))
        .or_else(|| stem.split_once('_'))?;
    if dir.is_empty() || name.is_empty() {
        return None;
    }
    let name = if seams.contains(&name) { name.to_owned() } else { name.replace('_', "-") };
    Some(format!("{dir}/{name}"))
}

/// Where a variant's code is.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    /// The file; not yet checked.
    pub(crate) path: PathBuf,
    /// Whether the variant was given as a path.
    pub(crate) by_path: bool,
}

/// Finds the file of `variant`. Names are looked up in `dirs` in order. A relative path is taken relative to the
/// first directory that has it, else to the working directory.
pub(crate) fn resolve(variant: &str, dirs: &[PathBuf]) -> Result<Resolved, LoadError> {
    if variant.ends_with(SUFFIX) {
        let path = Path::new(variant);
        let found = dirs.iter().map(|d| d.join(path)).find(|p| p.symlink_metadata().is_ok());
        let path = found.unwrap_or_else(|| path.to_owned());
        if path.symlink_metadata().is_err() {
            return Err(not_found(variant, variant, dirs));
        }
        return Ok(Resolved { path, by_path: true });
    }
    let Some(file) = file_name(variant) else {
        let expected = "a name `seam/variant` or a path that ends in .so";
        return Err(not_found(variant, expected, dirs));
    };
    match dirs.iter().map(|d| d.join(&file)).find(|p| p.symlink_metadata().is_ok()) {
        Some(path) => Ok(Resolved { path, by_path: false }),
        None => Err(not_found(variant, &file, dirs)),
    }
}

/// Names of the plugin files in `dirs`, sorted, each once. Directories that cannot be read have none.
pub(crate) fn list(dirs: &[PathBuf]) -> Vec<String> {
    let mut names: Vec<String> = dirs
        .iter()
        .filter_map(|d| d.read_dir().ok())
        .flatten()
        .filter_map(|e| variant_name(e.ok()?.file_name().to_str()?))
        .collect();
    names.sort();
    names.dedup();
    names
}

fn not_found(name: &str, file: &str, dirs: &[PathBuf]) -> LoadError {
    let known = list(dirs);
    LoadError::NotFound {
        name: name.to_owned(),
        file: file.to_owned(),
        dirs: dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", "),
        hint: format!(
            "{} Other directories are named in `plugins.dirs` or with --dir.",
            did_you_mean(name, known.iter().map(String::as_str))
        ),
    }
}
