//! Puts: what is ready of a prompt, how far they are, and who wrote what they move.

use crate::disagg::audit;
use crate::handoff::{context, reason};
use crate::scheduler::pair::{Failure, put_args};
use crate::sequence::{Sequence, Stage};
use hotseam_abi::{PollArgs, component, transfer};
use hotseam_kv::{Items, KvStore};
use hotseam_pd::{Reserve, Sums, Writer, WriterLayer};
use hotseam_slots::{CallError, Snapshot, TransportCell};
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

/// A put that is not known to be done.
#[derive(Debug)]
pub(super) struct Open {
    ticket: u64,
    pub(super) component: u32,
    pub(super) layer: u32,
    bytes: u64,
}

/// Why a put did not go on.
pub(super) enum PutError {
    /// A call of the transport.
    Call(CallError),
    /// Something else.
    Given(Failure),
}

impl From<CallError> for PutError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
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
        if reserve.audit {
            let sums = audit::sums(region, src);
            let place = (region.component, region.layer);
            match sent.sums.iter_mut().find(|known| (known.component, known.layer) == place) {
                Some(known) => known.sums.extend(sums),
                None => sent.sums.push(Sums { component: place.0, layer: place.1, sums }),
            }
        }
        let mut ticket = 0;
        let place = (region.component, region.layer);
        let args = put_args((reserve.room, peer), place, (src, dst), &mut ticket);
        cell.put.call(&context(), &args, src.len())?;
        let bytes = region.item_bytes * src.len() as u64;
        sent.open.push(Open { ticket, component: place.0, layer: place.1, bytes });
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
        let put = &open[at];
        let size = size_of::<PollArgs>() as u32;
        let mut args = PollArgs { size, state: transfer::PENDING, ticket: put.ticket, bytes: 0 };
        cell.poll.call(&context(), &mut args)?;
        let (name, layer) = (component::NAMES[put.component as usize], put.layer);
        match args.state {
            transfer::DONE if args.bytes == put.bytes => {
                open.swap_remove(at);
                moved = true;
            }
            transfer::DONE => {
                let (found, expected) = (args.bytes, put.bytes);
                open.swap_remove(at);
                let message = format!(
                    "the transport says that {name} of layer {layer} is done with {found} bytes moved, expected {expected}"
                );
                return Err(PutError::Given(("E-KV-TRANSFER", message)));
            }
            transfer::FAILED => {
                open.swap_remove(at);
                let message = format!("the transport gave up {name} of layer {layer}: {}", reason());
                return Err(PutError::Given(("E-KV-TRANSFER", message)));
            }
            _ => at += 1,
        }
    }
    Ok(moved)
}

/// Gives puts up; whether the transport confirmed that it reads their source no more.
pub(super) fn cancel(cell: &TransportCell, open: &[Open]) -> bool {
    open.iter().fold(true, |quiet, put| match cell.cancel.call(&context(), put.ticket) {
        Ok(()) => quiet,
        Err(error) => {
            tracing::error!(%error, "transport did not cancel a ticket; its pages wait for the end of the instance");
            false
        }
    })
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
        let digest = run.writer.digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Writer { end: run.end, digest, codes, layers }
    };
    runs.map(of).collect()
}
