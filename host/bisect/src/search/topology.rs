//! In which topology does a culprit fail: only where prefill hands its KV over to decode, or in one pool too? And what does
//! the hand-off bring?

use hotseam_target::{Arm, Evidence, Handoff, Span, Suspicion, TOPOLOGY};

use super::Knowledge;
use super::axes::ask;
use super::found::Found;
use super::hunt::{Hunt, Stop};
use crate::report::{ByTopology, Fails, Setting};

/// Values of the topology.
const PAIRED: &str = "paired";
const SINGLE: &str = "single";
/// How much more a change of the hand-off is suspected if an audit finds damage, and how much less if it finds none: a fault
/// may need another prompt than the audited ones.
const DAMAGED: f64 = 100.0;
const WHOLE: f64 = 0.2;

/// Audits hand-offs of the bad end, if one of the changes is about them.
pub(crate) fn audit(hunt: &mut Hunt<'_>, known: &mut Knowledge) {
    if hunt.plan.changes.iter().any(|change| change.phase == Span::Handoff) {
        let all = hunt.plan.all();
        known.handoff = audited(hunt, known, &all, "the bad end");
    }
}

/// What an audit says of the changes that are about hand-offs.
pub(crate) fn suspicions(hunt: &Hunt<'_>, handoff: &Handoff) -> Vec<Suspicion> {
    let damaged = handoff.changed().next().is_some();
    let about = hunt.plan.changes.iter().enumerate().filter(|(_, change)| change.phase == Span::Handoff);
    let evidence = format!("audit of {} hand-offs: {}", handoff.requests, handoff.summary());
    about
        .map(|(change, _)| Suspicion {
            change,
            weight: if damaged { DAMAGED } else { WHOLE },
            evidence: evidence.clone(),
            step: Evidence::E3,
        })
        .collect()
}

/// Says of every culprit that acts before or at the hand-off in which topology it fails. What only decode computes is never
/// handed over. Costs runs only while the budget lasts.
pub(crate) fn tell(hunt: &mut Hunt<'_>, known: &mut Knowledge) -> Result<(), Stop> {
    let mut found = std::mem::take(&mut known.found);
    let told = found.iter_mut().try_for_each(|found| tell_of(hunt, known, found));
    known.found = found;
    match told {
        Err(Stop::Budget) => Ok(()),
        other => other,
    }
}

fn tell_of(hunt: &mut Hunt<'_>, known: &mut Knowledge, found: &mut Found) -> Result<(), Stop> {
    let spans = |span| found.changes.iter().any(|&index| hunt.plan.changes[index].phase == span);
    let (handoff, prefill) = (spans(Span::Handoff), spans(Span::Prefill) || spans(Span::Both));
    if found.masked.is_some() || !(handoff || prefill) {
        return Ok(());
    }
    let arm = hunt.plan.with_required(&found.atoms);
    if handoff {
        found.handoff = audited(hunt, known, &arm, "the culprit");
    }
    if found.changes.iter().any(|&index| hunt.plan.changes[index].seam == TOPOLOGY) {
        // The good end is the same arm on one pool only where nothing but the topology is to blame.
        let single = known.good.filter(|_| found.changes.len() == 1);
        found.topology =
            single.map(|single| ByTopology { fails: Fails::OnlyPaired, paired: found.sufficient, single });
        return Ok(());
    }
    let now_paired = |axis: &hotseam_target::Axis| axis.name == TOPOLOGY && axis.now == PAIRED;
    let is_change = hunt.plan.changes.iter().any(|change| change.seam == TOPOLOGY);
    if is_change && !handoff {
        // It fails without the change of topology, so on one pool; nobody has tried it on a pair.
        return Ok(());
    }
    if !hunt.options.axes || !is_change && !hunt.target.axes().iter().any(now_paired) {
        return Ok(());
    }
    let setting = Setting { name: TOPOLOGY.into(), from: PAIRED.into(), to: SINGLE.into() };
    let failing = hunt.digest(&arm)?;
    let confidence = hunt.options.confidence;
    match ask(hunt, &arm, &[setting], "the culprit with", confidence, &failing) {
        Ok((single, answer)) => {
            let fails = answer.map(|passes| if passes { Fails::OnlyPaired } else { Fails::Both });
            found.topology = fails.map(|fails| ByTopology { fails, paired: found.sufficient, single });
            if fails.is_none() {
                known.notes.push(format!(
                    "whether it fails at topology {SINGLE} as well did not become clear in the runs"
                ));
            }
        }
        // It is known what is guilty; where is worth no failed search.
        Err(Stop::Target(error)) => {
            known.notes.push(format!("whether it fails at topology {SINGLE} as well is not known: {error}"));
        }
        Err(stop) => return Err(stop),
    }
    Ok(())
}

/// Hand-offs of an arm. An audit that does not come about is a remark: it is evidence beside the runs of the oracle.
fn audited(hunt: &mut Hunt<'_>, known: &mut Knowledge, arm: &Arm, what: &str) -> Option<Handoff> {
    match hunt.target.handoff(arm) {
        Ok(handoff) => handoff,
        Err(error) => {
            known.notes.push(format!("hand-offs of {what} were not audited: {error}"));
            None
        }
    }
}
