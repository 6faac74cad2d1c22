//! Checks a plugin file, its sidecar and its signature without running any of its code.
//!
//! The directory is opened once, its real path is that of the descriptor, and all three files are opened below the
//! descriptor without following links. What is checked is read from the descriptors, so that neither a directory nor a
//! file can be exchanged between check and use; the bytes that were checked are the bytes that get staged.

use crate::error::LoadError;
use crate::machine;
use crate::policy::{Policy, Trust};
use crate::resolve::Resolved;
use crate::services;
use crate::sidecar::{ENDING, SIGNATURE_ENDING, Sidecar};
use crate::signature::{self, Verdict};
use crate::stage::{io_error, sha256_hex};
use hotseam_abi::{CONTRACT, seam};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a sidecar or signature, at most.
const SMALL: u64 = 1 << 20;
/// Bytes of a plugin file, at most.
const LARGE: u64 = 4 << 30;

/// The bytes of a plugin file that passed the checks, and their hash.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sha256: String,
    pub(crate) sidecar: Option<Sidecar>,
    /// Id of the trusted key that signed the sidecar.
    pub(crate) signer: Option<String>,
}

/// Whether sidecars count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sidecars {
    /// As the policy says.
    Check,
    /// They are about to be written anew.
    Ignore,
}

/// Reads the file that `name` was resolved to, if everything that can be known before its code runs is as `policy`
/// asks.
pub(crate) fn read(
    name: &str,
    found: &Resolved,
    dirs: &[PathBuf],
    policy: &Policy,
    sidecars: Sidecars,
) -> Result<Checked, LoadError> {
    let path = &found.path;
    let check = Check { name, path, policy };
    let file = path
        .file_name()
        .ok_or_else(|| check.refuse("a plugin must be a file", path.display(), "Name a file."))?;
    let dir = check.open_directory(dirs)?;
    let bytes = check
        .read(&dir, file, LARGE)?
        .ok_or_else(|| io_error(name, "open", path, &std::io::Error::from(ErrorKind::NotFound)))?;
    let sha256 = sha256_hex(&bytes);
    let (sidecar, signer) = match sidecars {
        Sidecars::Check => check.sidecar(&dir, file)?,
        Sidecars::Ignore => (None, None),
    };
    if let Some(sidecar) = &sidecar {
        check.fits(sidecar, file, &bytes, &sha256)?;
        check.can_be_used(sidecar, found.by_path)?;
    }
    Ok(Checked { bytes, sha256, sidecar, signer })
}

/// The file `file` with `ending` behind its name.
fn with(file: &OsStr, ending: &str) -> OsString {
    let mut name = file.to_owned();
    name.push(ending);
    name
}

struct Check<'a> {
    name: &'a str,
    path: &'a Path,
    policy: &'a Policy,
}

impl Check<'_> {
    fn refuse(&self, rule: &str, found: impl ToString, next: &str) -> LoadError {
        LoadError::Path {
            name: self.name.to_owned(),
            path: self.path.to_owned(),
            rule: rule.to_owned(),
            found: found.to_string(),
            next: next.to_owned(),
        }
    }

    /// Opens the directory of the file, which must lie below one of `dirs` and be nobody else's to change.
    fn open_directory(&self, dirs: &[PathBuf]) -> Result<OwnedFd, LoadError> {
        let io = |what, e: std::io::Error| io_error(self.name, what, self.path, &e);
        let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
            .open(parent)
            .map_err(|e| io("open the directory of", e))?;
        let real = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))
            .map_err(|e| io("resolve the directory of", e))?;
        if !dirs.iter().filter_map(|d| d.canonicalize().ok()).any(|d| real.starts_with(d)) {
            let allowed = dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(", ");
            return Err(self.refuse(
                &format!("a plugin must lie in a plugin directory ({allowed})"),
                real.display(),
                "Move the file, or add its directory to `plugins.dirs`.",
            ));
        }
        let meta = dir.metadata().map_err(|e| io("look at the directory of", e))?;
        // In a sticky directory nobody exchanges a file of somebody else.
        if meta.mode() & libc::S_ISVTX == 0 {
            self.owned(&meta, "its directory")?;
        }
        Ok(dir.into())
    }

    /// Refuses what others may change.
    fn owned(&self, meta: &Metadata, what: &str) -> Result<(), LoadError> {
        // SAFETY: geteuid has no preconditions and cannot fail.
        let me = unsafe { libc::geteuid() };
        if meta.uid() != 0 && meta.uid() != me {
            let rule = format!("the owner of {what} must be root or user {me}");
            return Err(self.refuse(&rule, format!("user {}", meta.uid()), "Change the owner with chown."));
        }
        let (forbidden, rule, next) = if self.policy.strict {
            (
                0o022,
                "must not be writable by group or others under the policies `manifest` and `signed`",
                "Run chmod go-w on it.",
            )
        } else {
            (0o002, "must not be writable by others", "Run chmod o-w on it.")
        };
        if meta.mode() & forbidden != 0 {
            let found = format!("mode {:04o}", meta.mode() & 0o7777);
            return Err(self.refuse(&format!("{what} {rule}"), found, next));
        }
        Ok(())
    }

    /// Reads `file` in `dir` after checks of its type, owner and mode; `None` if there is no such file.
    fn read(&self, dir: &OwnedFd, file: &OsStr, limit: u64) -> Result<Option<Vec<u8>>, LoadError> {
        let path = self.path.with_file_name(file);
        let io = |what, e: std::io::Error| io_error(self.name, what, &path, &e);
        let here = Check { path: &path, ..*self };
        let mut opened = match open_below(dir, file) {
            Ok(opened) => opened,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
                let target = path.read_link().map(|t| t.display().to_string()).unwrap_or_default();
                return Err(here.refuse(
                    "a file of a plugin must not be a symbolic link",
                    format!("a link to {target}"),
                    "Copy the file, or name its real path.",
                ));
            }
            Err(e) => return Err(io("open", e)),
        };
        let meta = opened.metadata().map_err(|e| io("look at", e))?;
        if !meta.is_file() {
            return Err(here.refuse(
                "a plugin must be a regular file",
                format!("{:?}", meta.file_type()),
                "Name a file.",
            ));
        }
        here.owned(&meta, "the file")?;
        if meta.len() > limit {
            let rule = format!("the file must have at most {limit} bytes");
            return Err(here.refuse(&rule, format!("{} bytes", meta.len()), "Look at what it is."));
        }
        let mut bytes = Vec::with_capacity(meta.len() as usize);
        (&mut opened).take(limit).read_to_end(&mut bytes).map_err(|e| io("read", e))?;
        Ok(Some(bytes))
    }

    /// The sidecar, its signature checked as the policy asks, and the key that signed it.
    fn sidecar(&self, dir: &OwnedFd, file: &OsStr) -> Result<(Option<Sidecar>, Option<String>), LoadError> {
        let file = with(file, ENDING);
        let path = self.path.with_file_name(&file);
        let Some(bytes) = self.read(dir, &file, SMALL)? else {
            if self.policy.trust == Trust::Open {
                return Ok((None, None));
            }
            return Err(LoadError::Sidecar {
                name: self.name.to_owned(),
                place: path.display().to_string(),
                what: format!("there is no such sidecar, and the policy is `{}`", self.policy.trust.name()),
                hint: "Write it with `hotseam plugin sign`.".to_owned(),
            });
        };
        let signer = self.signature(dir, &file, &bytes)?;
        let text = String::from_utf8(bytes).map_err(|e| LoadError::Sidecar {
            name: self.name.to_owned(),
            place: path.display().to_string(),
            what: format!("expected UTF-8, found byte {:#04x}", e.as_bytes()[e.utf8_error().valid_up_to()]),
            hint: "Write it with `hotseam plugin sign`.".to_owned(),
        })?;
        Ok((Some(Sidecar::parse(self.name, &path, &text)?), signer))
    }

    /// Checks the signature beside the sidecar `file`; the id of the trusted key that made it.
    fn signature(&self, dir: &OwnedFd, file: &OsStr, sidecar: &[u8]) -> Result<Option<String>, LoadError> {
        let file = with(file, SIGNATURE_ENDING);
        let needed = self.policy.trust == Trust::Signed;
        let error = |what: String, next: &str| LoadError::Signature {
            name: self.name.to_owned(),
            path: self.path.with_file_name(&file),
            what: format!("{what}. policy {}", self.policy.words()),
            next: next.to_owned(),
        };
        let verdict = self
            .read(dir, &file, SMALL)?
            .map(|bytes| signature::verify(&String::from_utf8_lossy(&bytes), sidecar, &self.policy.keys));
        match verdict {
            Some(Verdict::Good(id)) => Ok(Some(id)),
            Some(Verdict::Bad(what)) => Err(error(
                what,
                "Sign the file you mean with `hotseam plugin sign`, or remove what is not yours.",
            )),
            Some(Verdict::Unknown(id)) if needed => Err(error(
                format!("signed by key {id}, which is not trusted"),
                "Add its public key to `plugins.keys` if you trust it.",
            )),
            None if needed => {
                Err(error("there is no signature".to_owned(), "Sign it with `hotseam plugin sign --key`."))
            }
            Some(Verdict::Unknown(_)) | None => Ok(None),
        }
    }

    /// The sidecar is that of these bytes.
    fn fits(&self, sidecar: &Sidecar, file: &OsStr, bytes: &[u8], sha256: &str) -> Result<(), LoadError> {
        let size = bytes.len().to_string();
        let file = file.to_string_lossy();
        let facts = [
            ("the library's name", sidecar.file_name.as_str(), file.as_ref()),
            ("the sha256", &sidecar.sha256, sha256),
            ("the size in bytes", &sidecar.size.to_string(), &size),
        ];
        for (what, expected, found) in facts {
            if expected != found {
                return Err(LoadError::Hash {
                    name: self.name.to_owned(),
                    path: self.path.to_owned(),
                    what,
                    expected: expected.to_owned(),
                    found: found.to_owned(),
                });
            }
        }
        Ok(())
    }

    /// What the sidecar says can be loaded by this host, on this machine, under this name.
    fn can_be_used(&self, sidecar: &Sidecar, by_path: bool) -> Result<(), LoadError> {
        let (name, mirror) = (self.name.to_owned(), &sidecar.mirror);
        if mirror.contract != CONTRACT {
            let (expected, found) = (CONTRACT, mirror.contract);
            return Err(LoadError::Contract { name, path: self.path.to_owned(), expected, found });
        }
        if mirror.host_services > services::VERSION {
            let (expected, found) = (services::VERSION, mirror.host_services);
            return Err(LoadError::HostServices { name, expected, found });
        }
        let asked = self.name.split('/').next().unwrap_or_default();
        if !by_path && seam::NAMES.contains(&asked) && asked != mirror.kind {
            let next = "Ask for it by the seam that it serves.".to_owned();
            return Err(LoadError::Seam {
                name,
                expected: asked.to_owned(),
                found: mirror.kind.clone(),
                next,
            });
        }
        if !by_path {
            mirror.check_name(self.name, self.path)?;
        }
        machine::check(self.name, self.path, &mirror.manifest.requires)
    }
}

/// Opens `file` in `dir` for reading, if it is not a symbolic link. O_NONBLOCK: a FIFO must not hang the open; it has no
/// effect on regular files.
fn open_below(dir: &OwnedFd, file: &OsStr) -> std::io::Result<File> {
    let file = CString::new(file.as_bytes())?;
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the descriptor is open and the name ends in a null.
    let fd = unsafe { libc::openat(dir.as_raw_fd(), file.as_ptr(), flags) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened and belongs to nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}
