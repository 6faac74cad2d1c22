//! What the bisector asks to tell a good run from a bad one.

use serde::{Deserialize, Serialize};

/// Default threshold of the KL oracle, in nats: between what sound patches reach together on the embedded checkpoint and
/// the quietest planted fault. docs/measurements.md has the figures.
const THRESHOLD: f64 = 1.0e-2;

/// The oracle of a bisection, chosen by `kind`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", try_from = "Fields")]
pub enum Oracle {
    /// A fact hidden in a long text must be recalled.
    Needle {
        /// Prompt lengths in tokens.
        lengths: Vec<usize>,
        /// Needle positions per length, spread evenly.
        depths: usize,
    },
    /// The next-token distributions of both ends must be close.
    Kl {
        /// Held-out tokens to compare on.
        tokens: usize,
        /// Mean KL divergence, in nats per token, above which a run is bad.
        threshold: f64,
    },
}

/// Every field of every kind. A tagged enum read by serde would lose the field path of a bad value.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an oracle such as {kind: needle, lengths: [2048], depths: 8}")]
struct Fields {
    kind: Kind,
    #[serde(default, deserialize_with = "crate::schema::some_lengths")]
    lengths: Option<Vec<usize>>,
    #[serde(default, deserialize_with = "crate::schema::some_positive")]
    depths: Option<usize>,
    #[serde(default, deserialize_with = "crate::schema::some_positive")]
    tokens: Option<usize>,
    #[serde(default, deserialize_with = "crate::schema::some_threshold")]
    threshold: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Needle,
    Kl,
}

impl TryFrom<Fields> for Oracle {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let stray = |kind: &str, field: &str, own: &str| {
            Err(format!("an oracle of kind {kind} has no field `{field}`; its fields are {own}"))
        };
        match fields.kind {
            Kind::Needle if fields.tokens.is_some() => stray("needle", "tokens", "lengths, depths"),
            Kind::Needle if fields.threshold.is_some() => stray("needle", "threshold", "lengths, depths"),
            Kind::Kl if fields.lengths.is_some() => stray("kl", "lengths", "tokens, threshold"),
            Kind::Kl if fields.depths.is_some() => stray("kl", "depths", "tokens, threshold"),
            Kind::Needle => Ok(Self::Needle {
                lengths: fields.lengths.unwrap_or_else(|| vec![2048]),
                depths: fields.depths.unwrap_or(8),
            }),
            Kind::Kl => Ok(Self::Kl {
                tokens: fields.tokens.unwrap_or(2048),
                threshold: fields.threshold.unwrap_or(THRESHOLD),
            }),
        }
    }
}
