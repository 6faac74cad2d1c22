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
/// In a server's directory.
const TEMPORARY: &str = "tmp";

/// A server process on a free port of the loopback; it is ended when dropped.
pub struct Server {
    process: Child,
    /// `127.0.0.1:port`.
    pub address: String,
    /// Path of its admin socket.
    pub admin: PathBuf,
    config: PathBuf,
    overrides: Vec<String>,
    variables: Vec<(String, String)>,
    dir: tempfile::TempDir,
}

/// An answer.
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Body as text.
    pub body: String,
}

/// What came of a request whose other side may be gone at any moment.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Body as text, as far as it came.
    pub body: String,
    /// Whether all of it came, by its length or its last chunk.
    pub whole: bool,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { status: answer.status, body: answer.body, whole: true }
    }
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
        Self::serve_in(config, overrides, &[])
    }

    /// As [`Server::serve`], with more variables of the environment.
    pub fn serve_in(config: &Path, overrides: &[&str], variables: &[(&str, &str)]) -> Self {
        // The server refuses an admin socket in a directory that others can enter.
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(private).tempdir().expect("a temporary directory");
        let overrides = overrides.iter().map(|o| (*o).to_owned()).collect::<Vec<_>>();
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
        let (process, address) = spawn(config, &overrides, &variables, dir.path());
        let admin = dir.path().join(SOCKET);
        Self { process, address, admin, config: config.to_owned(), overrides, variables, dir }
    }

    /// Ends the process with SIGKILL and starts another like it in the same directory.
    pub fn killed_and_started_again(mut self) -> Self {
        self.kill();
        self.start_again();
        self
    }

    /// Ends the process with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts another process like it, of which nothing is left but its directory.
    pub fn start_again(&mut self) {
        (self.process, self.address) = spawn(&self.config, &self.overrides, &self.variables, self.dir.path());
    }

    /// Number of the process.
    pub fn pid(&self) -> u32 {
        self.process.id()
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

    /// Where it makes temporary files.
    pub fn temporary(&self) -> PathBuf {
        self.dir.path().join(TEMPORARY)
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
fn spawn(config: &Path, overrides: &[String], variables: &[(String, String)], dir: &Path) -> (Child, String) {
    let mut command = hotseam();
    command.envs(variables.iter().map(|(k, v)| (k, v)));
    std::fs::create_dir_all(dir.join(TEMPORARY)).expect("a directory");
    command.args(["serve", "-c"]).arg(config).env("TMPDIR", dir.join(TEMPORARY));
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
    try_send(stream, method, path, headers, body).expect("a sent request");
}

/// As [`send`].
///
/// # Errors
/// If the other side takes nothing more.
pub fn try_send(
    stream: &mut impl Write,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> std::io::Result<()> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads an answer to its end.
///
/// # Panics
/// If it is none.
pub fn answer(stream: impl Read) -> Answer {
    let reply = reply(stream).expect("an answer");
    Answer { status: reply.status, body: reply.body }
}

/// Reads what comes of an answer, each part of it within the time-out of the stream; `None` if not even its head came.
pub fn reply(mut stream: impl Read) -> Option<Reply> {
    let (mut bytes, mut block) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = stream.read(&mut block) {
        bytes.extend_from_slice(&block[..n]);
    }
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?.to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = &bytes[end + 4..];
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let (body, whole) = match head.contains("transfer-encoding: chunked") {
        true => dechunk(body),
        false => (body.to_vec(), length.is_none_or(|length: usize| length == body.len())),
    };
    Some(Reply { status, body: String::from_utf8_lossy(&body).into_owned(), whole })
}

/// Joins chunks; whether the last of them came.
fn dechunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut out = Vec::new();
    while let Some(line) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&rest[..line]).ok();
        let Some(size) = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok()) else { break };
        if size == 0 {
            return (out, true);
        }
        rest = &rest[line + 2..];
        out.extend_from_slice(&rest[..size.min(rest.len())]);
        rest = rest.get(size + 2..).unwrap_or_default();
    }
    (out, false)
}
