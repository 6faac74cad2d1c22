//! Planted faults.

use std::collections::BTreeMap;

use crate::Arm;

/// Settings under which a run is made, name and value.
pub type Settings = BTreeMap<String, String>;

/// How strongly an arm shows a fault: from 0, not at all, to 1, fully. Faults combine as fuzzy logic does: of several
/// that must meet the weakest counts, of alternatives the strongest.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Shows in every arm, the good end too.
    Always,
    /// Shows in no arm: a benign difference.
    Never,
    /// Shows if any of these atoms is on.
    Any(Arm),
    /// Shows if all of these atoms are on.
    All(Arm),
    /// Shows if at least so many of the atoms are on: an error that must add up.
    AtLeast(usize, Arm),
    /// As strong as the share of these atoms that are on.
    Share(Arm),
    /// Shows if all of these show: an interaction.
    Together(Vec<Fault>),
    /// Shows if one of these shows: independent culprits.
    Either(Vec<Fault>),
    /// Shows where the other does not.
    Not(Box<Fault>),
    /// Shows as the fault does, so much weaker.
    Weak(f64, Box<Fault>),
    /// Shows only under a setting.
    When(Condition, Box<Fault>),
}

/// What a setting must be for a fault to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The setting has this value, such as `topology` = `paired`.
    Is(String, String),
    /// The setting is a number and at least this, such as `rows` past 64.
    AtLeast(String, u64),
    /// The setting is a number below this, such as `index_topk`.
    Below(String, u64),
}

impl Condition {
    /// True under `settings`; a setting that is missing or no number satisfies nothing.
    fn holds(&self, settings: &Settings) -> bool {
        let number = |name: &String| settings.get(name).and_then(|value| value.parse::<u64>().ok());
        match self {
            Self::Is(name, value) => settings.get(name) == Some(value),
            Self::AtLeast(name, least) => number(name).is_some_and(|number| number >= *least),
            Self::Below(name, bound) => number(name).is_some_and(|number| number < *bound),
        }
    }
}

impl Fault {
    /// Any of `atoms`.
    pub fn any(atoms: impl IntoIterator<Item = usize>) -> Self {
        Self::Any(atoms.into_iter().collect())
    }

    /// All of `atoms` together.
    pub fn all(atoms: impl IntoIterator<Item = usize>) -> Self {
        Self::All(atoms.into_iter().collect())
    }

    /// This fault, unless one of `atoms` is on: a patch that heals it.
    pub fn masked_by(self, atoms: impl IntoIterator<Item = usize>) -> Self {
        Self::Together(vec![self, Self::Not(Box::new(Self::any(atoms)))])
    }

    /// This fault under `condition` only.
    pub fn when(self, condition: Condition) -> Self {
        Self::When(condition, Box::new(self))
    }

    /// How strongly `arm` shows the fault under `settings`, from 0 to 1.
    pub fn strength(&self, arm: &Arm, settings: &Settings) -> f64 {
        let switched = |atoms: &Arm| atoms.iter().filter(|atom| arm.contains(atom)).count();
        let whole = |shows: bool| if shows { 1.0 } else { 0.0 };
        match self {
            Self::Always => 1.0,
            Self::Never => 0.0,
            Self::Any(atoms) => whole(atoms.iter().any(|atom| arm.contains(atom))),
            Self::All(atoms) => whole(atoms.iter().all(|atom| arm.contains(atom))),
            Self::AtLeast(count, atoms) => whole(switched(atoms) >= *count),
            Self::Share(atoms) => switched(atoms) as f64 / atoms.len().max(1) as f64,
            Self::Together(faults) => faults.iter().map(|f| f.strength(arm, settings)).fold(1.0, f64::min),
            Self::Either(faults) => faults.iter().map(|f| f.strength(arm, settings)).fold(0.0, f64::max),
            Self::Not(fault) => 1.0 - fault.strength(arm, settings),
            Self::Weak(factor, fault) => factor * fault.strength(arm, settings),
            Self::When(condition, fault) if condition.holds(settings) => fault.strength(arm, settings),
            Self::When(..) => 0.0,
        }
    }

    /// True if `arm` shows at least half of the fault.
    pub fn shows(&self, arm: &Arm, settings: &Settings) -> bool {
        self.strength(arm, settings) >= 0.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(fault: &Fault, arm: &[usize]) -> bool {
        fault.shows(&arm.iter().copied().collect(), &Settings::new())
    }

    #[test]
    fn faults_combine() {
        let pair = Fault::Together(vec![Fault::any([1, 2]), Fault::any([5])]);
        assert!(shows(&pair, &[2, 5, 7]) && !shows(&pair, &[1, 2]) && !shows(&pair, &[5]));
        let either = Fault::Either(vec![Fault::all([1, 2]), Fault::any([5])]);
        assert!(shows(&either, &[5]) && shows(&either, &[1, 2]) && !shows(&either, &[1]));
        let masked = Fault::any([3]).masked_by([9]);
        assert!(shows(&masked, &[3]) && !shows(&masked, &[3, 9]) && !shows(&masked, &[9]));
        let sum = Fault::AtLeast(2, [1, 2, 3].into());
        assert!(shows(&sum, &[1, 3]) && !shows(&sum, &[1, 4]));
        assert_eq!(Fault::Share([1, 2, 3, 4].into()).strength(&[2].into(), &Settings::new()), 0.25);
    }

    #[test]
    fn settings_gate_a_fault() {
        let late = Fault::any([1]).when(Condition::AtLeast("chunks".into(), 3));
        let with = |name: &str, value: &str| Settings::from([(name.to_owned(), value.to_owned())]);
        let arm = [1].into();
        assert!(late.shows(&arm, &with("chunks", "3")) && !late.shows(&arm, &with("chunks", "2")));
        assert!(!late.shows(&arm, &Settings::new()) && !late.shows(&arm, &with("chunks", "many")));
        let low = Fault::Always.when(Condition::Below("index_topk".into(), 64));
        assert!(low.shows(&Arm::new(), &with("index_topk", "32")));
        assert!(!low.shows(&Arm::new(), &with("index_topk", "64")));
        let pair = Fault::any([1]).when(Condition::Is("topology".into(), "paired".into()));
        assert!(
            pair.shows(&arm, &with("topology", "paired")) && !pair.shows(&arm, &with("topology", "single"))
        );
    }
}
