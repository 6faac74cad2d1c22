//! One call of one variant, held against truth on the same inputs.

use hotseam_abi::{RouteArgs, SelectArgs, capability, layout::KV_F32};
use hotseam_conformance::Op as Checked;
use hotseam_conformance::reference::{self, Reference};
use hotseam_conformance::tolerances::{self, Tolerance};
use hotseam_engine::observe::{Args, Memory, Scratch};
use hotseam_slots::{CellId, Op, Seam};

use super::choice::{ChoiceError, Row};
use super::metrics::{FloatError, floats};
use super::values::{Data, Values, decode};

/// A gap between scores above this many floors is no tie.
pub const GAP_FLOORS: f64 = 3.0;
/// A floor of scores, in units of their allowed root mean square error: two scores that change places are both off.
const SCORE_FLOOR: f64 = 4.0;
/// An error above this many floors is no rounding.
pub const RMS_FLOORS: f64 = 2.0;
/// A row whose error is above this many floors is no rounding.
pub const ROW_FLOORS: f64 = 5.0;

/// What one call of one variant shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Judged {
    pub(crate) outputs: Vec<(&'static str, FloatError, Tolerance)>,
    pub(crate) choice: Option<ChoiceError>,
}

/// The op of a cell in the table of tolerances.
pub(crate) fn checked(seam: Seam, op: Op) -> Checked {
    match (seam, op) {
        (Seam::Indexer, Op::Compress) => Checked::IndexerCompress,
        (_, Op::Store) => Checked::AttentionStore,
        (_, Op::Compress) => Checked::AttentionCompress,
        (_, Op::Core) => Checked::AttentionCore,
        (_, Op::Select) => Checked::IndexerSelect,
        (_, Op::Route) => Checked::MoeRoute,
        (_, Op::Experts) => Checked::MoeExperts,
        (_, Op::Pre) => Checked::MhcPre,
        (_, Op::Post) => Checked::MhcPost,
        (_, Op::Head) => Checked::MhcHead,
        (_, Op::Transport) => Checked::KvTransport,
    }
}

/// Layout of the pool that a call writes, or of the entries or keys that it reads.
pub(crate) fn layout_of(args: Args<'_>) -> u32 {
    match args {
        Args::Store(a) => a.pool.layout,
        Args::Compress(a) => a.pool.layout,
        Args::Core(a) => a.swa.layout,
        Args::Select(a) => a.keys.layout,
        _ => KV_F32,
    }
}

/// Positions of the rows; -1 for padding. The arguments are in host memory.
fn positions(args: Args<'_>) -> Vec<i32> {
    // SAFETY: arguments of a scratch, or of a file, that are alive.
    unsafe {
        let batch = &*args.batch();
        match batch.n_rows {
            0 => Vec::new(),
            n => std::slice::from_raw_parts(batch.positions, n as usize).to_vec(),
        }
    }
}

/// Fills the outputs of `scratch`, which is in host memory, as a variant with these capabilities has to.
///
/// # Errors
/// What truth says is wrong with the arguments.
pub(crate) fn truth(scratch: &Scratch, capabilities: u64) -> Result<(), String> {
    assert_eq!(scratch.memory(), Memory::Host, "truth reads and writes host memory");
    let par = hotseam_loader::pool();
    // SAFETY: inputs are those of a call that is looked at, outputs are the scratch's own.
    let done = unsafe {
        match scratch.args() {
            Args::Store(a) => a.truth(par, capabilities),
            Args::Compress(a) => a.truth(par, capabilities),
            Args::Core(a) => a.truth(par, capabilities),
            Args::Select(a) => a.truth(par, capabilities),
            Args::Route(a) => a.truth(par, capabilities),
            Args::Experts(a) => a.truth(par, capabilities),
            Args::Pre(a) => a.truth(par, capabilities),
            Args::Post(a) => a.truth(par, capabilities),
            Args::Head(a) => a.truth(par, capabilities),
        }
    };
    done.map_err(|error| error.message)
}

/// Judges what a variant left in `got`; `want` holds truth's outputs on the same inputs, in host memory.
///
/// # Errors
/// If truth does not know a layout, or refuses the arguments, or the variant's device failed.
pub(crate) fn judge(
    cell: CellId,
    got: &Scratch,
    want: &Scratch,
    capabilities: u64,
    call: u64,
) -> Result<Judged, String> {
    let (args, op) = (want.args(), checked(cell.seam, cell.op));
    let positions = positions(args);
    let live = |values: &Values, item: usize| {
        values.axis != "row" || positions.get(values.items[item]).is_none_or(|p| *p >= 0)
    };
    let outputs = |scratch: &Scratch| {
        let bytes = scratch.outputs().map_err(|error| error.to_string())?;
        decode(scratch.places(), &bytes)
    };
    let (got, mut want) = (outputs(got)?, outputs(want)?);
    let mut judged = Judged::default();
    match args {
        Args::Select(a) => {
            judged.choice = Some({
                let bound = SCORE_FLOOR * tolerances::of(op, "scores", a.keys.layout).rms;
                selection(a, ids(&got)?, &positions, call, bound)?
            })
        }
        Args::Route(a) => {
            let (choice, weights) = routing(a, ids(&got)?, &positions, capabilities, call)?;
            judged.choice = Some(choice);
            for values in want.iter_mut().filter(|v| v.name == "weights") {
                values.data = Data::Floats(weights.clone());
            }
        }
        _ => {}
    }
    for (got, want) in got.iter().zip(&want).filter(|(got, _)| got.floats().is_some()) {
        let tolerance = tolerances::of(op, got.name, layout_of(args));
        judged.outputs.push((got.name, floats(got, want, live, call), tolerance));
    }
    Ok(judged)
}

fn ids(values: &[Values]) -> Result<&[i32], String> {
    values.iter().find_map(Values::ids).ok_or_else(|| "the op has no ids".to_owned())
}

/// The choice that stands in the ids of `a`, judged by the scores of its keys with a floor of `bound` times their size.
///
/// # Errors
/// If truth refuses the arguments.
pub(crate) fn exact_choice(a: &SelectArgs, call: u64, bound: f64) -> Result<ChoiceError, String> {
    let positions = positions(Args::Select(a));
    let n = positions.len() * a.topk as usize;
    // SAFETY: the ids of a scratch that is alive.
    let ids = if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(a.ids.cast_const(), n) } };
    selection(a, ids, &positions, call, bound)
}

fn selection(
    a: &SelectArgs,
    ids: &[i32],
    positions: &[i32],
    call: u64,
    bound: f64,
) -> Result<ChoiceError, String> {
    // SAFETY: arguments of a call that is looked at.
    let scores = unsafe { reference::index_scores(a, hotseam_loader::pool()) }.map_err(|e| e.message)?;
    let floor = bound * size(scores.iter().flatten().map(|s| f64::from(*s)));
    let k = a.topk as usize;
    let mut choice = ChoiceError::default();
    for (row, scores) in scores.iter().enumerate().filter(|(row, _)| positions[*row] >= 0) {
        let scores: Vec<f64> = scores.iter().map(|s| f64::from(*s)).collect();
        let ids = ids.get(row * k..(row + 1) * k).unwrap_or_default();
        choice.row(&Row { scores: &scores, k, floor, number: row, call }, ids);
    }
    Ok(choice)
}

/// The choice of experts, and the weights that the chosen ones must have.
fn routing(
    a: &RouteArgs,
    ids: &[i32],
    positions: &[i32],
    capabilities: u64,
    call: u64,
) -> Result<(ChoiceError, Vec<f32>), String> {
    // SAFETY: arguments of a call that is looked at.
    let router = unsafe { reference::router_scores(a, hotseam_loader::pool()) }.map_err(|e| e.message)?;
    let (n, k) = (router.experts, a.topk as usize);
    let floor = SCORE_FLOOR
        * tolerances::of(Checked::MoeRoute, "weights", 0).rms
        * size(router.scores.iter().map(|s| f64::from(*s)));
    let scales = match router.prescribed {
        Some(_) => capability::ROUTE_SCALES_HASH,
        None => capability::ROUTE_SCALES_TOPK,
    };
    let factor = if capabilities & scales != 0 { f64::from(a.routed_scale) } else { 1.0 };
    let mut choice = ChoiceError::default();
    let mut weights = vec![0f32; ids.len()];
    for row in (0..positions.len()).filter(|row| positions[*row] >= 0) {
        let own = &router.scores[row * n..(row + 1) * n];
        let ids = &ids[row * k..(row + 1) * k];
        let keys: Vec<f64> = match &router.prescribed {
            // What the table prescribes ties at the top, everything else is far below.
            Some(table) => {
                let table = &table[row * k..(row + 1) * k];
                (0..n).map(|e| if table.contains(&(e as i32)) { 1.0 } else { 0.0 }).collect()
            }
            None => {
                let bias = |e: usize| router.bias.as_ref().map_or(0.0, |b| f64::from(b[e]));
                own.iter().enumerate().map(|(e, s)| f64::from(*s) + bias(e)).collect()
            }
        };
        choice.row(&Row { scores: &keys, k, floor, number: row, call }, ids);
        let score =
            |id: &i32| usize::try_from(*id).ok().and_then(|e| own.get(e)).map_or(f64::NAN, |s| f64::from(*s));
        let sum: f64 = ids.iter().map(score).sum();
        for (w, id) in weights[row * k..].iter_mut().zip(ids) {
            *w = (score(id) / (sum + 1e-20) * factor) as f32;
        }
    }
    Ok((choice, weights))
}

/// Root mean square of what is finite.
fn size(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, n) = values.filter(|v| v.is_finite()).fold((0f64, 0usize), |(sum, n), v| (sum + v * v, n + 1));
    (sum / n.max(1) as f64).sqrt().max(1e-12)
}

impl Judged {
    /// Whether a choice is beyond the floor.
    pub(crate) fn discrete(&self) -> bool {
        self.choice.as_ref().is_some_and(|c| c.broken() > 0 || c.gap > GAP_FLOORS)
    }

    /// What is beyond the floor, in words; `None` if nothing is. The floor is that of the number formats that the op
    /// allows, or the error of `other` where that is larger.
    pub(crate) fn alarm(&self, other: Option<&Self>) -> Option<String> {
        if let Some(choice) = &self.choice {
            if choice.broken() > 0 {
                let ChoiceError { unreachable, duplicates, missing, .. } = choice;
                return Some(format!(
                    "ids break the contract: {unreachable} unreachable, {duplicates} duplicate, {missing} missing"
                ));
            }
            if choice.gap > GAP_FLOORS {
                let lost =
                    choice.best_lost.map_or(String::new(), |rank| format!(", best lost rank {}", rank + 1));
                return Some(format!("choice is {:.1} floors below the best{lost}", choice.gap));
            }
        }
        for (i, (name, e, tolerance)) in self.outputs.iter().enumerate() {
            let theirs = other.and_then(|o| o.outputs.get(i)).map_or((0.0, 0.0), |(_, e, _)| (e.rms, e.row));
            if e.non_finite > 0 {
                return Some(format!("{name} is not a number in {} places", e.non_finite));
            }
            let (rms, row) = (tolerance.rms.max(theirs.0), tolerance.rms.max(theirs.1));
            if e.rms > RMS_FLOORS * rms {
                return Some(format!("{name} is off by {:.1e} (rms), {:.0} floors", e.rms, e.rms / rms));
            }
            if e.row > ROW_FLOORS * row {
                return Some(format!("{name} is off by {:.1e} in one row, {:.0} floors", e.row, e.row / row));
            }
        }
        None
    }
}
