//! The side of the probe that may die.

use super::{Conformance, Message, Request, Verdict};
use crate::error::LoadError;
use crate::open::Source;
use crate::plugin::Plugin;
use crate::root::ROOTS;
use crate::sidecar::Mirror;
use crate::{Instance, Options, Shape, open, services};
use hotseam_abi::seam;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;

/// Dimensions of entries that instances are made for.
const HEAD_DIM: u32 = 64;
const INDEX_HEAD_DIM: u32 = 32;
const ROPE_DIM: u32 = 16;
/// Threads of the child's pool.
const THREADS: usize = 2;
/// Bytes that the child may write to a file.
const FILE_BYTES: u64 = 16 << 20;

/// Answers one request of a probe on stdin: opens the plugin under limits, makes an instance with its default options and
/// has it judged. Returns the exit code: 0 if the request was answered, 2 if it was none.
///
/// `judge` runs the instance through cases; what it says is told, not acted upon.
pub fn answer(judge: impl FnOnce(&Instance) -> Conformance) -> u8 {
    let request: Request = match serde_json::from_reader(io::stdin().lock()) {
        Ok(request) => request,
        Err(error) => {
            let _ = writeln!(io::stderr(), "the probe reads one request of a host from stdin: {error}");
            return 2;
        }
    };
    let talk = match take_stdout().and_then(|out| limit(&request).map(|()| out)) {
        Ok(out) => RefCell::new(out),
        Err(error) => {
            let _ = writeln!(io::stderr(), "the probe cannot limit itself: {error}");
            return 2;
        }
    };
    let say = |message: &Message| {
        let mut out = talk.borrow_mut();
        // A host that is gone needs no answer.
        let _ = serde_json::to_writer(&mut *out, message)
            .map_err(io::Error::from)
            .and_then(|()| out.write_all(b"\n"));
    };
    let stage = |stage: &str| say(&Message::Stage(stage.to_owned()));
    let answer = match examine(&request, &stage, judge) {
        Ok(verdict) => Message::Verdict(Box::new(verdict)),
        Err(error) => Message::Refused { code: error.code(), message: error.to_string() },
    };
    stage("end");
    say(&answer);
    // Without the plugin's destructors: what it does at the end of a process is no part of serving.
    // SAFETY: _exit ends the process and returns nothing.
    unsafe { libc::_exit(0) }
}

fn examine(
    request: &Request,
    stage: &dyn Fn(&str),
    judge: impl FnOnce(&Instance) -> Conformance,
) -> Result<Verdict, LoadError> {
    services::init_threads(THREADS);
    let source = Source { name: &request.name, path: &request.path, staged: &request.staged, stage };
    let (entry, kind) = open::entry(source, ROOTS)?;
    let plugin = Arc::new(Plugin::check(source, entry, kind, request.sha256.clone())?);
    let shape = match plugin.seam() {
        seam::ATTENTION => Shape { dim: HEAD_DIM, rope_dim: ROPE_DIM },
        seam::INDEXER => Shape { dim: INDEX_HEAD_DIM, rope_dim: ROPE_DIM },
        _ => Shape::default(),
    };
    stage("create");
    let (create_error, conformance) = match plugin.create(&Options::new(), shape) {
        Err(error) => (Some(error.to_string()), None),
        Ok(instance) => {
            stage("conformance");
            let conformance = judge(&instance);
            stage("destroy");
            drop(instance);
            (None, Some(conformance))
        }
    };
    Ok(Verdict {
        sha256: request.sha256.clone(),
        entry: kind,
        mirror: Mirror::of(plugin.entry(), plugin.manifest()),
        create_error,
        conformance,
        milliseconds: 0,
    })
}

/// Keeps stdout for the answer; what the plugin prints goes to stderr.
fn take_stdout() -> io::Result<File> {
    let (out, err) = (io::stdout().as_raw_fd(), io::stderr().as_raw_fd());
    // SAFETY: both descriptors are open; the duplicate belongs to nobody else.
    unsafe {
        let copy = libc::fcntl(out, libc::F_DUPFD_CLOEXEC, 3);
        if copy < 0 || libc::dup2(err, out) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(File::from_raw_fd(copy))
    }
}

/// Limits of this process, set before any code of the plugin runs.
fn limit(request: &Request) -> io::Result<()> {
    let limits = [
        (libc::RLIMIT_AS, request.memory),
        (libc::RLIMIT_CPU, request.seconds.saturating_mul(THREADS as u64).saturating_add(1)),
        (libc::RLIMIT_FSIZE, FILE_BYTES),
        (libc::RLIMIT_CORE, 0),
    ];
    for (resource, value) in limits {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the struct is valid for both calls.
        unsafe {
            if libc::getrlimit(resource, &raw mut limit) != 0 {
                return Err(io::Error::last_os_error());
            }
            limit.rlim_cur = value.min(limit.rlim_max);
            // Address space may be had back by a plugin that turns out to need CUDA.
            if resource != libc::RLIMIT_AS {
                limit.rlim_max = limit.rlim_cur;
            }
            if libc::setrlimit(resource, &raw const limit) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    // A child whose host is gone is killed.
    // SAFETY: the call takes numbers only.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
