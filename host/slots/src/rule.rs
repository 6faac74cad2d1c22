//! Rules: which variant the cells of a selector use.

use crate::selector::Selector;
use crate::variant::VariantSpec;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One line of an assignment: `{select: indexer@decode, use: indexer/cpu-sm120}`, or `{select: "!indexer@decode"}` to
/// heal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct Rule {
    select: Selector,
    variant: Option<VariantSpec>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    select: Selector,
    #[serde(rename = "use", default, skip_serializing_if = "Option::is_none")]
    variant: Option<VariantSpec>,
}

impl Rule {
    /// A rule that gives the cells of `select` to `variant`.
    ///
    /// # Errors
    /// Text that says so, if exactly one of a healing selector and a variant is not there.
    pub fn new(select: Selector, variant: Option<VariantSpec>) -> Result<Self, String> {
        match (&select.heal, &variant) {
            (true, Some(variant)) => Err(format!(
                "rule `{select}`: a rule that heals names no variant, found `{variant}`. Leave `!` or the variant away."
            )),
            (false, None) => Err(format!(
                "rule `{select}`: expected a variant (`use: ...`), found none. Add one, or put `!` before the selector \
                 to heal."
            )),
            _ => Ok(Self { select, variant }),
        }
    }

    /// The cells.
    pub fn select(&self) -> &Selector {
        &self.select
    }

    /// The variant that they use; `None` for a rule that heals.
    pub fn variant(&self) -> Option<&VariantSpec> {
        self.variant.as_ref()
    }
}

impl TryFrom<Fields> for Rule {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        Self::new(fields.select, fields.variant)
    }
}

impl From<Rule> for Fields {
    fn from(rule: Rule) -> Self {
        Self { select: rule.select, variant: rule.variant }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variant {
            Some(variant) => write!(f, "{} = {variant}", self.select),
            None => self.select.fmt(f),
        }
    }
}
