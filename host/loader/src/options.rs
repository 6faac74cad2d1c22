//! Options of a variant, checked against its manifest.

use crate::Options;
use crate::error::LoadError;
use crate::manifest::Manifest;
use crate::suggest::did_you_mean;
use serde_json::Value;

impl Manifest {
    /// The options in their one form: every option of the manifest, sorted by name, defaults filled in.
    ///
    /// # Errors
    /// [`LoadError::Option`] for an unknown option, a value of another type, or a value that is not in the list.
    pub fn canonical(&self, given: &Options) -> Result<Options, LoadError> {
        let error = |option: &str, what: String, hint: String| LoadError::Option {
            name: self.name.clone(),
            option: option.to_owned(),
            what,
            hint,
        };
        if let Some(unknown) = given.keys().find(|k| !self.options.contains_key(*k)) {
            let hint = did_you_mean(unknown, self.options.keys().map(String::as_str));
            return Err(error(unknown, "unknown option".to_owned(), hint));
        }
        let mut all = Options::new();
        for (name, spec) in &self.options {
            let value = match given.get(name) {
                None => spec.default.clone(),
                Some(value) => spec.kind.canonical(value).ok_or_else(|| {
                    let what = format!("expected a value of type {}, found {value}", spec.kind.name());
                    let quote = matches!(value, Value::Bool(_) | Value::Number(_))
                        && matches!(spec.kind, crate::OptionKind::String);
                    let hint = if quote { "Quote it to make it a string." } else { "Correct the value." };
                    error(name, what, hint.to_owned())
                })?,
            };
            if !spec.values.is_empty() && !spec.values.contains(&value) {
                let names: Vec<String> = spec.values.iter().map(plain).collect();
                let what = format!("expected one of {}, found {}", names.join(", "), plain(&value));
                let hint = did_you_mean(&plain(&value), names.iter().map(String::as_str));
                return Err(error(name, what, hint));
            }
            all.insert(name.clone(), value);
        }
        Ok(all)
    }

    /// Those of `options` that this manifest knows too; what a base takes over from the variant above it.
    pub fn known_options(&self, options: &Options) -> Options {
        options
            .iter()
            .filter(|(k, _)| self.options.contains_key(*k))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    /// Those of the canonical `options` that differ from their default.
    pub fn changed_options(&self, options: &Options) -> Options {
        options
            .iter()
            .filter(|(k, v)| self.options.get(*k).is_none_or(|spec| spec.default != **v))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
