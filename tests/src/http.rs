//! A running `hotseam serve` and a small HTTP client, for tests over the wire.

use crate::{plugins, root};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// In a server's directory.
const SOCKET: &str = "admin.sock";
/// In a server's directory.
const STDERR: &str = "stderr.log";

/// A server process on a free port of the loopback; it is ended when dropped.
pub struct Server {
    process: Child,
    /// `127.0.0.1:port`.
    pub address: String,
    /// Path of its admin socket.
    pub admin: PathBuf,
    config: PathBuf,
    overrides: Vec<String>,
    dir: tempfile::TempDir,
}

/// An answer.
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Body as text.
    pub body: String,
}

impl Answer {
    /// Body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.body))
    }
}

/// The built command.
pub fn hotseam() -> Command {
    Command::new(plugins().join("hotseam"))
}

impl Server {
    /// Serves `configs/quickstart.yaml` with `overrides`, and waits until it is ready.
    pub fn start(overrides: &[&str]) -> Self {
        Self::serve(&root().join("configs/quickstart.yaml"), overrides)
    }

    /// Serves a configuration with `overrides`, and waits until it is ready. Its state is in a directory of its own.
    pub fn serve(config: &Path, overrides: &[&str]) -> Self {
        // The server refuses an admin socket in a directory that others can enter.
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(private).tempdir().expect("a temporary directory");
        let overrides = overrides.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>();
        let (process, address) = spawn(config, &overrides, dir.path());
        let admin = dir.path().join(SOCKET);
        Self { process, address, admin, config: config.to_owned(), overrides, dir }
    }

    /// Ends the process with SIGKILL and starts another like it in the same directory.
    pub fn killed_and_started_again(mut self) -> Self {
        self.kill();
        (self.process, self.address) = spawn(&self.config, &self.overrides, self.dir.path());
        self
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// What it and those before it in its directory have said on stderr.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.dir.path().join(STDERR)).expect("its stderr")
    }

    fn open(&self, method: &str, path: &str, body: Option<&str>) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
        send(&mut stream, method, path, "", body.unwrap_or_default());
        stream
    }

    /// Asks and waits for the whole answer.
    pub fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Answer {
        answer(self.open(method, path, body))
    }

    /// Asks the admin socket and waits for the whole answer.
    pub fn admin(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut stream = UnixStream::connect(&self.admin).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
        send(&mut stream, method, path, "", body);
        answer(stream)
    }

    /// The directory of its state.
    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Sends it a signal, such as `HUP`.
    pub fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{name} {pid}");
    }

    /// Posts JSON.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, Some(&body.to_string()))
    }

    /// Posts JSON and leaves after the first bytes of the answer.
    pub fn post_and_leave(&self, path: &str, body: &Value) {
        let mut stream = self.open("POST", path, Some(&body.to_string()));
        let mut first = [0; 64];
        let _ = stream.read(&mut first).expect("the start of an answer");
    }

    /// Runs the command against this server's admin socket; returns (exit code, stdout, stderr).
    pub fn command(&self, args: &[&str]) -> (i32, String, String) {
        run(hotseam().args(args).arg("--admin").arg(&self.admin))
    }

    /// Asks the server to end and waits; returns the exit code.
    pub fn stop(mut self) -> Option<i32> {
        self.signal("TERM");
        self.process.wait().expect("an exit").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server and waits until it is ready; returns it and its address.
fn spawn(config: &Path, overrides: &[String], dir: &Path) -> (Child, String) {
    let mut command = hotseam();
    command.args(["serve", "-c"]).arg(config);
    command.args(["--set", "server.listen=127.0.0.1:0", "--set"]);
    command.arg(format!("server.admin={}", dir.join(SOCKET).display())).arg("--set");
    command.arg(format!("plugins.state_dir={}", dir.join("state").display()));
    command.args(overrides.iter().flat_map(|o| ["--set", o]));
    let stderr = File::options().create(true).append(true).open(dir.join(STDERR)).expect("a log");
    let mut process = command.stdout(Stdio::piped()).stderr(stderr).spawn().expect("target/release/hotseam");
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().expect("piped")).read_line(&mut line).expect("its address");
    let address = line.trim().trim_start_matches("http://").to_owned();
    let said = || std::fs::read_to_string(dir.join(STDERR)).unwrap_or_default();
    assert!(!address.is_empty(), "the server ended before it served: {}", said());
    (process, address)
}

/// Runs a command to its end; returns (exit code, stdout, stderr).
pub fn run(command: &mut Command) -> (i32, String, String) {
    let out = command.stdin(Stdio::null()).output().expect("target/release/hotseam");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (out.status.code().unwrap_or(-1), text(out.stdout), text(out.stderr))
}

/// Sends a request; `headers` are whole lines.
///
/// # Panics
/// If the other side takes nothing more.
pub fn send(stream: &mut impl Write, method: &str, path: &str, headers: &str, body: &str) {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body.as_bytes()))
        .expect("a sent request");
}

/// Reads an answer to its end.
///
/// # Panics
/// If it is none.
pub fn answer(mut stream: impl Read) -> Answer {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).expect("an answer");
    let text = String::from_utf8(text).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    let body = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        true => dechunk(body),
        false => body.to_owned(),
    };
    Answer { status, body }
}

fn dechunk(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).expect("a chunk size");
        if size == 0 {
            break;
        }
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    out
}
