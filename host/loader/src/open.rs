//! Opens a staged copy and takes its entry. Everything here runs or reads code of the plugin.

use crate::error::LoadError;
use crate::plugin::Entry;
use crate::report;
use abi_stable::library::{AbiHeader, AbiHeaderRef, LibraryError, ROOT_MODULE_LOADER_NAME_WITH_NUL};
use hotseam_abi::{C_ENTRY_SYMBOL, CONTRACT, PluginMod, PluginV1};
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
}

type CEntry = extern "C" fn() -> *const PluginV1;

/// Opens the staged copy for the rest of the process and returns its entry, of the right contract and size and with
/// no null among the functions that every plugin has.
pub(crate) fn entry(source: Source<'_>) -> Result<(&'static PluginV1, Entry), LoadError> {
    let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: constructors of the file run here. It passed the checks of place, owner, mode and extent, and the
    // operator put it into a plugin directory, which is the statement that its code may run.
    let library = unsafe { Library::open(Some(source.staged), flags) }.map_err(|e| LoadError::Open {
        name: source.name.to_owned(),
        path: source.path.to_owned(),
        what: e.source().map_or_else(|| e.to_string(), ToString::to_string),
        next: "Link what is missing into the plugin.".to_owned(),
    })?;

    // SAFETY: the contract fixes the type of this symbol.
    let c_entry = unsafe { library.get::<CEntry>(C_ENTRY_SYMBOL.as_bytes()) }.ok().map(|symbol| *symbol);
    // SAFETY: abi_stable fixes the type of this symbol; the header is checked before anything else in it is read.
    let header = unsafe { library.get::<AbiHeaderRef>(ROOT_MODULE_LOADER_NAME_WITH_NUL.as_bytes()) }
        .ok()
        .map(|symbol| *symbol);
    // Code is never unloaded: entry, manifest and functions are used as statics from here on.
    let _handle: *mut c_void = library.into_raw();

    // The contract number is the shortest explanation of a difference, so it is compared before layouts are.
    let c_entry = c_entry.map(|get| get());
    if let Some(entry) = c_entry {
        check_numbers(source, entry)?;
    }
    match (header, c_entry) {
        (Some(header), _) => {
            let entry: *const PluginV1 = root_module(source, header)?;
            check_numbers(source, entry)?;
            Ok((check_functions(source, entry)?, Entry::Rust))
        }
        (None, Some(entry)) => Ok((check_functions(source, entry)?, Entry::C)),
        (None, None) => {
            let rust = ROOT_MODULE_LOADER_NAME_WITH_NUL.trim_end_matches('\0');
            Err(no_entry(source, format!("it has neither the symbol {rust} nor {C_ENTRY_SYMBOL}")))
        }
    }
}

/// Checks the header and all layouts, and runs the plugin's root module function.
fn root_module(source: Source<'_>, header: AbiHeaderRef) -> Result<&'static PluginV1, LoadError> {
    let (name, path) = (source.name.to_owned(), source.path.to_owned());
    let library = header.upgrade().map_err(|error| from_library(source, error))?;
    if library.layout().is_none() {
        return Err(LoadError::Layout {
            name,
            path,
            what: "expected the layouts of all types, found an export without them".to_owned(),
            report: "none".to_owned(),
        });
    }
    let module = library.init_root_module::<PluginMod>().map_err(|error| from_library(source, error))?;
    Ok(module.plugin_v1()())
}

fn from_library(source: Source<'_>, error: LibraryError) -> LoadError {
    let (name, path) = (source.name.to_owned(), source.path.to_owned());
    match error {
        LibraryError::InvalidAbiHeader(found) => {
            let host = AbiHeader::VALUE;
            let what = format!(
                "expected abi_stable {}.{}, found {}.{}",
                host.abi_major, host.abi_minor, found.abi_major, found.abi_minor
            );
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

/// Checks the numbers at the head of an entry, which every version of the contract has in the same place.
fn check_numbers(source: Source<'_>, entry: *const PluginV1) -> Result<(), LoadError> {
    if entry.is_null() {
        return Err(no_entry(source, format!("{C_ENTRY_SYMBOL} returned null")));
    }
    if !entry.is_aligned() {
        return Err(no_entry(source, format!("{C_ENTRY_SYMBOL} returned a misaligned pointer")));
    }
    // SAFETY: the entry is static, not null and aligned; every contract starts with these two numbers.
    let (size, contract) = unsafe { ((*entry).size, (*entry).contract) };
    if contract != CONTRACT {
        let (name, path) = (source.name.to_owned(), source.path.to_owned());
        return Err(LoadError::Contract { name, path, expected: CONTRACT, found: contract });
    }
    if (size as usize) < size_of::<PluginV1>() {
        let what = format!("the entry is too short: expected {} bytes, found {size}", size_of::<PluginV1>());
        return Err(LoadError::Entry { name: source.name.to_owned(), path: source.path.to_owned(), what });
    }
    Ok(())
}

/// Makes a reference of an entry whose numbers are right, once none of its function pointers is null.
fn check_functions(source: Source<'_>, entry: *const PluginV1) -> Result<&'static PluginV1, LoadError> {
    // SAFETY: the entry has at least the size of a `PluginV1`; only addresses of fields are taken.
    let functions: [(&str, *const *const c_void); 4] = unsafe {
        [
            ("probe", (&raw const (*entry).probe).cast()),
            ("create", (&raw const (*entry).create).cast()),
            ("info", (&raw const (*entry).info).cast()),
            ("destroy", (&raw const (*entry).destroy).cast()),
        ]
    };
    for (function, field) in functions {
        // SAFETY: a function pointer is read as a plain pointer of the same size, since it may be null here.
        if unsafe { field.read() }.is_null() {
            let what = format!("`{function}`: expected a function, found null");
            return Err(LoadError::Entry {
                name: source.name.to_owned(),
                path: source.path.to_owned(),
                what,
            });
        }
    }
    // SAFETY: static, aligned, long enough, and every field that must not be null is not.
    Ok(unsafe { &*entry })
}

fn no_entry(source: Source<'_>, what: String) -> LoadError {
    LoadError::NoEntry { name: source.name.to_owned(), path: source.path.to_owned(), what }
}
