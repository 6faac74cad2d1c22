//! The observer: stock, patched and truth on the inputs of every call of one request.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use hotseam_abi::{ExpertsArgs, SelectArgs, capability, phase};
use hotseam_engine::observe::{Args, Call, Handed, Observer, Room, Scratch, Stepping};
use hotseam_slots::{CallError, CellId, Generation, Op, Seam, Snapshot};

use super::judge::{Judged, judge, layout_of, truth};
use super::keys::{KeyPools, written};
use super::tally::{CellTally, Fault, Place};
use super::values::pool_layout;

/// Called with the rows that were compared so far.
pub type Progress = Box<dyn FnMut(usize) + Send>;

/// Runs both sides of every cell that differs.
pub(super) struct Shadow {
    bad: HashMap<CellId, Arc<Generation>>,
    /// Layouts of index keys of the bad side, by layer.
    layouts: HashMap<u32, u32>,
    keys: KeyPools,
    pub(super) cells: BTreeMap<CellId, CellTally>,
    pub(super) calls: u64,
    /// Calls of the prefill steps.
    pub(super) prefill_calls: u64,
    pub(super) rows: usize,
    chunk: u32,
    /// Capability bit that declares scaled weights in the running layer, and the scale.
    routed: Option<(u64, f32)>,
    progress: Progress,
}

impl Shadow {
    /// Compares the cells whose code or options differ.
    pub(super) fn new(good: &Snapshot, bad: &Snapshot, progress: Progress) -> Self {
        let bad_cells: HashMap<CellId, Arc<Generation>> =
            bad.cells().map(|view| (view.cell, view.generation.clone())).collect();
        let mut cells = BTreeMap::new();
        for view in good.cells().filter(|view| view.cell.op != Op::Transport) {
            if let Some(other) = bad_cells.get(&view.cell).filter(|other| other.hash != view.generation.hash)
            {
                cells.insert(view.cell, CellTally::new(view.cell, view.generation, other));
            }
        }
        let layouts = (0..bad.num_layers())
            .filter_map(|layer| Some((layer as u32, bad.key_layout(layer)?.id)))
            .collect();
        Self {
            bad: bad_cells,
            layouts,
            keys: KeyPools::default(),
            cells,
            calls: 0,
            prefill_calls: 0,
            rows: 0,
            chunk: 0,
            routed: None,
            progress,
        }
    }

    /// Compares both sides on the inputs of a call.
    fn compare(&mut self, call: &Call<'_>) {
        let Some(bad) = self.bad.get(&call.cell).cloned() else { return };
        let place = Place {
            call: self.calls,
            cell: call.cell,
            chunk: self.chunk,
            first_position: call.positions().ok().and_then(|all| all.first().copied()).unwrap_or(-1),
        };
        let good = self.side(call, call.generation, layout_of(call.args));
        let patched = self.side(call, &bad, self.bad_layout(call));
        if let Some(tally) = self.cells.get_mut(&call.cell) {
            tally.add(place, call.rows, good, patched);
        }
    }

    /// Layout that the bad side writes or reads at this call.
    fn bad_layout(&self, call: &Call<'_>) -> u32 {
        let keys = call.cell.layer.and_then(|layer| self.layouts.get(&layer)).copied();
        match (call.cell.seam, keys) {
            (Seam::Indexer, Some(layout)) => layout,
            _ => match self.bad.get(&call.cell) {
                Some(bad) if call.cell.seam == Seam::Attention => bad.instance.info().layout,
                _ => layout_of(call.args),
            },
        }
    }

    /// Runs one side and truth on the call's inputs and holds one against the other.
    fn side(&mut self, call: &Call<'_>, generation: &Arc<Generation>, layout: u32) -> Result<Judged, Fault> {
        let serving = generation.serving(call.cell.op);
        let capabilities = serving.map_or(0, |g| g.instance.info().capabilities);
        // Kept here, so that changed arguments live as long as the scratch that borrows them.
        let (mut select, mut experts, mut weights) = (None, None, None);
        let args = match call.args {
            Args::Select(a) if layout != a.keys.layout => {
                let keys = self.keys.view(&a.keys, layout);
                let keys =
                    keys.ok_or_else(|| skipped("no index keys of its layout were written before it"))?;
                Args::Select(select.insert(SelectArgs { keys, ..*a }))
            }
            Args::Experts(a) => {
                let scaled = self.scaled(call, a, generation, &mut weights).map_err(skipped)?;
                Args::Experts(experts.insert(scaled))
            }
            Args::Core(a) if layout != a.swa.layout => {
                return Err(skipped("it reads another KV layout than the good end stores"));
            }
            args => args,
        };
        let wanted = match args {
            Args::Store(a) if layout != a.pool.layout => Some(pool_layout(&a.pool, layout).map_err(skipped)?),
            Args::Compress(a) if layout != a.pool.layout => {
                Some(pool_layout(&a.pool, layout).map_err(skipped)?)
            }
            _ => None,
        };
        // SAFETY: inputs are those of the call, or the changed copies above, which are in its memory and outlive all of these.
        let (got, host) = unsafe {
            let got = Scratch::new(args, call.memory, wanted).map_err(|error| skipped(error.to_string()))?;
            (got, call.changed_on_host(args).map_err(|error| skipped(error.to_string()))?)
        };
        // SAFETY: as above.
        let want = unsafe { Scratch::on_host(host.args(), wanted) };
        call.invoke(generation, &got)
            .map_err(|error| Fault::Wrong(format!("it failed: {}", error.message)))?;
        let stray = got.stray().map_err(|error| Fault::Wrong(format!("its device failed: {error}")))?;
        if let Some(stray) = stray {
            return Err(Fault::Wrong(format!("it wrote outside its {}: {}", stray.output, stray.place)));
        }
        truth(&want, capabilities).map_err(skipped)?;
        judge(call.cell, &got, &want, capabilities, self.calls).map_err(skipped)
    }

    /// The arguments of `moe.experts` as the engine would give them behind the router of the same side: the router
    /// declares whether the routed scale is in the weights already. The product is the same.
    fn scaled(
        &self,
        call: &Call<'_>,
        a: &ExpertsArgs,
        generation: &Arc<Generation>,
        weights: &mut Option<Room>,
    ) -> Result<ExpertsArgs, String> {
        let router = self.bad.get(&CellId { op: Op::Route, ..call.cell });
        let (Some(router), Some((bit, scale))) = (router, self.routed) else { return Ok(*a) };
        let target = match router.instance.info().capabilities & bit != 0 {
            true => 1.0,
            false => scale,
        };
        let n = call.rows * a.topk as usize;
        if Arc::ptr_eq(generation, call.generation) || target == a.routed_scale || n == 0 {
            return Ok(*a);
        }
        // SAFETY: the weights of a call that is looked at.
        let mut scaled = unsafe { call.memory.read(a.weights, n) }.map_err(|error| error.to_string())?;
        scaled.iter_mut().for_each(|w| *w = *w * a.routed_scale / target);
        let bytes: Vec<u8> = scaled.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let room = Room::of(call.memory, &bytes).map_err(|error| error.to_string())?;
        Ok(ExpertsArgs { weights: weights.insert(room).ptr().cast(), routed_scale: target, ..*a })
    }
}

fn skipped(why: impl Into<String>) -> Fault {
    Fault::Skipped(why.into())
}

impl Observer for Shadow {
    fn step(&mut self, step: Stepping<'_>) {
        self.chunk = step.chunk;
        self.rows += step.tokens.len();
        (self.progress)(self.rows);
    }

    fn call(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        if let (Seam::Indexer, Some(a), Some(layout)) =
            (call.cell.seam, written(call.args), call.cell.layer.and_then(|l| self.layouts.get(&l)))
        {
            self.keys.store(call, a, *layout).map_err(|message| call.error(message))?;
        }
        if let Args::Route(a) = call.args {
            let hash = !a.tid2eid.data.is_null();
            let bit = if hash { capability::ROUTE_SCALES_HASH } else { capability::ROUTE_SCALES_TOPK };
            self.routed = Some((bit, a.routed_scale));
        }
        if self.cells.contains_key(&call.cell) {
            self.compare(call);
        }
        self.calls += 1;
        self.prefill_calls += u64::from(call.ctx.phase == phase::PREFILL);
        call.run()
    }

    fn handed(&mut self, moved: &mut [Handed<'_>]) {
        self.keys.handed(moved);
    }
}
