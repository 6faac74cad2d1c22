//! The two ways to answer: whole, or as server-sent events.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use warp::http::StatusCode;
use warp::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use warp::reply::{Reply, Response};

use crate::choice::Delta;
use crate::error::{ApiError, json_response};
use crate::generation::Generation;
use crate::lifecycle::{Life, Lifecycle};

/// Silence after which a comment is sent, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What is sent then.
const SILENCE: &[u8] = b": keep-alive\n\n";

fn stopped() -> ApiError {
    ApiError::unavailable("shutting_down", "the server stopped before the answer was complete")
}

/// Waits for the end of `generation` and gives one JSON answer.
pub(crate) async fn whole(mut generation: Generation, life: &Lifecycle) -> Result<Response, ApiError> {
    let mut choices = vec![Delta::default(); generation.choices()];
    let collect = async {
        while let Some(news) = generation.next().await {
            let (index, delta) = news?;
            choices[index].append(delta);
        }
        Ok(())
    };
    tokio::select! {
        result = collect => result?,
        () = life.reached(Life::Cut) => return Err(stopped()),
    }
    Ok(json_response(StatusCode::OK, &generation.whole(choices)))
}

/// Answers with a stream of events. The generation is cancelled when the client leaves.
///
/// # Errors
/// If the request fails before it says anything: with a status, by which a router knows that another worker may be asked.
pub(crate) async fn stream(mut generation: Generation, life: Lifecycle) -> Result<Response, ApiError> {
    let first = tokio::select! {
        news = generation.next() => Some(news.transpose()?),
        () = life.reached(Life::Cut) => return Err(stopped()),
        // From here on proxies have to hear something.
        () = tokio::time::sleep(KEEP_ALIVE) => None,
    };
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        tokio::select! {
            // Also while nothing is written: a client may leave during a long prefill.
            () = sender.closed() => {}
            _ = events(generation, first, &sender, &life) => {}
        }
    });
    let body = ReceiverStream::new(receiver).map(Ok::<Bytes, std::convert::Infallible>);
    let mut response = warp::reply::stream(body).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// Writes all events, beginning with the news that is known already; an error if the client left.
async fn events(
    mut generation: Generation,
    first: Option<Option<(usize, Delta)>>,
    sender: &mpsc::Sender<Bytes>,
    life: &Lifecycle,
) -> Result<(), mpsc::error::SendError<Bytes>> {
    let mut begun = vec![false; generation.choices()];
    if first.is_none() {
        sender.send(Bytes::from_static(SILENCE)).await?;
    }
    let mut known = first.map(|news| news.map(Ok));
    loop {
        let news = match known.take() {
            Some(news) => news,
            None => tokio::select! {
                news = generation.next() => news,
                () = life.reached(Life::Cut) => Some(Err(stopped())),
                () = tokio::time::sleep(KEEP_ALIVE) => {
                    sender.send(Bytes::from_static(SILENCE)).await?;
                    continue;
                }
            },
        };
        match news {
            Some(Ok((index, delta))) => {
                let first = !std::mem::replace(&mut begun[index], true);
                for chunk in generation.form().chunks(index, delta, first) {
                    sender.send(event(&chunk)).await?;
                }
            }
            Some(Err(error)) => {
                sender.send(event(&error.body())).await?;
                break;
            }
            None => {
                let usage = generation.usage();
                if let Some(chunk) = generation.form().last_chunk(usage) {
                    sender.send(event(&chunk)).await?;
                }
                break;
            }
        }
    }
    sender.send(Bytes::from_static(b"data: [DONE]\n\n")).await
}

/// `data: ` with the space that naive clients look for, which `warp::sse` leaves out.
fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}
