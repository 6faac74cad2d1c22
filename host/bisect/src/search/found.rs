//! A culprit as the search knows it.

use hotseam_target::{Arm, Handoff};

use super::layers::{Narrow, Narrowed};
use super::order::Suspect;
use crate::report::ByTopology;

/// A set of changes that fails on its own.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Indices into the plan; several only for an interaction.
    pub(crate) changes: Vec<usize>,
    /// What was shown to fail alone.
    pub(crate) atoms: Arm,
    /// What was taken out of the failing end afterwards.
    pub(crate) removed: Arm,
    pub(crate) kind: Narrow,
    /// Failing trial of the good end with `atoms`.
    pub(crate) sufficient: usize,
    /// Passing trial of the failing end without `removed`.
    pub(crate) necessary: Option<usize>,
    /// Belief in it; 1 if the oracle is exact.
    pub(crate) probability: f64,
    /// Failing trial of the bad end without `removed`: there is another culprit.
    pub(crate) still_fails: Option<usize>,
    /// Passing trial of the bad end without the other culprits.
    pub(crate) masked: Option<usize>,
    /// In which topology it fails, once that was asked.
    pub(crate) topology: Option<ByTopology>,
    /// What hand-offs of the good end with it brought, if they were audited.
    pub(crate) handoff: Option<Handoff>,
}

impl Found {
    pub(crate) fn single(suspect: &Suspect, narrow: Narrowed) -> Self {
        Self {
            changes: vec![suspect.change],
            removed: narrow.atoms.clone(),
            atoms: narrow.atoms,
            kind: narrow.kind,
            sufficient: narrow.trial,
            necessary: None,
            probability: 1.0,
            still_fails: None,
            masked: None,
            topology: None,
            handoff: None,
        }
    }

    /// A patch that fails as a whole though the change of `suspect`, a part of it, does not.
    pub(crate) fn spread(suspect: &Suspect, atoms: Arm, trial: usize) -> Self {
        Self::single(suspect, Narrowed { atoms, kind: Narrow::Spread, trial })
    }

    pub(crate) fn set(suspects: &[Suspect], trial: usize) -> Self {
        let atoms: Arm = suspects.iter().flat_map(|suspect| suspect.atoms.iter().copied()).collect();
        Self {
            changes: suspects.iter().map(|suspect| suspect.change).collect(),
            removed: atoms.clone(),
            atoms,
            kind: Narrow::Only,
            sufficient: trial,
            necessary: None,
            probability: 1.0,
            still_fails: None,
            masked: None,
            topology: None,
            handoff: None,
        }
    }

    /// With the belief in it.
    pub(crate) fn believed(self, probability: f64) -> Self {
        Self { probability, ..self }
    }

    /// The failing end passes without `atoms`.
    pub(crate) fn confirm(&mut self, trial: usize, atoms: Arm) {
        self.necessary = Some(trial);
        self.removed = atoms;
    }
}
