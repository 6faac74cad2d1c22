//! Selectors: which cells a rule is about. `seam[.op][@phase][:layers=2-6,8|class=csa][/ranks=0][^topology]`, with a
//! leading `!` for a rule that heals.

use crate::cell::{Cell, Class};
use crate::numbers::NumberSet;
use crate::seam::{Op, Phase, Seam, Topology};
use hotseam_loader::did_you_mean;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A set of cells, by their properties.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selector {
    /// Whether the rule takes its cells back to the first variant that they were given.
    pub heal: bool,
    /// Seam.
    pub seam: Seam,
    /// One op, or all of the seam.
    pub op: Option<Op>,
    /// One phase, or both.
    pub phase: Option<Phase>,
    /// Layers.
    pub scope: Scope,
    /// Tensor-parallel ranks, or all.
    pub ranks: Option<NumberSet>,
    /// One topology, or any; a rule for another topology than the running one is kept and has no effect.
    pub topology: Option<Topology>,
}

/// Layers that a selector is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All, and the cells outside the layers.
    All,
    /// The layers of these numbers.
    Layers(NumberSet),
    /// The layers of a class.
    Class(Class),
}

/// A text that is no selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("selector `{selector}`: {what}. {hint}")]
pub struct SelectorError {
    /// The text.
    pub selector: String,
    /// What is wrong in it.
    pub what: String,
    /// Nearest name, or the form.
    pub hint: String,
}

const FORM: &str = "A selector is seam[.op][@phase][:layers=2-6,8|class=csa][/ranks=0][^topology], with a leading ! to heal.";

impl Selector {
    /// All cells of a seam.
    pub fn seam(seam: Seam) -> Self {
        Self { heal: false, seam, op: None, phase: None, scope: Scope::All, ranks: None, topology: None }
    }

    /// Whether it is about `cell`. Whether it heals, and its topology, play no part.
    pub fn matches(&self, cell: &Cell) -> bool {
        let in_scope = match &self.scope {
            Scope::All => true,
            Scope::Layers(layers) => cell.id.layer.is_some_and(|layer| layers.contains(layer)),
            Scope::Class(class) => cell.class == Some(*class),
        };
        in_scope
            && self.seam == cell.id.seam
            && self.op.is_none_or(|op| op == cell.id.op)
            && self.phase.is_none_or(|phase| Some(phase) == cell.id.phase)
            && self.ranks.as_ref().is_none_or(|ranks| ranks.contains(cell.id.rank.unwrap_or(0)))
    }
}

/// Characters that begin a part of a selector.
const MARKS: [char; 4] = ['@', ':', '/', '^'];

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let error = |(what, hint): (String, String)| SelectorError { selector: text.to_owned(), what, hint };
        parse(text).map_err(error)
    }
}

fn parse(text: &str) -> Result<Selector, (String, String)> {
    let form = |what: String| (what, FORM.to_owned());
    let (heal, body) = match text.strip_prefix('!') {
        Some(body) => (true, body),
        None => (false, text),
    };
    let (head, mut rest) = body.split_at(body.find(MARKS).unwrap_or(body.len()));
    let (seam, op) = match head.split_once('.') {
        Some((seam, op)) => (parse_seam(seam)?, Some(op)),
        None => (parse_seam(head)?, None),
    };
    let mut selector = Selector { heal, ..Selector::seam(seam) };
    selector.op = op.map(|op| parse_op(seam, op)).transpose()?;

    let mut seen = Vec::new();
    while let Some(mark) = rest.chars().next() {
        let tail = &rest[1..];
        let (value, next) = tail.split_at(tail.find(MARKS).unwrap_or(tail.len()));
        rest = next;
        if seen.contains(&mark) {
            return Err(form(format!("`{mark}` appears twice")));
        }
        seen.push(mark);
        match mark {
            '@' => selector.phase = Some(pick(Phase::ALL, Phase::name, value, "unknown phase")?),
            ':' => selector.scope = parse_scope(seam, value)?,
            '/' => {
                let ranks = value.strip_prefix("ranks=");
                let ranks =
                    ranks.ok_or_else(|| form(format!("expected `ranks=` after `/`, found `{value}`")))?;
                selector.ranks = Some(ranks.parse().map_err(|e| form(format!("ranks: {e}")))?);
            }
            // The other name that a pair goes by.
            _ if value == "disagg" => selector.topology = Some(Topology::Paired),
            _ => selector.topology = Some(pick(Topology::ALL, Topology::name, value, "unknown topology")?),
        }
    }
    if seam == Seam::KvTransport && (selector.phase.is_some() || selector.scope != Scope::All) {
        let hint = "Select it as `kv_transport`: it lies between the phases and outside the layers.";
        return Err(("kv_transport has no phases, layers or classes".to_owned(), hint.to_owned()));
    }
    Ok(selector)
}

/// The one of `all` that is called `name`; else what is wrong, and the nearest name.
fn pick<T: Copy>(
    all: &[T],
    name_of: fn(T) -> &'static str,
    name: &str,
    wrong: &str,
) -> Result<T, (String, String)> {
    all.iter().copied().find(|item| name_of(*item) == name).ok_or_else(|| {
        (format!("{wrong} `{name}`"), did_you_mean(name, all.iter().map(|item| name_of(*item))))
    })
}

fn parse_seam(name: &str) -> Result<Seam, (String, String)> {
    pick(Seam::ALL, Seam::name, name, "unknown seam")
}

fn parse_op(seam: Seam, name: &str) -> Result<Op, (String, String)> {
    if seam == Seam::KvTransport {
        let hint = "Select it as `kv_transport`: its functions share tickets and are swapped as one.";
        return Err((format!("kv_transport has no op `{name}` of its own"), hint.to_owned()));
    }
    pick(seam.ops(), Op::name, name, &format!("{seam} has no op"))
}

fn parse_scope(seam: Seam, value: &str) -> Result<Scope, (String, String)> {
    let form = |what: String| (what, FORM.to_owned());
    match value.split_once('=') {
        Some(("layers", layers)) => {
            Ok(Scope::Layers(layers.parse().map_err(|e| form(format!("layers: {e}")))?))
        }
        Some(("class", name)) => {
            let class = pick(Class::of_seam(seam), Class::name, name, &format!("{seam} has no class"))?;
            Ok(Scope::Class(class))
        }
        Some((key, _)) => {
            let hint = did_you_mean(key, ["layers", "class"]);
            Err((format!("expected `layers=` or `class=` after `:`, found `{key}=`"), hint))
        }
        None => Err(form(format!("expected `layers=` or `class=` after `:`, found `{value}`"))),
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.heal { "!" } else { "" }, self.seam)?;
        if let Some(op) = self.op {
            write!(f, ".{op}")?;
        }
        if let Some(phase) = self.phase {
            write!(f, "@{phase}")?;
        }
        match &self.scope {
            Scope::All => {}
            Scope::Layers(layers) => write!(f, ":layers={layers}")?,
            Scope::Class(class) => write!(f, ":class={class}")?,
        }
        if let Some(ranks) = &self.ranks {
            write!(f, "/ranks={ranks}")?;
        }
        if let Some(topology) = self.topology {
            write!(f, "^{topology}")?;
        }
        Ok(())
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
