//! The processes of the other ranks.

use crate::{Breaker, Link, RankError};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Numbers that a rank inherits its files by.
const LINK: RawFd = 3;
const STEPS: RawFd = 4;
const SHARED: RawFd = 5;
/// How long a rank may take to end by itself once its links are closed.
const GRACE: Duration = Duration::from_secs(5);
/// How often the processes are looked at.
const WATCH: Duration = Duration::from_millis(20);
/// How long after a rank's links the rank itself may be seen to end.
const SOON: Duration = Duration::from_millis(500);

/// What runs a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments; `--link 3 --steps 4 --shared 5` follow them.
    pub args: Vec<String>,
}

/// The other ranks' processes, which end with this.
#[derive(Debug)]
pub struct Children {
    ended: Arc<Mutex<Option<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Link for tables and link for steps of a rank.
pub type Links = [Link; 2];

impl Children {
    /// Starts ranks 1 to `world` - 1; the links are in their order. When one ends, `breaker` is used.
    ///
    /// # Errors
    /// [`RankError::Gone`] for a rank that cannot be started.
    pub fn start(
        program: &Program,
        world: u32,
        shared: &OwnedFd,
        breaker: &Breaker,
    ) -> Result<(Vec<Links>, Self), RankError> {
        let (ended, stop) = (Arc::<Mutex<Option<String>>>::default(), Arc::new(AtomicBool::new(false)));
        let (started, begun) = channel();
        let shared = shared.try_clone().map_err(|error| cannot(0, &error))?;
        let watcher =
            Watcher { ended: Arc::clone(&ended), stop: Arc::clone(&stop), breaker: breaker.clone() };
        let program = program.clone();
        // The children die with the thread that starts them, so it is the one that watches them to their end.
        let thread = std::thread::Builder::new().name("ranks".into());
        let thread = thread.spawn(move || watcher.run(&program, world, &shared, &started));
        let children = Self { ended, stop, thread: Some(thread.map_err(|error| cannot(0, &error))?) };
        let links =
            begun.recv().map_err(|_| RankError::Carrier("the thread that starts ranks ended".to_owned()))?;
        Ok((links?, children))
    }

    /// Which rank has ended, and how; `None` while all run.
    pub fn ended(&self) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same after a link has failed, which it does a moment before the process is seen to have ended: waits for that moment.
    pub fn ended_soon(&self) -> Option<String> {
        let start = Instant::now();
        loop {
            match self.ended() {
                None if start.elapsed() < SOON => std::thread::sleep(WATCH),
                ended => return ended,
            }
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic there has been told of.
            let _ = thread.join();
        }
    }
}

fn cannot(rank: u32, error: &io::Error) -> RankError {
    RankError::Gone { rank, what: format!("cannot be started: {error}") }
}

struct Watcher {
    ended: Arc<Mutex<Option<String>>>,
    stop: Arc<AtomicBool>,
    breaker: Breaker,
}

impl Watcher {
    fn run(
        self,
        program: &Program,
        world: u32,
        shared: &OwnedFd,
        started: &Sender<Result<Vec<Links>, RankError>>,
    ) {
        let (mut links, mut children) = (Vec::new(), Vec::new());
        for rank in 1..world {
            match start(program, shared) {
                Ok((ends, child)) => {
                    links.push(ends);
                    children.push((rank, child));
                }
                Err(error) => {
                    // Whoever starts the group waits for this.
                    let _ = started.send(Err(cannot(rank, &error)));
                    links.clear();
                    return end(&mut children);
                }
            }
        }
        // As above.
        let _ = started.send(Ok(links));
        while !self.stop.load(Ordering::Acquire) {
            for (rank, child) in &mut children {
                if let Ok(Some(status)) = child.try_wait() {
                    let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
                    ended.get_or_insert_with(|| format!("rank {rank} {}", how(status)));
                    drop(ended);
                    self.breaker.break_with(*rank);
                }
            }
            std::thread::sleep(WATCH);
        }
        end(&mut children);
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit status {code}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Starts a rank.
fn start(program: &Program, shared: &OwnedFd) -> io::Result<(Links, Child)> {
    let ((tables, a), (steps, b)) = (Link::pair()?, Link::pair()?);
    // Above the numbers that the child is to have them by, so that none is overwritten before it was copied.
    let files = [above(&a)?, above(&b)?, above(shared)?];
    let numbers = files.each_ref().map(|file| file.as_raw_fd());
    let parent = std::process::id();
    let mut command = Command::new(&program.path);
    command.args(&program.args).stdin(Stdio::null()).stdout(Stdio::null());
    for (name, number) in [("--link", LINK), ("--steps", STEPS), ("--shared", SHARED)] {
        command.arg(name).arg(number.to_string());
    }
    // SAFETY: only calls that may be made between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let check = |done: i32| if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            // The parent may have ended before that.
            if libc::getppid() != parent as i32 {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            // A copy is not closed on exec.
            for (from, to) in numbers.into_iter().zip([LINK, STEPS, SHARED]) {
                check(libc::dup2(from, to))?;
            }
            Ok(())
        });
    }
    let child = command.spawn()?;
    Ok(([tables, steps], child))
}

/// Another number for a file, higher than those that a child has.
fn above(file: &impl std::os::fd::AsRawFd) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: the file is open.
    let number = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, SHARED + 1) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number is new, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Waits for all children, and ends those that do not end by themselves.
fn end(children: &mut [(u32, Child)]) {
    let start = Instant::now();
    let running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
    while start.elapsed() < GRACE && children.iter_mut().any(|(_, child)| running(child)) {
        std::thread::sleep(WATCH);
    }
    for (_, child) in children {
        // It may have ended by itself meanwhile.
        let _ = child.kill();
        let _ = child.wait();
    }
}
