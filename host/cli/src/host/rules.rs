//! Rules of a configuration, with meaning.

use anyhow::anyhow;
use hotseam_config::{Config, quoted};
use hotseam_slots::{Registry, Rule, Selector, SlotsError, VariantSpec};

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
/// Usage, naming the place of the rule.
pub(crate) fn named(config: &Config, name: &str) -> Result<Vec<Rule>, Failure> {
    let unknown = || {
        let known: Vec<&str> = config.assignments.iter().map(|(known, _)| known).collect();
        Failure::usage(anyhow!("unknown assignment `{name}`; there are: {}", known.join(", ")))
    };
    let texts = config.assignments.rules(name).ok_or_else(unknown)?;
    let places = config.assignments.places(name).ok_or_else(unknown)?;
    let rule = |(text, place): (&hotseam_config::RuleText, &String)| {
        parse(&text.select, text.variant.as_deref()).map_err(|error| {
            let part = if text.select.parse::<Selector>().is_err() { "select" } else { "use" };
            Failure::usage(config.error_at(&format!("{place}.{part}"), error.to_string()))
        })
    };
    texts.iter().zip(&places).map(rule).collect()
}

/// Why an assignment of the file was refused, at the rule that is to blame if it is one.
pub(crate) fn refused(
    config: &Config,
    name: &str,
    rules: &[Rule],
    registry: &Registry,
    error: &SlotsError,
) -> Failure {
    let place = |index: usize, part: &str| {
        let places = config.assignments.places(name)?;
        Some(format!("{}.{part}", places.get(index)?))
    };
    let selected = |selector: &str| rules.iter().rposition(|rule| rule.select().to_string() == selector);
    let field = match error {
        SlotsError::Layer { selector, .. }
        | SlotsError::NoMatch { selector, .. }
        | SlotsError::NothingToHeal { selector, .. } => {
            selected(selector).and_then(|index| place(index, "select"))
        }
        SlotsError::Seam { selector, .. } => selected(selector).and_then(|index| place(index, "use")),
        SlotsError::Device { variant, .. } => {
            let named = |rule: &Rule| rule.variant().is_some_and(|spec| spec.to_string() == *variant);
            rules.iter().position(named).and_then(|index| place(index, "use"))
        }
        SlotsError::Load(_)
        | SlotsError::Base { .. }
        | SlotsError::BaseCircle { .. }
        | SlotsError::BaseSeam { .. }
        | SlotsError::BaseDevice { .. } => {
            let fails = |rule: &Rule| rule.variant().is_some_and(|spec| registry.generation(spec).is_err());
            rules.iter().position(fails).and_then(|index| place(index, "use"))
        }
        _ => None,
    };
    let field = field.unwrap_or_else(|| format!("assignments.{}", quoted(name)));
    Failure::usage(config.error_at(&field, error.to_string()))
}
