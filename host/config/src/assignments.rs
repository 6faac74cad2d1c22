//! Named assignments: lists of rules, and how one extends another.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::document::{Fault, FieldPath, Step, quoted};
use crate::names;

/// The assignment that a request gets when it names none.
pub const DEFAULT_ASSIGNMENT: &str = "live";

/// One rule as text: cells that `select` matches get the variant `use`, or go back to the first rule set's
/// variant if `select` begins with `!`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RuleFields")]
pub struct RuleText {
    /// Selector, such as `indexer@decode:layers=2-6`.
    pub select: String,
    /// Variant, such as `indexer/cpu-sm120{early_exit: true}`; `None` exactly for a selector with `!`.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// Which variant the cells of a selector use. A selector that begins with `!` goes back to the first rule's variant and
/// has no `use`; every other has one.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a rule {select: SELECTOR, use: VARIANT}")]
#[schemars(rename = "Rule")]
struct RuleFields {
    /// Selector, such as `indexer@decode:layers=2-6`.
    select: String,
    /// Variant, such as `indexer/cpu-sm120{early_exit: true}`.
    #[serde(rename = "use", default)]
    variant: Option<String>,
}

impl TryFrom<RuleFields> for RuleText {
    type Error = String;

    fn try_from(RuleFields { select, variant }: RuleFields) -> Result<Self, String> {
        match (select.starts_with('!'), &variant) {
            (true, Some(variant)) => {
                Err(format!("the selector `{select}` heals, so it takes no variant; found `use: {variant}`"))
            }
            (false, None) => Err(format!("missing field `use`: which variant the cells of `{select}` get")),
            _ => Ok(Self { select, variant }),
        }
    }
}

/// One assignment of the file: a list of rules, or `{extends: name, rules: [...]}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The assignment whose rules come first, if any.
    pub extends: Option<String>,
    /// The rules of this assignment alone; later rules win.
    pub rules: Vec<RuleText>,
}

/// The rules of another assignment, and more.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Extended {
    /// The assignment whose rules come first.
    extends: String,
    /// Further rules; later rules win.
    rules: Vec<RuleText>,
}

impl<'de> Deserialize<'de> for Assignment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AssignmentVisitor)
    }
}

/// The two forms of an assignment, for the schema alone.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Assignment")]
#[expect(dead_code, reason = "only its schema is used")]
enum Form {
    /// Rules; later ones win.
    Rules(Vec<RuleText>),
    /// The rules of another, and more.
    Extended(Extended),
}

impl JsonSchema for Assignment {
    fn schema_name() -> Cow<'static, str> {
        Form::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Form::json_schema(generator)
    }
}

/// By hand instead of `untagged`, which would lose the field path of an error inside.
struct AssignmentVisitor;

impl<'de> Visitor<'de> for AssignmentVisitor {
    type Value = Assignment;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of rules or {extends: NAME, rules: [...]}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Assignment, A::Error> {
        let rules = Vec::deserialize(SeqAccessDeserializer::new(access))?;
        Ok(Assignment { extends: None, rules })
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Assignment, A::Error> {
        let Extended { extends, rules } = Extended::deserialize(MapAccessDeserializer::new(access))?;
        Ok(Assignment { extends: Some(extends), rules })
    }
}

impl Serialize for Assignment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.extends {
            None => self.rules.serialize(serializer),
            Some(extends) => {
                Extended { extends: extends.clone(), rules: self.rules.clone() }.serialize(serializer)
            }
        }
    }
}

/// All assignments of a configuration, by name. Once they are loaded, every chain of `extends` ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("required" = [DEFAULT_ASSIGNMENT], "propertyNames" = { "pattern": NAME_PATTERN }))]
pub struct Assignments(BTreeMap<String, Assignment>);

impl Assignments {
    /// The assignments as they stand in the file, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Assignment)> {
        self.0.iter().map(|(name, assignment)| (name.as_str(), assignment))
    }

    /// True if there is an assignment `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The rules of `name` with those it extends in front, in the order they apply; `None` if there is none.
    pub fn rules(&self, name: &str) -> Option<Vec<RuleText>> {
        let mut chain = vec![self.0.get(name)?];
        while let Some(parent) = chain.last().and_then(|last| last.extends.as_ref()) {
            chain.push(self.0.get(parent)?);
        }
        Some(chain.iter().rev().flat_map(|assignment| assignment.rules.iter().cloned()).collect())
    }

    /// Field paths of the rules that [`Assignments::rules`] gives, such as `assignments.suspects.rules[0]`.
    pub fn places(&self, name: &str) -> Option<Vec<String>> {
        let assignment = self.0.get(name)?;
        let (mut places, list) = match &assignment.extends {
            Some(parent) => (self.places(parent)?, ".rules"),
            None => (Vec::new(), ""),
        };
        let name = quoted(name);
        places.extend((0..assignment.rules.len()).map(|index| format!("assignments.{name}{list}[{index}]")));
        Some(places)
    }

    /// Refuses bad names, unknown parents and cycles.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let fault = |tail: &[&str], at_key, message, hint| {
            let keys = std::iter::once(&"assignments").chain(tail);
            let path = FieldPath(keys.map(|key| Step::Key((*key).to_owned())).collect());
            Err(Fault { path, message, hint, at_key })
        };
        if !self.contains(DEFAULT_ASSIGNMENT) {
            let message =
                format!("there is no assignment `{DEFAULT_ASSIGNMENT}`, which requests use by default");
            let hint = names::nearest(DEFAULT_ASSIGNMENT, self.names()).map(|near| format!("found `{near}`"));
            return fault(&[], false, message, hint);
        }
        for (name, assignment) in self.iter() {
            if !valid_assignment_name(name) {
                let message = format!("`{name}` is no assignment name");
                let hint = "use 1 to 64 letters, digits, `-`, `_` or `.`".to_owned();
                return fault(&[name], true, message, Some(hint));
            }
            let Some(parent) = &assignment.extends else { continue };
            if !self.contains(parent) {
                let known: Vec<&str> = self.names().filter(|known| *known != name).collect();
                let message = format!("`{name}` extends the unknown assignment `{parent}`");
                return fault(&[name, "extends"], false, message, Some(names::hint(parent, &known)));
            }
            if let Some(cycle) = self.cycle(name) {
                let message = format!("`{name}` extends itself: {}", cycle.join(" -> "));
                return fault(&[name, "extends"], false, message, None);
            }
        }
        Ok(())
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The chain of names from `start` back to `start`, if its parents lead there.
    fn cycle<'a>(&'a self, start: &'a str) -> Option<Vec<&'a str>> {
        let mut chain = vec![start];
        // A chain longer than the table has entered a cycle that does not contain `start`; the members of that
        // cycle report it themselves.
        while chain.len() <= self.0.len() {
            let parent = self.0.get(*chain.last()?)?.extends.as_deref()?;
            chain.push(parent);
            if parent == start {
                return Some(chain);
            }
        }
        None
    }
}

/// What [`valid_assignment_name`] accepts, for the schema.
pub(crate) const NAME_PATTERN: &str = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$";

/// True for 1 to 64 ASCII letters, digits, `-`, `_` or `.`: names that are safe in a URL and a file name.
pub fn valid_assignment_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && !name.starts_with('.')
}
