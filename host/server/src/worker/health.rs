//! `/health_generate`: whether tokens come out.

use std::time::{Duration, Instant};

use hotseam_encoding::Control;
use hotseam_engine::{Event, Request, Role, SubmitError};

use crate::backend::Waited;
use crate::error::ApiError;
use crate::public::Served;

/// Time that a token may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two looks at an engine that is too busy for a request.
const LOOK: Duration = Duration::from_millis(20);

/// Has one token generated; an engine whose line is full shows by its steps that it works. A worker of a pair has no
/// other to finish a request with, so there only its thread is asked.
pub(super) async fn generates(served: &Served) -> Result<(), ApiError> {
    let backend = served.backend.clone();
    if backend.role() != Role::Single {
        return Ok(());
    }
    let start = served.tokenizer.control(Control::Bos);
    let ask = move || match backend.submit(Request::greedy(vec![start], 1)) {
        Ok(running) => {
            let until = Instant::now() + PATIENCE;
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                match running.wait(left) {
                    Waited::Event(Event::Token { .. } | Event::Done { .. }) => return true,
                    Waited::Event(Event::Failed { .. }) | Waited::Gone => return false,
                    Waited::Event(Event::Prompt { .. } | Event::Logits { .. }) | Waited::Quiet => {}
                }
            }
            false
        }
        Err(SubmitError::Full(_)) => {
            let (until, before) = (Instant::now() + PATIENCE, backend.load().steps);
            while Instant::now() < until && backend.alive() {
                if backend.load().steps != before {
                    return true;
                }
                std::thread::sleep(LOOK);
            }
            false
        }
        Err(_) => false,
    };
    match tokio::task::spawn_blocking(ask).await {
        Ok(true) => Ok(()),
        _ => Err(ApiError::unavailable("unhealthy", "no token was generated in time; see the server's log")),
    }
}
