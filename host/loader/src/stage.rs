//! Copies of checked files in a private directory, named by their content.

use crate::error::LoadError;
use crate::verify::Checked;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Writes the checked bytes to `dir` as `<sha256>.so` with mode 0500, and reads them back.
pub(crate) fn put(name: &str, dir: &Path, checked: &Checked) -> Result<PathBuf, LoadError> {
    let path = dir.join(format!("{}.so", checked.sha256));
    let io = |what, e: std::io::Error| io_error(name, what, &path, &e);
    if !path.exists() {
        // The linker matches by name, so a copy that was cut short must never get the final name.
        let partial = path.with_extension("partial");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o500)
            .open(&partial)
            .map_err(|e| io("create", e))?;
        file.write_all(&checked.bytes).map_err(|e| io("write", e))?;
        std::fs::rename(&partial, &path).map_err(|e| io("rename", e))?;
    }
    let mut copy = Vec::with_capacity(checked.bytes.len());
    File::open(&path).and_then(|mut f| f.read_to_end(&mut copy)).map_err(|e| io("read back", e))?;
    if copy != checked.bytes {
        let (name, expected, found) = (name.to_owned(), checked.sha256.clone(), sha256_hex(&copy));
        return Err(LoadError::Hash { name, path, what: "the sha256 of the staged copy", expected, found });
    }
    Ok(path)
}

/// Hash of `bytes` in lower-case hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn io_error(name: &str, what: &'static str, path: &Path, error: &std::io::Error) -> LoadError {
    LoadError::Io { name: name.to_owned(), what, path: path.to_owned(), error: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_copy_that_was_changed_is_never_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let bytes = b"the bytes that were checked".to_vec();
        let checked = Checked { sha256: sha256_hex(&bytes), bytes, sidecar: None, signer: None };
        let path = put("moe/x", dir.path(), &checked).expect("staged");
        assert_eq!(
            path.file_name().and_then(|n| n.to_str()),
            Some(format!("{}.so", checked.sha256).as_str())
        );
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o500);
        put("moe/x", dir.path(), &checked).expect("staged again");

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("chmod");
        std::fs::write(&path, b"other bytes").expect("written");
        let error = put("moe/x", dir.path(), &checked).expect_err("refused");
        assert_eq!(error.code(), 102);
        let text = error.to_string();
        assert!(text.contains(&checked.sha256) && text.contains(&sha256_hex(b"other bytes")), "{text}");
    }
}
