//! The suspects by seam, equal findings merged.

use hotseam_target::Evidence;

use super::{Grade, Place, Report, layers};

/// How a suspect stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Guilty,
    Clear,
    Open,
}

/// One patch of one seam with one standing; its phases and classes merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) mark: Mark,
    /// Phases, classes and layers, such as `prefill+decode window+csa layers 0-6`; empty for a whole seam.
    pub(super) place: String,
    pub(super) delta: String,
    /// Step of the evidence that clears or convicts it.
    pub(super) grade: Option<Evidence>,
    pub(super) reason: String,
}

/// Seams in the order the report names them, each with its leaves.
pub(super) fn tree(report: &Report) -> Vec<(String, Vec<Leaf>)> {
    let mut rows: Vec<(Mark, Place, Option<Evidence>, String)> = Vec::new();
    for culprit in &report.culprits {
        let place = Place {
            seam: culprit.seam.clone(),
            phase: culprit.phase.clone(),
            class: culprit.class.clone(),
            delta: culprit.change.clone(),
        };
        rows.push((Mark::Guilty, place, Some(Evidence::E5), "culprit".to_owned()));
    }
    rows.extend(
        report.open.iter().map(|o| (Mark::Open, o.place.clone(), None, format!("open: {}", o.reason))),
    );
    let clear = |grade: Grade| report.exonerated.iter().filter(move |e| e.grade == grade);
    for grade in [Grade::Passes, Grade::Improbable, Grade::DidNotRun, Grade::SameCode] {
        rows.extend(
            clear(grade).map(|e| (Mark::Clear, e.place.clone(), Some(grade.step()), e.reason.clone())),
        );
    }

    let mut seams: Vec<(String, Vec<Leaf>)> = Vec::new();
    // Leaves by seam, still without their places in words.
    let mut merged: Vec<(usize, Leaf, Vec<Place>)> = Vec::new();
    for (mark, place, grade, reason) in rows {
        let seam = match seams.iter().position(|(name, _)| *name == place.seam) {
            Some(at) => at,
            None => {
                seams.push((place.seam.clone(), Vec::new()));
                seams.len() - 1
            }
        };
        let same = merged.iter_mut().find(|(at, leaf, _)| {
            (*at, leaf.mark, &leaf.delta, &leaf.reason) == (seam, mark, &place.delta, &reason)
        });
        match same {
            Some((.., places)) => places.push(place),
            None => {
                let leaf = Leaf { mark, place: String::new(), delta: place.delta.clone(), grade, reason };
                merged.push((seam, leaf, vec![place]));
            }
        }
    }
    for (seam, leaf, places) in merged {
        let phases = distinct(places.iter().map(|p| p.phase.as_str()));
        let classes = distinct(places.iter().map(|p| p.class.as_str()));
        let on = layers_of(report, &places);
        let place =
            [phases, classes, on].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        seams[seam].1.push(Leaf { place, ..leaf });
    }
    seams
}

/// The layers of all `places` together.
fn layers_of(report: &Report, places: &[Place]) -> String {
    let guilty = report.culprits.iter().filter(|culprit| {
        places.iter().any(|p| {
            p.seam == culprit.seam
                && p.phase == culprit.phase
                && p.class == culprit.class
                && p.delta == culprit.change
        })
    });
    let mut on: Vec<usize> = guilty.flat_map(|culprit| culprit.layers.iter().copied()).collect();
    if on.is_empty() {
        let suspects = report.suspects.iter().filter(|suspect| places.contains(&suspect.place));
        on = suspects.flat_map(|suspect| suspect.layers.iter().copied()).collect();
    }
    on.sort_unstable();
    on.dedup();
    layers(&on)
}

fn distinct<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut seen: Vec<&str> = Vec::new();
    for word in words {
        if !seen.contains(&word) {
            seen.push(word);
        }
    }
    seen.join("+")
}
