//! Kernels do not allocate once they have seen the largest shape.

mod network;
#[path = "network/small.rs"]
mod small;

use hotseam_sdk::abi::layout;
use hotseam_sdk::ops::Serial;
use network::{ALLOCATIONS, Network};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::Ordering;

struct Counting;

// SAFETY: hands everything on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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

#[test]
fn warm_kernels_allocate_nothing() {
    let tokens: Vec<i32> = (0..400).map(|i| i * 31 % 64).collect();
    let (kv, keys) = (layout::KV_FP8_DS_MLA, layout::KEY_FP4_HADAMARD);
    let mut network = Network::new(small::shape(), tokens.len(), kv, keys);
    let pass = |network: &mut Network| {
        network.run(&Serial, 0, &tokens[..300]);
        network.run(&Serial, 300, &tokens[300..360]);
        for position in 360..400 {
            network.run(&Serial, position, &tokens[position..=position]);
        }
        std::mem::take(&mut network.allocations)
    };
    assert!(pass(&mut network) > 0, "the first pass makes the scratch buffers");
    assert_eq!(pass(&mut network), 0);
}
