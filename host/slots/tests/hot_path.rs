//! A step takes a snapshot and calls without allocating.

mod common;

use common::{no_args, rules, slots, step, stock};
use hotseam_slots::{Phase, Topology};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn snapshots_and_calls_do_not_allocate() {
    let dir = stock();
    let slots = slots(dir.path(), Topology::Single);
    slots.define("live", rules(&[])).expect("defined");
    let ctx = step(1);
    // The first load of a thread sets up its own slot in arc-swap.
    drop(slots.snapshot("live"));

    let before = ALLOCATIONS.get();
    assert!(before > 0, "the counter counts");
    for _ in 0..100 {
        let snapshot = slots.snapshot("live").expect("there");
        for phase in [Phase::Prefill, Phase::Decode] {
            for layer in 0..snapshot.num_layers() {
                let cells = snapshot.layer(phase, layer);
                cells.mhc_pre.call(&ctx, &no_args(), 8).expect("called");
                cells.store.call(&ctx, &no_args(), 8).expect("called");
                cells.core.call(&ctx, &no_args(), 8).expect("called");
                if let Some(select) = &cells.select {
                    select.call(&ctx, &no_args(), 8).expect("called");
                }
                cells.route.call(&ctx, &no_args(), 8).expect("called");
            }
            snapshot.head(phase).call(&ctx, &no_args(), 8).expect("called");
        }
    }
    assert_eq!(ALLOCATIONS.get(), before);
}
