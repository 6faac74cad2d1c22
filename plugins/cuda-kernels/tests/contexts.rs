//! Kernels stay loaded as long as their context, and no longer. The only test of its process, in which a context can end.

use hotseam_cuda::{Buffer, Device, Stream, copy_from_device};
use hotseam_cuda_kernels::ops::Ops;

/// Counts twice, with kernels that are asked for again in between.
fn counts() {
    let stream = Stream::new().unwrap();
    let counter = Buffer::zeroed(8, "a counter").unwrap();
    for _ in 0..2 {
        Ops::load().unwrap().count(stream.raw(), counter.address()).unwrap();
    }
    stream.synchronize().unwrap();
    let mut counted = [0u64];
    copy_from_device(&mut counted, counter.address()).unwrap();
    assert_eq!(counted, [2]);
}

#[test]
fn kernels_are_loaded_once_in_each_context() {
    if !hotseam_cuda_emulator::device() {
        return;
    }
    for _ in 0..3 {
        let device = Device::open(0).unwrap();
        counts();
        drop(device);
    }
    // What is there already is not loaded again: another instance of a variant takes no memory for its code.
    let device = Device::open(0).unwrap();
    counts();
    let (before, _) = device.memory().unwrap();
    counts();
    assert_eq!(device.memory().unwrap().0, before);
}
