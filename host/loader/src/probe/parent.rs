//! The side of the probe that must not die.

use super::{Message, Probe, Request, Verdict};
use crate::error::LoadError;
use crate::report;
use crate::stage::io_error;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Bytes of stderr that are kept, from the end.
const TAIL: usize = 64 << 10;
/// Between two looks at a running child.
const TICK: Duration = Duration::from_millis(2);
/// For the last bytes of a child that has ended. They come at once, unless the machine is very busy or something that the
/// plugin started holds the pipe.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// What is probed.
#[derive(Clone, Copy)]
pub(crate) struct Suspect<'a> {
    pub(crate) name: &'a str,
    pub(crate) path: &'a Path,
    pub(crate) staged: &'a Path,
    pub(crate) sha256: &'a str,
}

/// Why there is no verdict.
pub(crate) enum Failed {
    /// The child was taken down; the hash goes into quarantine.
    Crashed(String),
    /// The plugin was refused in an orderly way, or the probe itself does not work.
    Error(Box<LoadError>),
}

impl Probe {
    /// Runs the child on one staged file.
    pub(crate) fn run(&self, suspect: Suspect<'_>) -> Result<Verdict, Failed> {
        let started = Instant::now();
        let io = |what, e: std::io::Error| {
            Failed::Error(Box::new(io_error(suspect.name, what, &self.program, &e)))
        };
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|e| io("start the probe", e))?;
        let out = child.stdout.take().map(lines);
        let err = child.stderr.take().map(tail);
        let request = Request {
            name: suspect.name.to_owned(),
            path: suspect.path.to_owned(),
            staged: suspect.staged.to_owned(),
            sha256: suspect.sha256.to_owned(),
            seconds: self.timeout.as_secs().max(1),
            memory: self.memory,
        };
        // A child that is gone before it has read is seen by its exit status.
        let _ = child
            .stdin
            .take()
            .map(|mut stdin| stdin.write_all(&serde_json::to_vec(&request).unwrap_or_default()));

        let status = wait(&mut child, started + self.timeout);
        kill_group(&child);
        let status = match status {
            Some(status) => Some(status),
            None => {
                child.wait().map_err(|e| io("wait for the probe", e))?;
                None
            }
        };
        // Without its answer nothing is known about the plugin, so it is not to blame either.
        let said = out.and_then(|out| out.recv_timeout(LAST_WORDS).ok());
        let said =
            said.ok_or_else(|| io("read the answer of the probe", std::io::ErrorKind::TimedOut.into()))?;
        let stderr = err.and_then(|err| err.recv_timeout(LAST_WORDS).ok()).unwrap_or_default();

        let mut stage = "start".to_owned();
        for message in said {
            match message {
                Message::Stage(next) => stage = next,
                Message::Refused { code, message } => {
                    return Err(Failed::Error(Box::new(LoadError::Refused { code, message })));
                }
                Message::Verdict(verdict) => {
                    let milliseconds = started.elapsed().as_millis() as u64;
                    return Ok(Verdict { milliseconds, ..*verdict });
                }
            }
        }
        let what = match status {
            None => format!("did not end within {} s", self.timeout.as_secs_f64()),
            Some(status) => describe(status),
        };
        let stderr = report::ends_line(&without_frames(&stderr));
        let stderr = if stderr.is_empty() { "empty".to_owned() } else { format!("`{stderr}`") };
        Err(Failed::Crashed(format!("{what} in stage `{stage}`. stderr: {stderr}")))
    }
}

/// The exit status, or `None` after the deadline.
fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(TICK),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Kills the child and what it has started. That nothing is left is fine.
fn kill_group(child: &Child) {
    // SAFETY: the call takes numbers only; the group was made for this child.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by {}", signal_name(signal)),
        (None, Some(code)) => format!("ended without a verdict, with exit code {code},"),
        (None, None) => "ended without a verdict".to_owned(),
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGSYS => "SIGSYS",
        libc::SIGTERM => "SIGTERM",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        _ => return format!("signal {signal}"),
    };
    format!("{name} ({signal})")
}

/// The text without backtraces, which a panic that cannot unwind always prints, and without the advice to print them.
fn without_frames(text: &str) -> String {
    let frame = |line: &str| {
        let line = line.trim_start();
        let numbered = line.split_once(": ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        let head = ["at ", "stack backtrace:", "note: run with `RUST_BACKTRACE"];
        numbered || head.iter().any(|head| line.starts_with(head))
    };
    text.lines().filter(|line| !frame(line)).map(|line| format!("{line}\n")).collect()
}

/// Reads messages until the end, on a thread.
fn lines(out: impl Read + Send + 'static) -> Receiver<Vec<Message>> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(out).lines().map_while(Result::ok);
        let _ = send.send(lines.filter_map(|line| serde_json::from_str(&line).ok()).collect());
    });
    receive
}

/// Reads to the end and keeps the last bytes, on a thread.
fn tail(mut err: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let (mut kept, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = err.read(&mut piece) {
            kept.extend_from_slice(&piece[..n]);
            kept.drain(..kept.len().saturating_sub(TAIL));
        }
        let _ = send.send(String::from_utf8_lossy(&kept).into_owned());
    });
    receive
}
