//! Typed access to a JSON object that remembers which keys were looked at.

use std::cell::RefCell;
use std::collections::HashSet;

use hotseam_model::ConfigError;
use serde_json::{Map, Value};

/// A JSON object under a field path.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    prefix: String,
    seen: RefCell<HashSet<&'a str>>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>, prefix: &str) -> Self {
        Self { map, prefix: prefix.to_owned(), seen: RefCell::default() }
    }

    /// Full path of a key, as errors name it.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_owned() } else { format!("{}.{key}", self.prefix) }
    }

    pub(crate) fn error(&self, key: &str, expected: impl Into<String>, found: impl ToString) -> ConfigError {
        ConfigError::new(self.path(key), expected, found)
    }

    /// Keys of the object.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    /// The value of a key; `None` if it is absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        let (key, value) = self.map.get_key_value(key)?;
        self.seen.borrow_mut().insert(key);
        (!value.is_null()).then_some(value)
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.error(key, expected, shorten(value)))
    }

    fn required<T>(&self, key: &str, expected: &str, value: Option<T>) -> Result<T, ConfigError> {
        value.ok_or_else(|| self.error(key, expected, "nothing"))
    }

    pub(crate) fn size_or(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.typed(key, "a whole number", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    pub(crate) fn size(&self, key: &str) -> Result<usize, ConfigError> {
        self.required(key, "a whole number", self.size_or(key)?)
    }

    pub(crate) fn number_or(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub(crate) fn number(&self, key: &str) -> Result<f64, ConfigError> {
        self.required(key, "a number", self.number_or(key)?)
    }

    pub(crate) fn text_or(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(crate) fn object_or(&self, key: &str) -> Result<Option<Fields<'a>>, ConfigError> {
        let path = self.path(key);
        self.typed(key, "an object", |v| v.as_object().map(|m| Fields::new(m, &path)))
    }

    pub(crate) fn list_or(&self, key: &str) -> Result<Option<&'a Vec<Value>>, ConfigError> {
        self.typed(key, "a list", Value::as_array)
    }

    /// A token id, or a list of exactly one.
    pub(crate) fn token_or(&self, key: &str) -> Result<Option<u32>, ConfigError> {
        self.typed(key, "one token id", |v| {
            let one = match v.as_array() {
                Some(list) if list.len() == 1 => &list[0],
                Some(_) => return None,
                None => v,
            };
            one.as_u64().and_then(|n| u32::try_from(n).ok())
        })
    }

    pub(crate) fn token(&self, key: &str) -> Result<u32, ConfigError> {
        self.required(key, "one token id", self.token_or(key)?)
    }

    /// Refuses a key whose value is present and not `wanted`.
    pub(crate) fn only(&self, key: &str, wanted: &Value) -> Result<(), ConfigError> {
        match self.get(key) {
            Some(value) if value != wanted && !same_number(value, wanted) => {
                Err(self.error(key, wanted.to_string(), shorten(value)))
            }
            _ => Ok(()),
        }
    }

    /// Refuses keys that nothing looked at; `ignored` have no influence on the model. Keys that begin with `_` are
    /// private to the program that wrote the file.
    pub(crate) fn finish(&self, ignored: &[&str]) -> Result<(), ConfigError> {
        let seen = self.seen.borrow();
        for (key, value) in self.map {
            if seen.contains(key.as_str()) || ignored.contains(&key.as_str()) || key.starts_with('_') {
                continue;
            }
            let near = seen
                .iter()
                .map(|known| (strsim::jaro_winkler(known, key), *known))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .filter(|(score, _)| *score > 0.88);
            let expected = match near {
                Some((_, known)) => format!("no such field (is `{known}` meant?)"),
                None => "no such field, since this build does not know its meaning (remove it if it changes nothing in \
                         inference)"
                    .to_owned(),
            };
            return Err(self.error(key, expected, shorten(value)));
        }
        Ok(())
    }
}

fn same_number(a: &Value, b: &Value) -> bool {
    matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a == b)
}

/// JSON text of a value, cut to a length that fits a message.
pub(crate) fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}
