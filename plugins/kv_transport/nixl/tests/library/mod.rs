//! Where the library is: HOTSEAM_NIXL names it, else `.venv` of this repository is looked through.

use std::path::{Path, PathBuf};

/// Its path, or `None` with a line that says what is skipped.
pub(crate) fn path() -> Option<String> {
    let named = std::env::var_os("HOTSEAM_NIXL").map(PathBuf::from);
    // Tests of other crates include this file.
    let venv = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|dir| dir.join(".venv/lib"))
        .find(|dir| dir.exists());
    let found = named.or_else(|| {
        let pythons = std::fs::read_dir(venv?).ok()?.flatten();
        let mut files =
            pythons.map(|python| python.path().join("site-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so"));
        files.find(|file| file.exists())
    });
    if found.is_none() {
        eprintln!("skipped: NIXL is not there; run scripts/get-nixl, or set HOTSEAM_NIXL to libnixl_capi.so");
    }
    found.map(|path| path.display().to_string())
}
