//! Checks a plugin file without running its code, and stages a copy named by its content.

use crate::error::LoadError;
use crate::loader::Policy;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The bytes of a plugin file that passed the checks, and their hash.
pub(crate) struct Checked {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sha256: String,
}

/// Reads `path` if it lies below one of `dirs` and its type, owner and mode are allowed. All checks are made on the
/// descriptor that is then read, so the file cannot be exchanged between check and use.
pub(crate) fn read_checked(
    name: &str,
    path: &Path,
    dirs: &[PathBuf],
    policy: Policy,
) -> Result<Checked, LoadError> {
    let io = |what, e: std::io::Error| io_error(name, what, path, &e);
    let refuse = |rule: &str, found: String, next: &str| LoadError::Path {
        name: name.to_owned(),
        path: path.to_owned(),
        rule: rule.to_owned(),
        found,
        next: next.to_owned(),
    };

    if path.symlink_metadata().map_err(|e| io("look at", e))?.is_symlink() {
        let target = path.read_link().map(|t| t.display().to_string()).unwrap_or_default();
        return Err(refuse(
            "a plugin must not be a symbolic link",
            format!("a link to {target}"),
            "Copy the file, or name its real path.",
        ));
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = parent.canonicalize().map_err(|e| io("resolve the directory of", e))?;
    if !dirs.iter().filter_map(|d| d.canonicalize().ok()).any(|d| parent.starts_with(d)) {
        let allowed = dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", ");
        return Err(refuse(
            &format!("a plugin must lie in a plugin directory ({allowed})"),
            parent.display().to_string(),
            "Move the file, or add its directory to `plugins.dirs`.",
        ));
    }

    // O_NONBLOCK: a FIFO must not hang the open; it has no effect on regular files.
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .map_err(|e| io("open", e))?;
    let meta = file.metadata().map_err(|e| io("look at", e))?;
    if !meta.is_file() {
        return Err(refuse(
            "a plugin must be a regular file",
            format!("{:?}", meta.file_type()),
            "Name a file.",
        ));
    }
    // SAFETY: geteuid has no preconditions and cannot fail.
    let me = unsafe { libc::geteuid() };
    if meta.uid() != 0 && meta.uid() != me {
        let rule = format!("the owner must be root or user {me}");
        return Err(refuse(&rule, format!("user {}", meta.uid()), "Change the owner with chown."));
    }
    let (forbidden, rule) = if policy.strict {
        (0o022, "the file must not be writable by group or others (strict policy)")
    } else {
        (0o002, "the file must not be writable by others")
    };
    if meta.mode() & forbidden != 0 {
        let next = if policy.strict { "Run chmod go-w on it." } else { "Run chmod o-w on it." };
        return Err(refuse(rule, format!("mode {:04o}", meta.mode() & 0o7777), next));
    }

    let mut bytes = Vec::with_capacity(meta.len() as usize);
    file.read_to_end(&mut bytes).map_err(|e| io("read", e))?;
    let sha256 = sha256_hex(&bytes);
    Ok(Checked { bytes, sha256 })
}

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
        return Err(LoadError::Hash { name, path, expected, found });
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
