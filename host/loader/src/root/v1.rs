//! Version 1: a [`PluginV1`] as it is.

use super::{Root, from_library};
use crate::error::LoadError;
use crate::open::{Source, no_entry};
use abi_stable::library::{LibHeader, RootModule};
use hotseam_abi::{C_ENTRY_SYMBOL, CONTRACT, PluginMod, PluginV1};
use std::ffi::c_void;

pub(super) const ROOT: Root<&'static PluginV1> = Root {
    version: 1,
    module: PluginMod::NAME,
    symbol: C_ENTRY_SYMBOL,
    from_rust,
    from_c: |source, entry| check_functions(source, entry.cast()),
    numbers: |source, entry| check_numbers(source, entry.cast()),
};

/// Checks all layouts, and runs the plugin's root module function.
pub(super) fn from_rust(
    source: Source<'_>,
    library: &'static LibHeader,
) -> Result<&'static PluginV1, LoadError> {
    let module = library.init_root_module::<PluginMod>().map_err(|error| from_library(source, error))?;
    let entry: *const PluginV1 = module.plugin_v1()();
    check_numbers(source, entry)?;
    check_functions(source, entry)
}

/// Checks the numbers at the head of an entry, which every version of the contract has in the same place.
pub(super) fn check_numbers(source: Source<'_>, entry: *const PluginV1) -> Result<(), LoadError> {
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
        let what = format!(
            "the entry of version 1 is too short: expected {} bytes, found {size}; versions tried: 1",
            size_of::<PluginV1>()
        );
        return Err(LoadError::Entry { name: source.name.to_owned(), path: source.path.to_owned(), what });
    }
    Ok(())
}

/// Makes a reference of an entry whose numbers are right, once none of its function pointers is null.
pub(super) fn check_functions(
    source: Source<'_>,
    entry: *const PluginV1,
) -> Result<&'static PluginV1, LoadError> {
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
