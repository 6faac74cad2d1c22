//! Typed access to the fields of a JSON object, with errors that name the field.

use serde_json::{Map, Value};
use warp::http::StatusCode;

use crate::error::ApiError;

/// The fields of a request object that nobody has read yet.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Prefix of field names in messages, such as `messages[0].`.
    prefix: String,
}

impl Fields {
    /// The object in a request body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { map, prefix: String::new() }),
            Ok(other) => {
                let mut error = ApiError::wrong_type("", "a JSON object as the request body", &other);
                error.message = error.message.trim_start_matches("``: ").to_owned();
                error.param = None;
                Err(error)
            }
            Err(error) => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "json_parse_error",
                format!("the request body is not valid JSON: {error}"),
            )),
        }
    }

    /// The object `value`, which stands at `path`.
    pub(crate) fn nested(value: Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, prefix: format!("{path}.") }),
            other => Err(ApiError::wrong_type(path, "an object", &other)),
        }
    }

    /// The full name of field `name`.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Removes and gives a field; null counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(ApiError::wrong_type(&self.path(name), "a boolean", &other)),
        }
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(ApiError::wrong_type(&self.path(name), "a string", &other)),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        let path = self.path(name);
        self.take(name).map(|value| Fields::nested(value, &path)).transpose()
    }

    pub(crate) fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(ApiError::wrong_type(&self.path(name), "an array", &other)),
        }
    }

    /// An integer from `low` to `high`, both included.
    pub(crate) fn integer(&mut self, name: &str, low: i64, high: i64) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Value::Number(number) = &value else {
            return Err(ApiError::wrong_type(&self.path(name), "an integer", &value));
        };
        match number.as_i64() {
            Some(integer) if (low..=high).contains(&integer) => Ok(Some(integer)),
            _ => {
                let expected = match high {
                    i64::MAX => format!("an integer of at least {low}"),
                    _ => format!("an integer from {low} to {high}"),
                };
                Err(ApiError::out_of_range(&self.path(name), &expected, number))
            }
        }
    }

    /// [`integer`](Self::integer) for sizes.
    pub(crate) fn size(&mut self, name: &str, low: u32, high: u32) -> Result<Option<usize>, ApiError> {
        let value = self.integer(name, i64::from(low), i64::from(high))?;
        // Fits: `high` is a u32.
        Ok(value.map(|value| value as usize))
    }

    /// A number for which `allowed` holds; `expected` says in words which those are.
    pub(crate) fn number(
        &mut self,
        name: &str,
        expected: &str,
        allowed: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Some(number) = value.as_f64() else {
            return Err(ApiError::wrong_type(&self.path(name), "a number", &value));
        };
        if !allowed(number) {
            return Err(ApiError::out_of_range(&self.path(name), expected, number));
        }
        Ok(Some(number))
    }

    /// Ends the reading: every field left must be in `no_effect` with a value that changes nothing.
    pub(crate) fn finish(self, no_effect: &[NoEffect], known: &[&str]) -> Result<(), ApiError> {
        for (name, value) in &self.map {
            let path = self.path(name);
            match no_effect.iter().find(|field| field.name == name) {
                Some(_) if value.is_null() => {}
                Some(field) if (field.harmless)(value) => {}
                Some(field) => {
                    let message = format!("not implemented here; leave it out, or give {}", field.default);
                    return Err(ApiError::field(path, "unsupported_parameter", message));
                }
                None => {
                    let names = known.iter().copied().chain(no_effect.iter().map(|field| field.name));
                    let near = names
                        .map(|known| (strsim::damerau_levenshtein(known, name), known))
                        .filter(|(distance, _)| *distance <= 2)
                        .min();
                    let message = match near {
                        Some((_, near)) => format!("unknown field; did you mean `{near}`?"),
                        None => "unknown field".to_owned(),
                    };
                    let path: String = path.chars().take(100).collect();
                    return Err(ApiError::field(path, "unknown_parameter", message));
                }
            }
        }
        Ok(())
    }
}

/// A field that is accepted as long as its value asks for nothing.
#[derive(Clone, Copy)]
pub(crate) struct NoEffect {
    pub(crate) name: &'static str,
    /// Values that change nothing, in words.
    pub(crate) default: &'static str,
    pub(crate) harmless: fn(&Value) -> bool,
}
