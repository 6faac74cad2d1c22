//! Writes lines, and keeps what the search said about the runs that are asked for.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Sink;
use super::line::Line;
use crate::event::{Event, Observer};

/// A run that the search announced and has not asked for yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Announced {
    pub(super) number: usize,
    pub(super) why: String,
    pub(super) changes: Vec<String>,
}

/// The writing end of a log: an [`Observer`] of the search, and the pen of its [`Recorder`](super::Recorder).
/// Clones write to the same log.
#[derive(Clone)]
pub struct Journal<'s>(Rc<RefCell<Inner<'s>>>);

struct Inner<'s> {
    sink: Option<Box<dyn Sink + 's>>,
    error: Option<io::Error>,
    announced: VecDeque<Announced>,
    begun: usize,
    /// Notes that the log has already.
    known_notes: usize,
    /// Runs whose answers were in the log.
    from_log: BTreeSet<usize>,
}

impl<'s> Journal<'s> {
    /// A journal that writes to `sink`.
    pub fn new(sink: impl Sink + 's) -> Self {
        Self::over(Some(Box::new(sink)), 0)
    }

    /// A journal that writes nothing.
    pub fn silent() -> Self {
        Self::over(None, 0)
    }

    /// A journal that goes on behind `lines`.
    pub fn after(lines: &[Line], sink: impl Sink + 's) -> Self {
        let notes = lines.iter().filter(|line| matches!(line, Line::Note { .. })).count();
        Self::over(Some(Box::new(sink)), notes)
    }

    fn over(sink: Option<Box<dyn Sink + 's>>, known_notes: usize) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            sink,
            error: None,
            announced: VecDeque::new(),
            begun: 0,
            known_notes,
            from_log: BTreeSet::new(),
        })))
    }

    /// Takes the first write error, if any: a search goes on without its log, and the caller says so.
    pub fn take_error(&self) -> Option<io::Error> {
        self.0.borrow_mut().error.take()
    }

    /// True if the answer of run `number` was in the log.
    pub fn was_recorded(&self, number: usize) -> bool {
        self.0.borrow().from_log.contains(&number)
    }

    /// Writes lines, and waits until they are on disk.
    pub fn write(&self, lines: &[Line]) {
        let inner = &mut *self.0.borrow_mut();
        let Some(sink) = inner.sink.as_mut().filter(|_| inner.error.is_none()) else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let written = text(lines, now).and_then(|text| {
            sink.write_all(text.as_bytes())?;
            sink.flush()?;
            sink.sync()
        });
        inner.error = written.err();
    }

    /// The next run that was announced; a number of its own for one that was not.
    pub(super) fn next(&self) -> Announced {
        let mut inner = self.0.borrow_mut();
        let next = inner.announced.pop_front();
        inner.begun = next.as_ref().map_or(inner.begun + 1, |next| next.number);
        next.unwrap_or_else(|| Announced { number: inner.begun, ..Announced::default() })
    }

    pub(super) fn mark_recorded(&self, number: usize) {
        self.0.borrow_mut().from_log.insert(number);
    }
}

/// Lines as text, each with the time.
fn text(lines: &[Line], now: f64) -> io::Result<String> {
    let mut text = String::new();
    for line in lines {
        let mut value = serde_json::to_value(line)?;
        value["time"] = now.into();
        text += &value.to_string();
        text.push('\n');
    }
    Ok(text)
}

impl Observer for Journal<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Note(text) => {
                let known = {
                    let mut inner = self.0.borrow_mut();
                    let known = inner.known_notes > 0;
                    inner.known_notes = inner.known_notes.saturating_sub(1);
                    known
                };
                if !known {
                    self.write(&[Line::Note { text: (*text).to_owned() }]);
                }
            }
            Event::Start { number, why, changes, .. } => self.0.borrow_mut().announced.push_back(Announced {
                number: *number,
                why: (*why).to_owned(),
                changes: changes.to_vec(),
            }),
            // The recorder writes what came of it.
            Event::End { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_error_is_kept_and_ends_the_log_only() {
        struct Full;
        impl io::Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        impl Sink for Full {
            fn sync(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut journal = Journal::new(Full);
        journal.event(&Event::Note("one"));
        journal.event(&Event::Note("two"));
        assert_eq!(journal.take_error().unwrap().kind(), io::ErrorKind::StorageFull);
    }
}
