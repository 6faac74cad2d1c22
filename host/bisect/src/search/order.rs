//! Suspects, most suspicious first.

use hotseam_target::{Arm, Conformance, Plan, Span, Suspicion};

/// Share of the search weight that changes whose variant fails conformance get together.
const ACCUSED_SHARE: f64 = 0.6;

/// Bound of what cheap evidence says for or against a change.
const LEAST_RATIO: f64 = 1e-3;

/// A change that may be the culprit.
#[derive(Debug, Clone)]
pub(crate) struct Suspect {
    /// Index into the plan.
    pub(crate) change: usize,
    /// Its atoms that ran and are still on the bad side.
    pub(crate) atoms: Arm,
    /// A variant it brings in fails conformance.
    pub(crate) accused: bool,
    /// Likelihood ratio of the cheap evidence about it.
    ratio: f64,
    /// How much it is expected to be the culprit; any positive scale.
    pub(crate) weight: f64,
}

/// All changes that ran. Those that fail conformance come first, then by other evidence, then changes of decode before
/// those of prefill (arms that differ in decode only share the prefill state), then the order of the plan; a change
/// never comes before one that it requires.
pub(crate) fn suspects(
    plan: &Plan,
    not_run: &Arm,
    conformance: &[Conformance],
    suspicions: &[Suspicion],
) -> Vec<Suspect> {
    let fails = |variant: &String| conformance.iter().any(|c| c.variant == *variant && !c.passed);
    let mut sorted: Vec<Suspect> = (0..plan.changes.len())
        .map(|change| Suspect {
            change,
            atoms: plan.changes[change]
                .atoms
                .iter()
                .map(|a| a.id)
                .filter(|id| !not_run.contains(id))
                .collect(),
            ratio: ratio(suspicions, change),
            accused: plan.changes[change].variants.iter().any(fails),
            weight: 1.0,
        })
        .filter(|suspect| !suspect.atoms.is_empty())
        .collect();
    sorted.sort_by(|a, b| {
        let late = |suspect: &Suspect| plan.changes[suspect.change].phase != Span::Decode;
        b.accused.cmp(&a.accused).then(b.ratio.total_cmp(&a.ratio)).then(late(a).cmp(&late(b)))
    });

    let mut placed = Arm::new();
    let mut ordered = Vec::new();
    while !sorted.is_empty() {
        let ready = sorted.iter().position(|suspect| {
            let change = &plan.changes[suspect.change];
            change
                .atoms
                .iter()
                .flat_map(|atom| &atom.requires)
                .all(|id| placed.contains(id) || not_run.contains(id))
        });
        // Requirements never form a cycle; if a plan had one, its first member goes ahead.
        let next = sorted.remove(ready.unwrap_or(0));
        placed.extend(&next.atoms);
        ordered.push(next);
    }
    weigh(&mut ordered);
    ordered
}

/// The likelihood ratio of all cheap evidence about a change. No evidence clears, so it never falls to nothing.
fn ratio(suspicions: &[Suspicion], change: usize) -> f64 {
    let own = suspicions.iter().filter(|suspicion| suspicion.change == change && suspicion.weight > 0.0);
    own.map(|suspicion| suspicion.weight).product::<f64>().clamp(LEAST_RATIO, 1.0 / LEAST_RATIO)
}

/// The suspects that still have atoms in `arm`, in the same order.
pub(crate) fn within(suspects: &[Suspect], arm: &Arm) -> Vec<Suspect> {
    let mut live: Vec<Suspect> = suspects
        .iter()
        .map(|suspect| Suspect {
            atoms: suspect.atoms.intersection(arm).copied().collect(),
            ..suspect.clone()
        })
        .filter(|suspect| !suspect.atoms.is_empty())
        .collect();
    weigh(&mut live);
    live
}

/// All atoms of `suspects`.
pub(crate) fn union<'a>(suspects: impl IntoIterator<Item = &'a Suspect>) -> Arm {
    suspects.into_iter().flat_map(|suspect| suspect.atoms.iter().copied()).collect()
}

fn weigh(suspects: &mut [Suspect]) {
    let accused = suspects.iter().filter(|suspect| suspect.accused).count();
    let others = suspects.len() - accused;
    for suspect in suspects {
        let share = match suspect.accused {
            _ if accused == 0 || others == 0 => 1.0,
            true => ACCUSED_SHARE / accused as f64,
            false => (1.0 - ACCUSED_SHARE) / others as f64,
        };
        suspect.weight = share * suspect.ratio;
    }
}
