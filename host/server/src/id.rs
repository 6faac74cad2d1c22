//! Names of requests.

use std::hash::{BuildHasher, Hasher, RandomState};

use warp::http::{HeaderMap, HeaderValue};

/// Header that carries a request's name in both directions.
pub(crate) const HEADER: &str = "x-request-id";

/// A name that no other request has: 128 random bits.
pub(crate) fn new() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// The client's own name for a request, if it sent a usable one.
pub(crate) fn from_client(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(HEADER).filter(|value| (1..=128).contains(&value.len()) && value.to_str().is_ok()).cloned()
}
