//! Every way in which a plugin is refused has its code, and a message that names the thing and a next step.

mod common;

use common::{build, manifest, manifest_with};
use hotseam_loader::{LoadError, Loader, Options, Policy, Shape};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use tempfile::TempDir;

fn dir() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn loader(dir: &Path) -> Loader {
    Loader::new(vec![dir.to_owned()]).expect("a loader")
}

/// Asserts the code, that the text begins with it, that it ends with a sentence, and that it has all of `words`.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, LoadError>, code: u16, words: &[&str]) {
    let error = result.expect_err("refused");
    let text = error.to_string();
    assert_eq!(error.code(), code, "{text}");
    assert!(text.starts_with(&format!("E-PLUG-{code} ")), "{text}");
    assert!(text.ends_with(['.', '?']), "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

const FILE: &str = "libhotseam_attention_x.so";
const NAME: &str = "attention/x";

/// Opens `attention/x`, built with `defines` from `manifest`.
fn open(manifest: &str, defines: &[&str]) -> Result<(), LoadError> {
    let dir = dir();
    build(dir.path(), FILE, 0, manifest, defines);
    loader(dir.path()).open(NAME).map(|_| ())
}

/// Opens `attention/x` and makes an instance without options.
fn create(defines: &[&str]) -> Result<(), LoadError> {
    let dir = dir();
    build(dir.path(), FILE, 0, &manifest(NAME), defines);
    let plugin = loader(dir.path()).open(NAME)?;
    plugin.create(&Options::new(), Shape { dim: 64, rope_dim: 16 }).map(|_| ())
}

#[test]
fn the_fixture_itself_is_accepted() {
    open(&manifest(NAME), &[]).expect("accepted");
    create(&[]).expect("created");
}

#[test]
fn unknown_name() {
    let dir = dir();
    build(dir.path(), "libhotseam_attention_cpu_stock.so", 0, &manifest("attention/cpu-stock"), &[]);
    let loader = loader(dir.path());
    assert_refused(
        loader.open("attention/cpu-stok"),
        100,
        &["attention/cpu-stok", "libhotseam_attention_cpu_stok.so", "Did you mean `attention/cpu-stock`?"],
    );
    assert_refused(loader.open("nonsense"), 100, &["nonsense", "seam/variant"]);
    assert_refused(loader.open("/no/such/file.so"), 100, &["/no/such/file.so"]);
}

#[test]
fn place_type_and_mode() {
    let (dir, elsewhere) = (dir(), dir());
    let file = build(dir.path(), FILE, 0, &manifest(NAME), &[]);
    let outside = build(elsewhere.path(), "outside.so", 0, &manifest(NAME), &[]);
    let loader = loader(dir.path());

    let path = outside.to_str().expect("UTF-8");
    let parent = dir.path().to_str().expect("UTF-8");
    assert_refused(loader.open(path), 101, &[path, parent, "plugins.dirs"]);
    let sneaky =
        format!("{parent}/../{}/outside.so", elsewhere.path().file_name().expect("a name").to_string_lossy());
    assert_refused(loader.open(&sneaky), 101, &["plugin directory"]);

    symlink(&outside, dir.path().join("libhotseam_attention_link.so")).expect("a link");
    assert_refused(loader.open("attention/link"), 101, &["symbolic link", path]);

    fs::create_dir(dir.path().join("libhotseam_attention_dir.so")).expect("a directory");
    assert_refused(loader.open("attention/dir"), 101, &["regular file"]);

    // A directory that others may write is one in which they may exchange the file.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
    assert_refused(loader.open(NAME), 101, &["its directory must not be writable by others", "0777"]);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).expect("chmod");
    loader.open(NAME).expect("not in a sticky one");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("chmod");

    fs::set_permissions(&file, fs::Permissions::from_mode(0o757)).expect("chmod");
    assert_refused(loader.open(NAME), 101, &["writable by others", "0757", "chmod o-w"]);

    // Writable by the group is refused only by a strict loader.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o775)).expect("chmod");
    loader.open(NAME).expect("accepted by the default policy");
    let strict =
        Loader::with_policy(vec![dir.path().to_owned()], Policy { strict: true, ..Policy::default() })
            .expect("a loader");
    assert_refused(strict.open(NAME), 101, &["the policies `manifest`", "0775", "chmod go-w"]);
}

#[test]
fn owner() {
    let dir = dir();
    let file = build(dir.path(), FILE, 0, &manifest(NAME), &[]);
    match chown(&file, Some(54321), None) {
        Ok(()) => assert_refused(
            loader(dir.path()).open(NAME),
            101,
            &["the owner of the file must be root", "user 54321", "chown"],
        ),
        // Only root gives files away; anybody else has only files of its own to show.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
}

#[test]
fn missing_directory() {
    let gone = dir().path().join("gone");
    assert_refused(Loader::new(vec![gone.clone()]), 110, &[gone.to_str().expect("UTF-8"), "plugins.dirs"]);
}

#[test]
fn not_a_shared_object() {
    let dir = dir();
    let loader = loader(dir.path());
    let path = dir.path().join(FILE);

    fs::write(&path, "#!/bin/sh\n").expect("written");
    assert_refused(loader.open(NAME), 201, &[NAME, FILE, "not an ELF file"]);
    fs::write(&path, "").expect("written");
    assert_refused(loader.open(NAME), 201, &["not an ELF file"]);

    fs::remove_file(&path).expect("removed");
    build(dir.path(), FILE, 0, &manifest(NAME), &[]);
    let whole = fs::read(&path).expect("read");
    // Every way to cut the file short is seen before the linker maps it.
    for length in (5..whole.len()).step_by(997).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..length]).expect("written");
        assert_refused(loader.open(NAME), 201, &["truncated", &length.to_string()]);
    }
    let mut other = whole.clone();
    other[18] = 0xf3;
    fs::write(&path, &other).expect("written");
    assert_refused(loader.open(NAME), 201, &["machine 243"]);
    let mut wild = whole.clone();
    wild[32..40].fill(0xff);
    fs::write(&path, &wild).expect("written");
    assert_refused(loader.open(NAME), 201, &["truncated"]);
}

#[test]
fn unresolved_symbol() {
    let dir = dir();
    build(dir.path(), FILE, 0, &manifest(NAME), &["UNRESOLVED"]);
    assert_refused(loader(dir.path()).open(NAME), 201, &["undefined symbol", "not_defined_anywhere", "Link"]);
}

#[test]
fn not_a_plugin() {
    assert_refused(open(&manifest(NAME), &["NO_ENTRY"]), 202, &[FILE, "hotseam_plugin_v1", "SDK"]);
    assert_refused(open(&manifest(NAME), &["NULL_ENTRY"]), 202, &["returned null"]);
    assert_refused(
        open(&manifest(NAME), &["SYMBOL=hotseam_plugin_v3"]),
        205,
        &["tried 1", "found hotseam_plugin_v3", "Rebuild"],
    );
}

#[test]
fn contract_and_size() {
    assert_refused(open(&manifest(NAME), &["CONTRACT=77"]), 207, &["expected 4", "found 77", "Rebuild"]);
    assert_refused(open(&manifest(NAME), &["ENTRY_SIZE=24"]), 205, &["too short", "found 24"]);
    assert_refused(open(&manifest(NAME), &["DESTROY=0"]), 205, &["`destroy`", "null"]);
    assert_refused(open(&manifest(NAME), &["HOST_SERVICES=2"]), 209, &["host services 2", "at most 1"]);
}

#[test]
fn seam() {
    assert_refused(
        open(&manifest(NAME), &["TABLE_AT=2"]),
        206,
        &["a table of functions for attention", "found moe"],
    );
    let dir = dir();
    build(dir.path(), FILE, 9, &manifest(NAME), &["TABLE_AT=0"]);
    assert_refused(loader(dir.path()).open(NAME), 206, &["found 9", "kv_transport"]);
    build(dir.path(), FILE, 3, &manifest(NAME), &[]);
    assert_refused(loader(dir.path()).open(NAME), 206, &["expected attention", "found mhc"]);
}

#[test]
fn manifests() {
    assert_refused(open("{\"name\": \"attention/x\",,}", &[]), 104, &["line 1 column 24"]);
    assert_refused(open("[]", &[]), 104, &["expected an object"]);
    assert_refused(open(r#"{"name": "attention/x"}"#, &[]), 104, &["version", "missing"]);
    assert_refused(open(&manifest("attention"), &[]), 104, &["name", "seam/variant"]);
    let with = |more: &str| open(&manifest_with(NAME, "null", more), &[]);
    assert_refused(with(r#", "requirez": {}"#), 104, &["`requirez`", "Did you mean `requires`?"]);
    assert_refused(
        with(r#", "requires": {"cpu": ["avx3"]}"#),
        104,
        &["requires.cpu", "`avx3`", "Did you mean"],
    );
    assert_refused(with(r#", "requires": {"cpu": "avx2"}"#), 104, &["requires.cpu", "list of strings"]);
    assert_refused(open(&manifest_with(NAME, "7", ""), &[]), 104, &["base", "a string", "7"]);

    let option = |spec: &str| {
        let head = r#""name": "attention/x", "version": "1", "description": """#;
        open(&format!(r#"{{{head}, "options": {{"k": {spec}}}}}"#), &[])
    };
    assert_refused(
        option(r#"{"type": "int", "default": 1}"#),
        104,
        &["options.k.type", "`int`", "`integer`"],
    );
    assert_refused(option(r#"{"type": "integer"}"#), 104, &["options.k.default", "missing"]);
    assert_refused(option(r#"{"type": "integer", "default": 1.5}"#), 104, &["options.k.default", "1.5"]);
    assert_refused(
        option(r#"{"type": "string", "default": "c", "values": ["a", "b"]}"#),
        104,
        &["options.k.default", r#"["a","b"]"#, r#""c""#],
    );
    option(r#"{"type": "string", "default": "a", "values": ["a", "b"]}"#).expect("accepted");
}

#[test]
fn requirements() {
    let with = |more: &str| open(&manifest_with(NAME, "null", more), &[]);
    assert_refused(with(r#", "panic": "abort""#), 105, &["unwind", "abort"]);
    with(r#", "panic": "unwind""#).expect("accepted");
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx512fp16") {
        assert_refused(
            with(r#", "requires": {"cpu": ["avx512fp16"]}"#),
            105,
            &["avx512fp16", "another variant"],
        );
    }
    #[cfg(target_arch = "x86_64")]
    with(r#", "requires": {"cpu": ["sse4.2"]}"#).expect("accepted");
    assert_refused(
        with(r#", "requires": {"libs": ["libno-such-driver.so.1"]}"#),
        106,
        &["libno-such-driver.so.1", "searched /", "/usr/lib", "Variants that do not need it go on"],
    );
    with(r#", "requires": {"libs": ["libc.so.6"]}"#).expect("accepted");
}

#[test]
fn renamed_file() {
    let dir = dir();
    let path = build(dir.path(), "libhotseam_attention_y.so", 0, &manifest(NAME), &[]);
    let loader = loader(dir.path());
    let words = ["attention/y", "attention/x", "libhotseam_attention_x.so"];
    assert_refused(loader.open("attention/y"), 208, &words);
    // The same file is fine by its path, and the name is checked although the code is open by now.
    loader.open(path.to_str().expect("UTF-8")).expect("accepted by path");
    assert_refused(loader.open("attention/y"), 208, &words);
}

#[test]
fn probe_create_info() {
    assert_refused(
        open(&manifest(NAME), &["PROBE_CODE=3"]),
        302,
        &["there is no such device here", "code 3"],
    );
    assert_refused(
        create(&["CREATE_CODE=4"]),
        303,
        &["create", "the kernel does not compile", "code 4", "\"keys\":\"f32\""],
    );
    assert_refused(create(&["NO_INSTANCE"]), 303, &["no instance"]);
    assert_refused(create(&["INFO_CODE=2"]), 303, &["info", "gave no reason", "code 2"]);
    assert_refused(create(&["PHASES=0"]), 303, &["phases"]);
    assert_refused(create(&["PHASES=64"]), 303, &["phases", "0b1000000"]);
    assert_refused(create(&["LAYOUT=99"]), 303, &["layout", "kv-f32", "found 99"]);
    assert_refused(create(&["ENTRY_BYTES=0"]), 303, &["data_bytes", "dimension 64"]);
    assert_refused(create(&["ENTRY_BYTES=255"]), 303, &["data_bytes", "expected 256", "found 255"]);
    assert_refused(create(&["ENTRY_BYTES=0x10000000"]), 303, &["data_bytes", "found 268435456"]);
    // A plugin that takes the description for a longer one, by what it says and by what it does.
    assert_refused(create(&["INFO_SIZE=48"]), 303, &["info", "size: expected the 40 bytes", "found 48"]);
    assert_refused(
        create(&["INFO_BEHIND=8"]),
        303,
        &["size: expected the 40 bytes", "found writes behind them"],
    );
}

#[test]
fn options() {
    let dir = dir();
    build(dir.path(), FILE, 0, &manifest(NAME), &[]);
    let plugin = loader(dir.path()).open(NAME).expect("opened");
    let refuse = |json: &str, words: &[&str]| {
        let options: Options = serde_json::from_str(json).expect("JSON");
        assert_refused(plugin.create(&options, Shape { dim: 64, rope_dim: 16 }), 107, words);
    };
    refuse(r#"{"keyz": "f32"}"#, &["`keyz`", "unknown option", "Did you mean `keys`?"]);
    refuse(r#"{"keys": "bf61"}"#, &["`keys`", "f32, bf16", "bf61", "Did you mean `bf16`?"]);
    refuse(r#"{"keys": 16}"#, &["`keys`", "type string", "16", "Quote it"]);
    refuse(r#"{"fail": "yes"}"#, &["`fail`", "type boolean"]);
    refuse(r#"{"seen": 1.5}"#, &["`seen`", "type integer", "1.5"]);
    refuse(r#"{"scale": true}"#, &["`scale`", "type number"]);
}
