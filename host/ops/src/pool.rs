//! Persistent worker threads behind [`Parallel`].
//!
//! A job is published in one word, `state`: a job number, an open bit and the number of workers inside. A worker
//! joins by raising that number while the bit is set, so the caller waits only for workers that really joined,
//! never for one that is still asleep. Pieces are handed out by an atomic counter. Idle workers watch `state`
//! for [`SPIN`], then sleep. `run` allocates nothing.
//!
//! On a machine with several NUMA nodes each worker stays on one processor, and neighbours are on different nodes:
//! memory is read through all controllers, and a worker finds again in its cache what it left there.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Parallel;

/// How long a thread watches for work, or for the end of a job, before it sleeps. Longer than the gap between
/// two matrix products of one layer, short enough to leave an idle machine idle.
const SPIN: Duration = Duration::from_micros(30);

/// Bit of `state`: workers may join.
const OPEN: u64 = 1;
/// One joined worker in `state`.
const JOINED: u64 = 2;
/// All joined workers in `state`.
const JOINED_MASK: u64 = 0xffff_fffe;
/// One job number in `state`.
const JOB: u64 = 1 << 32;

/// What workers do between joining and leaving.
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(Range<usize>) + Sync),
    n: usize,
    grain: usize,
}

/// State shared by the pool and its workers.
struct Shared {
    /// Job number, joined workers, open bit.
    state: AtomicU64,
    /// Written by the caller while nobody is joined, read by workers while joined.
    job: UnsafeCell<Option<Job>>,
    /// Number of the next piece.
    next: AtomicUsize,
    /// A caller is inside `run`.
    busy: AtomicBool,
    /// First panic of the current job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Workers that sleep or are about to.
    sleepers: AtomicUsize,
    /// Guards both condition variables.
    sleep: Mutex<()>,
    /// A job was opened, or the pool ends.
    wake: Condvar,
    /// The last worker left a closed job.
    done: Condvar,
    /// The pool ends.
    stop: AtomicBool,
}

// SAFETY: `job` is the only field that is not Sync. It is written only by the thread that holds `busy`, while
// `state` is closed with nobody joined, and read only by joined workers; both edges synchronise through `state`.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is dereferenced only while the `run` call that owns the body is waiting.
unsafe impl Send for Shared {}

/// Locks even if a thread panicked while holding the lock; the guarded data cannot be left half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits like [`lock`] locks.
fn wait<'a>(condition: &Condvar, guard: MutexGuard<'a, ()>) -> MutexGuard<'a, ()> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Calls `ready` for up to [`SPIN`].
fn spin<T>(mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if let Some(value) = ready() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= SPIN {
            return None;
        }
    }
}

/// What a waiting worker finds.
enum Call {
    /// Joined the job with this number.
    Work(u64),
    /// The pool ends.
    Stop,
}

impl Shared {
    /// Takes pieces until none is left. Panics of the body are kept, and the remaining pieces still run.
    fn work(&self, job: Job) {
        let pieces = job.n.div_ceil(job.grain);
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                return;
            }
            let start = piece * job.grain;
            let range = start..job.n.min(start.saturating_add(job.grain));
            // SAFETY: the caller of `run` keeps the body alive until every joined worker has left.
            let body = unsafe { &*job.body };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(range))) {
                let mut first = lock(&self.panic);
                if first.is_none() {
                    *first = Some(panic);
                } else {
                    // Dropping a payload may itself panic, and only the first one is reported.
                    std::mem::forget(panic);
                }
            }
        }
    }

    /// Joins the open job, unless this worker has already been in it.
    fn join(&self, last: u64) -> Option<Call> {
        if self.stop.load(Ordering::SeqCst) {
            return Some(Call::Stop);
        }
        let mut state = self.state.load(Ordering::SeqCst);
        while state & OPEN != 0 && state / JOB != last {
            match self.state.compare_exchange_weak(state, state + JOINED, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return Some(Call::Work(state / JOB)),
                Err(now) => state = now,
            }
        }
        None
    }

    /// Watches for a job, then sleeps until there is one.
    fn next_call(&self, last: u64) -> Call {
        if let Some(call) = spin(|| self.join(last)) {
            return call;
        }
        let mut guard = lock(&self.sleep);
        // Counted before the last look: a caller that opens a job later sees the count and takes the lock.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let call = loop {
            if let Some(call) = self.join(last) {
                break call;
            }
            guard = wait(&self.wake, guard);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        call
    }

    /// Body of a worker thread.
    fn serve(&self) {
        let mut last = 0;
        while let Call::Work(number) = self.next_call(last) {
            last = number;
            // SAFETY: joined, so the caller does not write the job.
            if let Some(job) = unsafe { *self.job.get() } {
                self.work(job);
            }
            let before = self.state.fetch_sub(JOINED, Ordering::SeqCst);
            if before & OPEN == 0 && before & JOINED_MASK == JOINED {
                // The lock orders this after the caller's check, so the caller is awake or really waiting.
                drop(lock(&self.sleep));
                self.done.notify_all();
            }
        }
    }

    /// Opens a job and wakes as many workers as it can use.
    fn open(&self, job: Job, helpers: usize) {
        // SAFETY: this thread holds `busy`, and the state is closed with nobody joined.
        unsafe { *self.job.get() = Some(job) };
        self.next.store(0, Ordering::Relaxed);
        let number = (self.state.load(Ordering::Relaxed) / JOB).wrapping_add(1);
        // Job 0 never exists: it is what a new worker remembers as its last one.
        let number = if number.wrapping_mul(JOB) == 0 { 1 } else { number };
        self.state.store((number * JOB) | OPEN, Ordering::SeqCst);
        let sleeping = self.sleepers.load(Ordering::SeqCst);
        if sleeping > 0 {
            drop(lock(&self.sleep));
            for _ in 0..helpers.min(sleeping) {
                self.wake.notify_one();
            }
        }
    }

    /// Closes the job and waits for the workers in it.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::SeqCst);
        let empty = || self.state.load(Ordering::SeqCst) & JOINED_MASK == 0;
        if spin(|| empty().then_some(())).is_none() {
            let mut guard = lock(&self.sleep);
            while !empty() {
                guard = wait(&self.done, guard);
            }
        }
    }
}

/// A fixed set of threads that run bodies together with the caller.
///
/// One job runs at a time. A `run` that finds the pool busy, because it is called from inside a body or by
/// another thread, runs on the calling thread alone; so nesting cannot deadlock. If bodies panic, the other
/// pieces still run, then the first panic continues in the caller, and the pool stays usable.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` threads, the caller of `run` counted as one of them; 0 means one for each core that
    /// the process may use. If the system refuses a thread, the pool has fewer: see [`Parallel::threads`].
    pub fn new(threads: usize) -> Self {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            given => given,
        };
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            panic: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            done: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        #[cfg(target_os = "linux")]
        let places = crate::numa::places();
        let workers = (1..threads)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let name = format!("hotseam-ops-{index}");
                #[cfg(target_os = "linux")]
                let place = places.get(index % places.len().max(1)).copied();
                let body = move || {
                    #[cfg(target_os = "linux")]
                    if let Some(place) = place {
                        crate::numa::stay_on(place);
                    }
                    shared.serve();
                };
                std::thread::Builder::new().name(name).spawn(body).ok()
            })
            .collect();
        Self { shared, workers }
    }
}

impl Parallel for Pool {
    fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    fn run(&self, n: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let grain = grain.max(1);
        let helpers = self.workers.len().min(n.div_ceil(grain).saturating_sub(1));
        if helpers == 0 || self.shared.busy.swap(true, Ordering::Acquire) {
            return crate::Serial.run(n, grain, body);
        }
        // SAFETY: only the lifetime is erased; `close` returns after the last worker stopped using the body.
        let body = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(Range<usize>) + Sync + '_),
                *const (dyn Fn(Range<usize>) + Sync + 'static),
            >(std::ptr::from_ref(body))
        };
        let job = Job { body, n, grain };
        self.shared.open(job, helpers);
        self.shared.work(job);
        self.shared.close();
        let panic = lock(&self.shared.panic).take();
        self.shared.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of bodies, so there is no error to report here.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}
