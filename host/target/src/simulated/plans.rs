//! Plans for simulations.

use crate::{Atom, Change, Class, Delta, Plan, Span};

/// Builds a plan; atoms are numbered in the order in which changes are added.
#[derive(Debug, Default, Clone)]
pub struct PlanBuilder {
    changes: Vec<Change>,
    atoms: usize,
}

impl PlanBuilder {
    /// Adds a change to the variant `to` on `layers`, or outside the layers if there are none. Returns its index.
    pub fn variant(&mut self, seam: &str, phase: Span, class: Class, to: &str, layers: &[usize]) -> usize {
        let delta = Delta::Variant { from: format!("{seam}/cpu-stock"), to: to.to_owned() };
        self.push(Change {
            seam: seam.to_owned(),
            ops: vec!["op".to_owned()],
            phase,
            class,
            ranks: Vec::new(),
            delta,
            variants: vec![to.to_owned()],
            atoms: self.atoms_on(layers, &[]),
        })
    }

    /// Adds the option `name` of the change at index `of`, from `false` to `true`. Returns its index.
    pub fn option(&mut self, of: usize, name: &str) -> usize {
        let base = self.changes[of].clone();
        let required: Vec<usize> = base.atoms.iter().map(|atom| atom.id).collect();
        self.push(Change {
            delta: Delta::Option { name: name.to_owned(), from: "false".to_owned(), to: "true".to_owned() },
            variants: base.variants.iter().map(|variant| format!("{variant}{{{name}: true}}")).collect(),
            atoms: self.atoms_on(&base.layers(), &required),
            ..base
        })
    }

    /// The plan, from `live` to `suspects`.
    pub fn build(self) -> Plan {
        Plan {
            good: "live".to_owned(),
            bad: "suspects".to_owned(),
            changes: self.changes,
            unchanged: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn push(&mut self, change: Change) -> usize {
        self.atoms += change.atoms.len();
        self.changes.push(change);
        self.changes.len() - 1
    }

    /// New atoms, each of which requires the one of the same place in `required`.
    fn atoms_on(&self, layers: &[usize], required: &[usize]) -> Vec<Atom> {
        let layers: Vec<Option<usize>> =
            if layers.is_empty() { vec![None] } else { layers.iter().copied().map(Some).collect() };
        let atom = |(index, layer)| Atom {
            id: self.atoms + index,
            layer,
            requires: required.get(index).copied().into_iter().collect(),
        };
        layers.into_iter().enumerate().map(atom).collect()
    }
}

/// `count` unrelated changes of one atom each: atom and change have the same number.
pub fn flat(count: usize) -> Plan {
    let mut builder = PlanBuilder::default();
    for index in 0..count {
        builder.variant(&format!("seam{index}"), Span::Decode, Class::Model, &format!("patch/{index}"), &[]);
    }
    builder.build()
}

/// A patch of every seam on a model shaped as DeepSeek-V4-Flash: 43 layers, of which the first two have only a window,
/// then ratio 4 and ratio 128 alternate; the indexer on ratio-4 layers; the first three layers hash-routed. About 300
/// atoms in 19 changes.
pub fn flash() -> Plan {
    const LAYERS: usize = 43;
    let of =
        |wanted: fn(usize) -> bool| -> Vec<usize> { (0..LAYERS).filter(|layer| wanted(*layer)).collect() };
    let attention = [
        (Class::Window, of(|layer| layer < 2)),
        (Class::Csa, of(|layer| layer >= 2 && layer % 2 == 0)),
        (Class::Hca, of(|layer| layer >= 2 && layer % 2 == 1)),
    ];
    let moe = [(Class::Hash, of(|layer| layer < 3)), (Class::Topk, of(|layer| layer >= 3))];
    let mut builder = PlanBuilder::default();
    for phase in [Span::Decode, Span::Prefill] {
        for (class, layers) in &attention {
            builder.variant("attention", phase, *class, "attention/patched", layers);
        }
        builder.variant("indexer", phase, Class::Csa, "indexer/patched", &attention[1].1);
        for (class, layers) in &moe {
            builder.variant("moe", phase, *class, "moe/patched", layers);
        }
        for (class, layers) in &attention {
            builder.variant("mhc", phase, *class, "mhc/patched", layers);
        }
    }
    builder.variant("kv_transport", Span::Handoff, Class::Model, "kv_transport/patched", &[]);
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flash_has_about_three_hundred_atoms() {
        let plan = flash();
        assert_eq!(plan.changes.len(), 19);
        assert_eq!(plan.atoms().count(), 2 * (43 + 21 + 43 + 43) + 1);
        assert!(plan.atoms().enumerate().all(|(index, atom)| atom.id == index));
    }

    #[test]
    fn an_option_requires_its_variant_layer_by_layer() {
        let mut builder = PlanBuilder::default();
        let base = builder.variant("indexer", Span::Decode, Class::Csa, "indexer/x", &[2, 4]);
        let option = builder.option(base, "early_exit");
        let plan = builder.build();
        assert_eq!(plan.changes[option].title(), "indexer@decode csa: early_exit: false -> true");
        assert_eq!(plan.with_required(&[3].into()), [1, 3].into());
    }
}
