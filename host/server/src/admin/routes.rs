//! Which admin path does what.

use std::sync::Arc;

use bytes::Buf;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_stream::Stream;
use warp::http::{HeaderMap, Method, StatusCode};
use warp::reply::{Reply, Response};
use warp::{Filter, Rejection};

use crate::admin::actions::Admin;
use crate::admin::wire::{DefineRequest, RollbackRequest};
use crate::body;
use crate::connect;
use crate::error::{ApiError, json_response};
use crate::openai::LIVE;

/// Bytes of a request body, at most.
const BODY_LIMIT: usize = 1 << 20;

/// The filter of the admin socket. It never rejects.
pub(crate) fn filter(
    admin: Arc<Admin>,
) -> impl Filter<Extract = (Response,), Error = Rejection> + Clone + Send + Sync + 'static {
    let query = warp::query::raw().or(warp::any().map(String::new)).unify();
    let served = warp::any()
        .map(move || admin.clone())
        .and(warp::method())
        .and(warp::path::full())
        .and(query)
        .and(warp::header::headers_cloned())
        .and(warp::body::stream())
        .then(
            |admin: Arc<Admin>,
             method: Method,
             path: warp::path::FullPath,
             query: String,
             headers: HeaderMap,
             body| async move {
                let result = answer(admin, &method, path.as_str(), query, &headers, body).await;
                let code = result.as_ref().err().map(|error| error.message.clone());
                let response = match result {
                    Ok(value) => json_response(StatusCode::OK, &value),
                    Err(error) => error.into_response(),
                };
                tracing::info!(
                    %method,
                    path = path.as_str(),
                    status = response.status().as_u16(),
                    error = code,
                    "admin request"
                );
                response
            },
        );
    connect::refused_before(served)
}

async fn answer<B: Buf>(
    admin: Arc<Admin>,
    method: &Method,
    path: &str,
    query: String,
    headers: &HeaderMap,
    body: impl Stream<Item = Result<B, warp::Error>>,
) -> Result<Value, ApiError> {
    let body = body::read(body, headers, BODY_LIMIT).await?;
    let only = |allowed: &'static str, methods: &[Method]| match methods.contains(method) {
        true => Ok(()),
        false => Err(ApiError::method(path, allowed)),
    };
    match path {
        "/slots" => {
            only("GET", &[Method::GET])?;
            blocking(move || Ok(admin.slots())).await
        }
        "/swap" => {
            only("POST", &[Method::POST])?;
            let request = parse(&body)?;
            blocking(move || admin.swap(request)).await
        }
        "/rollback" => {
            only("POST", &[Method::POST])?;
            let request = if body.is_empty() { RollbackRequest::default() } else { parse(&body)? };
            blocking(move || admin.rollback(request)).await
        }
        "/trace" => {
            only("GET", &[Method::GET])?;
            let assignment = trace_query(&query)?;
            blocking(move || admin.trace(&assignment)).await
        }
        "/variant" => {
            only("POST", &[Method::POST])?;
            let request = parse(&body)?;
            blocking(move || admin.variant(request)).await
        }
        "/stats" => {
            only("GET", &[Method::GET])?;
            blocking(move || Ok(admin.stats())).await
        }
        _ => {
            let Some(name) = path.strip_prefix("/assignments/").map(str::to_owned) else {
                return Err(ApiError::no_route(path));
            };
            only("PUT, DELETE", &[Method::PUT, Method::DELETE])?;
            if method == Method::DELETE {
                return blocking(move || admin.remove(&name).map(|()| json!({ "removed": name }))).await;
            }
            let is_list = body.trim_ascii_start().first() == Some(&b'[');
            let request =
                if is_list { DefineRequest { extends: None, rules: parse(&body)? } } else { parse(&body)? };
            blocking(move || admin.define(&name, request)).await
        }
    }
}

/// Runs `action` where it may load plugins and wait for another writer.
async fn blocking<T: Serialize + Send + 'static>(
    action: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<Value, ApiError> {
    let value =
        tokio::task::spawn_blocking(action).await.map_err(|_| ApiError::internal("E-SERVER-ADMIN"))??;
    serde_json::to_value(value).map_err(|_| ApiError::internal("E-SERVER-ADMIN"))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the request body is not valid: {error}");
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    })
}

/// The assignment in `assignment=NAME`. Names need no escapes, so none are decoded.
fn trace_query(query: &str) -> Result<String, ApiError> {
    match query.split_once('=') {
        None if query.is_empty() => Ok(LIVE.to_owned()),
        Some(("assignment", name)) => Ok(name.to_owned()),
        _ => {
            let message = format!("expected the query `assignment=NAME` or none, found `{query}`");
            Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", message))
        }
    }
}
