//! YAML text to values with positions.
//!
//! A typed value is read from the tree of values, after overrides, so an error there knows its field path but
//! no position. The position is found by walking the text once more along that path ([`Walk`]): only on
//! failure, so its cost does not matter.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde::{Deserialize, de};
use serde_path_to_error::Segment;
use serde_yaml::{Mapping, Value};

use crate::error::{ConfigError, InvalidValue, Place};
use crate::schema::Config;

/// One step of a field path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

/// A field path that displays as `a.b[0].c`; `crate::overrides::parse_path` reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FieldPath(pub(crate) Vec<Step>);

impl fmt::Display for FieldPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if position == 0 => write!(out, "{}", quoted(key))?,
                Step::Key(key) => write!(out, ".{}", quoted(key))?,
                Step::Index(index) => write!(out, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// A name as it stands in a field path: in quotes if it has what separates steps.
pub fn quoted(name: &str) -> Cow<'_, str> {
    match name.contains(['.', '[']) {
        true => format!("\"{name}\"").into(),
        false => name.into(),
    }
}

/// A bad value before its position is known.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) path: FieldPath,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Point at the key that ends the path instead of at its value.
    pub(crate) at_key: bool,
}

/// The configuration text and the name that messages give it.
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    /// The tree of values; syntax errors, duplicate keys and tags are refused here with their position.
    pub(crate) fn value(&self) -> Result<Value, ConfigError> {
        let Strict(value) = serde_yaml::from_str(self.text).map_err(|error| {
            let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
            self.invalid(line, column, String::new(), bare_message(&error), None)
        })?;
        Ok(value)
    }

    /// `fault` with the position of its path in the text.
    pub(crate) fn error(&self, fault: Fault) -> ConfigError {
        let (line, column) = self.locate(&fault.path.0, fault.at_key);
        self.invalid(line, column, fault.path.to_string(), fault.message, fault.hint)
    }

    fn invalid(
        &self,
        line: usize,
        column: usize,
        path: String,
        message: String,
        hint: Option<String>,
    ) -> ConfigError {
        let source_line = self.text.lines().nth(line - 1).unwrap_or("").to_owned();
        let place = Place::File { name: self.name.to_owned(), line, column, source_line };
        ConfigError::Invalid(Box::new(InvalidValue { place, path, message, hint }))
    }

    /// True if the text itself has a value at `path`.
    pub(crate) fn has(&self, path: &FieldPath) -> bool {
        self.position(&path.0, false).is_some()
    }

    /// Line and column of `path`, or of its longest prefix that stands in the text.
    fn locate(&self, path: &[Step], at_key: bool) -> (usize, usize) {
        match (self.position(path, at_key), path.split_last()) {
            (Some(position), _) => position,
            (None, None) => (1, 1),
            (None, Some((_, parent))) => self.locate(parent, false),
        }
    }

    fn position(&self, path: &[Step], at_key: bool) -> Option<(usize, usize)> {
        let deserializer = serde_yaml::Deserializer::from_str(self.text);
        let end = (Walk { path, at_key }).deserialize(deserializer).err()?;
        end.to_string().contains(FOUND).then(|| end.location().map(|at| (at.line(), at.column())))?
    }
}

/// The typed configuration out of the tree of values.
pub(crate) fn typed(value: &Value) -> Result<Config, Fault> {
    serde_path_to_error::deserialize::<_, Config>(value).map_err(|error| {
        let mut path: Vec<Step> = Vec::new();
        for segment in error.path() {
            match segment {
                Segment::Map { key } => path.push(Step::Key(key.clone())),
                Segment::Seq { index } => path.push(Step::Index(*index)),
                Segment::Enum { .. } | Segment::Unknown => {}
            }
        }
        let mut message = bare_message(error.inner());
        if let Some((inside, rest)) = message.split_once(INSIDE) {
            path.extend(inside.split(SEPARATOR).filter(|step| !step.is_empty()).map(parse_step));
            message = rest.to_owned();
        }
        let at_key = message.starts_with("unknown field");
        let (message, hint) = crate::names::explain(&message);
        Fault { path: FieldPath(path), message, hint, at_key }
    })
}

/// Reads a value that was taken out of the tree by hand; `at` is where it stood below the value in hand. The path of an
/// error rides in its message, since serde has no other place for it; [`typed`] takes it out.
pub(crate) fn inner<T: DeserializeOwned>(at: &[&str], value: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize::<_, T>(value).map_err(|error| {
        let mut path: Vec<String> = at.iter().map(|key| (*key).to_owned()).collect();
        for segment in error.path() {
            match segment {
                Segment::Map { key } => path.push(key.clone()),
                Segment::Seq { index } => path.push(format!("[{index}]")),
                Segment::Enum { .. } | Segment::Unknown => {}
            }
        }
        format!("{}{INSIDE}{}", path.join(SEPARATOR), bare_message(error.inner()))
    })
}

/// `message` about the value at `at`, below the value in hand, as [`inner`] writes it.
pub(crate) fn at(at: &[&str], message: &str) -> String {
    format!("{}{INSIDE}{message}", at.join(SEPARATOR))
}

/// A step as [`inner`] writes it.
fn parse_step(text: &str) -> Step {
    let index = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')?.parse().ok());
    index.map_or_else(|| Step::Key(text.to_owned()), Step::Index)
}

/// The message of a YAML error without the path and position that its `Display` adds.
pub(crate) fn bare_message(error: &serde_yaml::Error) -> String {
    let mut message = error.to_string();
    if let Some(at) = error.location() {
        message = message.replacen(&format!(" at line {} column {}", at.line(), at.column()), "", 1);
    }
    match message.find(STRICT) {
        Some(start) => message[start + STRICT.len()..].to_owned(),
        None => message,
    }
}

/// Marks messages of [`Strict`], which the parser prefixes with a path of its own.
const STRICT: &str = "\u{1}";
/// Ends the path that [`inner`] puts before a message.
const INSIDE: &str = "\u{3}";
/// Between the steps of that path.
const SEPARATOR: &str = "\u{4}";
/// The message of the error by which [`Walk`] reports success.
const FOUND: &str = "\u{2}here";

/// A value tree without duplicate keys, non-string keys or tags.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Strict;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a plain YAML value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Strict, E> {
        Ok(Strict(Value::Null))
    }

    fn visit_none<E: de::Error>(self) -> Result<Strict, E> {
        Ok(Strict(Value::Null))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Strict, A::Error> {
        let mut items = Vec::new();
        while let Some(Strict(item)) = access.next_element()? {
            items.push(item);
        }
        Ok(Strict(Value::Sequence(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Strict, A::Error> {
        let mut seen = HashSet::new();
        let mut mapping = Mapping::new();
        while let Some(key) = access.next_key_seed(NewKey(&mut seen))? {
            let Strict(value) = access.next_value()?;
            mapping.insert(Value::String(key), value);
        }
        Ok(Strict(Value::Mapping(mapping)))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _access: A) -> Result<Strict, A::Error> {
        Err(A::Error::custom(format_args!(
            "{STRICT}YAML tags such as `!name` have no meaning here; quote the value"
        )))
    }
}

/// Reads a mapping key and refuses one that the mapping has already: the error stands at the second place.
struct NewKey<'a>(&'a mut HashSet<String>);

impl<'de> DeserializeSeed<'de> for NewKey<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for NewKey<'_> {
    type Value = String;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a text key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<String, E> {
        if !self.0.insert(key.to_owned()) {
            return Err(E::custom(format_args!("{STRICT}duplicate key `{key}`")));
        }
        Ok(key.to_owned())
    }
}

/// Walks along a path and fails with [`FOUND`] at its end; the parser stamps that failure with its position.
#[derive(Clone, Copy)]
struct Walk<'a> {
    path: &'a [Step],
    at_key: bool,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Walk<'_> {
    fn scalar<E: de::Error>(self) -> Result<(), E> {
        if self.path.is_empty() { Err(E::custom(FOUND)) } else { Ok(()) }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.scalar()
    }

    fn visit_none<E: de::Error>(self) -> Result<(), E> {
        self.scalar()
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        self.scalar()
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<(), E> {
        self.scalar()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        let Some((step, rest)) = self.path.split_first() else { return Err(A::Error::custom(FOUND)) };
        let mut index = 0;
        loop {
            let more = if *step == Step::Index(index) {
                access.next_element_seed(Walk { path: rest, ..self })?.is_some()
            } else {
                access.next_element::<IgnoredAny>()?.is_some()
            };
            if !more {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        let Some((step, rest)) = self.path.split_first() else { return Err(A::Error::custom(FOUND)) };
        let wanted = match step {
            Step::Key(key) => key.as_str(),
            Step::Index(_) => return Ok(()),
        };
        let stop = self.at_key && rest.is_empty();
        while let Some(matched) = access.next_key_seed(FindKey { wanted, stop })? {
            if matched {
                access.next_value_seed(Walk { path: rest, ..self })?;
            } else {
                access.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Compares a mapping key; with `stop` set, a match ends the walk at the key itself.
struct FindKey<'a> {
    wanted: &'a str,
    stop: bool,
}

impl<'de> DeserializeSeed<'de> for FindKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for FindKey<'_> {
    type Value = bool;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a text key")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<bool, E> {
        if key == self.wanted && self.stop {
            return Err(E::custom(FOUND));
        }
        Ok(key == self.wanted)
    }
}
