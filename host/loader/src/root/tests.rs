//! A host of version 2 with an adapter for version 1, and this host of version 1, against plugins of both.

#[path = "../../tests/fixtures/v2.rs"]
mod v2;

use super::*;
use crate::plugin::Entry;
use crate::{Loader, open};
use abi_stable::library::RootModule;
use hotseam_abi::{OK, PluginMod};
use std::path::{Path, PathBuf};
use v2::{PluginModV2, PluginV2};

/// Version 2 of version 1: what is new does nothing.
extern "C" fn nothing_to_prepare(_this: *mut c_void, _rows: u32) -> i32 {
    OK
}

fn adapt(v1: &'static PluginV1) -> PluginV2 {
    PluginV2 { size: size_of::<PluginV2>() as u32, v1, prepare: nothing_to_prepare }
}

const HOST: &[Root<PluginV2>] = &[
    Root {
        version: 2,
        module: PluginModV2::NAME,
        symbol: "hotseam_plugin_v2",
        from_rust: |source, library| {
            let module = library.init_root_module::<PluginModV2>().map_err(|e| from_library(source, e))?;
            Ok(*module.plugin_v2()())
        },
        // SAFETY: the contract fixes the type of the symbol.
        from_c: |_, entry| Ok(unsafe { *entry.cast::<PluginV2>() }),
        numbers: |_, _| Ok(()),
    },
    Root {
        version: 1,
        module: PluginMod::NAME,
        symbol: hotseam_abi::C_ENTRY_SYMBOL,
        from_rust: |source, library| v1::from_rust(source, library).map(adapt),
        from_c: |source, entry| v1::check_functions(source, entry.cast()).map(adapt),
        numbers: |source, entry| v1::check_numbers(source, entry.cast()),
    },
];

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let target = test.parent().and_then(Path::parent).expect("target/release");
    target.join("examples").join(format!("lib{name}.so"))
}

fn take<E>(name: &str, roots: &[Root<E>]) -> Result<(E, Entry), LoadError> {
    let path = example(name);
    open::entry(Source { name: "mhc/x", path: &path, staged: &path, stage: &|_| {} }, roots)
}

#[test]
fn a_host_of_version_2_takes_both_versions() {
    let (new, kind) = take("v2_plugin", HOST).expect("taken as it is");
    assert_eq!(kind, Entry::Rust);
    assert_eq!((new.prepare)(std::ptr::null_mut(), 2), 42, "its own function");

    let (old, kind) = take("rust_plugin", HOST).expect("taken through the adapter");
    assert_eq!(kind, Entry::Rust);
    assert_eq!((old.prepare)(std::ptr::null_mut(), 2), OK, "the adapter's function");
    let direct = take("rust_plugin", ROOTS).expect("taken as it is").0;
    assert!(std::ptr::eq(old.v1, direct), "the adapter wraps the entry itself");
}

#[test]
fn a_host_of_version_1_refuses_version_2_by_number() {
    let error = take("v2_plugin", ROOTS).map(|_| ()).expect_err("refused");
    assert_eq!(error.code(), 205);
    let text = error.to_string();
    assert!(text.contains("tried 1, found hotseam_plugin_v2"), "{text}");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("later.so");
    std::fs::copy(example("v2_plugin"), &path).expect("copied");
    let loader = Loader::new(vec![dir.path().to_owned()]).expect("a loader");
    assert_eq!(loader.open("later.so").expect_err("refused").code(), 205);
}

#[test]
fn a_root_module_of_another_family_is_refused_by_its_layout() {
    assert_eq!(take("faulty_layout", HOST).map(|_| ()).expect_err("refused").code(), 204);
}
