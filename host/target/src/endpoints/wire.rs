//! What this crate reads of the answers of the admin endpoints; the server's own types say all of it.

use std::collections::BTreeMap;

use hotseam_slots::{CellId, Class, VariantSpec};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Answer of `GET /slots`.
#[derive(Debug, Deserialize)]
pub(super) struct Slots {
    pub(super) model: String,
    pub(super) assignments: BTreeMap<String, IgnoredAny>,
}

/// Answer of `PUT /assignments/NAME`.
#[derive(Debug, Deserialize)]
pub(super) struct Assignment {
    pub(super) digest: String,
    pub(super) cells: Vec<Line>,
}

/// A cell and what serves it.
#[derive(Debug, Deserialize)]
pub(super) struct Line {
    #[serde(flatten)]
    pub(super) cell: CellId,
    #[serde(default)]
    pub(super) class: Option<Class>,
    pub(super) variant: VariantSpec,
    pub(super) hash: String,
}

/// Answer of `POST /variant`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Variant {
    pub(super) variant: VariantSpec,
    pub(super) plugin: String,
    pub(super) layout: String,
}

/// Answer of `GET /trace`.
#[derive(Debug, Deserialize)]
pub(super) struct Trace {
    pub(super) cells: Vec<Called>,
}

/// A receipt.
#[derive(Debug, Deserialize)]
pub(super) struct Called {
    #[serde(flatten)]
    pub(super) cell: CellId,
    pub(super) calls: u64,
}

/// Answer of `POST /v1/completions`.
#[derive(Debug, Deserialize)]
pub(super) struct Completion {
    pub(super) choices: Vec<Choice>,
}

/// One answer.
#[derive(Debug, Deserialize)]
pub(super) struct Choice {
    pub(super) text: String,
    #[serde(default)]
    pub(super) logprobs: Option<Logprobs>,
}

/// The tokens of an answer.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Logprobs {
    pub(super) tokens: Vec<String>,
    pub(super) token_logprobs: Vec<Option<f32>>,
}
