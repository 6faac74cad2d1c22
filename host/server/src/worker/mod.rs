//! What routers ask of a worker besides answers: whether it is well, what it is, how much it has to do; and what they tell
//! it: to forget what it keeps, to end a request.
//!
//! There is no `/version` here: `smg` takes a worker that has one for vLLM, and then asks it for less.

mod health;
mod info;
mod loads;

use bytes::Buf;
use serde_json::json;
use tokio_stream::Stream;
use warp::http::header::{CONTENT_TYPE, HeaderValue};
use warp::http::{HeaderMap, Method, StatusCode};
use warp::reply::Response;

use crate::body;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::public::Public;

/// Whether a path is asked every few seconds and says nothing new.
pub(crate) fn is_probe(path: &str) -> bool {
    matches!(path, "/health" | "/ready" | "/get_load" | "/v1/loads")
}

impl Public {
    /// Answers if `path` is one of these.
    pub(crate) async fn worker<B: Buf>(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: impl Stream<Item = Result<B, warp::Error>>,
    ) -> Option<Result<Response, ApiError>> {
        let allowed: (&[Method], &'static str) = match path {
            "/health" | "/ready" | "/health_generate" | "/server_info" | "/get_server_info"
            | "/model_info" | "/get_model_info" | "/get_load" | "/v1/loads" => {
                (&[Method::GET, Method::HEAD], "GET, HEAD")
            }
            "/flush_cache" => (&[Method::GET, Method::POST], "GET, POST"),
            "/abort_request" => (&[Method::POST], "POST"),
            _ => return None,
        };
        if !allowed.0.contains(method) {
            return Some(Err(ApiError::method(path, allowed.1)));
        }
        Some(self.told(path, headers, body).await)
    }

    async fn told<B: Buf>(
        &self,
        path: &str,
        headers: &HeaderMap,
        body: impl Stream<Item = Result<B, warp::Error>>,
    ) -> Result<Response, ApiError> {
        let served = self.ready()?;
        let answer = match path {
            "/health" => json!({ "status": "ok" }),
            "/ready" => json!({ "status": "ready" }),
            "/health_generate" => {
                health::generates(served).await?;
                json!({ "status": "ok" })
            }
            "/server_info" | "/get_server_info" => info::server(served),
            "/model_info" | "/get_model_info" => info::model(served),
            "/get_load" => loads::short(served.backend.load()),
            "/v1/loads" => loads::long(served.backend.load(), served.backend.role()),
            "/flush_cache" => return self.flush(),
            _ => {
                let body = body::read(body, headers, self.body_limit).await?;
                self.abort(Fields::parse(&body)?)?
            }
        };
        Ok(json_response(StatusCode::OK, &answer))
    }

    fn flush(&self) -> Result<Response, ApiError> {
        if !self.ready()?.backend.flush() {
            return Err(ApiError::unavailable("engine_stopped", "the engine has stopped"));
        }
        // Text, as from SGLang.
        let mut response = Response::new("Cache flushed.\n".into());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        Ok(response)
    }

    fn abort(&self, mut fields: Fields) -> Result<serde_json::Value, ApiError> {
        let all = fields.boolean("abort_all")?.unwrap_or(false);
        let rid = fields.string("rid")?.filter(|rid| !rid.is_empty());
        fields.finish(&[], &["rid", "abort_all"])?;
        if rid.is_none() && !all {
            return Err(ApiError::missing("rid", "the name of a request, or `abort_all: true`"));
        }
        let ended = self.live.abort(rid.as_deref().filter(|_| !all));
        Ok(json!({ "aborted": ended }))
    }
}
