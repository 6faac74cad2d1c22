//! The abi_stable entry, with plugins that cargo builds as examples of this crate.

use abi_stable::library::AbiHeader;
use hotseam_abi::{ERR_PANIC, MhcPostArgs, StepCtx, phase};
use hotseam_loader::{Entry, LoadError, Loader, Options, Shape, host_services, take_error};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Copies the example `name` into a directory of its own, and returns the path of the copy.
fn example(dir: &Path, name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let built = test.parent().and_then(Path::parent).expect("target/release").join("examples");
    let copy = dir.join(format!("{name}.so"));
    std::fs::copy(built.join(format!("lib{name}.so")), &copy).expect("cargo has built the example");
    copy
}

fn open(name: &str) -> Result<Arc<hotseam_loader::Plugin>, LoadError> {
    open_changed(name, |_| ())
}

/// Opens the example `name` after `change` has changed its bytes.
fn open_changed(
    name: &str,
    change: impl FnOnce(&mut Vec<u8>),
) -> Result<Arc<hotseam_loader::Plugin>, LoadError> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = example(dir.path(), name);
    let mut bytes = std::fs::read(&path).expect("read");
    change(&mut bytes);
    std::fs::write(&path, bytes).expect("written");
    Loader::new(vec![dir.path().to_owned()]).expect("a loader").open(path.to_str().expect("UTF-8"))
}

#[test]
fn a_rust_plugin_is_taken_by_its_root_module() {
    let plugin = open("rust_plugin").expect("accepted");
    assert_eq!(plugin.kind(), Entry::Rust);
    assert_eq!(plugin.name(), "mhc/fixture");
    assert_eq!(plugin.manifest().panic.as_deref(), Some("unwind"));
    assert_eq!(plugin.manifest().base.as_deref(), Some("mhc/cpu-stock"));
    let table = plugin.entry().mhc.expect("a table");
    assert!(table.pre.is_none() && table.head.is_none() && table.post.is_some());
}

#[test]
fn a_panic_is_an_error_of_the_call() {
    let plugin = open("rust_plugin").expect("accepted");
    let instance = plugin.create(&Options::new(), Shape::default()).expect("created");
    let ctx = StepCtx {
        size: size_of::<StepCtx>() as u32,
        phase: phase::DECODE,
        layer: 3,
        layer_class: 0,
        rank: 0,
        world: 1,
        step: 0,
        stream: 0,
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
        host: host_services(),
    };
    let batch = hotseam_abi::Batch {
        size: size_of::<hotseam_abi::Batch>() as u32,
        n_rows: 0,
        n_seqs: 0,
        positions: std::ptr::null(),
        row_seq: std::ptr::null(),
        seqs: std::ptr::null(),
    };
    let mut cell = [0f32; 1];
    let mut tensor = |shape: [i64; 4], ndim| hotseam_abi::TensorRef {
        data: cell.as_mut_ptr().cast(),
        shape,
        strides: [1; 4],
        dtype: hotseam_abi::dtype::F32,
        ndim,
        device: hotseam_abi::device::CPU,
        device_id: 0,
    };
    let streams = tensor([0, 1, 1, 1], 3);
    let args = MhcPostArgs {
        size: size_of::<MhcPostArgs>() as u32,
        batch: &batch,
        f: tensor([0, 1, 1, 1], 2),
        streams,
        post: tensor([0, 1, 1, 1], 2),
        comb: streams,
        out: streams,
    };
    let post = plugin.entry().mhc.and_then(|t| t.post).expect("post");
    assert_eq!(post(instance.this(), &ctx, &args), ERR_PANIC);
    assert!(take_error().contains("told to panic"));
}

#[test]
fn another_root_module_is_refused_by_its_layout() {
    let error = open("faulty_layout").expect_err("refused");
    let text = error.to_string();
    assert_eq!(error.code(), 204, "{text}");
    assert!(text.len() < 1200, "the report is summed up: {text}");
    for word in ["faulty_layout.so", "expected", "PluginMod", "Rebuild"] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    let LoadError::Layout { report, .. } = &error else { panic!("another kind: {text}") };
    let whole = std::fs::read_to_string(report).expect("the whole report is there");
    assert!(whole.len() > text.len());
    std::fs::remove_file(report).expect("removed");
}

/// Changes every header of abi_stable in `bytes`: the plugin's own, and what its code may compare others with.
fn change_headers(bytes: &mut [u8], change: impl Fn(&mut [u8])) {
    let host = AbiHeader::VALUE;
    let numbers = [host.abi_major, host.abi_minor].map(u32::to_ne_bytes);
    let header = [&host.magic_string[..], &numbers.concat()].concat();
    let places: Vec<usize> =
        (0..bytes.len() - header.len()).filter(|at| bytes[*at..].starts_with(&header)).collect();
    assert!(!places.is_empty(), "the plugin has a header");
    places.into_iter().for_each(|at| change(&mut bytes[at..at + header.len()]));
}

#[test]
fn another_abi_stable_is_refused_by_its_header() {
    let host = AbiHeader::VALUE;
    let versions = |found: &str| {
        format!(
            "rust_plugin.so: expected abi_stable {}.{}, found {found}. Rebuild",
            host.abi_major, host.abi_minor
        )
    };
    let minor = |header: &mut [u8]| header[36..].copy_from_slice(&(host.abi_minor - 1).to_ne_bytes());
    let major = |header: &mut [u8]| header[32..36].copy_from_slice(&7u32.to_ne_bytes());
    let magic = |header: &mut [u8]| header[..10].copy_from_slice(b"own stable");
    let magics =
        "expected a header of `abi stable library for Rust`, found one of `own stable library for Rust`";
    let older = versions(&format!("{}.{}", host.abi_major, host.abi_minor - 1));
    let newer = versions(&format!("7.{}", host.abi_minor));
    for (change, words) in
        [(&minor as &dyn Fn(&mut [u8]), older.as_str()), (&major, &newer), (&magic, magics)]
    {
        let error = open_changed("rust_plugin", |bytes| change_headers(bytes, change)).expect_err("refused");
        let text = error.to_string();
        assert_eq!(error.code(), 203, "{text}");
        assert!(text.starts_with("E-PLUG-203 ") && text.contains(words), "`{words}` is not in: {text}");
    }
    // Control: the same copy, unchanged.
    open_changed("rust_plugin", |bytes| change_headers(bytes, |_| ())).expect("accepted");
}
