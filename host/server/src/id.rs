//! Names of requests.

use std::hash::{BuildHasher, Hasher, RandomState};

use warp::http::{HeaderMap, HeaderValue};

use crate::error::ApiError;

/// Header that carries a request's name in both directions.
pub(crate) const HEADER: &str = "x-request-id";

/// A name that no other request has: 128 random bits.
pub(crate) fn new() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// Characters of a client's name for a request, at most.
const LONGEST: usize = 128;

/// A name that a client gave in the field `path`, if it is usable.
pub(crate) fn given(name: String, path: &str) -> Result<String, ApiError> {
    match name.chars().count() {
        1..=LONGEST => Ok(name),
        found => Err(ApiError::out_of_range(path, &format!("1 to {LONGEST} characters"), found)),
    }
}

/// A number that nobody can foretell.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The client's own name for a request, if it sent a usable one.
pub(crate) fn from_client(headers: &HeaderMap) -> Option<HeaderValue> {
    headers
        .get(HEADER)
        .filter(|value| (1..=LONGEST).contains(&value.len()) && value.to_str().is_ok())
        .cloned()
}
