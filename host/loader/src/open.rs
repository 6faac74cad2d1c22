//! Opens a staged copy and takes its entry. Everything here runs or reads code of the plugin.

use crate::error::LoadError;
use crate::plugin::Entry;
use crate::root::{self, Root};
use abi_stable::library::{AbiHeaderRef, ROOT_MODULE_LOADER_NAME_WITH_NUL};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::error::Error as _;
use std::ffi::c_void;
use std::path::Path;

/// What one file is called in messages, and where it is.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    /// Variant asked for.
    pub(crate) name: &'a str,
    /// The file that was asked for.
    pub(crate) path: &'a Path,
    /// Its staged copy.
    pub(crate) staged: &'a Path,
    /// Is told each part of the opening before it begins.
    pub(crate) stage: &'a dyn Fn(&str),
}

/// A C entry, of any version.
type CEntry = extern "C" fn() -> *const c_void;

/// Newest version of a C entry that is looked for to explain a refusal.
const NEWEST: u32 = 16;

/// Opens the staged copy for the rest of the process and returns its entry in the newest version that `roots` (newest
/// first) has in common with it, and by which way it was handed over.
pub(crate) fn entry<E>(source: Source<'_>, roots: &[Root<E>]) -> Result<(E, Entry), LoadError> {
    (source.stage)("open");
    let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: constructors of the file run here. It passed the checks of place, owner, mode and extent, and the
    // operator put it into a plugin directory, which is the statement that its code may run.
    let library = unsafe { Library::open(Some(source.staged), flags) }.map_err(|e| LoadError::Open {
        name: source.name.to_owned(),
        path: source.path.to_owned(),
        what: e.source().map_or_else(|| e.to_string(), ToString::to_string),
        next: "Link what is missing into the plugin.".to_owned(),
    })?;

    (source.stage)("entry");
    // SAFETY: the contract fixes the type of these symbols.
    let symbol = |name: &str| unsafe { library.get::<CEntry>(name.as_bytes()) }.ok().map(|symbol| *symbol);
    let c_entry = roots.iter().find_map(|root| symbol(root.symbol).map(|get| (root, get)));
    let others: Vec<u32> = (1..=NEWEST).filter(|n| symbol(&root::symbol(*n)).is_some()).collect();
    // SAFETY: abi_stable fixes the type of this symbol; the header is checked before anything else in it is read.
    let header = unsafe { library.get::<AbiHeaderRef>(ROOT_MODULE_LOADER_NAME_WITH_NUL.as_bytes()) }
        .ok()
        .map(|symbol| *symbol);
    // Code is never unloaded: entry, manifest and functions are used as statics from here on.
    let _handle: *mut c_void = library.into_raw();

    // The contract number is the shortest explanation of a difference, so it is compared before layouts are.
    let c_entry = c_entry.map(|(root, get)| (root, get()));
    if let Some((root, entry)) = c_entry {
        (root.numbers)(source, entry)?;
    }
    match (header, c_entry) {
        (Some(header), _) => Ok((root::rust(source, header, roots)?, Entry::Rust)),
        (None, Some((root, entry))) => Ok(((root.from_c)(source, entry)?, Entry::C)),
        (None, None) if !others.is_empty() => {
            let found = others.iter().map(|n| root::symbol(*n)).collect::<Vec<_>>().join(", ");
            Err(root::none_fits(source, roots, &found))
        }
        (None, None) => {
            let rust = ROOT_MODULE_LOADER_NAME_WITH_NUL.trim_end_matches('\0');
            let c: Vec<_> = roots.iter().map(|root| root.symbol).collect();
            Err(no_entry(source, format!("it has neither the symbol {rust} nor {}", c.join(" or "))))
        }
    }
}

pub(crate) fn no_entry(source: Source<'_>, what: String) -> LoadError {
    LoadError::NoEntry { name: source.name.to_owned(), path: source.path.to_owned(), what }
}
