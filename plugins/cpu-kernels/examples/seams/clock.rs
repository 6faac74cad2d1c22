//! Seconds of a piece of work.

use std::time::Instant;

/// Less than this is too short for the kernel's accounts, which are kept by ticks.
const TICKS: f64 = 0.02;

/// A clock. With one thread it counts the time that the thread was on a processor, where Linux tells it and the work is
/// long: other work on the machine then does not count. The best of many runs of short work does not meet other work.
pub(crate) struct Clock {
    alone: bool,
}

impl Clock {
    pub(crate) fn new(threads: usize) -> Self {
        Self { alone: threads == 1 }
    }

    /// Seconds that `work` takes.
    pub(crate) fn time(&self, work: impl FnOnce()) -> f64 {
        let (start, before) = (Instant::now(), on_processor());
        work();
        let (wall, after) = (start.elapsed().as_secs_f64(), on_processor());
        match (before, after) {
            (Some(before), Some(after)) if self.alone && wall > TICKS => (after - before) as f64 * 1e-9,
            _ => wall,
        }
    }
}

/// Nanoseconds that this thread was on a processor.
fn on_processor() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}
