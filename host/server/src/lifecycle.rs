//! The phases of the server's life, which every request can watch.

use tokio::sync::watch;

/// What the server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    /// The model is loading; everything gets 503.
    Starting,
    /// Serving.
    Ready,
    /// Told to stop: running requests go on, new ones get 503.
    Draining,
    /// Out of patience: running requests end with an error.
    Cut,
}

/// The current phase. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Lifecycle(watch::Sender<Life>);

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Life::Starting))
    }

    pub(crate) fn now(&self) -> Life {
        *self.0.borrow()
    }

    /// Goes on to `phase`; there is no way back, so an earlier one is ignored.
    pub(crate) fn advance(&self, phase: Life) {
        self.0.send_if_modified(|now| {
            let later = phase > *now;
            if later {
                *now = phase;
            }
            later
        });
    }

    /// Waits until `phase` or a later one.
    pub(crate) async fn reached(&self, phase: Life) {
        // The sender lives in `self`, so the channel cannot close meanwhile.
        let _ = self.0.subscribe().wait_for(|now| *now >= phase).await;
    }
}
