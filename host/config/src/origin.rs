//! Where a configuration was read, so that what is found wrong later has a position too.

use std::fmt;
use std::sync::Arc;

use crate::document::{Fault, Source};
use crate::error::ConfigError;
use crate::overrides::{Override, parse_path};

/// Text and overrides of a configuration. Two configurations of one content are equal, wherever they were read.
#[derive(Clone, Default)]
pub(crate) struct Origin(Arc<Text>);

#[derive(Default)]
struct Text {
    name: String,
    text: String,
    overrides: Vec<Override>,
}

impl Origin {
    pub(crate) fn new(name: &str, text: &str, overrides: Vec<Override>) -> Self {
        Self(Arc::new(Text { name: name.to_owned(), text: text.to_owned(), overrides }))
    }

    pub(crate) fn overrides(&self) -> &[Override] {
        &self.0.overrides
    }

    /// `fault` with its position in the file, or the override that brought it in.
    pub(crate) fn error(&self, fault: Fault) -> ConfigError {
        let source = Source { name: &self.0.name, text: &self.0.text };
        let made_here = !source.has(&fault.path);
        let concerned =
            |entry: &&Override| entry.concerns(&fault.path) || (made_here && entry.reaches(&fault.path));
        match self.0.overrides.iter().rev().find(concerned) {
            Some(entry) => entry.error(fault),
            None => source.error(fault),
        }
    }

    /// As [`Origin::error`], for a field in dotted form.
    pub(crate) fn error_at(&self, field: &str, message: String) -> ConfigError {
        let path = parse_path(field).unwrap_or_default();
        self.error(Fault { path, message, hint: None, at_key: false })
    }
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.name)
    }
}
