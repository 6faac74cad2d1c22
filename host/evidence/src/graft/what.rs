//! What can be replaced: outputs of cells, or parts of the KV that decode starts from.

use std::fmt;
use std::str::FromStr;

use hotseam_abi::component;
use hotseam_slots::{NumberSet, Selector, SelectorError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a graft replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Graft {
    /// The outputs of these cells, call by call.
    Outputs(Selector),
    /// KV after prefill, and after its hand-off if there is one, before decode reads it.
    Kv(KvPart),
}

/// Part of a sequence's KV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvPart {
    /// One of [`component`], or all.
    pub component: Option<u32>,
    /// Layers, or all.
    pub layers: Option<NumberSet>,
}

/// A text that names no graft.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraftError {
    /// An unknown component.
    #[error("graft `{text}`: unknown component `{name}`; there are: {known}", known = component::NAMES.join(", "))]
    Component {
        /// The text.
        text: String,
        /// The name.
        name: String,
    },
    /// Layers that are no numbers.
    #[error(
        "graft `{text}`: {message}. A graft is a selector, or kv[.component][:layers=2-6,8] for the KV hand-off."
    )]
    Layers {
        /// The text.
        text: String,
        /// What is wrong.
        message: String,
    },
    /// No selector.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// A healing selector.
    #[error(
        "graft `{0}`: a selector that begins with `!` heals cells and names no outputs; leave the `!` away"
    )]
    Heals(Selector),
}

impl KvPart {
    /// All of it.
    pub const ALL: Self = Self { component: None, layers: None };

    /// Whether it holds a component of a layer.
    pub fn holds(&self, component: u32, layer: u32) -> bool {
        self.component.is_none_or(|own| own == component)
            && self.layers.as_ref().is_none_or(|layers| layers.contains(layer))
    }
}

impl FromStr for Graft {
    type Err = GraftError;

    fn from_str(text: &str) -> Result<Self, GraftError> {
        let (head, layers) = text.split_once(':').map_or((text, None), |(head, tail)| (head, Some(tail)));
        let component = match head.strip_prefix("kv") {
            Some("") => None,
            Some(rest) if rest.starts_with('.') => {
                let name = &rest[1..];
                let found = component::NAMES.iter().position(|known| *known == name);
                let unknown = || GraftError::Component { text: text.to_owned(), name: name.to_owned() };
                Some(found.ok_or_else(unknown)? as u32)
            }
            _ => {
                let selector: Selector = text.parse()?;
                return if selector.heal {
                    Err(GraftError::Heals(selector))
                } else {
                    Ok(Self::Outputs(selector))
                };
            }
        };
        let wrong = |message: String| GraftError::Layers { text: text.to_owned(), message };
        let layers = layers.map(|tail| {
            let numbers = tail.strip_prefix("layers=");
            let numbers =
                numbers.ok_or_else(|| wrong(format!("expected `layers=` after `:`, found `{tail}`")))?;
            numbers.parse().map_err(|error| wrong(format!("layers: {error}")))
        });
        Ok(Self::Kv(KvPart { component, layers: layers.transpose()? }))
    }
}

impl fmt::Display for Graft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match self {
            Self::Outputs(selector) => return selector.fmt(f),
            Self::Kv(part) => part,
        };
        f.write_str("kv")?;
        if let Some(name) = part.component.and_then(|c| component::NAMES.get(c as usize)) {
            write!(f, ".{name}")?;
        }
        match &part.layers {
            Some(layers) => write!(f, ":layers={layers}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Graft {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Graft {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        for text in [
            "kv",
            "kv.c4",
            "kv.index_keys:layers=2,4-6",
            "kv:layers=3",
            "attention.core@decode:layers=2",
            "moe",
            "kv_transport",
        ] {
            assert_eq!(text.parse::<Graft>().map(|g| g.to_string()), Ok(text.to_owned()));
        }
        let part = |text: &str| match text.parse() {
            Ok(Graft::Kv(part)) => part,
            other => panic!("{other:?}"),
        };
        assert!(part("kv").holds(component::SWA, 0) && part("kv").holds(component::INDEX_STATE, 9));
        let keys = part("kv.index_keys:layers=2");
        assert!(keys.holds(component::INDEX_KEYS, 2));
        assert!(!keys.holds(component::INDEX_KEYS, 3) && !keys.holds(component::C4, 2));
    }

    #[test]
    fn wrong_texts_say_what_would_be_right() {
        for (text, part) in [
            ("kv.c5", "unknown component `c5`; there are: swa, c4, c128, index_keys"),
            ("kv.c4:class=csa", "expected `layers=` after `:`, found `class=csa`"),
            ("kv:layers=x", "kv[.component][:layers=2-6,8]"),
            ("atention", "Did you mean `attention`?"),
            ("!moe", "leave the `!` away"),
        ] {
            let error = text.parse::<Graft>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
