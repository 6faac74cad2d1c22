//! Rules of a configuration, with meaning.

use anyhow::{Context as _, anyhow};
use hotseam_config::Config;
use hotseam_slots::{Rule, Selector, VariantSpec};

use crate::failure::Failure;

/// A rule out of its two texts; a selector that begins with `!` has no variant.
///
/// # Errors
/// What is wrong with either text.
pub(crate) fn parse(select: &str, variant: Option<&str>) -> anyhow::Result<Rule> {
    let select: Selector = select.parse()?;
    let variant: Option<VariantSpec> = variant.map(str::parse).transpose()?;
    Rule::new(select, variant).map_err(|text| anyhow!(text))
}

/// The rules of an assignment of the file, those it extends in front.
///
/// # Errors
/// Usage, naming assignment and rule.
pub(crate) fn named(config: &Config, name: &str) -> Result<Vec<Rule>, Failure> {
    let texts = config.assignments.rules(name).ok_or_else(|| {
        let known: Vec<&str> = config.assignments.iter().map(|(known, _)| known).collect();
        Failure::usage(anyhow!("unknown assignment `{name}`; there are: {}", known.join(", ")))
    })?;
    texts
        .iter()
        .map(|text| parse(&text.select, text.variant.as_deref()))
        .collect::<anyhow::Result<_>>()
        .with_context(|| format!("assignment `{name}`"))
        .map_err(Failure::usage)
}
