//! The two sides of a graft: a run whose values are kept, and a run that gets them.
//!
//! Both runs have the same prompt, chunks and decoded tokens, so that the n-th step of one is the n-th of the other, and
//! the values are those of the same call.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use hotseam_abi::component;
use hotseam_engine::observe::{Call, Handed, Observer, Stepping};
use hotseam_slots::{CallError, CellId};
use serde::{Deserialize, Serialize};

use super::what::KvPart;

/// Bytes of outputs that are kept of one run, at most.
const MOST_BYTES: usize = 1 << 30;

/// A call within a step: its cell, and how many calls of the cell came before it.
type Place = (CellId, u32);

/// Values of a run.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    /// By step, then by call: the outputs.
    outputs: Vec<BTreeMap<Place, Vec<Vec<u8>>>>,
    bytes: usize,
    /// By component and layer: the items that decode began with.
    kv: BTreeMap<(u32, u32), Vec<Vec<u8>>>,
}

/// KV that a hand-off delivered otherwise than it was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corrupted {
    /// Component.
    pub component: String,
    /// Layer.
    pub layer: u32,
    /// Pages or state rows that differ.
    pub items: usize,
    /// Pages or state rows that were sent.
    pub of: usize,
}

/// Numbers the calls of a step.
#[derive(Debug, Default)]
struct Counter {
    step: Option<usize>,
    seen: HashMap<CellId, u32>,
}

impl Counter {
    fn step(&mut self) {
        self.step = Some(self.step.map_or(0, |step| step + 1));
        self.seen.clear();
    }

    fn place(&mut self, cell: CellId) -> Place {
        let seen = self.seen.entry(cell).or_default();
        *seen += 1;
        (cell, *seen - 1)
    }
}

/// Keeps the outputs of some cells, and all KV that decode begins with.
#[derive(Debug, Default)]
pub(super) struct Donor {
    cells: BTreeSet<CellId>,
    keep_kv: bool,
    counter: Counter,
    recorded: Recorded,
    corrupted: Vec<Corrupted>,
}

impl Donor {
    pub(super) fn new(cells: BTreeSet<CellId>, keep_kv: bool) -> Self {
        Self { cells, keep_kv, ..Self::default() }
    }

    /// What was kept.
    pub(super) fn take(&mut self) -> Recorded {
        std::mem::take(&mut self.recorded)
    }

    /// What arrived otherwise than it was sent.
    pub(super) fn corrupted(&self) -> &[Corrupted] {
        &self.corrupted
    }
}

impl Observer for Donor {
    fn step(&mut self, _step: Stepping<'_>) {
        self.counter.step();
        self.recorded.outputs.push(BTreeMap::new());
    }

    fn call(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        call.run()?;
        let place = self.counter.place(call.cell);
        if !self.cells.contains(&call.cell) {
            return Ok(());
        }
        let outputs = call.outputs().map_err(|error| call.error(error.to_string()))?;
        self.recorded.bytes += outputs.iter().map(Vec::len).sum::<usize>();
        if self.recorded.bytes > MOST_BYTES {
            let limit = MOST_BYTES >> 30;
            return Err(call.error(format!(
                "the outputs to graft take more than {limit} GiB; name fewer layers or one phase, or take a shorter prompt"
            )));
        }
        if let Some(step) = self.recorded.outputs.last_mut() {
            step.insert(place, outputs);
        }
        Ok(())
    }

    fn handed(&mut self, moved: &mut [Handed<'_>]) {
        for handed in moved {
            let n = handed.len();
            let (mut items, mut differ) = (Vec::with_capacity(n), 0);
            for item in 0..n {
                let received = handed.received(item);
                differ += usize::from(handed.sent(item) != received);
                items.push(received);
            }
            if differ > 0 {
                let component = component::NAMES[handed.component as usize].to_owned();
                self.corrupted.push(Corrupted { component, layer: handed.layer, items: differ, of: n });
            }
            if self.keep_kv {
                self.recorded.kv.insert((handed.component, handed.layer), items);
            }
        }
    }
}

/// Gets values of another run.
#[derive(Debug)]
pub(super) struct Recipient {
    cells: BTreeSet<CellId>,
    kv: Option<KvPart>,
    from: Arc<Recorded>,
    counter: Counter,
    /// Outputs and items replaced.
    pub(super) replaced: u64,
    /// Why a value did not fit.
    pub(super) refused: Option<String>,
    /// Components that were left as they are, because their layouts differ.
    pub(super) without: BTreeSet<&'static str>,
}

impl Recipient {
    pub(super) fn new(cells: BTreeSet<CellId>, kv: Option<KvPart>, from: Arc<Recorded>) -> Self {
        Self {
            cells,
            kv,
            from,
            counter: Counter::default(),
            replaced: 0,
            refused: None,
            without: BTreeSet::new(),
        }
    }

    fn refuse(&mut self, what: &str) {
        self.refused
            .get_or_insert_with(|| format!("{what} of the two ends differ in size, as their layouts do"));
    }
}

impl Observer for Recipient {
    fn step(&mut self, _step: Stepping<'_>) {
        self.counter.step();
    }

    fn call(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        call.run()?;
        let place = self.counter.place(call.cell);
        if !self.cells.contains(&call.cell) {
            return Ok(());
        }
        let step = self.counter.step.and_then(|step| self.from.outputs.get(step));
        let Some(outputs) = step.and_then(|step| step.get(&place)) else {
            return Err(call.error("the run that gives its values has not made this call"));
        };
        match call.overwrite(outputs).map_err(|error| call.error(error.to_string()))? {
            true => {
                self.replaced += 1;
                Ok(())
            }
            // The run goes on, since an error here would read as the variant's.
            false => {
                self.refuse(&format!("outputs of {}", call.cell));
                Ok(())
            }
        }
    }

    fn handed(&mut self, moved: &mut [Handed<'_>]) {
        let Some(part) = self.kv.clone() else { return };
        let from = Arc::clone(&self.from);
        for handed in moved.iter_mut().filter(|h| part.holds(h.component, h.layer)) {
            let items = from.kv.get(&(handed.component, handed.layer));
            let name = component::NAMES[handed.component as usize];
            for item in 0..handed.len() {
                let length = handed.item_bytes();
                match items.and_then(|items| items.get(item)).filter(|bytes| bytes.len() == length) {
                    Some(bytes) => {
                        handed.replace(item, bytes);
                        self.replaced += 1;
                    }
                    // Of several components, those of one layout can still be replaced.
                    None if part.component.is_none() => drop(self.without.insert(name)),
                    None => self.refuse(&format!("{name} of layer {}", handed.layer)),
                }
            }
        }
    }
}
