//! What the bisector asks to tell a good run from a bad one.

mod kinds;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use serde_yaml::Mapping;

use crate::document;

pub use kinds::{
    AuditOracle, CommandOracle, ExactOracle, ExactPrompt, KlOracle, NeedleOracle, NeedleTask, NoiseKind,
    PerplexityOracle, RepeatOracle,
};

/// The oracle of a bisection: a kind with its fields, and what its answers are.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Oracle {
    /// What is asked.
    #[serde(flatten)]
    pub kind: OracleKind,
    /// Whether one run is a verdict or a number of draws; `None` for what is usual for the kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoiseKind>,
}

/// The kinds of oracles, chosen by `kind`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum OracleKind {
    /// A fact hidden in a long text must be recalled.
    Needle(NeedleOracle),
    /// The next-token distributions must be close to a baseline's.
    Kl(KlOracle),
    /// The likelihood of held-out text must not fall.
    Perplexity(PerplexityOracle),
    /// Greedy answers must be equal, token by token.
    Exact(ExactOracle),
    /// The same request must give the same bits each time.
    Repeat(RepeatOracle),
    /// Every item of a hand-off from prefill to decode must arrive as it was sent.
    Audit(AuditOracle),
    /// A command of the user's says.
    Command(CommandOracle),
}

const KINDS: [&str; 7] = ["needle", "kl", "perplexity", "exact", "repeat", "audit", "command"];

impl Oracle {
    /// Whether outcomes are verdicts or draws. Unless the file says otherwise, only commands and repeats are draws: all
    /// else is greedy on an engine whose results do not depend on timing.
    pub fn noise(&self) -> NoiseKind {
        self.noise.unwrap_or(match self.kind {
            OracleKind::Command(_) | OracleKind::Repeat(_) => NoiseKind::Counted,
            _ => NoiseKind::Exact,
        })
    }
}

impl From<OracleKind> for Oracle {
    fn from(kind: OracleKind) -> Self {
        Self { kind, noise: None }
    }
}

impl<'de> Deserialize<'de> for Oracle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A tagged enum read by serde would lose the field path of a bad value, so the kind is taken out first and the
        // rest is read as the fields of that kind alone.
        let mut fields = Mapping::deserialize(deserializer)?;
        let take = |fields: &mut Mapping, name: &str| fields.remove(name);
        let kind = take(&mut fields, "kind").ok_or_else(|| {
            D::Error::custom(format_args!("missing field `kind`, expected one of {}", KINDS.join(", ")))
        })?;
        let noise = take(&mut fields, "noise");
        let noise =
            noise.map(|noise| document::inner(&["noise"], &noise)).transpose().map_err(D::Error::custom)?;
        let name: Kind = document::inner(&["kind"], &kind).map_err(D::Error::custom)?;
        if let Kind::Needle = name {
            idle_fields(&fields).map_err(D::Error::custom)?;
        }
        let rest = serde_yaml::Value::Mapping(fields);
        let kind = match name {
            Kind::Needle => document::inner(&[], &rest).map(OracleKind::Needle),
            Kind::Kl => document::inner(&[], &rest).map(OracleKind::Kl),
            Kind::Perplexity => document::inner(&[], &rest).map(OracleKind::Perplexity),
            Kind::Exact => document::inner(&[], &rest).map(OracleKind::Exact),
            Kind::Repeat => document::inner(&[], &rest).map(OracleKind::Repeat),
            Kind::Audit => document::inner(&[], &rest).map(OracleKind::Audit),
            Kind::Command => document::inner(&[], &rest).map(OracleKind::Command),
        };
        let kind = kind.map_err(D::Error::custom)?;
        kind.check().map_err(D::Error::custom)?;
        Ok(Self { kind, noise })
    }
}

/// One schema a kind: its own fields, `kind` and `noise`.
impl JsonSchema for Oracle {
    fn schema_name() -> Cow<'static, str> {
        "Oracle".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let noise = generator.subschema_for::<Option<NoiseKind>>();
        let fields = [
            NeedleOracle::json_schema(generator),
            KlOracle::json_schema(generator),
            PerplexityOracle::json_schema(generator),
            ExactOracle::json_schema(generator),
            RepeatOracle::json_schema(generator),
            AuditOracle::json_schema(generator),
            CommandOracle::json_schema(generator),
        ];
        let kinds = KINDS.iter().zip(fields).map(|(kind, mut schema)| {
            let object = schema.ensure_object();
            let properties = object.entry("properties").or_insert_with(|| json!({}));
            properties["kind"] = json!({ "const": kind });
            properties["noise"] = noise.as_value().clone();
            let required = object.entry("required").or_insert_with(|| json!([]));
            if let Some(names) = required.as_array_mut() {
                names.insert(0, json!("kind"));
            }
            schema.to_value()
        });
        json_schema!({
            "description": "What tells a good run from a bad one.",
            "oneOf": kinds.collect::<Vec<_>>(),
        })
    }
}

/// Refuses fields of one needle task that another would not read.
fn idle_fields(fields: &Mapping) -> Result<(), String> {
    let task = match fields.get("task") {
        None => NeedleTask::default(),
        Some(task) => document::inner(&["task"], task)?,
    };
    for (field, owner, name) in
        [("needles", NeedleTask::Multi, "multi"), ("turns", NeedleTask::MultiTurn, "multi-turn")]
    {
        if fields.contains_key(field) && task != owner {
            return Err(document::at(
                &[field],
                &format!("only read with `task: {name}`; leave it away or set the task"),
            ));
        }
    }
    Ok(())
}

impl OracleKind {
    /// Refuses numbers that are well-formed and mean nothing.
    fn check(&self) -> Result<(), String> {
        let least_two = |field: &str, value: usize| match value {
            0 | 1 => Err(document::at(&[field], &format!("expected at least 2, found {value}"))),
            _ => Ok(()),
        };
        match self {
            Self::Needle(needle) if needle.task == NeedleTask::Multi => {
                needle.needles.map_or(Ok(()), |needles| least_two("needles", needles))
            }
            Self::Needle(needle) if needle.task == NeedleTask::MultiTurn => {
                needle.turns.map_or(Ok(()), |turns| least_two("turns", turns))
            }
            Self::Needle(needle) if needle.task == NeedleTask::Passphrase => {
                needle.concurrent.map_or(Ok(()), |concurrent| least_two("concurrent", concurrent))
            }
            Self::Repeat(repeat) => least_two("times", repeat.times),
            _ => Ok(()),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Needle,
    Kl,
    Perplexity,
    Exact,
    Repeat,
    Audit,
    Command,
}
