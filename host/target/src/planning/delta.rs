//! What differs in one cell: the variant, and the options that can be told apart from it.

use hotseam_slots::{Cell, VariantSpec};
use serde_json::{Map, Value};

use super::site::{End, Refused, Site};
use crate::Delta;

/// A cell that runs other code or options at the two ends.
#[derive(Debug, Clone)]
pub(super) struct CellDiff {
    pub(super) cell: Cell,
    pub(super) good: End,
    pub(super) bad: End,
    /// What differs; the first is the variant, if it does.
    pub(super) items: Vec<Item>,
}

/// One thing that differs.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Item {
    /// Another plugin, or another build of it.
    Variant,
    /// One option.
    Option {
        name: String,
        from: Value,
        to: Value,
        /// The good variant has no such option, or not that value.
        needs_variant: bool,
    },
}

impl CellDiff {
    /// Splits the difference of a cell. An option is an item of its own if both variants have it and the bad one
    /// accepts the good value, or if it is a switch that only the bad one has and that is on; all others belong to the variant.
    /// With `whole` nothing is split.
    pub(super) fn new(
        site: &dyn Site,
        cell: Cell,
        good: End,
        bad: End,
        whole: bool,
    ) -> Result<Self, Refused> {
        let mut items = Vec::new();
        if good.plugin != bad.plugin || whole {
            items.push(Item::Variant);
        }
        if !whole {
            items.extend(options(site, &good, &bad)?);
        }
        Ok(Self { cell, good, bad, items })
    }

    /// The variant that runs with the items of these numbers switched to the bad side.
    pub(super) fn spec(&self, on: impl Fn(usize) -> bool) -> VariantSpec {
        let whole = self.items == [Item::Variant];
        let has_variant = match self.items.first() {
            Some(Item::Variant) => on(0),
            _ => true,
        };
        let base = if has_variant { &self.bad } else { &self.good };
        if whole {
            return base.spec.clone();
        }
        let mut spec = base.spec.clone();
        for (index, item) in self.items.iter().enumerate() {
            let Item::Option { name, from, to, needs_variant } = item else { continue };
            if has_variant || !needs_variant {
                let value = if on(index) { to } else { from };
                spec = spec.with_option(name, Some(value.clone()));
            }
        }
        spec
    }

    /// The delta of an item, for people. Equal deltas of several cells are one change.
    pub(super) fn delta(&self, item: usize) -> Delta {
        match &self.items[item] {
            Item::Option { name, from, to, .. } => {
                Delta::Option { name: name.clone(), from: plain(from), to: plain(to) }
            }
            Item::Variant => {
                let split: Vec<&String> = self
                    .items
                    .iter()
                    .filter_map(|item| match item {
                        Item::Option { name, .. } => Some(name),
                        Item::Variant => None,
                    })
                    .collect();
                let all = self.bad.spec.options();
                let own: Map<String, Value> =
                    all.iter().filter(|(name, _)| !split.contains(name)).map(clone).collect();
                let mut from = self.good.spec.name.clone();
                let mut to = VariantSpec::new(self.bad.spec.name.clone(), own).to_string();
                if from == self.bad.spec.name {
                    from = format!("{from} ({})", short(&self.good));
                    to = format!("{to} ({})", short(&self.bad));
                }
                Delta::Variant { from, to }
            }
        }
    }

    /// Number of the item without which `item` means nothing.
    pub(super) fn required(&self, item: usize) -> Option<usize> {
        matches!(&self.items[item], Item::Option { needs_variant: true, .. }).then_some(0)
    }
}

fn options(site: &dyn Site, good: &End, bad: &End) -> Result<Vec<Item>, Refused> {
    let mut items = Vec::new();
    for (name, to) in bad.spec.options() {
        match good.spec.options().get(name) {
            Some(from) if from == to || !site.accepts(&bad.spec.name, name, from)? => {}
            Some(from) => items.push(Item::Option {
                name: name.clone(),
                from: from.clone(),
                to: to.clone(),
                needs_variant: !site.accepts(&good.spec.name, name, to)?,
            }),
            // A switch that the good variant does not have counts as off there.
            None if *to == Value::Bool(true) => {
                let (name, to) = (name.clone(), to.clone());
                items.push(Item::Option { name, from: Value::Bool(false), to, needs_variant: true });
            }
            None => {}
        }
    }
    Ok(items)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn clone((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

fn short(end: &End) -> &str {
    end.plugin.get(..8).unwrap_or(&end.plugin)
}
