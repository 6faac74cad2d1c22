//! Plugins that are accepted: the C entry, copies, replaced files, options, instances.

mod common;

use common::{build, manifest, variant};
use hotseam_abi::{OK, StepCtx, StoreArgs, seam};
use hotseam_loader::{Entry, Loader, Options, Shape, file_name, host_services, take_error, variant_name};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

fn loader(dir: &Path) -> Loader {
    Loader::new(vec![dir.to_owned()]).expect("a loader")
}

fn options(json: &str) -> Options {
    serde_json::from_str(json).expect("JSON")
}

#[test]
fn file_names_and_variant_names() {
    for (variant, file) in [
        ("indexer/cpu-stock", "libhotseam_indexer_cpu_stock.so"),
        ("kv_transport/local", "libhotseam_kv_transport_local.so"),
        ("faulty/kv_transport", "libhotseam_faulty_kv_transport.so"),
        ("faulty/moe", "libhotseam_faulty_moe.so"),
        ("moe/cpu-fused-scale", "libhotseam_moe_cpu_fused_scale.so"),
    ] {
        assert_eq!(file_name(variant).as_deref(), Some(file));
        assert_eq!(variant_name(file).as_deref(), Some(variant));
    }
    for bad in ["", "indexer", "indexer/", "/x", "a/b/c", "a/..", "indexer/x y", "indexer/x{}"] {
        assert_eq!(file_name(bad), None, "{bad}");
    }
    for bad in
        ["libhotseam_.so", "libhotseam_x.so", "libother_a_b.so", "libhotseam_a_b.rlib", "libhotseam_moe_.so"]
    {
        assert_eq!(variant_name(bad), None, "{bad}");
    }
}

#[test]
fn a_good_one_of_every_seam() {
    let dir = tempfile::tempdir().expect("a directory");
    for (number, name) in seam::NAMES.iter().enumerate() {
        variant(dir.path(), &format!("{name}/good"), number as u32, &[]);
    }
    let loader = loader(dir.path());
    let names: Vec<_> =
        ["attention", "indexer", "kv_transport", "mhc", "moe"].map(|s| format!("{s}/good")).into();
    assert_eq!(loader.names(), names);
    for (number, name) in seam::NAMES.iter().enumerate() {
        let plugin = loader.open(&format!("{name}/good")).expect(name);
        assert_eq!(plugin.seam(), number as u32);
        assert_eq!(plugin.kind(), Entry::C);
        assert_eq!(plugin.manifest().version, "1.2.3");
        let instance = plugin.create(&Options::new(), Shape { dim: 64, rope_dim: 16 }).expect(name);
        let expected = [(1, 256), (16, 256), (0, 0), (0, 0), (0, 0)][number];
        assert_eq!((instance.info().layout, instance.info().data_bytes), expected);
    }
    assert_eq!(loader.opened().len(), 5);
}

#[test]
fn options_have_one_form() {
    let dir = tempfile::tempdir().expect("a directory");
    variant(dir.path(), "indexer/x", seam::INDEXER, &[]);
    let plugin = loader(dir.path()).open("indexer/x").expect("opened");
    let default = plugin.create(&Options::new(), Shape { dim: 32, rope_dim: 16 }).expect("created");
    let same = plugin
        .create(&options(r#"{"scale": 1, "keys": "f32"}"#), Shape { dim: 32, rope_dim: 16 })
        .expect("created");
    let text = |o: &Options| serde_json::Value::Object(o.clone()).to_string();
    assert_eq!(text(default.options()), r#"{"destroyed":0,"fail":false,"keys":"f32","scale":1.0,"seen":0}"#);
    assert_eq!(text(same.options()), text(default.options()));
    let other =
        plugin.create(&options(r#"{"keys": "bf16"}"#), Shape { dim: 32, rope_dim: 16 }).expect("created");
    assert_ne!(text(other.options()), text(default.options()));
    assert_eq!((other.info().layout, other.info().data_bytes), (17, 64), "options reach the plugin");
    let changed = plugin.manifest().changed_options(other.options());
    assert_eq!(text(&changed), r#"{"keys":"bf16"}"#);
}

#[test]
fn instances_are_called_and_destroyed() {
    let dir = tempfile::tempdir().expect("a directory");
    variant(dir.path(), "attention/x", seam::ATTENTION, &[]);
    let plugin = loader(dir.path()).open("attention/x").expect("opened");
    let (mut seen, mut destroyed) = (0i64, 0i64);
    let json = format!(
        r#"{{"fail": true, "seen": {}, "destroyed": {}}}"#,
        &raw mut seen as usize, &raw mut destroyed as usize
    );
    let instance = plugin.create(&options(&json), Shape { dim: 64, rope_dim: 16 }).expect("created");
    let ctx = StepCtx {
        size: size_of::<StepCtx>() as u32,
        phase: 0,
        layer: 0,
        layer_class: 0,
        rank: 0,
        world: 1,
        step: 41,
        stream: 0,
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
        host: host_services(),
    };
    let store = plugin.entry().attention.and_then(|t| t.store).expect("store");
    let code = store(instance.this(), &ctx, std::ptr::null::<StoreArgs>());
    assert_ne!(code, OK);
    assert_eq!(take_error(), "told to fail");
    assert_eq!(take_error(), "", "the text is taken once");
    drop(instance);
    // SAFETY: both numbers live until here; volatile, because the plugin writes them behind the compiler's back.
    let (seen, destroyed) =
        unsafe { ((&raw const seen).read_volatile(), (&raw const destroyed).read_volatile()) };
    assert_eq!((seen, destroyed), (41, 1));
}

#[test]
fn a_replaced_file_is_new_code() {
    let dir = tempfile::tempdir().expect("a directory");
    variant(dir.path(), "moe/x", seam::MOE, &[]);
    let loader = loader(dir.path());
    let first = loader.open("moe/x").expect("opened");
    let again = loader.open("moe/x").expect("opened");
    assert!(Arc::ptr_eq(&first, &again), "the same content is opened once");

    variant(dir.path(), "moe/x", seam::MOE, &["CAPABILITIES=4"]);
    let second = loader.open("moe/x").expect("opened");
    assert_ne!(first.sha256(), second.sha256());
    let capabilities = |p: &Arc<hotseam_loader::Plugin>| {
        p.create(&Options::new(), Shape::default()).expect("created").info().capabilities
    };
    assert_eq!((capabilities(&first), capabilities(&second)), (0, 4), "both live side by side");
}

#[test]
fn copies_with_trailing_bytes_are_different_plugins() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = build(dir.path(), "original.so", seam::MHC, &manifest("mhc/x"), &[]);
    let copy = dir.path().join("copy.so");
    fs::copy(&path, &copy).expect("copied");
    fs::OpenOptions::new()
        .append(true)
        .open(&copy)
        .and_then(|mut f| f.write_all(b"\0copy"))
        .expect("appended");
    let loader = loader(dir.path());
    let a = loader.open("original.so").expect("opened");
    let b = loader.open(copy.to_str().expect("UTF-8")).expect("opened");
    assert_eq!(a.name(), b.name());
    assert_ne!(a.sha256(), b.sha256());
    assert!(!std::ptr::eq(a.entry(), b.entry()), "the code is mapped twice");
    assert_eq!(loader.opened().len(), 2);
}
