//! From a change to the layers that matter: smallest failing prefix and suffix of its layers.

use hotseam_target::Arm;

use super::hunt::{Hunt, Stop};
use super::order::Suspect;
use super::prefix::{self, Boundary};
use crate::report::layers;

/// Which layers of a change are needed for the failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Narrow {
    /// The change has one layer, or none.
    Only,
    /// One layer of several fails alone.
    Single,
    /// The first alone fails and the last alone fails.
    Any,
    /// Every layer is needed.
    All,
    /// A run of layers fails and neither end of it can be left out.
    Band,
    /// Some leading layers fail alone, and some trailing ones too.
    Several {
        /// Layers of the smallest failing prefix.
        first: Vec<usize>,
        /// Layers of the smallest failing suffix.
        last: Vec<usize>,
    },
    /// Some of the layers cannot be judged apart.
    Unclear,
    /// Several classes or phases of the patch are needed.
    Spread,
}

/// The layers found, as atoms, and what they are.
#[derive(Debug, Clone)]
pub(crate) struct Narrowed {
    pub(crate) atoms: Arm,
    pub(crate) kind: Narrow,
    /// Trial in which just these atoms failed.
    pub(crate) trial: usize,
}

/// Narrows `suspect`, which is known to fail on its own.
pub(crate) fn narrow(hunt: &mut Hunt<'_>, suspect: &Suspect) -> Result<Narrowed, Stop> {
    let atoms: Vec<usize> = suspect.atoms.iter().copied().collect();
    let count = atoms.len();
    let place = hunt.plan.changes[suspect.change].place();
    let whole = confirm(hunt, &suspect.atoms, &format!("{place} alone"))?;
    let as_whole = |kind| Narrowed { atoms: suspect.atoms.clone(), kind, trial: whole };
    if count <= 1 {
        return Ok(as_whole(Narrow::Only));
    }
    let layers_of = |hunt: &Hunt<'_>, part: &[usize]| -> Vec<usize> {
        hunt.plan.atoms().filter(|a| part.contains(&a.id)).filter_map(|a| a.layer).collect()
    };
    let label = |hunt: &Hunt<'_>, part: &[usize]| format!("{place} {}", layers(&layers_of(hunt, part)));
    // Many arms are decided on the way: each must be right more often than the claim that is made of them.
    let confidence = 1.0 - (1.0 - hunt.options.confidence) / (1.0 + 2.0 * (count as f64).log2());
    let test = |hunt: &mut Hunt<'_>, part: &[usize], left| {
        let arm = hunt.plan.with_required(&part.iter().copied().collect());
        let why = label(hunt, part);
        hunt.test_at(&arm, &why, left, [confidence; 2])
    };
    // The smallest failing length of the parts that `part` makes of a length.
    let boundary = |hunt: &mut Hunt<'_>, part: &dyn Fn(usize) -> Vec<usize>| {
        prefix::smallest_failing(&vec![1.0; count], hunt.options.jobs, |lengths| {
            let ask = |(length, left): &(usize, [usize; 2])| {
                test(hunt, &part(*length), Some(*left)).map(|tested| tested.fails())
            };
            lengths.iter().map(ask).collect()
        })
    };
    let unclear = as_whole(Narrow::Unclear);

    let Boundary::At(end) = boundary(hunt, &|length| atoms[..length].to_vec())? else { return Ok(unclear) };
    // If the first layer alone fails, the last one alone is the telling test: both mean that any will do.
    if end == 1 && test(hunt, &atoms[count - 1..], None)?.bad() {
        return Ok(as_whole(Narrow::Any));
    }
    let suffix = boundary(hunt, &|length| atoms[count - length..].to_vec())?;
    let Boundary::At(length) = suffix else { return Ok(unclear) };
    let begin = count - length;
    let several = |hunt: &Hunt<'_>| Narrow::Several {
        first: layers_of(hunt, &atoms[..end]),
        last: layers_of(hunt, &atoms[begin..]),
    };
    if begin >= end {
        return Ok(as_whole(several(hunt)));
    }
    let part: Arm = atoms[begin..end].iter().copied().collect();
    let kind = match part.len() {
        1 => Narrow::Single,
        n if n == count => return Ok(as_whole(Narrow::All)),
        _ => Narrow::Band,
    };
    let why = label(hunt, &atoms[begin..end]);
    let arm = hunt.plan.with_required(&part);
    let tested = hunt.test(&arm, &why, None)?;
    if !tested.bad() {
        // Prefix and suffix fail for different reasons; the change as a whole is what is known.
        return Ok(as_whole(several(hunt)));
    }
    Ok(Narrowed { atoms: part, kind, trial: tested.trial })
}

/// The trial of an arm that was tested before.
fn confirm(hunt: &mut Hunt<'_>, atoms: &Arm, why: &str) -> Result<usize, Stop> {
    let arm = hunt.plan.with_required(atoms);
    hunt.test(&arm, why, None).map(|tested| tested.trial)
}
