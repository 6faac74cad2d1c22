//! Variants as people write them: a plugin and its options, `indexer/cpu-sm120{early_exit: true, keys: bf16}`.

use hotseam_loader::{Options, file_name};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_yaml::Value as Yaml;
use std::fmt;
use std::str::FromStr;

/// A plugin, by name or by the path of its file, and options for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariantSpec {
    /// `dir/name`, or a path that ends in `.so`.
    pub name: String,
    /// The options that are given; sorted by name.
    options: Options,
}

/// A text that is no variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "variant `{variant}`: {what}. A variant is dir/name{{option: value, ...}}, or the path of a .so in place of the name."
)]
pub struct VariantError {
    /// The text.
    pub variant: String,
    /// What is wrong in it.
    pub what: String,
}

impl VariantSpec {
    /// A variant of a name or path, with options in any order.
    pub fn new(name: impl Into<String>, options: Options) -> Self {
        let mut sorted: Vec<_> = options.into_iter().collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        Self { name: name.into(), options: sorted.into_iter().collect() }
    }

    /// The options that are given, sorted by name.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The same variant with one option set to `value`, or taken away.
    pub fn with_option(&self, name: &str, value: Option<Value>) -> Self {
        let mut options: Options = self.options.clone();
        match value {
            Some(value) => {
                options.insert(name.to_owned(), value);
            }
            None => {
                options.shift_remove(name);
            }
        }
        Self::new(self.name.clone(), options)
    }
}

impl FromStr for VariantSpec {
    type Err = VariantError;

    fn from_str(text: &str) -> Result<Self, VariantError> {
        let error = |what: String| VariantError { variant: text.to_owned(), what };
        let text = text.trim();
        let (name, options) = match text.find('{') {
            Some(at) => (text[..at].trim_end(), parse_options(&text[at..]).map_err(error)?),
            None => (text, Options::new()),
        };
        if !name.ends_with(".so") && file_name(name).is_none() {
            return Err(error(format!("expected a name such as `indexer/cpu-stock`, found `{name}`")));
        }
        Ok(Self::new(name, options))
    }
}

/// Reads a YAML flow map of scalars.
fn parse_options(text: &str) -> Result<Options, String> {
    let yaml: Yaml =
        serde_yaml::from_str(text).map_err(|e| format!("options {text} are not a YAML flow map: {e}"))?;
    let Yaml::Mapping(map) = yaml else {
        return Err(format!("options {text} are not a YAML flow map"));
    };
    map.into_iter()
        .map(|(key, value)| {
            let Yaml::String(key) = key else {
                return Err(format!("option names are words, found {key:?}"));
            };
            let scalar = match value {
                Yaml::Bool(b) => Some(Value::Bool(b)),
                Yaml::String(s) => Some(Value::String(s)),
                Yaml::Number(n) => n
                    .as_i64()
                    .map(Value::from)
                    .or_else(|| n.as_f64().and_then(serde_json::Number::from_f64).map(Value::Number)),
                _ => None,
            };
            let what = || match key.contains(':') {
                true => format!("option `{key}`: expected a space after the colon"),
                false => format!("option `{key}`: expected true, false, a finite number or a word"),
            };
            Ok((key.clone(), scalar.ok_or_else(what)?))
        })
        .collect()
}

impl fmt::Display for VariantSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.options.is_empty() {
            return Ok(());
        }
        for (i, (key, value)) in self.options.iter().enumerate() {
            f.write_str(if i == 0 { "{" } else { ", " })?;
            write_word(f, key)?;
            f.write_str(": ")?;
            match value {
                Value::String(text) => write_word(f, text)?,
                other => write!(f, "{other}")?,
            }
        }
        f.write_str("}")
    }
}

/// Writes a string so that YAML reads the same string back: plain where it surely does, else in JSON's quotes, which
/// YAML also knows.
fn write_word(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let shape = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'/' | b'.'));
    let plain = shape && matches!(serde_yaml::from_str(text), Ok(Yaml::String(same)) if same == text);
    if plain { f.write_str(text) } else { write!(f, "{}", Value::String(text.to_owned())) }
}

impl Serialize for VariantSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for VariantSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
