//! The fields of each kind of oracle.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{
    lengths, positive, positive_number, seconds, some_positive, some_positive_number, some_share,
};

/// What the answers of an oracle are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NoiseKind {
    /// One run is one verdict, always the same.
    Exact,
    /// A run is a number of draws; the search infers the rates at which they fail.
    Counted,
}

/// Form of the prompts of a needle oracle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NeedleTask {
    /// One fact in a text.
    #[default]
    Single,
    /// Several facts in a text, one of which is asked for.
    Multi,
    /// A fact in the first of several turns of a conversation, asked for in the last.
    MultiTurn,
    /// A passphrase of two words that no other request has, with several requests at once: an answer that holds the
    /// passphrase of another request has read foreign state.
    Passphrase,
}

/// Fields of `kind: needle`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NeedleOracle {
    /// Prompt lengths in tokens.
    #[serde(deserialize_with = "lengths")]
    #[schemars(length(min = 1), inner(range(min = 1)))]
    pub lengths: Vec<usize>,
    /// Needle positions per length, spread evenly.
    #[serde(deserialize_with = "positive")]
    #[schemars(range(min = 1))]
    pub depths: usize,
    /// Form of the prompts.
    pub task: NeedleTask,
    /// With `task: multi`, facts in a text, at least 2; `null` for 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2))]
    pub needles: Option<usize>,
    /// With `task: multi-turn`, turns of the conversation, at least 2; `null` for 6.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2))]
    pub turns: Option<usize>,
    /// Requests in flight; `null` for as many as the engine runs at once.
    #[serde(deserialize_with = "some_positive", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub concurrent: Option<usize>,
    /// Recall that the good end must reach.
    #[serde(deserialize_with = "some_share", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub least_good: Option<f64>,
    /// Probes that an arm may lose against the good end and still be good; `null` for one, or an eighth of more than
    /// eight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<usize>,
}

impl Default for NeedleOracle {
    fn default() -> Self {
        Self {
            lengths: vec![2048],
            depths: 8,
            task: NeedleTask::default(),
            needles: None,
            turns: None,
            concurrent: None,
            least_good: None,
            tolerance: None,
        }
    }
}

/// Fields of `kind: kl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KlOracle {
    /// Held-out tokens to compare on.
    #[serde(deserialize_with = "positive")]
    #[schemars(range(min = 1))]
    pub tokens: usize,
    /// Mean KL divergence, in nats per token, above which a run is bad. `null` measures how far harmless variations move
    /// the good end, and takes `times_floor` times that.
    #[serde(deserialize_with = "some_positive_number", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub threshold: Option<f64>,
    /// How many times the measured floor is too much. KL grows with the square of an error, so ten times the floor is an
    /// error of three times the size.
    #[serde(deserialize_with = "positive_number")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub times_floor: f64,
    /// Share of rows that must keep their most likely token; `null` for no such bar.
    #[serde(deserialize_with = "some_share", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub least_top1: Option<f64>,
    /// File of saved distributions that every end is compared with, the good one too. It is written from the good end
    /// if it is not there. `null` compares with the good end of this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<PathBuf>,
}

impl Default for KlOracle {
    fn default() -> Self {
        Self { tokens: 2048, threshold: None, times_floor: 10.0, least_top1: None, baseline: None }
    }
}

/// Fields of `kind: perplexity`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PerplexityOracle {
    /// Lengths of the texts in tokens.
    #[serde(deserialize_with = "lengths")]
    #[schemars(length(min = 1), inner(range(min = 1)))]
    pub lengths: Vec<usize>,
    /// Perplexity over that of the good end, at any of the lengths, above which a run is bad.
    #[serde(deserialize_with = "positive_number")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub ratio: f64,
    /// Perplexity above which the good end itself is bad, at any of the lengths; `null` for no such bar.
    #[serde(deserialize_with = "some_positive_number", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub most: Option<f64>,
}

impl Default for PerplexityOracle {
    fn default() -> Self {
        Self { lengths: vec![512, 2048], ratio: 1.02, most: None }
    }
}

/// A prompt of `kind: exact`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExactPrompt {
    /// What the user says.
    pub prompt: String,
    /// Text that the greedy answer must be; `null` for what the good end answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
}

/// Fields of `kind: exact`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExactOracle {
    /// The prompts.
    #[serde(deserialize_with = "crate::schema::some_items")]
    #[schemars(length(min = 1))]
    pub prompts: Vec<ExactPrompt>,
    /// Tokens of an answer, at most.
    #[serde(default = "exact_tokens", deserialize_with = "positive")]
    #[schemars(range(min = 1))]
    pub max_tokens: usize,
}

fn exact_tokens() -> usize {
    64
}

/// Fields of `kind: repeat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RepeatOracle {
    /// Held-out tokens of the prompt.
    #[serde(deserialize_with = "positive")]
    #[schemars(range(min = 1))]
    pub tokens: usize,
    /// Times that it is asked, at least 2.
    #[serde(deserialize_with = "positive")]
    #[schemars(range(min = 2))]
    pub times: usize,
}

impl Default for RepeatOracle {
    fn default() -> Self {
        Self { tokens: 512, times: 8 }
    }
}

/// Fields of `kind: audit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditOracle {
    /// Lengths of the prompts in tokens, each another piece of the held-out text. A second one shows bytes that were left of
    /// the first.
    #[serde(deserialize_with = "lengths")]
    #[schemars(length(min = 1), inner(range(min = 1)))]
    pub lengths: Vec<usize>,
}

impl Default for AuditOracle {
    /// Both end inside a page, a group of four and a group of 128, so that every component has items.
    fn default() -> Self {
        Self { lengths: vec![521, 777] }
    }
}

/// Fields of `kind: command`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandOracle {
    /// The program and its arguments; no shell. In them `{admin}`, `{api}`, `{assignment}` and `{config}` are replaced.
    #[serde(deserialize_with = "crate::schema::some_items")]
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
    /// Seconds after which the process group is killed and the run counts as hung.
    #[serde(default = "command_timeout", deserialize_with = "seconds")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub timeout_seconds: f64,
    /// Environment variables to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

fn command_timeout() -> f64 {
    600.0
}
