//! `--set a.b[0].c=value`: one value of the configuration given on the command line.

use serde_yaml::{Mapping, Value};

use crate::document::{Fault, FieldPath, Step, bare_message};
use crate::error::{ConfigError, InvalidValue, Place};

/// One parsed `--set` argument.
pub(crate) struct Override {
    argument: String,
    path: FieldPath,
    value: Value,
}

/// Parses every argument; the value after `=` is YAML (`8`, `null`, `[512, 1024]`, text).
pub(crate) fn parse_all(arguments: &[String]) -> Result<Vec<Override>, ConfigError> {
    arguments.iter().map(|argument| Override::parse(argument)).collect()
}

impl Override {
    fn parse(argument: &str) -> Result<Self, ConfigError> {
        let bad = |message: String| {
            invalid(
                argument,
                String::new(),
                message,
                Some("write --set server.listen=127.0.0.1:9000".to_owned()),
            )
        };
        let (path, value) =
            argument.split_once('=').ok_or_else(|| bad("expected FIELD=VALUE, found no `=`".to_owned()))?;
        let path = parse_path(path).map_err(bad)?;
        let value = serde_yaml::from_str(value)
            .map_err(|error| bad(format!("the value is not YAML: {}", bare_message(&error))))?;
        Ok(Self { argument: argument.to_owned(), path, value })
    }

    /// Writes the value into `root`, creating mappings on the way.
    pub(crate) fn apply(&self, root: &mut Value) -> Result<(), ConfigError> {
        let mut at = root;
        for (depth, step) in self.path.0.iter().enumerate() {
            let parent = FieldPath(self.path.0[..depth].to_vec());
            at = match step {
                Step::Key(key) => {
                    if at.is_null() {
                        *at = Value::Mapping(Mapping::new());
                    }
                    let found = kind(at);
                    let mapping = at.as_mapping_mut().ok_or_else(|| {
                        self.invalid(format!("`{parent}` is {found}; it has no field `{key}`"))
                    })?;
                    mapping.entry(Value::String(key.clone())).or_insert(Value::Null)
                }
                Step::Index(index) => {
                    let found = kind(at);
                    let items = at.as_sequence_mut().ok_or_else(|| {
                        self.invalid(format!("`{parent}` is {found}, not a list; it has no item {index}"))
                    })?;
                    let count = items.len();
                    items.get_mut(*index).ok_or_else(|| {
                        self.invalid(format!(
                            "`{parent}` has {count} items, counted from 0; there is no item {index}"
                        ))
                    })?
                }
            };
        }
        *at = self.value.clone();
        Ok(())
    }

    /// True if this argument set the value at `path`, alone or as a part of what it set.
    pub(crate) fn concerns(&self, path: &FieldPath) -> bool {
        path.0.starts_with(&self.path.0)
    }

    /// True if this argument set something inside the value at `path`.
    pub(crate) fn reaches(&self, path: &FieldPath) -> bool {
        self.path.0.starts_with(&path.0)
    }

    /// True if this argument gave the value at `field` (dotted form).
    pub(crate) fn sets(&self, field: &str) -> bool {
        parse_path(field).is_ok_and(|path| self.concerns(&path))
    }

    /// `fault`, blamed on this argument.
    pub(crate) fn error(&self, fault: Fault) -> ConfigError {
        invalid(&self.argument, fault.path.to_string(), fault.message, fault.hint)
    }

    fn invalid(&self, message: String) -> ConfigError {
        invalid(&self.argument, self.path.to_string(), message, None)
    }
}

fn invalid(argument: &str, path: String, message: String, hint: Option<String>) -> ConfigError {
    let place = Place::Override(argument.to_owned());
    ConfigError::Invalid(Box::new(InvalidValue { place, path, message, hint }))
}

/// `a.b[0].c` to steps; a name with dots stands in quotes, as in `assignments."v1.2"[0]`.
pub(crate) fn parse_path(text: &str) -> Result<FieldPath, String> {
    let mut steps = Vec::new();
    let mut rest = text;
    loop {
        let (key, mut after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted
                .split_once('"')
                .ok_or_else(|| format!("in the field path `{text}`, a quote is not closed"))?,
            None => rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len())),
        };
        if key.is_empty() {
            return Err(format!("the field path `{text}` has an empty name"));
        }
        steps.push(Step::Key(key.to_owned()));
        while !after.is_empty() && !after.starts_with('.') {
            let (index, more) = after
                .strip_prefix('[')
                .and_then(|after| after.split_once(']'))
                .and_then(|(digits, more)| Some((digits.parse().ok()?, more)))
                .ok_or_else(|| {
                    let wrong = after.split('.').next().unwrap_or(after);
                    format!("in the field path `{text}`, `{wrong}` is not an index such as [0]")
                })?;
            steps.push(Step::Index(index));
            after = more;
        }
        match after.strip_prefix('.') {
            Some(more) => rest = more,
            None => return Ok(FieldPath(steps)),
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Sequence(_) => "a list",
        Value::Mapping(_) => "a mapping",
        Value::Tagged(_) => "a tagged value",
    }
}
