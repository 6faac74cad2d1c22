//! The choices that run now, by name, so that `/abort_request` finds them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The choices of a server that run now. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Live(Arc<Mutex<Vec<Entry>>>);

#[derive(Debug)]
struct Entry {
    /// Its own name and that of its request.
    names: (String, String),
    aborted: Arc<AtomicBool>,
}

/// A running choice; it is forgotten when this is dropped.
#[derive(Debug)]
pub(crate) struct Presence {
    live: Live,
    /// Becomes true when the choice is to end.
    pub(crate) aborted: Arc<AtomicBool>,
}

impl Live {
    /// Notes that a choice runs.
    pub(crate) fn enter(&self, names: (String, String)) -> Presence {
        let aborted = Arc::new(AtomicBool::new(false));
        self.lock().push(Entry { names, aborted: aborted.clone() });
        Presence { live: self.clone(), aborted }
    }

    /// Ends the choices with this name, or all for `None`; says how many.
    pub(crate) fn abort(&self, name: Option<&str>) -> usize {
        let entries = self.lock();
        let meant = |entry: &&Entry| name.is_none_or(|name| entry.names.0 == name || entry.names.1 == name);
        entries.iter().filter(meant).map(|entry| entry.aborted.store(true, Ordering::Relaxed)).count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(|error| error.into_inner())
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.live.lock().retain(|entry| !Arc::ptr_eq(&entry.aborted, &self.aborted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_found_by_either_name_and_forgotten() {
        let live = Live::default();
        let enter = |own: &str| live.enter((own.to_owned(), "a".to_owned()));
        let (first, second) = (enter("a_0"), enter("a_1"));
        assert_eq!(live.abort(Some("a_")), 0);
        assert_eq!(live.abort(Some("a_1")), 1);
        let ended = |choice: &Presence| choice.aborted.load(Ordering::Relaxed);
        assert_eq!((ended(&first), ended(&second)), (false, true));
        drop(second);
        assert_eq!((live.abort(Some("a")), ended(&first)), (1, true));
        drop(first);
        assert_eq!(live.abort(None), 0);
    }
}
