//! A worker of topology `single` beside a pair: the good end of a search for what the hand-off does, or the place where it is
//! asked whether a culprit fails without one.

use std::sync::Arc;

use hotseam_config::WorkerSection;
use hotseam_slots::{Rule, Seam};

use super::remote::Remote;
use crate::command::Places;
use crate::judge::Judge;
use crate::planning::{Refused, Resolved, Site as _};
use crate::{Axis, TOPOLOGY, TargetError};

/// The worker.
pub(super) struct Single {
    pub(super) remote: Arc<Remote>,
    /// Atom that switches from it to the pair, if the topology is a change.
    pub(super) atom: Option<usize>,
    /// With the bar of the good end there; absent if the good end of the search runs there anyway.
    pub(super) judge: Option<Judge>,
    pub(super) places: Places,
}

/// The topology, as the axis that it is for a pair.
pub(super) fn axis() -> Axis {
    Axis { name: TOPOLOGY.to_owned(), now: "paired".to_owned(), values: vec!["single".to_owned()] }
}

/// Refuses settings that running servers do not have.
///
/// # Errors
/// [`TargetError::Setup`] with what there is.
pub(super) fn check(settings: &[(String, String)], there: bool) -> Result<(), TargetError> {
    let only = |(name, value): &(String, String)| name == TOPOLOGY && value == "single";
    match (there, settings.iter().find(|setting| !only(setting))) {
        (true, None) => Ok(()),
        (false, _) => {
            let text = "these servers have no settings to change; name a worker beside them as `bisect.target.single`";
            Err(TargetError::Setup(text.to_owned()))
        }
        (true, Some((name, value))) => Err(TargetError::Setup(format!(
            "running servers have no axis {name} with `{value}`; they have: {TOPOLOGY} single"
        ))),
    }
}

/// Where a command reaches it.
pub(super) fn places(worker: &WorkerSection) -> Places {
    Places { admin: vec![worker.admin.to_string()], api: Some(worker.api.to_string()), config: None }
}

impl Remote {
    /// Checks that this server serves the model of `pair` and makes the same cells of the same rules, so that a difference
    /// between them is the hand-off's.
    ///
    /// # Errors
    /// What differs, and the next step.
    pub(super) fn is_like(
        &self,
        pair: &Self,
        name: &str,
        rules: &[Rule],
        there: &Resolved,
    ) -> Result<(), Refused> {
        let here = self.name();
        if self.model() != pair.model() {
            let (own, other) = (self.model(), pair.model());
            return Err(format!("single ({here}) serves the model `{own}`, the pair serves `{other}`").into());
        }
        let own = self.define(name, rules).map_err(|error| format!("single ({here}): {error}"))?;
        self.remove(name);
        for served in there.cells.iter().filter(|served| served.cell.id.seam != Seam::KvTransport) {
            let id = served.cell.id;
            let alike = own.cells.iter().any(|own| own.cell.id == id && own.by.hash == served.by.hash);
            if !alike {
                return Err(format!(
                    "single ({here}) makes another {id} of the same rules than the pair; give all servers the same plugin \
                     files and configuration"
                )
                .into());
            }
        }
        Ok(())
    }
}
