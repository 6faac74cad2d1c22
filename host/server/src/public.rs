//! The public listener: which path does what.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Buf;
use hotseam_encoding::Tokenizer;
use hotseam_pd::Registry;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_stream::Stream;
use warp::http::header::HeaderValue;
use warp::http::{HeaderMap, Method, StatusCode};
use warp::reply::{Reply, Response};
use warp::{Filter, Rejection};

use crate::backend::{Backend, ModelInfo};
use crate::connect;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::generation::Generation;
use crate::lifecycle::{Life, Lifecycle};
use crate::openai::{Ask, Shape, chat, completions, models};
use crate::{answer, body, id};

/// Bytes of a body to the bootstrap registry, at most.
const REGISTRATION: usize = 1 << 20;

/// What the public endpoints serve, once it is loaded.
pub struct Served {
    /// Runs the requests.
    pub backend: Arc<dyn Backend>,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// Name and limits of the model.
    pub model: ModelInfo,
}

/// State of the public listener, shared by all its requests.
pub(crate) struct Public {
    pub(crate) served: OnceLock<Served>,
    pub(crate) life: Lifecycle,
    /// One permit for each choice that may run.
    pub(crate) choices: Arc<Semaphore>,
    /// Bytes of a request body, at most.
    pub(crate) body_limit: usize,
}

/// The filter of the public listener. It never rejects: every failure is an error in OpenAI's shape.
pub(crate) fn filter(
    public: Arc<Public>,
) -> impl Filter<Extract = (Response,), Error = Rejection> + Clone + Send + Sync + 'static {
    let served = warp::any()
        .map(move || public.clone())
        .and(warp::method())
        .and(warp::path::full())
        .and(query())
        .and(warp::header::headers_cloned())
        .and(warp::body::stream())
        .then(
            |public: Arc<Public>,
             method: Method,
             path: warp::path::FullPath,
             query: String,
             headers: HeaderMap,
             body| async move {
                public.answer(&method, (path.as_str(), &query), &headers, body).await
            },
        );
    connect::refused_before(served)
}

/// What stands behind the question mark; empty if nothing does.
fn query() -> impl Filter<Extract = (String,), Error = Infallible> + Clone {
    warp::query::raw().or(warp::any().map(String::new)).unify()
}

impl Public {
    /// Answers one request, names it and logs it.
    async fn answer<B: Buf>(
        &self,
        method: &Method,
        (path, query): (&str, &str),
        headers: &HeaderMap,
        body: impl Stream<Item = Result<B, warp::Error>>,
    ) -> Response {
        let started = Instant::now();
        let id = id::new();
        let result = self.route(method, (path, query), headers, body, &id).await;
        let code = result.as_ref().err().and_then(|error| error.code.clone());
        let mut response = result.unwrap_or_else(Reply::into_response);
        let name = id::from_client(headers).or_else(|| HeaderValue::from_str(&id).ok());
        let status = response.status().as_u16();
        let milliseconds = started.elapsed().as_millis() as u64;
        let request = name.as_ref().and_then(|name| name.to_str().ok());
        let path: String = path.chars().take(100).collect();
        // Probes come every few seconds and say nothing new.
        if matches!(path.as_str(), "/health" | "/ready") {
            tracing::debug!(%method, path, status, code, milliseconds, request, "request");
        } else {
            tracing::info!(%method, path, status, code, milliseconds, request, "request");
        }
        if let Some(name) = name {
            response.headers_mut().insert(id::HEADER, name);
        }
        response
    }

    async fn route<B: Buf>(
        &self,
        method: &Method,
        (path, query): (&str, &str),
        headers: &HeaderMap,
        body: impl Stream<Item = Result<B, warp::Error>>,
        id: &str,
    ) -> Result<Response, ApiError> {
        let get = || match *method {
            Method::GET | Method::HEAD => Ok(()),
            _ => Err(ApiError::method(path, "GET, HEAD")),
        };
        match path {
            "/health" => get().map(|()| json_response(StatusCode::OK, &json!({ "status": "ok" }))),
            "/ready" => {
                get()?;
                self.ready().map(|_| json_response(StatusCode::OK, &json!({ "status": "ready" })))
            }
            "/v1/models" => {
                get()?;
                Ok(json_response(StatusCode::OK, &models::list(&self.ready()?.model)))
            }
            "/v1/completions" | "/v1/chat/completions" => {
                if method != Method::POST {
                    return Err(ApiError::method(path, "POST"));
                }
                // Before the body is read, which may be long.
                self.ready()?;
                let body = body::read(body, headers, self.body_limit).await?;
                self.generate(path == "/v1/chat/completions", &body, id).await
            }
            _ if Registry::serves(path) => {
                let Some(registry) = self.ready()?.backend.registry() else {
                    return Err(ApiError::no_route(path));
                };
                let body = body::read(body, headers, REGISTRATION.min(self.body_limit)).await?;
                let (status, answer) = registry.answer(method.as_str(), path, query, &body);
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Ok(json_response(status, &answer))
            }
            _ => match path.strip_prefix("/v1/models/") {
                Some(name) => {
                    get()?;
                    let model = &self.ready()?.model;
                    match percent_decode(name) {
                        Some(name) if name == model.id => {
                            Ok(json_response(StatusCode::OK, &models::one(model)))
                        }
                        _ => Err(ApiError::unknown_model(name, &model.id)),
                    }
                }
                None => Err(ApiError::no_route(path)),
            },
        }
    }

    /// What is served, unless it is too early or too late.
    fn ready(&self) -> Result<&Served, ApiError> {
        match (self.life.now(), self.served.get()) {
            (Life::Ready, Some(served)) if served.backend.alive() => Ok(served),
            (Life::Ready, Some(_)) => Err(ApiError::unavailable("engine_stopped", "the engine has stopped")),
            (Life::Starting | Life::Ready, _) => {
                Err(ApiError::unavailable("loading", "the model is still loading; try again later"))
            }
            _ => Err(ApiError::unavailable("shutting_down", "the server is shutting down")),
        }
    }

    async fn generate(&self, is_chat: bool, body: &[u8], id: &str) -> Result<Response, ApiError> {
        let served = self.ready()?;
        let (model, tokenizer) = (&served.model, &served.tokenizer);
        let fields = Fields::parse(body)?;
        let ask = if is_chat {
            Ask::Chat(chat::Ask::parse(fields, model)?)
        } else {
            Ask::Completions(completions::Ask::parse(fields, model)?)
        };
        let assignment = &ask.common().assignment;
        let Some(fingerprint) = served.backend.fingerprint(assignment) else {
            let shown: String = assignment.chars().take(64).collect();
            let known = served.backend.assignments().join(", ");
            let message = format!("unknown assignment `{shown}`; there are: {known}");
            return Err(ApiError::field("assignment", "unknown_assignment", message));
        };
        let shape = Shape::new(&ask, id, fingerprint, model, tokenizer);
        let stream = ask.common().stream;
        let (requests, prompt_tokens) = {
            // A long prompt takes seconds to encode: not on an async thread.
            let (model, tokenizer) = (model.clone(), tokenizer.clone());
            tokio::task::spawn_blocking(move || ask.requests(&tokenizer, &model))
                .await
                .map_err(|_| ApiError::internal("E-SERVER-ENCODE"))??
        };
        let generation = Generation::start(&*served.backend, shape, requests, prompt_tokens, &self.choices)?;
        if stream {
            Ok(answer::stream(generation, self.life.clone()))
        } else {
            answer::whole(generation, &self.life).await
        }
    }
}

/// `%41b` to `Ab`; `None` if malformed.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}
