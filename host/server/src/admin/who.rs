//! Who asks: the user at the other end of the unix socket, or the holder of a token.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use warp::http::header::AUTHORIZATION;
use warp::http::{HeaderMap, StatusCode};

use super::socket::user;
use crate::error::ApiError;

/// Characters of a token, at least.
const LEAST: usize = 16;
/// Bytes of a token file, at most.
const MOST: u64 = 4096;

/// Who asked for something, as the audit log names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// A process at the other end of the unix socket.
    Unix {
        /// Its user.
        uid: u32,
        /// Its number, where the system tells.
        pid: Option<i32>,
    },
    /// The holder of a token.
    Token(String),
    /// Somebody who sent this process a signal.
    Signal(&'static str),
}

impl fmt::Display for Who {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { uid, pid: Some(pid) } => write!(out, "uid {uid} pid {pid}"),
            Self::Unix { uid, pid: None } => write!(out, "uid {uid}"),
            Self::Token(name) => write!(out, "token {name}"),
            Self::Signal(name) => write!(out, "signal {name}"),
        }
    }
}

/// The tokens of the loopback listener.
#[derive(Default)]
pub struct Tokens(Vec<(String, String)>);

impl fmt::Debug for Tokens {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Tokens {
    /// Reads token files, each under the name that the audit log gives its users.
    ///
    /// # Errors
    /// Text that names the file: it is a link, not this user's, open to others, or holds no fit token, or that of another
    /// name.
    pub fn read<'a>(files: impl IntoIterator<Item = (&'a String, &'a PathBuf)>) -> Result<Self, String> {
        let mut tokens = Self::default();
        for (name, path) in files {
            let token = token(path).map_err(|what| format!("token `{name}`, {}: {what}", path.display()))?;
            if let Some((other, _)) = tokens.0.iter().find(|(_, known)| *known == token) {
                let path = path.display();
                return Err(format!(
                    "token `{name}`, {path}: it is that of `{other}`; make one for each name"
                ));
            }
            tokens.0.push((name.clone(), token));
        }
        Ok(tokens)
    }

    /// Whose token a request carries.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<Who, ApiError> {
        let refuse = |message: &str| Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message));
        let Some(value) = headers.get(AUTHORIZATION) else {
            return refuse("the admin endpoints want `Authorization: Bearer TOKEN`; this request has none");
        };
        let shown = value.as_bytes();
        let scheme = shown.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
        let given = if scheme { shown[7..].trim_ascii() } else { b"" };
        // Every token is compared, and each in full, so that the time tells nothing.
        let mut found = None;
        for (name, token) in &self.0 {
            if same(given, token.as_bytes()) {
                found = Some(Who::Token(name.clone()));
            }
        }
        found.map_or_else(|| refuse("the token is not one of this server's"), Ok)
    }
}

/// Whether two texts are equal, in a time that depends on their lengths only.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |seen, (a, b)| std::hint::black_box(seen | (a ^ b)));
    a.len() == b.len() && differences == 0
}

/// Reads one token file.
fn token(path: &Path) -> Result<String, String> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => "it is a symbolic link; name the file itself".to_owned(),
        _ => error.to_string(),
    })?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let (mode, owner) = (metadata.mode() & 0o777, metadata.uid());
    if !metadata.is_file() {
        return Err("it is no regular file".to_owned());
    }
    if owner != user() {
        return Err(format!("it belongs to user {owner}, expected {}", user()));
    }
    if mode & 0o077 != 0 {
        return Err(format!("it has mode {mode:04o}, expected 0600: others could read it; chmod 600 it"));
    }
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let token = text.trim();
    // Of a longer file only a part has been read.
    let whole = metadata.len() <= MOST;
    let fit = whole && token.len() >= LEAST && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !fit {
        return Err(format!(
            "expected one token of {LEAST} to {MOST} printable characters; make one with: openssl rand -hex 32"
        ));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn file(dir: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn read(path: &Path) -> Result<Tokens, String> {
        Tokens::read([(&"ops".to_owned(), &path.to_owned())])
    }

    #[test]
    fn token_files_are_private_and_fit() {
        let dir = std::env::temp_dir().join(format!("hotseam-tokens-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let good = file(&dir, "good", &format!("{TOKEN}\n"), 0o600);
        assert_eq!(read(&good).unwrap().0, [("ops".to_owned(), TOKEN.to_owned())]);
        let link = dir.join("link");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&good, &link).unwrap();
        for (path, part) in [
            (file(&dir, "open", TOKEN, 0o640), "mode 0640, expected 0600"),
            (file(&dir, "short", "secret", 0o600), "16 to 4096 printable"),
            (file(&dir, "two", &format!("{TOKEN} {TOKEN}"), 0o600), "expected one token"),
            (file(&dir, "long", &"x".repeat(10_000), 0o600), "expected one token"),
            (dir.join("missing"), "No such file"),
            (link, "symbolic link"),
            (dir.clone(), "no regular file"),
        ] {
            let error = read(&path).unwrap_err();
            assert!(error.contains(part) && error.starts_with("token `ops`"), "{error}");
            assert!(!error.contains(TOKEN));
        }
        let (a, b) = ("a".to_owned(), "b".to_owned());
        let error = Tokens::read([(&a, &good), (&b, &good)]).unwrap_err();
        assert!(error.contains("it is that of `a`"), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn only_a_whole_token_is_one() {
        let tokens = Tokens(vec![("ci".to_owned(), "f".repeat(32)), ("ops".to_owned(), TOKEN.to_owned())]);
        let ask = |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            tokens.check(&headers).map_err(|error| error.status)
        };
        assert_eq!(ask(&format!("Bearer {TOKEN}")), Ok(Who::Token("ops".to_owned())));
        assert_eq!(ask(&format!("bearer  {TOKEN} ")), Ok(Who::Token("ops".to_owned())));
        for wrong in [
            String::new(),
            "Bearer".to_owned(),
            "Bearer ".to_owned(),
            TOKEN.to_owned(),
            format!("Basic {TOKEN}"),
            format!("Bearer {}", &TOKEN[1..]),
            format!("Bearer {TOKEN}0"),
            format!("Bearer {}", TOKEN.to_uppercase()),
        ] {
            assert_eq!(ask(&wrong), Err(StatusCode::UNAUTHORIZED), "{wrong}");
        }
        assert_eq!(tokens.check(&HeaderMap::new()).unwrap_err().status, StatusCode::UNAUTHORIZED);
        // No token is none, not the empty one.
        assert!(Tokens::default().check(&HeaderMap::new()).is_err());
        assert!(!format!("{tokens:?}").contains(TOKEN));
    }
}
