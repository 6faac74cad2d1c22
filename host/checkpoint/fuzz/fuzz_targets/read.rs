//! Any bytes in the place of one file of a checkpoint.
#![no_main]

#[path = "../input.rs"]
mod input;

use libfuzzer_sys::fuzz_target;
use std::cell::LazyCell;

thread_local!(static PLACE: LazyCell<input::Place> = LazyCell::new(input::Place::new));

fuzz_target!(|bytes: &[u8]| PLACE.with(|place| {
    place.read(bytes);
}));
