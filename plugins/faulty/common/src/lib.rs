//! What the planted faults of several seams share: entries that miss their slot, updates that get lost, marks in entries,
//! and calls that panic.

mod lost;
mod mark;
mod misplace;
mod panics;

pub use lost::LostUpdates;
pub use mark::{is_marked, mark};
pub use misplace::{FIRST_BAD_CHUNK, misplace};
pub use panics::Panics;
