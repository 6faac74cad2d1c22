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
use crate::admin::events;
use crate::admin::listen::Caller;
use crate::admin::who::Who;
use crate::admin::wire::{DefineRequest, ReloadRequest, RollbackRequest, SwapRequest, Wait};
use crate::body;
use crate::connect;
use crate::error::{ApiError, json_response};
use crate::openai::LIVE;

/// Bytes of a request body, at most.
const BODY_LIMIT: usize = 1 << 20;

/// The filter of one admin connection. It never rejects.
pub(crate) fn filter(
    admin: Arc<Admin>,
    caller: Caller,
) -> impl Filter<Extract = (Response,), Error = Rejection> + Clone + Send + Sync + 'static {
    let query = warp::query::raw().or(warp::any().map(String::new)).unify();
    let served = warp::any()
        .map(move || (admin.clone(), caller.clone()))
        .and(warp::method())
        .and(warp::path::full())
        .and(query)
        .and(warp::header::headers_cloned())
        .and(warp::body::stream())
        .then(
            |(admin, caller): (Arc<Admin>, Caller),
             method: Method,
             path: warp::path::FullPath,
             query: String,
             headers: HeaderMap,
             body| async move {
                // Before anything is read or looked up.
                let who = caller.who(&headers);
                let shown = who.as_ref().map_or_else(|_| "unknown".to_owned(), ToString::to_string);
                let result = match who {
                    Ok(who) => answer(admin, who, &method, path.as_str(), query, &headers, body).await,
                    Err(error) => Err(error),
                };
                let refusal = result.as_ref().err().map(|error| error.message.clone());
                let response = match result {
                    Ok(Answer::Json(status, value)) => json_response(status, &value),
                    Ok(Answer::Stream(response)) => response,
                    Err(error) => error.into_response(),
                };
                let path: String = path.as_str().chars().take(100).collect();
                tracing::info!(
                    who = shown,
                    %method,
                    path,
                    status = response.status().as_u16(),
                    error = refusal,
                    "admin request"
                );
                response
            },
        );
    connect::refused_before(served)
}

/// What an endpoint answers.
enum Answer {
    Json(StatusCode, Value),
    Stream(Response),
}

async fn answer<B: Buf>(
    admin: Arc<Admin>,
    who: Who,
    method: &Method,
    path: &str,
    query: String,
    headers: &HeaderMap,
    body: impl Stream<Item = Result<B, warp::Error>>,
) -> Result<Answer, ApiError> {
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
            let request: SwapRequest = parse(&body)?;
            // Nobody knows yet how it ends.
            let open = request.wait == Wait::Begin && !request.dry_run;
            let status = if open { StatusCode::ACCEPTED } else { StatusCode::OK };
            blocking_with(status, move || admin.swap(&who, request)).await
        }
        "/rollback" => {
            only("POST", &[Method::POST])?;
            let request = if body.is_empty() { RollbackRequest::default() } else { parse(&body)? };
            blocking(move || admin.rollback(&who, request)).await
        }
        "/reload" => {
            only("POST", &[Method::POST])?;
            let request = if body.is_empty() { ReloadRequest::default() } else { parse(&body)? };
            blocking(move || admin.reload(&who, &request)).await
        }
        "/swaps" => {
            only("GET", &[Method::GET])?;
            blocking(move || Ok(admin.swaps())).await
        }
        "/events" => {
            only("GET", &[Method::GET])?;
            Ok(Answer::Stream(events::stream(admin, events::query(&query)?)?))
        }
        "/trace" => {
            only("GET", &[Method::GET])?;
            let assignment = trace_query(&query)?;
            blocking(move || admin.trace(&assignment)).await
        }
        "/kv" => {
            only("GET", &[Method::GET])?;
            blocking(move || Ok(admin.kv_map())).await
        }
        "/variant" => {
            only("POST", &[Method::POST])?;
            let request = parse(&body)?;
            blocking(move || admin.variant(&who, request)).await
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
                return blocking(move || admin.remove(&who, &name).map(|()| json!({ "removed": name })))
                    .await;
            }
            let is_list = body.trim_ascii_start().first() == Some(&b'[');
            let request =
                if is_list { DefineRequest { extends: None, rules: parse(&body)? } } else { parse(&body)? };
            blocking(move || admin.define(&who, &name, request)).await
        }
    }
}

/// Runs `action` where it may load plugins and wait for another writer.
async fn blocking<T: Serialize + Send + 'static>(
    action: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<Answer, ApiError> {
    blocking_with(StatusCode::OK, action).await
}

async fn blocking_with<T: Serialize + Send + 'static>(
    status: StatusCode,
    action: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<Answer, ApiError> {
    let value =
        tokio::task::spawn_blocking(action).await.map_err(|_| ApiError::internal("E-SERVER-ADMIN"))??;
    let value = serde_json::to_value(value).map_err(|_| ApiError::internal("E-SERVER-ADMIN"))?;
    Ok(Answer::Json(status, value))
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
