//! The suspects by seam, equal findings merged.

use super::{Grade, Place, Report};

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
    /// Phases and classes, such as `prefill+decode window+csa`; empty for a whole seam.
    pub(super) place: String,
    pub(super) delta: String,
    pub(super) reason: String,
}

/// Seams in the order the report names them, each with its leaves.
pub(super) fn tree(report: &Report) -> Vec<(String, Vec<Leaf>)> {
    let mut rows: Vec<(Mark, Place, String)> = Vec::new();
    for culprit in &report.culprits {
        let place = Place {
            seam: culprit.seam.clone(),
            phase: culprit.phase.clone(),
            class: culprit.class.clone(),
            delta: culprit.change.clone(),
        };
        rows.push((Mark::Guilty, place, "culprit".to_owned()));
    }
    rows.extend(report.open.iter().map(|o| (Mark::Open, o.place.clone(), format!("open: {}", o.reason))));
    let clear = |grade: Grade| report.exonerated.iter().filter(move |e| e.grade == grade);
    for grade in [Grade::Passes, Grade::DidNotRun, Grade::SameCode] {
        rows.extend(clear(grade).map(|e| (Mark::Clear, e.place.clone(), e.reason.clone())));
    }

    let mut seams: Vec<(String, Vec<Leaf>)> = Vec::new();
    let mut merged: Vec<(usize, Mark, String, String, Vec<Place>)> = Vec::new();
    for (mark, place, reason) in rows {
        let seam = match seams.iter().position(|(name, _)| *name == place.seam) {
            Some(at) => at,
            None => {
                seams.push((place.seam.clone(), Vec::new()));
                seams.len() - 1
            }
        };
        let same = merged
            .iter_mut()
            .find(|(s, m, d, r, _)| (*s, *m, d.as_str(), r) == (seam, mark, place.delta.as_str(), &reason));
        match same {
            Some((.., places)) => places.push(place),
            None => merged.push((seam, mark, place.delta.clone(), reason, vec![place])),
        }
    }
    for (seam, mark, delta, reason, places) in merged {
        let phases = distinct(places.iter().map(|p| p.phase.as_str()));
        let classes = distinct(places.iter().map(|p| p.class.as_str()));
        let place =
            [phases, classes].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        seams[seam].1.push(Leaf { mark, place, delta, reason });
    }
    seams
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
