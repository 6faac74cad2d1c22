//! Libraries that a plugin opens by itself, such as a driver's. They are looked for, not opened.

use crate::error::LoadError;
use std::path::{Path, PathBuf};

/// Where the dynamic linker looks on common systems, `LD_LIBRARY_PATH` first.
const PLACES: &[&str] = &[
    "/usr/local/cuda/lib64",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/lib/wsl/lib",
];
/// Directory in which toolkits keep libraries to link with that do nothing.
const STUBS: &str = "stubs";

/// Fails if one of `needed` is not there, or is only there as a stub.
pub(crate) fn check(name: &str, needed: &[String]) -> Result<(), LoadError> {
    needed.iter().try_for_each(|library| check_for(name, library, ""))
}

/// As [`check`] of one library; `what` goes behind its name in the message.
pub(crate) fn check_for(name: &str, library: &str, what: &str) -> Result<(), LoadError> {
    let more = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let places: Vec<PathBuf> = std::env::split_paths(&more)
        .chain(PLACES.iter().map(PathBuf::from))
        .filter(|p| p.is_absolute())
        .collect();
    check_one(name, (library, what), &places)
}

fn check_one(name: &str, (library, what): (&str, &str), places: &[PathBuf]) -> Result<(), LoadError> {
    let error = |found: String, next: &str| {
        Err(LoadError::Library {
            name: name.to_owned(),
            needed: format!("{library}{what}"),
            found,
            next: format!("{next} Variants that do not need it go on."),
        })
    };
    let stub = |path: &Path| path.components().any(|part| part.as_os_str() == STUBS);
    let found: Vec<PathBuf> =
        places.iter().map(|place| place.join(library)).filter_map(|path| path.canonicalize().ok()).collect();
    match found.iter().find(|path| !stub(path)) {
        Some(_) => Ok(()),
        None => match found.first() {
            Some(path) => error(
                format!("found only the stub {}", path.display()),
                "Install the driver; a stub is for linking.",
            ),
            None => {
                let searched = places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
                error(format!("searched {searched}"), "Install it, or add its directory to LD_LIBRARY_PATH.")
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_stub_and_real_library() {
        let dir = tempfile::tempdir().expect("a directory");
        let (real, stubs) = (dir.path().join("lib"), dir.path().join("toolkit/stubs"));
        std::fs::create_dir_all(&real).expect("made");
        std::fs::create_dir_all(&stubs).expect("made");
        let places = [stubs.clone(), real.clone()];
        let check = || check_one("attention/x", ("libcuda.so.1", ""), &places);

        let text = check().expect_err("absent").to_string();
        assert!(
            text.starts_with("E-PLUG-106 attention/x: needs the library libcuda.so.1, searched "),
            "{text}"
        );
        assert!(text.contains(real.to_str().expect("UTF-8")), "{text}");

        std::fs::write(stubs.join("libcuda.so.1"), "").expect("written");
        let error = check().expect_err("a stub");
        assert_eq!(error.code(), 106);
        assert!(error.to_string().contains("the stub "), "{error}");

        std::fs::write(real.join("libcuda.so.1"), "").expect("written");
        check().expect("the real one is found behind the stub");
    }
}
