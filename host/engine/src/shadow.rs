//! New variants beside the old ones on the inputs of real steps: the old outputs count, the new ones are compared.

use crate::observe::{Args, Entry, Kind, Memory, Place, Scratch};
use crate::swaps::trial::{Failure, Trial};
use hotseam_abi::{StepCtx, layout};
use hotseam_slots::{Bound, CallError, CellId, Generation, StepArgs, StepFn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Makes a call with `run`, and on the new variant of its cell, if there is one, with outputs of its own.
///
/// # Errors
/// Those of `run`. What the new variant does wrong fails the trial and nothing else.
pub(crate) fn call<A: StepArgs>(
    trial: &Trial,
    bound: &Bound<StepFn<A>>,
    ctx: &StepCtx,
    args: &A,
    run: impl FnOnce() -> Result<(), CallError>,
) -> Result<(), CallError> {
    let cell = bound.cell();
    let Some(generation) = trial.comparable.get(&cell).filter(|_| trial.failure().is_none()) else {
        return run();
    };
    let any = args.any();
    // SAFETY: the engine built the arguments and keeps them for the length of the call. The new variant runs first, since
    // some ops work in place.
    let scratch = unsafe { Scratch::strict(any, Memory::of(any, ctx)) };
    let ran = match &scratch {
        Ok(scratch) => generation.invoke(cell, ctx, scratch.args()).map_err(|error| error.to_string()),
        Err(_) => Ok(()),
    };
    run()?;
    trial.shadow_calls.fetch_add(1, Ordering::Relaxed);
    let verdict = match scratch {
        Ok(scratch) => ran.and_then(|()| compare(trial, bound, generation, any, &scratch)),
        Err(error) => Err(format!("there are no outputs for it: {error}")),
    };
    if let Err(what) = verdict {
        let variant = &generation.spec;
        let message = format!(
            "E-PLUG-304 {cell}: variant `{variant}` beside `{}` in step {}: {what}. The old variant stays. Look at the cell \
             with `hotseam compare`.",
            bound.generation.spec, ctx.step
        );
        trial.fail(Failure { code: 304, message });
    }
    Ok(())
}

/// Whether the new variant kept to its outputs, and left there what the old one has.
fn compare<A>(
    trial: &Trial,
    bound: &Bound<StepFn<A>>,
    generation: &Arc<Generation>,
    args: Args<'_>,
    scratch: &Scratch,
) -> Result<(), String> {
    let (memory, news) = (scratch.memory(), scratch.places());
    let failed = |error: hotseam_cuda::CudaError| error.to_string();
    if let Some(stray) = scratch.stray().map_err(failed)? {
        return Err(format!("it wrote outside `{}`, {}", stray.output, stray.place));
    }
    // SAFETY: as in `call`; the call is over, or all of it is on its stream.
    let olds = unsafe { crate::observe::places(args, memory) }.map_err(failed)?;
    // What one takes over from the host the other leaves to it: outputs then mean different things.
    let alike = bound.has(generation.instance.info().capabilities)
        && bound.capabilities == generation.instance.info().capabilities;
    for (old, new) in olds.iter().zip(news) {
        // SAFETY: as above; nothing writes either.
        let (a, b) = unsafe { (new.gather(memory).map_err(failed)?, old.gather(memory).map_err(failed)?) };
        let difference = difference(new, &a, &b).ok_or_else(|| {
            format!(
                "`{}` holds numbers that are not finite. expected finite ones, as the old variant has",
                new.name
            )
        })?;
        if alike {
            note(trial, bound.cell(), new.name, difference)?;
        }
    }
    Ok(())
}

fn note(trial: &Trial, cell: CellId, name: &str, difference: f32) -> Result<(), String> {
    trial.note_difference(difference, cell);
    let limit = trial.policy.shadow_tolerance;
    if difference > limit {
        return Err(format!("`{name}` differs by {difference:.3}. expected at most {limit}"));
    }
    Ok(())
}

/// How far `new` is from `old`: for numbers the largest difference over the largest old value, for ids and bytes the share
/// that differs. `None` if a new number is not finite where the old one is.
fn difference(place: &Place, new: &[u8], old: &[u8]) -> Option<f32> {
    let values = |bytes: &[u8]| -> Option<Vec<f32>> {
        let f32s = |b: &[u8]| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
        match place.kind {
            Kind::F32 | Kind::Entry(Entry { layout: layout::KV_F32 | layout::KEY_F32, .. }) => {
                Some(bytes.chunks_exact(4).map(f32s).collect())
            }
            Kind::Entry(Entry { layout: layout::KV_BF16 | layout::KEY_BF16, .. }) => Some(
                bytes
                    .chunks_exact(2)
                    .map(|b| f32::from_bits(u32::from(u16::from_ne_bytes([b[0], b[1]])) << 16))
                    .collect(),
            ),
            Kind::I32 | Kind::Entry(_) => None,
        }
    };
    if let (Some(new), Some(old)) = (values(new), values(old)) {
        if new.iter().zip(&old).any(|(n, o)| o.is_finite() && !n.is_finite()) {
            return None;
        }
        let largest = old.iter().filter(|v| v.is_finite()).fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
        let apart = new.iter().zip(&old).filter(|(_, o)| o.is_finite()).map(|(n, o)| (n - o).abs());
        return Some(apart.fold(0.0, f32::max) / largest);
    }
    if place.kind == Kind::I32 {
        return Some(missing(place.item_bytes, new, old));
    }
    let differing = new.iter().zip(old).filter(|(a, b)| a != b).count();
    Some(differing as f32 / old.len().max(1) as f32)
}

/// Share of the old ids that the same item of the new ones lacks; their order does not count.
fn missing(item_bytes: usize, new: &[u8], old: &[u8]) -> f32 {
    let sorted = |bytes: &[u8]| {
        let mut ids: Vec<i32> =
            bytes.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
        ids.sort_unstable();
        ids
    };
    let (mut lacking, mut all) = (0usize, 0usize);
    for (new, old) in new.chunks_exact(item_bytes.max(4)).zip(old.chunks_exact(item_bytes.max(4))) {
        let new = sorted(new);
        for id in sorted(old).into_iter().filter(|id| *id >= 0) {
            all += 1;
            lacking += usize::from(new.binary_search(&id).is_err());
        }
    }
    lacking as f32 / all.max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(kind: Kind, item_bytes: usize) -> Place {
        Place {
            name: "out",
            kind,
            axis: "row",
            inner: Vec::new(),
            item_bytes,
            items: Vec::new(),
            apart_bytes: 0,
            apart: Vec::new(),
        }
    }

    fn bytes<const N: usize>(words: [[u8; 4]; N]) -> Vec<u8> {
        words.concat()
    }

    #[test]
    fn numbers_are_held_against_the_largest() {
        let f32s = |v: [f32; 3]| bytes(v.map(f32::to_ne_bytes));
        let of = |new, old| difference(&place(Kind::F32, 12), &f32s(new), &f32s(old));
        assert_eq!(of([1.0, -4.0, 2.0], [1.0, -4.0, 2.0]), Some(0.0));
        assert_eq!(of([1.0, -4.0, 3.0], [1.0, -4.0, 2.0]), Some(0.25));
        assert_eq!(of([1.0, f32::NAN, 3.0], [1.0, -4.0, 2.0]), None);
        // Where the old one has no number there is nothing to hold the new one against.
        assert_eq!(of([1.0, f32::NAN, 2.0], [1.0, f32::NAN, 2.0]), Some(0.0));
    }

    #[test]
    fn ids_count_as_sets_of_an_item() {
        let ids = |v: [i32; 4]| bytes(v.map(i32::to_ne_bytes));
        let of = |new, old| difference(&place(Kind::I32, 8), &ids(new), &ids(old));
        assert_eq!(of([2, 1, 3, -1], [1, 2, 3, -1]), Some(0.0));
        assert_eq!(of([1, 2, 1, -1], [1, 2, 3, -1]), Some(1.0 / 3.0));
    }

    #[test]
    fn other_bytes_count_by_share() {
        let layout = layout::KEY_FP8_HADAMARD;
        let fp8 = place(Kind::Entry(Entry { layout, dim: 0, rope_dim: 0, data_bytes: 0, scale_bytes: 4 }), 4);
        assert_eq!(difference(&fp8, &[1, 2, 3, 4], &[1, 2, 3, 5]), Some(0.25));
    }
}
