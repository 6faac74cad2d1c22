//! Puts: what is ready of a prompt, how far they are, and who wrote what they move.

use crate::disagg::audit;
use crate::scheduler::pair::{Failure, call_failure};
use crate::sequence::{Sequence, Stage};
use crate::transfer::{Open, TransferError};
use hotseam_abi::{ERR_INTERNAL, component};
use hotseam_kv::{Items, KvStore};
use hotseam_pd::{Reserve, Sums, Writer, WriterLayer};
use hotseam_slots::{CallError, Digest, Snapshot, TransportCell};
use std::sync::Arc;

/// What was put of a room.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) open: Vec<Open>,
    /// Full pages that were put.
    pages: usize,
    /// Whether everything was put.
    pub(super) complete: bool,
    pub(super) items: u64,
    pub(super) bytes: u64,
    pub(super) sums: Vec<Sums>,
}

/// Components that are sent page by page while the prompt is computed.
const BY_PAGE: [u32; 3] = [component::C4, component::C128, component::INDEX_KEYS];

/// Why a put did not go on.
pub(super) enum PutError {
    /// A call of the transport.
    Call(CallError),
    /// Something else.
    Given(Failure),
}

impl From<Failure> for PutError {
    fn from(failure: Failure) -> Self {
        Self::Given(failure)
    }
}

impl PutError {
    /// As clients hear of it.
    pub(super) fn failure(&self) -> Failure {
        match self {
            Self::Call(error) => call_failure(error),
            Self::Given((code, message)) => (code, message.clone()),
        }
    }

    /// As a fault of the transport; `None` if it cannot be one.
    pub(super) fn fault(self, cell: &TransportCell) -> Option<CallError> {
        match self {
            Self::Call(error) => Some(error),
            Self::Given((code, message)) if code.starts_with("E-KV-") => {
                let (cell, variant) = (cell.put.cell(), cell.put.generation.spec.to_string());
                Some(CallError { cell, variant, code: ERR_INTERNAL, message })
            }
            Self::Given(_) => None,
        }
    }
}

impl From<TransferError> for PutError {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Call(error) => Self::Call(error),
            error => Self::Given(("E-KV-TRANSFER", error.to_string())),
        }
    }
}

/// Puts the pages that no later row changes, and after the last row all that is left.
pub(super) fn push(
    store: &KvStore,
    sequence: &Sequence,
    table: &Snapshot,
    sent: &mut Sent,
    (peer, reserve): (u64, &Reserve),
) -> Result<(), PutError> {
    let computed = sequence.stage == Stage::Sending;
    if sent.complete || (!computed && sequence.kv.complete_pages() <= sent.pages) {
        return Ok(());
    }
    let own = store.items(&sequence.kv);
    if computed {
        fits(&own, &reserve.items).map_err(PutError::Given)?;
    }
    let pages = own[component::C4 as usize].len();
    let end = if computed { pages } else { sequence.kv.complete_pages() };
    if reserve.items[component::C4 as usize].len() < end {
        let message = "the decode worker named fewer pages than the prompt has".to_owned();
        return Err(PutError::Given(("E-PD-REQUEST", message)));
    }
    let first = sent.pages;
    let Some(cell) = table.transport() else { unreachable!("a paired registry fills the transport cell") };
    let regions = store.outgoing(&sequence.layouts);
    for region in &regions {
        let of = region.component as usize;
        let range = match (BY_PAGE.contains(&region.component), computed) {
            (true, _) => first..end,
            (false, true) => 0..own[of].len(),
            (false, false) => continue,
        };
        if range.is_empty() {
            continue;
        }
        let (src, dst) = (&own[of][range.clone()], &reserve.items[of][range]);
        let place = (region.component, region.layer);
        if reserve.audit {
            let sums = audit::sums(region, src);
            match sent.sums.iter_mut().find(|known| (known.component, known.layer) == place) {
                Some(known) => known.sums.extend(sums),
                None => sent.sums.push(Sums { component: place.0, layer: place.1, sums }),
            }
        }
        let bytes = region.item_bytes * src.len() as u64;
        let put = Open::put(cell, (reserve.room, peer), place, (src, dst), bytes);
        sent.open.push(put.map_err(PutError::Call)?);
        sent.items += src.len() as u64;
        sent.bytes += bytes;
    }
    (sent.pages, sent.complete) = (end, computed);
    Ok(())
}

/// Refuses lists that do not have the lengths of this worker's.
fn fits(own: &Items, theirs: &Items) -> Result<(), Failure> {
    let differs = (0..own.len()).find(|of| own[*of].len() != theirs[*of].len());
    match differs {
        None => Ok(()),
        Some(of) => {
            let (name, here, there) = (component::NAMES[of], own[of].len(), theirs[of].len());
            let message = format!("{name}: prefill has {here} items to send, decode named {there}");
            Err(("E-PD-REQUEST", message))
        }
    }
}

/// Takes the puts that are done out of `open`; whether there were any.
pub(super) fn poll(cell: &TransportCell, open: &mut Vec<Open>) -> Result<bool, PutError> {
    let mut moved = false;
    let mut at = 0;
    while at < open.len() {
        match open[at].is_done(cell) {
            Ok(false) => at += 1,
            Ok(true) => {
                open.swap_remove(at);
                moved = true;
            }
            Err(error) => {
                if !matches!(error, TransferError::Call(_)) {
                    open.swap_remove(at);
                }
                return Err(error.into());
            }
        }
    }
    Ok(moved)
}

/// Who wrote the KV of a sequence, to be told to another process.
pub(super) fn writers(sequence: &Sequence) -> Vec<Writer> {
    let runs = sequence.kv.history().runs().iter();
    let of = |run: &hotseam_kv::Run| {
        let mut codes: Vec<(String, String)> = Vec::new();
        let mut index = |code: &hotseam_kv::Code| {
            let known =
                codes.iter().position(|(variant, hash)| (variant, hash) == (&code.variant, &code.hash));
            known.unwrap_or_else(|| {
                codes.push((code.variant.clone(), code.hash.clone()));
                codes.len() - 1
            })
        };
        let layers = run.writer.layers.iter().map(|layer| {
            let (store, core) = (index(&layer.store), index(&layer.core));
            let mut maybe = |code: &Option<Arc<hotseam_kv::Code>>| code.as_ref().map(|code| index(code));
            let (compress, index_compress) = (maybe(&layer.compress), maybe(&layer.index_compress));
            WriterLayer { store, core, compress, index_compress, select: maybe(&layer.select) }
        });
        let layers = layers.collect();
        let digest = Digest::from(run.writer.digest).to_string();
        Writer { end: run.end, digest, codes, layers }
    };
    runs.map(of).collect()
}
