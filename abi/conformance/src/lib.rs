//! The truth of every seam, and the checks that hold a variant to it.
//!
//! [`check`] runs every op that a [`Subject`] serves on seeded random inputs and compares all of its outputs (activations,
//! indices, state rows, pool entries, bytes moved) with [`truth`] on the same inputs. Outputs and everything that must
//! not be read are poisoned with NaN, every buffer lies between guard words, and each call is made twice to see that it
//! gives the same bits. An op that fails, panics or lies is a failed case with a message, never an error of the checker.
//! What is allowed is in one table, [`tolerances`]. [`bench()`] times the same cases.
//!
//! A subject that runs on a CUDA device gets the same cases in [`DeviceMemory`]: each call has its buffers copied there with
//! guards and poison, a poisoned workspace and a stream, and is made up to 20 times. Truth and judging are always on the host.

mod batch;
mod bench;
mod buffer;
mod cases;
mod compare;
mod device;
mod pools;
mod random;
pub mod reference;
mod report;
mod runner;
mod subject;
pub mod tolerances;
pub mod truth;

pub use bench::{Timing, bench};
pub use device::DeviceMemory;
/// What an entry of a KV layout is made of, in the words of the SDK.
pub use hotseam_sdk::{layouts, views::Form};
pub use report::{CaseResult, Coordinate, Report};
pub use runner::check;
pub use subject::{Level, Op, Subject};
