//! The thread pool: every index once, panics reported, nesting and sharing safe, nothing allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hotseam_ops::{Parallel, Pool, Serial};

/// Counts allocations of the whole process.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Tests of this file run one after the other, so that one can count allocations.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

// SAFETY: forwards to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn one_at_a_time() -> impl Drop {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `n` indices and checks that each was seen once.
fn covers(par: &dyn Parallel, n: usize, grain: usize) {
    let seen: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
    par.run(n, grain, &|range| {
        assert!(range.start % grain.max(1) == 0 && !range.is_empty(), "{range:?} with grain {grain}");
        for i in range {
            seen[i].fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 1), "n {n}, grain {grain}");
}

#[test]
fn every_index_runs_once() {
    let _guard = one_at_a_time();
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads);
        for n in [0, 1, 2, 3, 10, 1000] {
            for grain in [0, 1, 3, 7, 1000, usize::MAX] {
                covers(&pool, n, grain);
                covers(&Serial, n, grain);
            }
        }
    }
    assert!(Pool::new(0).threads() >= 1);
}

#[test]
fn many_jobs_with_and_without_sleep() {
    let _guard = one_at_a_time();
    let pool = Pool::new(4);
    let sum = AtomicUsize::new(0);
    for job in 0..20_000 {
        if job % 1000 == 0 {
            // Long enough for the workers to fall asleep.
            std::thread::sleep(Duration::from_millis(1));
        }
        pool.run(16, 1, &|range| {
            sum.fetch_add(range.len(), Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 16 * (job + 1));
    }
}

#[test]
fn workers_take_part() {
    let _guard = one_at_a_time();
    let pool = Pool::new(2);
    let inside = AtomicUsize::new(0);
    // Each of two pieces waits for the other: this ends only if two threads run.
    pool.run(2, 1, &|_| {
        inside.fetch_add(1, Ordering::SeqCst);
        while inside.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_after_the_other_pieces() {
    let _guard = one_at_a_time();
    std::panic::set_hook(Box::new(|_| {}));
    let pool = Pool::new(3);
    for bad in 0..40 {
        let done = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(40, 1, &|range| {
                if range.start == bad {
                    std::panic::panic_any(bad);
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }));
        let payload = result.expect_err("the panic is reported");
        assert_eq!(payload.downcast_ref::<usize>(), Some(&bad));
        assert_eq!(done.load(Ordering::Relaxed), 39);
        covers(&pool, 100, 1);
    }
    // All pieces at once.
    let result = catch_unwind(AssertUnwindSafe(|| pool.run(40, 1, &|_| panic!("every piece"))));
    assert!(result.is_err());
    covers(&pool, 100, 1);
    drop(std::panic::take_hook());
}

#[test]
fn nested_and_concurrent_runs_finish() {
    let _guard = one_at_a_time();
    let pool = Pool::new(3);
    let sum = AtomicUsize::new(0);
    pool.run(10, 1, &|range| {
        for _ in range {
            pool.run(10, 1, &|inner| {
                sum.fetch_add(inner.len(), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), 100);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    covers(&pool, 30, 1);
                }
            });
        }
    });
}

#[test]
fn run_allocates_nothing() {
    let _guard = one_at_a_time();
    let pool = Pool::new(2);
    covers(&pool, 100, 1);
    std::thread::sleep(Duration::from_millis(5));
    let sum = AtomicUsize::new(0);
    // The test harness may allocate on its own threads, rarely; the pool would do so in every job.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..1000 {
        pool.run(8, 1, &|range| {
            sum.fetch_add(range.len(), Ordering::Relaxed);
        });
    }
    let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(sum.load(Ordering::Relaxed), 8000);
    assert!(allocated < 100, "{allocated} allocations in 1000 jobs");
}
