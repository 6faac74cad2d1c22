//! The unix socket of the admin endpoints: for the user who runs the server, and for nobody else.

use std::fs::{DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hotseam_engine::Engine;
use tokio::net::UnixListener;

use crate::admin::actions::Admin;
use crate::admin::listen::{Door, connections};
use crate::server::ServerError;

/// Where the admin socket of the server on `port` is, if the configuration does not say:
/// `$XDG_RUNTIME_DIR/hotseam-<port>.sock`, or a directory of this user in the temporary directory.
pub fn default_admin_path(port: u16) -> PathBuf {
    let directory = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if Path::new(&directory).is_dir() => PathBuf::from(directory),
        _ => std::env::temp_dir().join(format!("hotseam-{}", user())),
    };
    directory.join(format!("hotseam-{port}.sock"))
}

/// A bound admin socket; its file is removed when this is dropped.
#[derive(Debug)]
pub struct AdminSocket {
    /// Taken when it begins to serve.
    listener: Option<UnixListener>,
    path: PathBuf,
}

impl AdminSocket {
    /// Makes the socket, mode 0600, in a directory that only this user can enter; the directory is made if it is
    /// missing. A socket left by a dead server is replaced. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ServerError::Admin`] naming the path: the directory is open to others, another server answers, or something
    /// that is no socket is in the way.
    pub fn bind(path: &Path) -> Result<Self, ServerError> {
        Self::try_bind(path).map_err(|message| ServerError::Admin { path: path.to_owned(), message })
    }

    fn try_bind(path: &Path) -> Result<Self, String> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        check_directory(directory)?;
        clear(path)?;
        let listener = UnixListener::bind(path).map_err(|error| error.to_string())?;
        let socket = Self { listener: Some(listener), path: path.to_owned() };
        // Nobody else could enter the directory between the two calls.
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(|error| error.to_string())?;
        Ok(socket)
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// As [`AdminSocket::serve`], without audit log and reload.
    pub async fn run(self, engine: Engine, model: String, shutdown: impl Future<Output = ()>) {
        self.serve(Arc::new(Admin::new(engine, model)), shutdown).await;
    }

    /// Serves the admin endpoints until `shutdown` resolves. An action that runs then has two seconds to end.
    pub async fn serve(mut self, admin: Arc<Admin>, shutdown: impl Future<Output = ()>) {
        let Some(listener) = self.listener.take() else { return };
        connections(&Door::Unix(listener), &admin, shutdown).await;
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        // The file may be gone already; there is nobody to tell.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Makes `directory` if it is missing, and refuses one that others can enter.
fn check_directory(directory: &Path) -> Result<(), String> {
    let shown = directory.display();
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(directory) {
        return Err(format!("its directory {shown} cannot be made: {error}"));
    }
    let metadata =
        std::fs::symlink_metadata(directory).map_err(|error| format!("its directory {shown}: {error}"))?;
    if metadata.is_symlink() {
        return Err(format!("its directory {shown} is a symbolic link; name the directory itself"));
    }
    if metadata.uid() != user() {
        let (expected, found) = (user(), metadata.uid());
        return Err(format!(
            "its directory {shown} belongs to user {found}, expected {expected}; choose another with --set server.admin=PATH"
        ));
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "its directory {shown} has mode {mode:04o}, expected 0700: others could reach the socket; chmod 700 it, \
             or choose another with --set server.admin=PATH"
        ));
    }
    Ok(())
}

/// Removes a socket that nobody listens on.
fn clear(path: &Path) -> Result<(), String> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !metadata.file_type().is_socket() {
        return Err("something that is not a socket is there; remove it or choose another path".to_owned());
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err("another server answers on it; stop that one or choose another path".to_owned());
    }
    std::fs::remove_file(path).map_err(|error| error.to_string())
}

/// The user that this process acts as.
pub(super) fn user() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fresh path for a directory of one test.
    fn fresh(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("hotseam-socket-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    fn refusal(path: &Path) -> String {
        AdminSocket::bind(path).expect_err("accepted").to_string()
    }

    #[tokio::test]
    async fn socket_and_directory_are_private() {
        let directory = fresh("private");
        let path = directory.join("a.sock");
        let socket = AdminSocket::bind(&path).expect("binds");
        let mode = |path: &Path| std::fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!((mode(&directory), mode(socket.path())), (0o700, 0o600));
        assert!(refusal(&path).contains("another server answers"));
        drop(socket);
        assert!(!path.exists());
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[tokio::test]
    async fn a_left_socket_is_replaced_and_other_files_are_not() {
        let directory = fresh("left");
        let path = directory.join("a.sock");
        let mut socket = AdminSocket::bind(&path).expect("binds");
        // A server that died does not remove its file.
        drop(socket.listener.take());
        std::mem::forget(socket);
        assert!(path.exists());
        drop(AdminSocket::bind(&path).expect("replaces"));
        std::fs::write(&path, "notes").expect("written");
        assert!(refusal(&path).contains("not a socket"));
        assert_eq!(std::fs::read_to_string(&path).expect("still there"), "notes");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[tokio::test]
    async fn an_open_directory_is_refused() {
        let directory = fresh("open");
        std::fs::create_dir(&directory).expect("made");
        std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("set");
        let message = refusal(&directory.join("a.sock"));
        assert!(message.contains("has mode 0755, expected 0700"), "{message}");
        // Who owns the link can turn it elsewhere.
        std::fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("set");
        let link = fresh("link");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&directory, &link).expect("made");
        assert!(refusal(&link.join("a.sock")).contains("symbolic link"));
        std::fs::remove_file(&link).expect("removed");
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
