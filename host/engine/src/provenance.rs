//! Whose KV a step reads: for each pair of (reading code, writing code), what was read. A phase is thereby split into
//! who wrote and who read.
//!
//! The engine thread counts into atomics of pairs that exist; a new pair, and so a lock and an allocation, comes only
//! with an assignment or a swap that was not seen before.

use hotseam_abi::component;
use hotseam_kv::{Code, History, LayerCode, PhaseCode, Reach};
use hotseam_slots::{CellId, Generation, LayerCells, Op, Phase, Seam, Snapshot, TransportCell};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Pairs that are remembered; the oldest goes first.
const PAIRS: usize = 256;
/// Phases of assignments whose code is remembered.
const CODES: usize = 32;

/// KV that one cell read and another wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Component, as the hand-off names it: `swa`, `c4`, `c128`, `index_keys`, `c4_state`, `c128_state`, `index_state`.
    pub component: String,
    /// Cell that read.
    pub reader: CellId,
    /// Variant that served it.
    pub reader_variant: String,
    /// Hash of its code and options.
    pub reader_hash: String,
    /// Cell that wrote.
    pub writer: CellId,
    /// Variant that served it then.
    pub writer_variant: String,
    /// Hash of its code and options.
    pub writer_hash: String,
    /// Assignment that it served.
    pub writer_assignment: String,
    /// Transport variant that moved the KV in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    /// Steps and sequences in which it was read.
    pub steps: u64,
    /// Entries or state rows within the reader's reach, summed over those.
    pub items: u64,
}

/// One reading and one writing code, and what was read.
#[derive(Debug)]
pub(crate) struct Pair {
    reader: Arc<PhaseCode>,
    writer: Arc<PhaseCode>,
    carrier: Option<Arc<Code>>,
    steps: AtomicU64,
    window: AtomicU64,
    c4: AtomicU64,
    c128: AtomicU64,
    c4_state: AtomicU64,
    c128_state: AtomicU64,
}

/// What anyone may read.
pub(crate) type Ledger = Arc<Mutex<Vec<Arc<Pair>>>>;

/// The engine thread's side.
#[derive(Debug)]
pub(crate) struct Provenance {
    pairs: Vec<Arc<Pair>>,
    shared: Ledger,
    codes: Vec<Arc<PhaseCode>>,
    /// The last transport, by generation.
    carrier: Option<(u64, Arc<Code>)>,
}

impl Provenance {
    pub(crate) fn new(shared: Ledger) -> Self {
        Self { pairs: Vec::new(), shared, codes: Vec::new(), carrier: None }
    }

    /// The code of a transport, as runs refer to it.
    pub(crate) fn carrier(&mut self, cell: &TransportCell) -> Arc<Code> {
        let generation = &cell.put.generation;
        match &self.carrier {
            Some((id, known)) if *id == generation.id => Arc::clone(known),
            _ => {
                let code = Arc::new(code_of(generation));
                self.carrier = Some((generation.id, Arc::clone(&code)));
                code
            }
        }
    }

    /// The code of a snapshot in a phase, as runs of positions refer to it.
    pub(crate) fn code(&mut self, snapshot: &Snapshot, phase: Phase) -> Arc<PhaseCode> {
        let known = self.codes.iter().find(|code| {
            code.digest == *snapshot.digest().bytes()
                && code.phase == phase.id()
                && code.assignment == snapshot.name()
        });
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let code = Arc::new(describe(snapshot, phase));
        if self.codes.len() == CODES {
            self.codes.remove(0);
        }
        self.codes.push(Arc::clone(&code));
        code
    }

    /// Counts what a step over the positions `rows` of a sequence read.
    pub(crate) fn read(
        &mut self,
        reader: &Arc<PhaseCode>,
        history: &History,
        rows: Range<usize>,
        window: usize,
    ) {
        history.reach(rows, window, |run, reach| {
            let same = |pair: &&Arc<Pair>| {
                Arc::ptr_eq(&pair.reader, reader)
                    && Arc::ptr_eq(&pair.writer, &run.writer)
                    && pair.carrier.as_ref().map(Arc::as_ptr) == run.carrier.as_ref().map(Arc::as_ptr)
            };
            if let Some(pair) = self.pairs.iter().find(same) {
                return pair.count(reach);
            }
            let pair = Pair {
                reader: Arc::clone(reader),
                writer: Arc::clone(&run.writer),
                carrier: run.carrier.clone(),
                steps: AtomicU64::new(0),
                window: AtomicU64::new(0),
                c4: AtomicU64::new(0),
                c128: AtomicU64::new(0),
                c4_state: AtomicU64::new(0),
                c128_state: AtomicU64::new(0),
            };
            pair.count(reach);
            if self.pairs.len() == PAIRS {
                self.pairs.remove(0);
            }
            self.pairs.push(Arc::new(pair));
            self.shared.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&self.pairs);
        });
    }
}

impl Pair {
    fn count(&self, reach: Reach) {
        let add = |to: &AtomicU64, n: usize| to.fetch_add(n as u64, Ordering::Relaxed);
        add(&self.steps, 1);
        add(&self.window, reach.window);
        add(&self.c4, reach.c4);
        add(&self.c128, reach.c128);
        add(&self.c4_state, reach.c4_state);
        add(&self.c128_state, reach.c128_state);
    }

    fn items(&self, component: u32) -> u64 {
        let of = match component {
            component::SWA => &self.window,
            component::C4 | component::INDEX_KEYS => &self.c4,
            component::C128 => &self.c128,
            component::C4_STATE | component::INDEX_STATE => &self.c4_state,
            _ => &self.c128_state,
        };
        of.load(Ordering::Relaxed)
    }
}

/// Component, op that reads it, op that writes it.
const FLOWS: &[(u32, Seam, Op, Op)] = &[
    (component::SWA, Seam::Attention, Op::Core, Op::Store),
    (component::C4, Seam::Attention, Op::Core, Op::Compress),
    (component::C128, Seam::Attention, Op::Core, Op::Compress),
    (component::INDEX_KEYS, Seam::Indexer, Op::Select, Op::Compress),
    (component::C4_STATE, Seam::Attention, Op::Compress, Op::Compress),
    (component::C128_STATE, Seam::Attention, Op::Compress, Op::Compress),
    (component::INDEX_STATE, Seam::Indexer, Op::Compress, Op::Compress),
];

/// What the cells of `snapshot` read, and who wrote it; by flow, layer, writer.
pub(crate) fn origins(ledger: &Ledger, snapshot: &Snapshot) -> Vec<Origin> {
    let pairs = ledger.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let own = |pair: &&Arc<Pair>| {
        pair.reader.digest == *snapshot.digest().bytes() && pair.reader.assignment == snapshot.name()
    };
    let mut found = Vec::new();
    for flow in FLOWS {
        for pair in pairs.iter().filter(own) {
            found.extend(flow_origins(pair, *flow));
        }
    }
    found
}

fn flow_origins(
    pair: &Pair,
    (component, seam, reads, writes): (u32, Seam, Op, Op),
) -> impl Iterator<Item = Origin> {
    let items = pair.items(component);
    let layers = pair.reader.layers.iter().zip(&pair.writer.layers).enumerate();
    layers.filter(move |_| items > 0).filter_map(move |(layer, (reader, writer))| {
        // Index keys tell csa layers from hca layers.
        let csa = reader.select.is_some();
        let here = match component {
            component::C4 | component::C4_STATE => csa,
            component::C128 | component::C128_STATE => !csa,
            _ => true,
        };
        let cell = |op, of: &PhaseCode| CellId {
            seam,
            op,
            phase: Phase::ALL.iter().copied().find(|phase| phase.id() == of.phase),
            layer: Some(layer as u32),
            rank: None,
        };
        // Only compressed layers have compressed entries to read.
        reader
            .compress
            .as_ref()
            .filter(|_| here)
            .or((component == component::SWA).then_some(&reader.store))?;
        let read_by = code(reader, seam, reads)?;
        let written_by = code(writer, seam, writes)?;
        Some(Origin {
            component: component::NAMES[component as usize].to_owned(),
            reader: cell(reads, &pair.reader),
            reader_variant: read_by.variant.clone(),
            reader_hash: read_by.hash.clone(),
            writer: cell(writes, &pair.writer),
            writer_variant: written_by.variant.clone(),
            writer_hash: written_by.hash.clone(),
            writer_assignment: pair.writer.assignment.clone(),
            carrier: pair.carrier.as_ref().map(|code| code.variant.clone()),
            steps: pair.steps.load(Ordering::Relaxed),
            items,
        })
    })
}

fn code(layer: &LayerCode, seam: Seam, op: Op) -> Option<&Arc<Code>> {
    match (seam, op) {
        (Seam::Attention, Op::Store) => Some(&layer.store),
        (Seam::Attention, Op::Core) => Some(&layer.core),
        (Seam::Attention, Op::Compress) => layer.compress.as_ref(),
        (Seam::Indexer, Op::Compress) => layer.index_compress.as_ref(),
        (Seam::Indexer, Op::Select) => layer.select.as_ref(),
        _ => None,
    }
}

/// The code of a snapshot in a phase; equal generations share one [`Code`].
fn describe(snapshot: &Snapshot, phase: Phase) -> PhaseCode {
    let mut known: HashMap<u64, Arc<Code>> = HashMap::new();
    let mut code = |generation: &Generation| {
        Arc::clone(known.entry(generation.id).or_insert_with(|| Arc::new(code_of(generation))))
    };
    let layer = |cells: &LayerCells| LayerCode {
        store: code(&cells.store.generation),
        compress: cells.compress.as_ref().map(|cell| code(&cell.generation)),
        core: code(&cells.core.generation),
        index_compress: cells.index_compress.as_ref().map(|cell| code(&cell.generation)),
        select: cells.select.as_ref().map(|cell| code(&cell.generation)),
    };
    PhaseCode {
        assignment: snapshot.name().to_owned(),
        digest: *snapshot.digest().bytes(),
        phase: phase.id(),
        layers: (0..snapshot.num_layers()).map(|n| snapshot.layer(phase, n)).map(layer).collect(),
    }
}

fn code_of(generation: &Generation) -> Code {
    Code { variant: generation.spec.to_string(), hash: generation.hash.clone() }
}
