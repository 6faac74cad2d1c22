//! Errors as HTTP clients see them, in OpenAI's shape.
//!
//! Messages name fields, limits and ids of the request itself; never another request's data, a file path or the
//! text of an internal failure.

use serde_json::{Value, json};
use warp::http::StatusCode;
use warp::http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use warp::reply::{Reply, Response};

/// An error response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// `error.message`: what is wrong, what was expected, what was found.
    pub message: String,
    /// `error.param`: the field, if one is to blame.
    pub param: Option<String>,
    /// `error.code`: stable, for programs.
    pub code: Option<String>,
    /// Methods to name in `Allow`, for status 405.
    pub(crate) allow: Option<&'static str>,
}

impl ApiError {
    /// An error without a field.
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: Some(code.to_owned()), allow: None }
    }

    /// A bad field of the request body.
    pub fn field(param: impl Into<String>, code: &str, message: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("`{param}`: {}", message.into());
        Self { param: Some(param), ..Self::new(StatusCode::BAD_REQUEST, code, message) }
    }

    pub(crate) fn missing(param: &str, expected: &str) -> Self {
        let message = format!("required, expected {expected}");
        Self::field(param, "missing_required_parameter", message)
    }

    pub(crate) fn wrong_type(param: &str, expected: &str, found: &Value) -> Self {
        Self::field(param, "invalid_type", format!("expected {expected}, found {}", kind(found)))
    }

    pub(crate) fn out_of_range(param: &str, expected: &str, found: impl std::fmt::Display) -> Self {
        Self::field(param, "invalid_value", format!("expected {expected}, found {found}"))
    }

    pub(crate) fn no_route(path: &str) -> Self {
        let shown: String = path.chars().take(100).collect();
        Self::new(StatusCode::NOT_FOUND, "unknown_url", format!("there is no endpoint `{shown}`"))
    }

    pub(crate) fn method(path: &str, allow: &'static str) -> Self {
        let message = format!("`{path}` accepts {allow} only");
        Self {
            allow: Some(allow),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        }
    }

    pub(crate) fn unknown_model(asked: &str, served: &str) -> Self {
        let shown: String = asked.chars().take(100).collect();
        let message = format!("the model `{shown}` does not exist; this server has `{served}`");
        Self {
            param: Some("model".to_owned()),
            ..Self::new(StatusCode::NOT_FOUND, "model_not_found", message)
        }
    }

    pub(crate) fn busy(message: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "server_busy", message)
    }

    pub(crate) fn unavailable(code: &str, message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    pub(crate) fn internal(code: &str) -> Self {
        let message = format!("the request failed inside the server ({code}); its log has the details");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, code, message)
    }

    /// `error.type`, which follows from the status.
    pub fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The response body; all four keys are always there.
    pub fn body(&self) -> Value {
        json!({
            "error": { "message": self.message, "type": self.kind(), "param": self.param, "code": self.code }
        })
    }
}

impl Reply for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.body());
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if let Some(allow) = self.allow {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

/// A JSON response.
pub(crate) fn json_response(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(body.to_string().into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A JSON value's type in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
