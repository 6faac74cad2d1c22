//! Sidecars, signatures, and files that change while they are checked.

mod common;

use common::{build, manifest, manifest_with, refused};
use hotseam_loader::signature::SecretKey;
use hotseam_loader::{
    Cuda, Loader, LoaderConfig, Policy, Sidecar, Sidecars, Trust, sidecar_path, signature_path,
};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const FILE: &str = "libhotseam_attention_x.so";
const NAME: &str = "attention/x";

fn loader(dir: &Path, policy: Policy) -> Loader {
    Loader::with_config(LoaderConfig { dirs: vec![dir.to_owned()], policy, ..LoaderConfig::default() })
        .expect("a loader")
}

fn open() -> Policy {
    Policy::default()
}

/// A directory with `attention/x`, and the path of the file.
fn plugin() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = build(dir.path(), FILE, 0, &manifest(NAME), &[]);
    (dir, path)
}

/// The text of the sidecar that fits the file, written beside it.
fn write_sidecar(path: &Path) -> String {
    let dir = path.parent().expect("a directory");
    let described =
        loader(dir, open()).describe(path.to_str().expect("UTF-8"), Sidecars::Ignore).expect("described");
    let library = path.file_name().expect("a name").to_string_lossy().into_owned();
    let text = Sidecar::new(library, described.size, described.sha256, described.mirror).text();
    fs::write(sidecar_path(path), &text).expect("written");
    text
}

#[test]
fn a_sidecar_that_fits_is_accepted_under_every_policy_that_it_satisfies() {
    let (dir, path) = plugin();
    let manifest = || Policy::new(Trust::Manifest, Vec::new());
    let error = refused(loader(dir.path(), manifest()).open(NAME), 104);
    assert!(
        error.contains(".so.manifest.yaml: there is no such sidecar, and the policy is `manifest`"),
        "{error}"
    );
    let text = write_sidecar(&path);
    for line in ["schema: 1", "name: attention/x", "kind: attention", "contract: 4", "host_services: 1"] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    loader(dir.path(), open()).open(NAME).expect("accepted");
    loader(dir.path(), manifest()).open(NAME).expect("accepted");
    loader(dir.path(), manifest()).open(FILE).expect("accepted by path");
}

#[test]
fn a_file_that_is_not_the_one_of_its_sidecar_is_refused_before_its_code_runs() {
    let (dir, path) = plugin();
    let text = write_sidecar(&path);
    let promised = text.lines().find_map(|l| l.strip_prefix("sha256: ")).expect("a hash").to_owned();
    // Its constructor would end this test.
    build(dir.path(), FILE, 0, &manifest(NAME), &["CONSTRUCTOR_DOES=die"]);
    let error = refused(loader(dir.path(), open()).open(NAME), 102);
    let found = error.split("found ").nth(1).expect("the hash found");
    assert!(error.contains(&promised) && found.len() > 64 && !found.starts_with(&promised), "{error}");

    let path = build(dir.path(), FILE, 0, &manifest(NAME), &[]);
    write_sidecar(&path);
    let with = |from: &str, to: &str| {
        let text = fs::read_to_string(sidecar_path(&path)).expect("read");
        let line = text.lines().find(|l| l.starts_with(from)).expect("a line").to_owned();
        fs::write(sidecar_path(&path), text.replace(&line, to)).expect("written");
        let error = refused(loader(dir.path(), open()).open(NAME), 102);
        fs::write(sidecar_path(&path), &text).expect("written");
        error
    };
    assert!(with("size:", "size: 12").contains("the size in bytes differs: expected 12, found "));
    assert!(with("library:", "library: other.so").contains("the library's name differs: expected other.so"));
}

#[test]
fn what_the_sidecar_says_is_judged_before_the_code_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = build(dir.path(), FILE, 0, &manifest(NAME), &[]);
    let text = write_sidecar(&path);
    let with = |from: &str, to: &str, code| {
        assert!(text.contains(from), "{from} is not in\n{text}");
        fs::write(sidecar_path(&path), text.replace(from, to)).expect("written");
        refused(loader(dir.path(), open()).open(NAME), code)
    };
    assert!(with("contract: 4", "contract: 9", 207).contains("expected 4, found 9"));
    assert!(
        with("host_services: 1", "host_services: 3", 209)
            .contains("needs host services 3, expected at most 1")
    );
    assert!(with("kind: attention", "kind: moe", 206).contains("expected attention, found moe"));
    assert!(with("name: attention/x", "name: attention/y", 208).contains("says that it is `attention/y`"));
    assert!(with("libs: []", "libs: [libnone.so.9]", 106).contains("libnone.so.9"));
    #[cfg(target_arch = "x86_64")]
    assert!(with("cpu: []", "cpu: [avx3]", 104).contains("`avx3`"));
}

#[test]
fn bad_sidecars_are_refused_by_place_and_field() {
    let (dir, path) = plugin();
    let text = write_sidecar(&path);
    let with = |from: &str, to: &str| {
        assert!(text.contains(from), "{from} is not in\n{text}");
        fs::write(sidecar_path(&path), text.replacen(from, to, 1)).expect("written");
        refused(loader(dir.path(), open()).open(NAME), 104)
    };
    let file = sidecar_path(&path).display().to_string();
    let line = |word: &str| text.lines().position(|l| l.contains(word)).expect("a line") + 1;
    for (from, to, at, words) in [
        (
            "contract: 4",
            "contrakt: 1",
            Some(("contract:", 1)),
            "unknown field `contrakt`. Did you mean `contract`?",
        ),
        ("contract: 4", "contract: one", Some(("contract:", 11)), "contract: invalid type"),
        ("schema: 1", "schema: 2", Some(("schema", 1)), "schema: expected 1, found 2"),
        (
            "kind: attention",
            "kind: atention",
            Some(("kind", 1)),
            "unknown seam `atention`. Did you mean `attention`?",
        ),
        ("sha256: ", "sha256: X", Some(("sha256", 1)), "64 lower-case hexadecimal digits"),
        ("help: key format", "helpp: key format", Some(("help: key", 5)), "`helpp`. Did you mean `help`?"),
        ("type: string", "type: text", Some(("type: string", 11)), "options.keys.type: "),
        ("default: f32", "default: f64", Some(("options", 1)), "options.keys.default: expected one of"),
        ("name: attention/x", "name: nonsense", Some(("name", 1)), "name: expected `seam/variant`"),
        ("schema: 1", "schema: [1", None, "."),
    ] {
        let error = with(from, to);
        assert!(error.contains(words), "`{words}` is not in: {error}");
        assert!(error.ends_with(['.', '?']), "{error}");
        if let Some((word, column)) = at {
            let place = format!("{file}:{}:{column}: ", line(word));
            assert!(error.contains(&place), "`{place}` is not in: {error}");
        }
    }
    fs::write(sidecar_path(&path), b"schema: \xff").expect("written");
    assert!(refused(loader(dir.path(), open()).open(NAME), 104).contains("expected UTF-8, found byte 0xff"));
}

#[test]
fn a_binary_that_says_something_else_than_its_sidecar_is_refused() {
    let (dir, path) = plugin();
    let text = write_sidecar(&path);
    let loader = loader(dir.path(), open());
    for (from, to, key, expected, found) in [
        ("version: 1.2.3", "version: 1.2.4", "version", "\"1.2.4\"", "\"1.2.3\""),
        ("help: key format", "help: other", "options.keys.help", "\"other\"", "\"key format\""),
        ("panic: null", "panic: unwind", "panic", "\"unwind\"", "null"),
        ("base: null", "base: attention/cpu-stock", "base", "\"attention/cpu-stock\"", "null"),
    ] {
        fs::write(sidecar_path(&path), text.replace(from, to)).expect("written");
        let error = refused(loader.open(NAME), 208);
        assert_eq!(refused(loader.describe(NAME, Sidecars::Check), 208), error);
        let words = format!("in `{key}`: expected {expected}, found {found}.");
        assert!(error.contains(&words), "`{words}` is not in: {error}");
    }
    // The code is open by now; that changes nothing.
    fs::write(sidecar_path(&path), &text).expect("written");
    loader.open(NAME).expect("accepted");
}

#[test]
fn signatures_by_policy() {
    let (dir, path) = plugin();
    let keys = tempfile::tempdir().expect("a directory");
    let (mine, other) = (key(keys.path(), "mine"), key(keys.path(), "other"));
    let signed = |key: &SecretKey| loader(dir.path(), Policy::new(Trust::Signed, vec![key.public()]));
    let text = write_sidecar(&path);

    let error = refused(signed(&mine).open(NAME), 103);
    let id = mine.public().id();
    assert!(error.contains("there is no signature. policy signed, trusted keys"), "{error}");
    assert!(error.contains(&id), "{error}");

    fs::write(signature_path(&path), mine.sign(text.as_bytes())).expect("written");
    signed(&mine).open(NAME).expect("accepted");
    let described = signed(&mine).describe(NAME, Sidecars::Check).expect("described");
    assert_eq!((described.sidecar, described.signer), (true, Some(id.clone())));
    let error = refused(signed(&other).open(NAME), 103);
    assert!(error.contains(&format!("signed by key {id}, which is not trusted")), "{error}");
    // Under the open policy a signature by an unknown key proves nothing and spoils nothing.
    loader(dir.path(), open()).open(NAME).expect("accepted");

    // One byte of the sidecar changed, nothing that it says.
    fs::write(sidecar_path(&path), format!("{text}\n")).expect("written");
    let error = refused(signed(&mine).open(NAME), 103);
    assert!(error.contains(&format!("the signature by key {id} does not fit the sidecar")), "{error}");
    let trusting = Policy { keys: vec![mine.public()], ..open() };
    refused(loader(dir.path(), trusting).open(NAME), 103);

    fs::write(sidecar_path(&path), &text).expect("written");
    fs::write(signature_path(&path), "not a signature\n").expect("written");
    assert!(refused(signed(&mine).open(NAME), 103).contains("expected `ed25519 KEY-ID SIGNATURE`"));

    // The file that was signed, exchanged for another of the same name.
    fs::write(signature_path(&path), mine.sign(text.as_bytes())).expect("written");
    build(dir.path(), FILE, 0, &manifest(NAME), &["CONSTRUCTOR_DOES=die"]);
    refused(signed(&mine).open(NAME), 102);

    let nobody = Loader::with_policy(vec![dir.path().to_owned()], Policy::new(Trust::Signed, Vec::new()));
    assert!(refused(nobody, 103).contains("no key is trusted"));
}

fn key(dir: &Path, name: &str) -> SecretKey {
    SecretKey::create(&dir.join(name)).expect("a key")
}

#[test]
fn neither_sidecar_nor_signature_may_be_a_link() {
    let (dir, path) = plugin();
    let elsewhere = tempfile::tempdir().expect("a directory");
    let text = write_sidecar(&path);
    let outside = elsewhere.path().join("sidecar");
    fs::rename(sidecar_path(&path), &outside).expect("moved");
    symlink(&outside, sidecar_path(&path)).expect("a link");
    let error = refused(loader(dir.path(), open()).open(NAME), 101);
    assert!(
        error.contains("manifest.yaml is refused: a file of a plugin must not be a symbolic link"),
        "{error}"
    );
    fs::remove_file(sidecar_path(&path)).expect("removed");
    fs::write(sidecar_path(&path), text).expect("written");
    symlink(&outside, signature_path(&path)).expect("a link");
    assert!(refused(loader(dir.path(), open()).open(NAME), 101).contains(".yaml.sig is refused"));
}

/// Runs `change` on another thread, over and over, while `look` is called for a second and a half.
fn race(change: impl Fn(usize) + Sync, mut look: impl FnMut()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                change(turn);
            }
        });
        let end = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < end {
            look();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_file_that_changes_under_the_check_never_runs_unchecked() {
    let (dir, path) = plugin();
    let text = write_sidecar(&path);
    let good = text.lines().find_map(|l| l.strip_prefix("sha256: ")).expect("a hash").to_owned();
    let store = tempfile::tempdir_in(dir.path()).expect("a directory");
    let keep = |name: &str, from: &Path| {
        let to = store.path().join(name);
        fs::copy(from, &to).expect("copied");
        to
    };
    let good_file = keep("good", &path);
    // Running it ends this test.
    let bad_file = keep("bad", &build(store.path(), "b.so", 0, &manifest(NAME), &["CONSTRUCTOR_DOES=die"]));
    let (mut accepted, mut refusals) = (0, 0);
    race(
        |turn| {
            let from = if turn % 2 == 0 { &bad_file } else { &good_file };
            let next = store.path().join("next");
            fs::copy(from, &next).and_then(|_| fs::rename(&next, &path)).expect("exchanged");
        },
        || match loader(dir.path(), open()).open(NAME) {
            Ok(plugin) => {
                assert_eq!(plugin.sha256(), good);
                accepted += 1;
            }
            Err(error) => {
                assert_eq!(error.code(), 102, "{error}");
                refusals += 1;
            }
        },
    );
    assert!(accepted > 0 && refusals > 0, "the race was run: {accepted} accepted, {refusals} refused");
}

#[test]
fn a_directory_that_turns_into_a_link_under_the_check_leads_nowhere() {
    let root = tempfile::tempdir().expect("a directory");
    let outside = tempfile::tempdir().expect("a directory");
    let (allowed, inside) = (root.path().join("plugins"), root.path().join("plugins/a"));
    fs::create_dir_all(&inside).expect("made");
    let good = build(&inside, FILE, 0, &manifest(NAME), &[]);
    build(outside.path(), FILE, 0, &manifest_with(NAME, "null", ""), &["CONSTRUCTOR_DOES=die"]);
    let (aside, link) = (root.path().join("aside"), root.path().join("link"));
    symlink(outside.path(), &link).expect("a link");
    let name = good.to_str().expect("UTF-8").to_owned();
    let (mut accepted, mut refusals) = (0, 0);
    race(
        |_| {
            // plugins/a is a directory, then a link that leads out of the allowed directory.
            fs::rename(&inside, &aside).expect("moved");
            fs::rename(&link, &inside).expect("moved");
            fs::rename(&inside, &link).expect("moved");
            fs::rename(&aside, &inside).expect("moved");
        },
        || match loader(&allowed, open()).open(&name) {
            Ok(_) => accepted += 1,
            Err(error) => {
                assert!([100, 101, 110].contains(&error.code()), "{error}");
                refusals += u32::from(error.code() == 101);
            }
        },
    );
    assert!(
        accepted > 0 && refusals > 0,
        "the race was run: {accepted} accepted, {refusals} refused by place"
    );
}

#[test]
fn a_directory_that_others_may_write_is_refused_under_every_policy() {
    let (dir, path) = plugin();
    let key = key(dir.path(), "key");
    let text = write_sidecar(&path);
    fs::write(signature_path(&path), key.sign(text.as_bytes())).expect("written");
    let chmod = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).expect("chmod");
    let loader = |trust| loader(dir.path(), Policy::new(trust, vec![key.public()]));
    for trust in Trust::ALL {
        let (loader, strict) = (loader(trust), trust != Trust::Open);
        for (mode, refuses) in [(0o755, false), (0o775, strict), (0o757, true), (0o777, true)] {
            chmod(mode);
            if !refuses {
                loader.open(NAME).unwrap_or_else(|e| panic!("{} {mode:o}: {e}", trust.name()));
                continue;
            }
            let error = refused(loader.open(NAME), 101);
            let rule = match strict {
                true => {
                    "its directory must not be writable by group or others under the policies `manifest` and `signed`"
                }
                false => "its directory must not be writable by others",
            };
            let words = format!("{rule}, found mode {mode:04o}. Run chmod ");
            assert!(error.contains(&words), "`{words}` is not in: {error}");
            assert!(error.contains(path.to_str().expect("UTF-8")), "{error}");
        }
        // What is served goes on; only what is opened is looked at.
        chmod(0o755);
        loader.open(NAME).expect("accepted again");
    }
}

/// On a machine without CUDA the driver is missing, which is told with what it is needed for. With a driver the version is
/// too old, whichever it is.
#[test]
fn a_plugin_that_needs_cuda_is_refused_before_its_code_runs() {
    let (dir, path) = plugin();
    let described = loader(dir.path(), open()).describe(NAME, Sidecars::Ignore).expect("described");
    // Its constructor would end this test.
    build(dir.path(), FILE, 0, &manifest(NAME), &["CONSTRUCTOR_DOES=die"]);
    let bytes = fs::read(&path).expect("read");
    let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut mirror = described.mirror;
    mirror.manifest.requires.cuda = Some(Cuda { driver_min: Some("99.8".to_owned()), sm: vec![90, 100] });
    let text = Sidecar::new(FILE.to_owned(), bytes.len() as u64, sha256, mirror).text();
    assert!(text.contains("  cuda:\n    driver_min: '99.8'\n    sm:\n    - 90\n    - 100\n"), "{text}");
    fs::write(sidecar_path(&path), &text).expect("written");
    let needed = "a driver for CUDA 99.8 or later and a device of sm_90, sm_100, ";
    let error = loader(dir.path(), open()).open(NAME).expect_err("refused");
    let words = match error.code() {
        106 => {
            [&format!("needs the library libcuda.so.1 of {needed}searched /"), "/usr/lib/x86_64-linux-gnu"]
        }
        105 => [&format!("needs {needed}found "), "Variants that do not need it go on."],
        code => panic!("{code}: {error}"),
    };
    for words in words {
        assert!(error.to_string().contains(words), "`{words}` is not in: {error}");
    }

    for (from, to, words) in [
        ("'99.8'", "twelve", "requires.cuda.driver_min: expected a version such as `12.8`, found `twelve`"),
        ("- 90", "- -90", "requires.cuda.sm"),
        ("driver_min", "driver", "unknown field `driver`"),
    ] {
        fs::write(sidecar_path(&path), text.replace(from, to)).expect("written");
        let error = refused(loader(dir.path(), open()).open(NAME), 104);
        assert!(error.contains(words), "`{words}` is not in: {error}");
    }
}
