//! The public listener: which path does what.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Buf;
use hotseam_encoding::Tokenizer;
use hotseam_pd::Registry;
use tokio::sync::Semaphore;
use tokio_stream::Stream;
use warp::http::header::{HOST, HeaderValue};
use warp::http::uri::Authority;
use warp::http::{HeaderMap, Method, StatusCode};
use warp::reply::{Reply, Response};
use warp::{Filter, Rejection};

use crate::backend::{Backend, ModelInfo};
use crate::connect;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::form::{About, Ask};
use crate::generation::{Generation, Start};
use crate::lifecycle::{Life, Lifecycle};
use crate::live::Live;
use crate::openai::{OpenAi, chat, completions, models};
use crate::{answer, body, id, native, worker};

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
    pub(crate) live: Live,
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
        if worker::is_probe(&path) {
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
        if let Some(endpoint) = Endpoint::at(path) {
            if method != Method::POST {
                return Err(ApiError::method(path, "POST"));
            }
            // Before the body is read, which may be long.
            self.ready()?;
            let body = body::read(body, headers, self.body_limit).await?;
            return self.generate(endpoint, &body, headers, id).await;
        }
        if Registry::serves(path) {
            let Some(registry) = self.ready()?.backend.registry() else {
                return Err(ApiError::no_route(path));
            };
            let body = body::read(body, headers, REGISTRATION.min(self.body_limit)).await?;
            let (status, answer) = registry.answer(method.as_str(), path, query, &body);
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return Ok(json_response(status, &answer));
        }
        if let Some(answer) = self.worker(method, path, headers, body).await {
            return answer;
        }
        match (path, path.strip_prefix("/v1/models/")) {
            ("/v1/models", _) => {
                get()?;
                Ok(json_response(StatusCode::OK, &models::list(&self.ready()?.model)))
            }
            (_, Some(name)) => {
                get()?;
                let model = &self.ready()?.model;
                match percent_decode(name) {
                    Some(name) if name == model.id => Ok(json_response(StatusCode::OK, &models::one(model))),
                    _ => Err(ApiError::unknown_model(name, &model.id)),
                }
            }
            _ => Err(ApiError::no_route(path)),
        }
    }

    /// What is served, unless it is too early or too late.
    pub(crate) fn ready(&self) -> Result<&Served, ApiError> {
        match (self.life.now(), self.served.get()) {
            (Life::Ready, Some(served)) if served.backend.alive() => Ok(served),
            (Life::Ready, Some(_)) => Err(ApiError::unavailable("engine_stopped", "the engine has stopped")),
            (Life::Starting | Life::Ready, _) => {
                Err(ApiError::unavailable("loading", "the model is still loading; try again later"))
            }
            _ => Err(ApiError::unavailable("shutting_down", "the server is shutting down")),
        }
    }

    async fn generate(
        &self,
        endpoint: Endpoint,
        body: &[u8],
        headers: &HeaderMap,
        id: &str,
    ) -> Result<Response, ApiError> {
        let served = self.ready()?;
        let (model, tokenizer) = (&served.model, &served.tokenizer);
        let ask = endpoint.parse(Fields::parse(body)?, model)?;
        if let Some(meeting) = ask.meeting() {
            meeting.suits(served.backend.role())?;
        }
        let assignment = ask.assignment();
        let Some(fingerprint) = served.backend.fingerprint(assignment) else {
            let shown: String = assignment.chars().take(64).collect();
            let known = served.backend.assignments().join(", ");
            let message = format!("unknown assignment `{shown}`; there are: {known}");
            return Err(ApiError::field("assignment", "unknown_assignment", message));
        };
        let (mut requests, prompt_tokens) = {
            // A long prompt takes seconds to encode: not on an async thread.
            let (ask, model, tokenizer) = (ask.clone(), model.clone(), tokenizer.clone());
            tokio::task::spawn_blocking(move || ask.requests(&tokenizer, &model))
                .await
                .map_err(|_| ApiError::internal("E-SERVER-ENCODE"))??
        };
        let transfer = match ask.meeting() {
            Some(meeting) => meeting.assign(&mut requests, ask.prompts(), authority(headers))?,
            None => None,
        };
        let about = About { id, fingerprint: &fingerprint, model, tokenizer };
        let start = Start { form: ask.form(about, &requests), requests, prompt_tokens, transfer };
        let generation = Generation::start(&*served.backend, start, &self.choices, &self.live)?;
        if ask.stream() {
            answer::stream(generation, self.life.clone()).await
        } else {
            answer::whole(generation, &self.life).await
        }
    }
}

/// The endpoints that generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Chat,
    Completions,
    Native,
}

impl Endpoint {
    fn at(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Completions),
            "/generate" => Some(Self::Native),
            _ => None,
        }
    }

    fn parse(self, fields: Fields, model: &ModelInfo) -> Result<Arc<dyn Ask>, ApiError> {
        Ok(match self {
            Self::Chat => Arc::new(OpenAi::Chat(chat::Ask::parse(fields, model)?)),
            Self::Completions => Arc::new(OpenAi::Completions(completions::Ask::parse(fields, model)?)),
            Self::Native => Arc::new(native::Ask::parse(fields, model)?),
        })
    }
}

/// Host and port by which a client reached this server.
fn authority(headers: &HeaderMap) -> Option<(String, u16)> {
    let authority: Authority = headers.get(HOST)?.to_str().ok()?.parse().ok()?;
    Some((authority.host().to_owned(), authority.port_u16().unwrap_or(80)))
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
