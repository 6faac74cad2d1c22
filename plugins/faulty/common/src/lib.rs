//! What the planted faults of several seams share: entries that miss their slot, updates that get lost, and marks in
//! entries.

mod lost;
mod mark;
mod misplace;

pub use lost::LostUpdates;
pub use mark::{is_marked, mark};
pub use misplace::{FIRST_BAD_CHUNK, misplace};
