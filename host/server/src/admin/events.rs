//! `GET /events`: what happens to swaps, as server-sent events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::RecvTimeoutError;
use hotseam_slots::{SwapEvent, SwapRecord};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use warp::http::StatusCode;
use warp::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use warp::reply::{Reply as _, Response};

use super::actions::Admin;
use crate::error::ApiError;

/// Silence after which a comment is sent, so that a client that is gone is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How often it is seen whether the client or the server left.
const PERIOD: Duration = Duration::from_millis(100);

/// Streams every event from now on, after one `state` that says which swap runs. With `only`, those of one swap: the
/// stream then ends when the swap has ended.
pub(super) fn stream(admin: Arc<Admin>, only: Option<u64>) -> Result<Response, ApiError> {
    let place = admin
        .listeners()
        .try_acquire_owned()
        .map_err(|_| ApiError::busy("too many clients listen to the events; close one and try again"))?;
    let swaps = admin.engine.swaps();
    // Subscribed first, so that nothing is lost between the two.
    let events = swaps.subscribe();
    let state = match only {
        None => swaps.running(),
        Some(id) => Some(swaps.record(id).ok_or_else(|| {
            let message = format!("there is no swap {id}, or it was too long ago");
            ApiError::new(StatusCode::NOT_FOUND, "unknown_swap", message)
        })?),
    };
    let (sender, receiver) = mpsc::channel(64);
    // The engine's channel blocks, so its reader has a thread of its own.
    std::thread::Builder::new()
        .name("admin-events".to_owned())
        .spawn(move || {
            let _place = place;
            let ended = only.is_some() && state.as_ref().is_some_and(|record| record.end.is_some());
            let mut said = Instant::now();
            let say = |bytes: Bytes| sender.blocking_send(bytes).is_ok();
            if !say(event("state", &State { swap: state })) || ended {
                return;
            }
            while !admin.is_stopping() && !sender.is_closed() {
                match events.recv_timeout(PERIOD) {
                    Ok(next) if only.is_some_and(|id| id != next.id) => {}
                    Ok(next) => {
                        let last = only.is_some() && next.stage.is_end();
                        if !say(event("swap", &next)) || last {
                            return;
                        }
                        said = Instant::now();
                    }
                    Err(RecvTimeoutError::Timeout) if said.elapsed() < KEEP_ALIVE => {}
                    Err(RecvTimeoutError::Timeout) => {
                        if !say(Bytes::from_static(b": keep-alive\n\n")) {
                            return;
                        }
                        said = Instant::now();
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })
        .map_err(|_| ApiError::internal("E-SERVER-EVENTS"))?;
    let body = ReceiverStream::new(receiver).map(Ok::<Bytes, std::convert::Infallible>);
    let mut response = warp::reply::stream(body).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// What the first event says.
#[derive(Serialize)]
struct State {
    /// The swap that runs, or that was asked for.
    swap: Option<SwapRecord>,
}

/// One event; `SwapEvent` and `State` are JSON without line breaks.
fn event(name: &str, value: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

/// The swap in `swap=ID`, or none.
pub(super) fn query(query: &str) -> Result<Option<u64>, ApiError> {
    match query.split_once('=') {
        None if query.is_empty() => Ok(None),
        Some(("swap", id)) if id.parse::<u64>().is_ok() => Ok(id.parse().ok()),
        _ => {
            let message = format!("expected the query `swap=ID` or none, found `{query}`");
            Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", message))
        }
    }
}

/// What [`Admin::swap`] waits for: the first event of a swap that `enough` holds for.
pub(super) fn until(
    events: &crossbeam_channel::Receiver<SwapEvent>,
    id: u64,
    alive: impl Fn() -> bool,
    enough: impl Fn(&SwapEvent) -> bool,
) -> Option<SwapEvent> {
    loop {
        match events.recv_timeout(PERIOD) {
            Ok(event) if event.id == id && enough(&event) => return Some(event),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) if alive() => {}
            Err(_) => return None,
        }
    }
}
