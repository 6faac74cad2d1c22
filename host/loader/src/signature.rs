//! Signatures of sidecars: ed25519 over the sidecar's bytes, which hold the hash of the plugin file.
//!
//! Keys and signatures are files of one line, so that they can be read, copied and compared by eye:
//! `hotseam-ed25519:<64 hex>` for a public key, `hotseam-ed25519-secret:<64 hex>` for a secret one,
//! `ed25519 <key id> <128 hex>` for a signature. The id of a key is the start of the hash of its bytes.

use crate::stage::sha256_hex;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

const PUBLIC: &str = "hotseam-ed25519:";
const SECRET: &str = "hotseam-ed25519-secret:";
const SCHEME: &str = "ed25519";
/// Stands before what is signed, so that a signature made for something else never fits a sidecar.
const CONTEXT: &[u8] = b"hotseam plugin sidecar 1\n";
/// Hexadecimal digits of an id.
const ID: usize = 16;

/// A key file that cannot be used.
#[derive(Debug, Error)]
#[error("{path}: {what}. {next}", path = path.display())]
pub struct KeyError {
    path: PathBuf,
    what: String,
    next: String,
}

/// A key whose signatures can be checked.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

/// A key that signs.
pub struct SecretKey(SigningKey);

impl PublicKey {
    /// Reads the file of a public key.
    ///
    /// # Errors
    /// [`KeyError`] if it cannot be read, holds something else, or is a key that any signature fits.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let bytes = read(path, PUBLIC, "Write it with `hotseam plugin sign --new-key`.")?;
        let key = VerifyingKey::from_bytes(&bytes).ok().filter(|key| !key.is_weak());
        key.map(Self)
            .ok_or_else(|| error(path, "no ed25519 public key, or a weak one".into(), "Make a new pair."))
    }

    /// Short name of the key, in signatures and messages.
    pub fn id(&self) -> String {
        sha256_hex(self.0.as_bytes())[..ID].to_owned()
    }

    /// The line of its file.
    pub fn line(&self) -> String {
        format!("{PUBLIC}{}\n", hex(self.0.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.id())
    }
}

impl SecretKey {
    /// Reads the file of a secret key, which nobody else may read.
    ///
    /// # Errors
    /// [`KeyError`] if it cannot be read, holds something else, or others may read it.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let mode = path.metadata().map_err(|e| error(path, e.to_string(), "Name a key file."))?.mode();
        if mode & 0o077 != 0 {
            let what = format!("a secret key must be its owner's alone, found mode {:04o}", mode & 0o7777);
            return Err(error(path, what, "Run chmod 600 on it, and think about a new key."));
        }
        read(path, SECRET, "Name the secret key, not the public one.")
            .map(|b| Self(SigningKey::from_bytes(&b)))
    }

    /// Makes a pair from the system's randomness: the secret key at `path` with mode 0600, the public one at
    /// `path.pub`. Existing files are never overwritten.
    ///
    /// # Errors
    /// [`KeyError`] if a file is there or cannot be written.
    pub fn create(path: &Path) -> Result<Self, KeyError> {
        let mut seed = [0; 32];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut seed))
            .map_err(|e| error(Path::new("/dev/urandom"), e.to_string(), "It is needed to make keys."))?;
        let key = Self(SigningKey::from_bytes(&seed));
        let write = |path: &Path, mode, line: String| {
            let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
            file.and_then(|mut file| file.write_all(line.as_bytes()))
                .map_err(|e| error(path, e.to_string(), "Keys are never overwritten: choose another name."))
        };
        write(path, 0o600, format!("{SECRET}{}\n", hex(&seed)))?;
        write(&public_path(path), 0o644, key.public().line())?;
        Ok(key)
    }

    /// Its other half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// The line of a signature file for the bytes of a sidecar.
    pub fn sign(&self, sidecar: &[u8]) -> String {
        let signature = self.0.sign(&[CONTEXT, sidecar].concat());
        format!("{SCHEME} {} {}\n", self.public().id(), hex(&signature.to_bytes()))
    }
}

/// Where the public half of the secret key at `path` is written.
pub fn public_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}

/// What a signature file says of a sidecar.
pub(crate) enum Verdict {
    /// Made by this trusted key.
    Good(String),
    /// Made by a key that is not trusted.
    Unknown(String),
    /// Made for other bytes, or no signature at all.
    Bad(String),
}

/// Checks the text of a signature file.
pub(crate) fn verify(text: &str, sidecar: &[u8], keys: &[PublicKey]) -> Verdict {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [SCHEME, id, digits] = words[..] else {
        return Verdict::Bad("expected `ed25519 KEY-ID SIGNATURE`, found something else".to_owned());
    };
    let Some(bytes) = unhex::<64>(digits) else {
        return Verdict::Bad(format!("expected 128 hexadecimal digits, found {}", digits.len()));
    };
    let Some(key) = keys.iter().find(|key| key.id() == id) else {
        return Verdict::Unknown(id.to_owned());
    };
    let message = [CONTEXT, sidecar].concat();
    match key.0.verify_strict(&message, &Signature::from_bytes(&bytes)) {
        Ok(()) => Verdict::Good(id.to_owned()),
        Err(_) => Verdict::Bad(format!("the signature by key {id} does not fit the sidecar")),
    }
}

fn read(path: &Path, prefix: &str, next: &str) -> Result<[u8; 32], KeyError> {
    let text = std::fs::read_to_string(path).map_err(|e| error(path, e.to_string(), next))?;
    text.trim()
        .strip_prefix(prefix)
        .and_then(unhex)
        .ok_or_else(|| error(path, format!("expected one line `{prefix}` and 64 hexadecimal digits"), next))
}

fn error(path: &Path, what: String, next: &str) -> KeyError {
    KeyError { path: path.to_owned(), what, next: next.to_owned() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    if digits.len() != 2 * N || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_fits_its_bytes_and_its_key_only() {
        let (key, other) =
            (SecretKey(SigningKey::from_bytes(&[7; 32])), SecretKey(SigningKey::from_bytes(&[8; 32])));
        let line = key.sign(b"size: 1\n");
        let trusted = [key.public()];
        assert!(
            matches!(verify(&line, b"size: 1\n", &trusted), Verdict::Good(id) if id == key.public().id())
        );
        assert!(matches!(verify(&line, b"size: 2\n", &trusted), Verdict::Bad(_)));
        assert!(matches!(verify(&line, b"size: 1\n", &[other.public()]), Verdict::Unknown(_)));
        // The id of one key with the signature of another.
        let forged = other.sign(b"size: 1\n").replace(&other.public().id(), &key.public().id());
        assert!(matches!(verify(&forged, b"size: 1\n", &trusted), Verdict::Bad(_)));
        // Every digit counts.
        for at in (line.len() - 129..line.len() - 1).step_by(13) {
            let mut spoilt = line.clone().into_bytes();
            spoilt[at] = if spoilt[at] == b'0' { b'1' } else { b'0' };
            let spoilt = String::from_utf8(spoilt).expect("ASCII");
            assert!(matches!(verify(&spoilt, b"size: 1\n", &trusted), Verdict::Bad(_)), "digit {at}");
        }
        for text in ["", "ed25519", "rsa a b", "ed25519 x zz", "ed25519 a b c"] {
            assert!(matches!(verify(text, b"", &trusted), Verdict::Bad(_)), "{text}");
        }
    }

    #[test]
    fn pairs_are_written_once_and_read_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let key = SecretKey::create(&path).expect("written");
        let public = PublicKey::read(&public_path(&path)).expect("read");
        assert_eq!(public, SecretKey::read(&path).expect("read").public());
        assert_eq!(public, key.public());
        assert!(SecretKey::create(&path).is_err_and(|e| e.to_string().contains("never overwritten")));
        assert!(SecretKey::read(&public_path(&path)).is_err(), "the public key signs nothing");
        assert!(PublicKey::read(&path).is_err_and(|e| e.to_string().contains("hotseam-ed25519:")));
        std::fs::write(public_path(&path), format!("{PUBLIC}{}\n", "0".repeat(64))).expect("written");
        assert!(PublicKey::read(&public_path(&path)).is_err_and(|e| e.to_string().contains("weak")));
    }

    #[test]
    fn a_secret_key_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        SecretKey::create(&path).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("chmod");
        assert!(SecretKey::read(&path).is_err_and(|e| e.to_string().contains("found mode 0640")));
    }
}
