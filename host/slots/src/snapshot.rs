//! Snapshots: an assignment with every cell bound, ready for a step.

use crate::bound::{
    AcceptFn, Bound, CancelFn, CloseFn, CompressFn, ConnectFn, CoreFn, EndpointFn, ExpertsFn, HeadFn, PollFn,
    PostFn, PreFn, PutFn, RegisterFn, RouteFn, SelectFn, StoreFn,
};
use crate::cell::CellId;
use crate::digest::Digest;
use crate::elsewhere::Shared;
use crate::error::SlotsError;
use crate::generation::Generation;
use crate::geometry::Geometry;
use crate::receipt::{CellView, Receipt};
use crate::seam::{Op, Phase, Seam, Topology};
use hotseam_abi::{AttentionV1, IndexerV1, KvTransportV1, MhcV1, MoeV1, layout};
use hotseam_loader::Shape;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An immutable table of everything that a step calls. Cheap to share and to read.
#[derive(Debug)]
pub struct Snapshot {
    name: String,
    layers: [Vec<LayerCells>; 2],
    heads: [Bound<HeadFn>; 2],
    transport: Option<TransportCell>,
    /// The cells of the other ranks, which call them.
    others: Vec<Elsewhere>,
    /// Set where other ranks hold this table too.
    shared: Option<Shared>,
    digest: Digest,
    prefill_digest: Digest,
    layout_digest: Digest,
}

/// A cell of another rank.
#[derive(Debug)]
struct Elsewhere {
    cell: CellId,
    generation: Arc<Generation>,
    /// As that rank last said.
    receipt: Receipt,
}

/// The cells of one layer in one phase.
#[derive(Debug)]
pub struct LayerCells {
    /// `attention.store`.
    pub store: Bound<StoreFn>,
    /// `attention.compress`, in csa and hca layers.
    pub compress: Option<Bound<CompressFn>>,
    /// `attention.core`.
    pub core: Bound<CoreFn>,
    /// `indexer.compress`, in csa layers.
    pub index_compress: Option<Bound<CompressFn>>,
    /// `indexer.select`, in csa layers.
    pub select: Option<Bound<SelectFn>>,
    /// `moe.route`.
    pub route: Bound<RouteFn>,
    /// `moe.experts`.
    pub experts: Bound<ExpertsFn>,
    /// `mhc.pre`, called before the attention block and before the experts.
    pub mhc_pre: Bound<PreFn>,
    /// `mhc.post`, called after each.
    pub mhc_post: Bound<PostFn>,
}

impl LayerCells {
    /// Calls `f` with the generation and receipt of each cell, and how often a step calls it.
    fn each(&self, mut f: impl FnMut(&Generation, &Receipt, u64)) {
        fn one<F>(bound: &Bound<F>, times: u64, f: &mut impl FnMut(&Generation, &Receipt, u64)) {
            f(&bound.generation, &bound.receipt, times);
        }
        one(&self.store, 1, &mut f);
        one(&self.core, 1, &mut f);
        one(&self.route, 1, &mut f);
        one(&self.experts, 1, &mut f);
        one(&self.mhc_pre, 2, &mut f);
        one(&self.mhc_post, 2, &mut f);
        for compress in [&self.compress, &self.index_compress].into_iter().flatten() {
            one(compress, 1, &mut f);
        }
        if let Some(select) = &self.select {
            one(select, 1, &mut f);
        }
    }

    /// A number that is the same as long as the same generations serve the same cells.
    pub fn served_by(&self) -> u64 {
        let mut mixed = 0xcbf2_9ce4_8422_2325u64;
        self.each(|generation, _, _| mixed = (mixed ^ generation.id).wrapping_mul(0x0000_0100_0000_01b3));
        mixed
    }

    /// Counts the calls of a step of `rows` rows that were made by launching again what an earlier step enqueued.
    pub fn count_repeated(&self, rows: usize) {
        self.each(|_, receipt, times| (0..times).for_each(|_| receipt.count(rows as u64)));
    }
}

/// The functions of the transport, all of one instance.
#[derive(Debug)]
pub struct TransportCell {
    /// `kv_transport.register`.
    pub register: Bound<RegisterFn>,
    /// `kv_transport.put`.
    pub put: Bound<PutFn>,
    /// `kv_transport.poll`.
    pub poll: Bound<PollFn>,
    /// `kv_transport.cancel`.
    pub cancel: Bound<CancelFn>,
    /// What reaches other processes; `None` if the variant has both sides in one.
    pub remote: Option<RemoteCell>,
}

/// The functions of a transport between processes.
#[derive(Debug)]
pub struct RemoteCell {
    /// `kv_transport.endpoint`.
    pub endpoint: Bound<EndpointFn>,
    /// `kv_transport.connect`.
    pub connect: Bound<ConnectFn>,
    /// `kv_transport.accept`.
    pub accept: Bound<AcceptFn>,
    /// `kv_transport.close`.
    pub close: Bound<CloseFn>,
}

/// How the entries of a pool look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// One of [`hotseam_abi::layout`].
    pub id: u32,
    /// What an entry is.
    pub shape: Shape,
    /// Bytes of the data part of an entry.
    pub data_bytes: u32,
    /// Bytes of its scale part.
    pub scale_bytes: u32,
}

impl Layout {
    /// Layout of the entries that a generation writes and reads.
    pub fn of(generation: &Generation) -> Self {
        let (info, shape) = (generation.instance.info(), generation.instance.shape());
        Self { id: info.layout, shape, data_bytes: info.data_bytes, scale_bytes: info.scale_bytes }
    }

    /// Name of the layout.
    pub fn name(&self) -> &'static str {
        layout::NAMES.iter().find(|(id, _)| *id == self.id).map_or("none", |(_, name)| name)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes an entry)", self.name(), self.data_bytes + self.scale_bytes)
    }
}

impl Snapshot {
    /// Binds the cells of a complete table.
    pub(crate) fn new(
        name: &str,
        table: Vec<(CellId, Arc<Generation>)>,
        geometry: &Geometry,
    ) -> Result<Self, SlotsError> {
        let Digests { digest, prefill_digest, layout_digest } = digests(&table, geometry);
        let own = geometry.named(geometry.rank);
        let (here, there): (Vec<_>, Vec<_>) = table.into_iter().partition(|(cell, _)| cell.rank == own);
        let elsewhere = |(cell, generation)| Elsewhere { cell, generation, receipt: Receipt::default() };
        let others = there.into_iter().map(elsewhere).collect();
        let cells = Cells { served: here.into_iter().collect(), rank: own };
        let layers = both(|phase| {
            (0..geometry.layers()).map(|layer| cells.layer(phase, layer, geometry)).collect::<Result<_, _>>()
        })?;
        let heads =
            both(|phase| cells.bind(id(Seam::Mhc, Op::Head, Some(phase), None, own), mhc, |t| t.head))?;
        let transport = if geometry.topology == Topology::Paired { Some(cells.transport()?) } else { None };
        let (name, shared) = (name.to_owned(), None);
        Ok(Self { name, layers, heads, transport, others, shared, digest, prefill_digest, layout_digest })
    }

    /// The same table, which other ranks hold as well.
    pub(crate) fn shared(self, shared: Shared) -> Self {
        Self { shared: Some(shared), ..self }
    }

    /// What the other ranks know this table by; 0 if there are none.
    pub fn number(&self) -> u64 {
        self.shared.as_ref().map_or(0, Shared::number)
    }

    /// Asks the other ranks for their counts, which [`Snapshot::cells`] then shows; a group that is ending keeps the old ones. Does
    /// nothing where there are no others.
    pub fn count_elsewhere(&self) {
        let Some(shared) = &self.shared else { return };
        let counts = shared.counts().unwrap_or_else(|error| {
            tracing::warn!(%error, "what other ranks ran is not known");
            Vec::new()
        });
        for other in &self.others {
            if let Some((_, calls, rows)) = counts.iter().find(|(cell, ..)| *cell == other.cell) {
                other.receipt.set(*calls, *rows);
            }
        }
    }

    /// Notes that another rank's instance panicked.
    pub fn poison(&self, cell: CellId) {
        if let Some(other) = self.others.iter().find(|other| other.cell == cell) {
            other.generation.poisoned.store(true, Ordering::Relaxed);
        }
    }

    /// Name of the assignment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Hash of all cells: equal digests run equal code with equal options everywhere.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Hash of all prefill cells and of the layouts; KV that was computed under one is valid under an equal one.
    pub fn prefill_digest(&self) -> Digest {
        self.prefill_digest
    }

    /// Hash of the layouts; KV of one assignment can be read by another with an equal one.
    pub fn layout_digest(&self) -> Digest {
        self.layout_digest
    }

    /// Number of layers.
    pub fn num_layers(&self) -> usize {
        self.layers[0].len()
    }

    /// The cells of a layer.
    ///
    /// # Panics
    /// If `layer` is not one of the model.
    pub fn layer(&self, phase: Phase, layer: usize) -> &LayerCells {
        &self.layers[phase as usize][layer]
    }

    /// `mhc.head`.
    pub fn head(&self, phase: Phase) -> &Bound<HeadFn> {
        &self.heads[phase as usize]
    }

    /// `kv_transport`; `None` unless the topology is paired.
    pub fn transport(&self) -> Option<&TransportCell> {
        self.transport.as_ref()
    }

    /// Layout of the attention entries of a layer (window and compressed), the same in both phases.
    ///
    /// # Panics
    /// If `layer` is not one of the model.
    pub fn kv_layout(&self, layer: usize) -> Layout {
        Layout::of(&self.layers[0][layer].store.generation)
    }

    /// Layout of the index keys of a layer, the same in both phases; `None` outside csa layers.
    ///
    /// # Panics
    /// If `layer` is not one of the model.
    pub fn key_layout(&self, layer: usize) -> Option<Layout> {
        self.layers[0][layer].index_compress.as_ref().map(|b| Layout::of(&b.generation))
    }

    /// All cells with what serves them and their counts, in the order of [`Geometry::cells`]. The counts of other ranks are those
    /// of the last [`Snapshot::count_elsewhere`].
    pub fn cells(&self) -> impl Iterator<Item = CellView<'_>> {
        self.own_cells().chain(self.others.iter().map(Elsewhere::view))
    }

    /// As [`Snapshot::cells`], of the cells that this process calls.
    pub fn own_cells(&self) -> impl Iterator<Item = CellView<'_>> {
        let phase = |p: Phase| {
            self.layers[p as usize]
                .iter()
                .flat_map(LayerCells::views)
                .chain(std::iter::once(self.heads[p as usize].view()))
        };
        let transport = self.transport.as_ref().map(TransportCell::view);
        Phase::ALL.iter().flat_map(move |p| phase(*p)).chain(transport)
    }

    /// The generations in use, each once, by id.
    pub fn generations(&self) -> Vec<Arc<Generation>> {
        let unique: BTreeMap<u64, _> =
            self.cells().map(|c| (c.generation.id, c.generation.clone())).collect();
        unique.into_values().collect()
    }
}

impl Elsewhere {
    fn view(&self) -> CellView<'_> {
        let (calls, rows) = (self.receipt.calls(), self.receipt.rows());
        CellView { cell: self.cell, generation: &self.generation, calls, rows }
    }
}

impl LayerCells {
    /// The cells with their counts.
    pub fn views(&self) -> impl Iterator<Item = CellView<'_>> {
        let views = [
            Some(self.store.view()),
            self.compress.as_ref().map(Bound::view),
            Some(self.core.view()),
            self.index_compress.as_ref().map(Bound::view),
            self.select.as_ref().map(Bound::view),
            Some(self.route.view()),
            Some(self.experts.view()),
            Some(self.mhc_pre.view()),
            Some(self.mhc_post.view()),
        ];
        views.into_iter().flatten()
    }
}

impl TransportCell {
    /// The cell with the counts of all its functions.
    pub fn view(&self) -> CellView<'_> {
        let remote = self
            .remote
            .iter()
            .flat_map(|r| [r.endpoint.view(), r.connect.view(), r.accept.view(), r.close.view()]);
        let others = [self.register.view(), self.poll.view(), self.cancel.view()].into_iter().chain(remote);
        others.fold(self.put.view(), |sum, v| CellView {
            calls: sum.calls + v.calls,
            rows: sum.rows + v.rows,
            ..sum
        })
    }
}

fn id(seam: Seam, op: Op, phase: Option<Phase>, layer: Option<usize>, rank: Option<u32>) -> CellId {
    CellId { seam, op, phase, layer: layer.map(|l| l as u32), rank }
}

/// The results for both phases, in their order.
fn both<T>(of: impl Fn(Phase) -> Result<T, SlotsError>) -> Result<[T; 2], SlotsError> {
    Ok([of(Phase::Prefill)?, of(Phase::Decode)?])
}

/// What serves each cell of a rank.
struct Cells {
    served: HashMap<CellId, Arc<Generation>>,
    rank: Option<u32>,
}

impl Cells {
    /// Binds one cell to the function that `pick` finds in the table that `table` finds.
    fn bind<T: 'static, F>(
        &self,
        cell: CellId,
        table: fn(&Generation) -> Option<&'static T>,
        pick: fn(&T) -> Option<F>,
    ) -> Result<Bound<F>, SlotsError> {
        let missing = |variant: String| SlotsError::MissingOp {
            cell,
            variant,
            op: cell.op.to_string(),
            next: "Give the cell to a variant that has it.".to_owned(),
        };
        let generation = self.served.get(&cell).cloned().ok_or_else(|| missing("none".to_owned()))?;
        let f = table(&generation).and_then(pick).ok_or_else(|| missing(generation.spec.to_string()))?;
        Ok(Bound::new(cell, generation, f))
    }

    fn layer(&self, phase: Phase, layer: usize, geometry: &Geometry) -> Result<LayerCells, SlotsError> {
        let cell = |seam, op| id(seam, op, Some(phase), Some(layer), self.rank);
        let has = |seam, op| Geometry::has(geometry.classes[layer], seam, op);
        let compress = has(Seam::Attention, Op::Compress);
        let index = has(Seam::Indexer, Op::Select);
        Ok(LayerCells {
            store: self.bind(cell(Seam::Attention, Op::Store), attention, |t| t.store)?,
            compress: compress
                .then(|| self.bind(cell(Seam::Attention, Op::Compress), attention, |t| t.compress))
                .transpose()?,
            core: self.bind(cell(Seam::Attention, Op::Core), attention, |t| t.core)?,
            index_compress: index
                .then(|| self.bind(cell(Seam::Indexer, Op::Compress), indexer, |t| t.compress))
                .transpose()?,
            select: index
                .then(|| self.bind(cell(Seam::Indexer, Op::Select), indexer, |t| t.select))
                .transpose()?,
            route: self.bind(cell(Seam::Moe, Op::Route), moe, |t| t.route)?,
            experts: self.bind(cell(Seam::Moe, Op::Experts), moe, |t| t.experts)?,
            mhc_pre: self.bind(cell(Seam::Mhc, Op::Pre), mhc, |t| t.pre)?,
            mhc_post: self.bind(cell(Seam::Mhc, Op::Post), mhc, |t| t.post)?,
        })
    }

    fn remote(&self, cell: CellId) -> Result<Option<RemoteCell>, SlotsError> {
        let has = self.served.get(&cell).and_then(|generation| transport(generation));
        if has.is_none_or(|t| t.endpoint.is_none()) {
            return Ok(None);
        }
        Ok(Some(RemoteCell {
            endpoint: self.bind(cell, transport, |t| t.endpoint)?,
            connect: self.bind(cell, transport, |t| t.connect)?,
            accept: self.bind(cell, transport, |t| t.accept)?,
            close: self.bind(cell, transport, |t| t.close)?,
        }))
    }

    fn transport(&self) -> Result<TransportCell, SlotsError> {
        let cell = id(Seam::KvTransport, Op::Transport, None, None, self.rank);
        Ok(TransportCell {
            register: self.bind(cell, transport, |t| t.register)?,
            put: self.bind(cell, transport, |t| t.put)?,
            poll: self.bind(cell, transport, |t| t.poll)?,
            cancel: self.bind(cell, transport, |t| t.cancel)?,
            remote: self.remote(cell)?,
        })
    }
}

fn attention(generation: &Generation) -> Option<&'static AttentionV1> {
    generation.instance.plugin().entry().attention
}

fn indexer(generation: &Generation) -> Option<&'static IndexerV1> {
    generation.instance.plugin().entry().indexer
}

fn moe(generation: &Generation) -> Option<&'static MoeV1> {
    generation.instance.plugin().entry().moe
}

fn mhc(generation: &Generation) -> Option<&'static MhcV1> {
    generation.instance.plugin().entry().mhc
}

fn transport(generation: &Generation) -> Option<&'static KvTransportV1> {
    generation.instance.plugin().entry().kv_transport
}

struct Digests {
    digest: Digest,
    prefill_digest: Digest,
    layout_digest: Digest,
}

/// Hash of all cells, hash of the prefill cells with all layouts, and hash of the layouts.
fn digests(table: &[(CellId, Arc<Generation>)], geometry: &Geometry) -> Digests {
    let mut all = vec![geometry.text()];
    let (mut prefill, mut layouts) = (all.clone(), all.clone());
    // The same on every rank, whose own cells come first.
    let mut table: Vec<_> = table.iter().collect();
    table.sort_by_key(|(cell, _)| cell.rank);
    for (cell, generation) in table {
        let line = format!("{cell} {}", generation.hash);
        if cell.phase == Some(Phase::Prefill) {
            layouts.push(format!("{cell} {}", Layout::of(generation)));
            prefill.push(format!("{line} {}", Layout::of(generation)));
        }
        all.push(line);
    }
    let digest = |lines: &[String]| Digest::of(lines.iter().map(String::as_str));
    Digests { digest: digest(&all), prefill_digest: digest(&prefill), layout_digest: digest(&layouts) }
}
