//! A warm step allocates nothing on the host's side, with eight sequences that decode. Counted are the threads of the step
//! loop, the engine's and the pool's: the test harness allocates when it says that a test is slow.

use hotseam_engine::{Event, Handle, Request};
use hotseam_tests::{Checkpoint, all, config, engine, goldens};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IN_LOOP: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs the step loop, by its name; looked up until it does.
fn in_loop() -> bool {
    let found = IN_LOOP.try_with(|known| {
        if !known.get() {
            let mut name = [0u8; 16];
            // SAFETY: the call writes at most 16 bytes, with the terminator.
            unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
            known.set(name.starts_with(b"engine\0") || name.starts_with(b"hotseam-ops"));
        }
        known.get()
    });
    found.unwrap_or(false)
}

// SAFETY: hands everything on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if in_loop() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Takes tokens by asking again and again: a client that blocks on its channel allocates, on its side, a place to wait.
fn take(handle: &Handle, tokens: usize) {
    for _ in 0..tokens {
        let event = loop {
            match handle.events().try_recv() {
                Ok(event) => break event,
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        };
        assert!(matches!(event, Event::Token { .. }));
    }
}

#[test]
fn warm_decode_steps_allocate_nothing() {
    let engine = engine(Checkpoint::Nano, all("cpu-stock"), config());
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let request = |i: usize| Request::greedy(tokens[i..i + 300 + i].to_vec(), 600);
    let handles: Vec<_> = (0..8).map(|i| engine.submit(request(i)).unwrap()).collect();
    // Two window pages, several ratio-4 groups and a ratio-128 group go by while it warms up.
    handles.iter().for_each(|h| take(h, 300));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(before > 0, "the threads of the step loop are known by their names");
    handles.iter().for_each(|h| take(h, 200));
    let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(count, 0, "allocations in about 200 decode steps of 8 sequences");
}
