//! What an audited hand-off from prefill to decode brought, by component.

use std::fmt;

use hotseam_engine::KvMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Damaged items that are kept of a component, and named in a line.
const MOST_DAMAGE: usize = 8;
const NAMED: usize = 3;

/// What the hand-offs of some requests brought.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Handoff {
    /// Transport that moved it.
    pub transport: String,
    /// Requests that were handed over.
    pub requests: usize,
    /// One entry a component, in the order in which they are moved.
    pub components: Vec<Moved>,
}

/// One component of the KV, over all layers that have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Moved {
    /// Name, such as `c4` or `index_keys`.
    pub component: String,
    /// Layers, in order.
    pub layers: Vec<u32>,
    /// Pages or state rows that were to arrive.
    pub items: usize,
    /// Those of them that arrived as they were sent.
    pub whole: usize,
    /// The first items that are not as they should be; empty if none is.
    pub damage: Vec<Damage>,
}

/// An item that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Damage {
    /// Layer.
    pub layer: u32,
    /// Which page or state row of its request, from 0; absent for an item that is no request's.
    pub page: Option<usize>,
    /// Component, layer, page and what is wrong, in words.
    pub what: String,
}

/// What is wrong, or that nothing is.
impl fmt::Display for Moved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { component, items, whole, damage, .. } = self;
        match (items - whole, damage.as_slice()) {
            (0, []) => write!(out, "{component}: {items} items as sent"),
            (0, [first, ..]) => write!(out, "{component}: {items} items as sent, and {}", first.what),
            (n, []) => write!(out, "{component}: {n} of {items} items are not as sent"),
            (n, all) => {
                let first: Vec<&str> = all.iter().take(NAMED).map(|damage| damage.what.as_str()).collect();
                let more = if n > NAMED { ", ..." } else { "" };
                write!(out, "{component}: {n} of {items} items are not as sent: {}{more}", first.join(", "))
            }
        }
    }
}

impl Moved {
    /// Whether the hand-off changed it.
    pub fn changed(&self) -> bool {
        self.whole < self.items || !self.damage.is_empty()
    }
}

impl Handoff {
    /// Adds the hand-off of one more request.
    pub fn add(&mut self, map: &KvMap) {
        self.transport.clone_from(&map.transport);
        self.requests += 1;
        for row in &map.rows {
            let own = self.component(&row.component);
            own.items += row.expected;
            own.whole += row.whole;
            if let Err(at) = own.layers.binary_search(&row.layer) {
                own.layers.insert(at, row.layer);
            }
        }
        for finding in &map.findings {
            let own = self.component(&finding.component);
            let new = Damage { layer: finding.layer, page: finding.page, what: finding.to_string() };
            if own.damage.len() < MOST_DAMAGE && !own.damage.contains(&new) {
                own.damage.push(new);
            }
        }
    }

    fn component(&mut self, name: &str) -> &mut Moved {
        let at = self.components.iter().position(|own| own.component == name).unwrap_or_else(|| {
            self.components.push(Moved {
                component: name.to_owned(),
                layers: Vec::new(),
                items: 0,
                whole: 0,
                damage: Vec::new(),
            });
            self.components.len() - 1
        });
        &mut self.components[at]
    }

    /// The components that the hand-off changed.
    pub fn changed(&self) -> impl Iterator<Item = &Moved> {
        self.components.iter().filter(|own| own.changed())
    }

    /// The first items that are not as they should be, of each component in turn, in words.
    pub fn findings(&self) -> impl Iterator<Item = &str> {
        self.changed().flat_map(|own| own.damage.iter().map(|damage| damage.what.as_str()))
    }

    /// In one phrase: `84 items whole`, or how many are not.
    pub fn summary(&self) -> String {
        let items: usize = self.components.iter().map(|own| own.items).sum();
        let broken: usize = self.components.iter().map(|own| own.items - own.whole).sum();
        let names: Vec<&str> = self.changed().map(|own| own.component.as_str()).collect();
        match (names.len(), broken) {
            (0, _) => format!("{items} items whole"),
            (_, 0) => format!("stray writes to {}", names.join(", ")),
            _ => format!("{broken}/{items} items of {} changed", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotseam_engine::{Finding, FindingKind, KvRow};

    fn map(whole: usize, findings: Vec<Finding>) -> KvMap {
        let row = |component: &str, layer, whole| KvRow {
            component: component.into(),
            layer,
            item_bytes: 64,
            expected: 3,
            whole,
            items: vec![4, 5, 6],
        };
        KvMap {
            room: 1,
            assignment: "live".into(),
            transport: "kv_transport/tcp".into(),
            rows: vec![row("c4", 4, 3), row("c4", 2, whole), row("swa", 0, 3)],
            findings,
        }
    }

    #[test]
    fn maps_add_up_by_component() {
        let bad = |page| Finding {
            component: "c4".into(),
            layer: 2,
            page,
            item: 5,
            kind: FindingKind::NeverWritten,
        };
        let mut sum = Handoff::default();
        sum.add(&map(3, vec![]));
        assert_eq!((sum.summary().as_str(), sum.changed().count()), ("9 items whole", 0));
        sum.add(&map(2, vec![bad(Some(1))]));
        sum.add(&map(2, vec![bad(Some(1))]));
        let c4 = &sum.components[0];
        assert_eq!(
            (c4.component.as_str(), c4.items, c4.whole, c4.layers.as_slice()),
            ("c4", 18, 16, &[2, 4][..])
        );
        // The same place in two requests is said once.
        assert_eq!(sum.findings().collect::<Vec<_>>(), ["c4 layer 2 page 1: expected but never written"]);
        assert_eq!((sum.summary().as_str(), sum.requests), ("2/27 items of c4 changed", 3));
        assert!(!sum.components[1].changed());
        // A write beside the request's own items leaves all of those whole.
        let mut stray = Handoff::default();
        stray.add(&map(3, vec![Finding { kind: FindingKind::NotExpected, ..bad(None) }]));
        assert_eq!(stray.summary(), "stray writes to c4");
    }
}
