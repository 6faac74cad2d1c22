//! The hand-off of a prefilled sequence from the prefill store to the decode store, through the transport cell.

use crate::disagg::KvMap;
use crate::disagg::audit::{self, Audit};
use crate::guard::Violation;
use crate::observe::{Handed, Memory, Probe};
use crate::transfer::{Lost, Open, TransferError, cancel, context};
use hotseam_abi::{ERR_INTERNAL, RegisterArgs};
use hotseam_kv::{KvError, KvStore, LayerLayout, SeqKv, Transfer};
use hotseam_slots::{CallError, TransportCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Longest time that a hand-off may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why a hand-off failed. The request then fails too: it never decodes from missing KV.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandoffError {
    #[error("decode side: {0}")]
    Kv(#[from] KvError),
    #[error("{0}")]
    Transfer(#[from] TransferError),
    #[error("the transport did not finish {component} of layer {layer} in {} s", DEADLINE.as_secs())]
    Timeout { component: &'static str, layer: u32 },
    #[error("{}", map.verdict().unwrap_or_default())]
    Audit { map: Box<KvMap> },
    #[error("{0}")]
    Guard(Box<Violation>),
}

/// A sequence that was handed over.
pub(crate) struct Moved {
    pub(crate) kv: SeqKv,
    /// What arrived, if that was audited.
    pub(crate) map: Option<KvMap>,
}

impl HandoffError {
    /// The failure as one of the transport's own; `None` if it is not.
    pub(crate) fn fault(&self, cell: &TransportCell) -> Option<CallError> {
        match self {
            Self::Kv(_) => None,
            Self::Transfer(TransferError::Call(error)) => Some(error.clone()),
            Self::Transfer(_) | Self::Timeout { .. } | Self::Audit { .. } | Self::Guard(_) => {
                Some(CallError {
                    cell: cell.put.cell(),
                    variant: cell.put.generation.spec.to_string(),
                    code: ERR_INTERNAL,
                    message: self.to_string(),
                })
            }
        }
    }

    /// Stable code of the failure.
    pub(crate) fn code(&self) -> String {
        match self {
            Self::Kv(_) => "E-KV-EXHAUSTED".to_owned(),
            Self::Transfer(TransferError::Call(_)) => "E-PLUG-501".to_owned(),
            Self::Transfer(_) => "E-KV-TRANSFER".to_owned(),
            Self::Timeout { .. } => "E-KV-TIMEOUT".to_owned(),
            Self::Audit { .. } => "E-KV-AUDIT".to_owned(),
            Self::Guard(violation) => violation.code(),
        }
    }
}

/// Bytes of an item, by component and layer.
type ItemBytes = HashMap<(u32, u32), u64>;

/// Remembers which regions a transport instance was given, and what it may still write to.
#[derive(Debug, Default)]
pub(crate) struct Handoff {
    /// Generation of the transport, epochs of both stores, and the layouts, which decide the pools.
    registered: Option<((u64, u64, u64), Vec<LayerLayout>)>,
    /// Of the registered regions.
    items: ItemBytes,
    /// What a transport did not confirm to leave alone.
    lost: Lost,
}

impl Handoff {
    /// Copies `seq` of `from` into `to`, with room for `tokens` positions. It is told by its room and its assignment.
    pub(crate) fn run(
        &mut self,
        cell: &TransportCell,
        (from, to): (&KvStore, &mut KvStore),
        seq: &SeqKv,
        layouts: &[LayerLayout],
        tokens: usize,
        (room, assignment): (u64, &str),
        probe: Probe<'_>,
        mut audit: Option<&mut Audit>,
    ) -> Result<Moved, HandoffError> {
        let key = (cell.put.generation.id, from.epoch(), to.epoch());
        // Assignments of different layouts share the transport: each has pools, and so regions, of its own.
        if self.registered.as_ref().is_none_or(|(known, of)| *known != key || of != layouts) {
            let regions = from.regions(to, layouts);
            let args = RegisterArgs {
                size: size_of::<RegisterArgs>() as u32,
                n_regions: regions.len() as u32,
                regions: regions.as_ptr(),
            };
            cell.register.call(&context(), &args, 0).map_err(TransferError::from)?;
            self.items = regions.iter().map(|r| ((r.component, r.layer), r.item_bytes)).collect();
            self.registered = Some((key, layouts.to_vec()));
        }
        let (received, transfers) = to.receive(seq, layouts, tokens)?;
        if let Some(audit) = &mut audit {
            let items = to.items(&received);
            audit.begin(to, &to.incoming(layouts), &items);
        }
        match move_all(cell, &transfers, room, &self.items) {
            Ok(()) => {
                if probe.is_on() {
                    let regions = from.regions(to, layouts);
                    let mut moved = Handed::all(Memory::Host, &regions, &transfers);
                    if let Some(violation) = probe.guard.and_then(|guard| guard.handed(cell, &mut moved)) {
                        to.close(received);
                        return Err(HandoffError::Guard(Box::new(violation)));
                    }
                    probe.handed(&mut moved);
                }
                let map = audit.map(|audit| {
                    let (sending, receiving) = (from.outgoing(layouts), to.incoming(layouts));
                    let sums = |t: &Transfer| {
                        let region = audit::find(&sending, t.component, t.layer)?;
                        let (component, layer) = (t.component, t.layer);
                        Some(hotseam_pd::Sums { component, layer, sums: audit::sums(region, &t.src) })
                    };
                    let sent: Vec<_> = transfers.iter().filter_map(sums).collect();
                    let transport = cell.put.generation.spec.to_string();
                    audit.check(to, &receiving, &to.items(&received), &sent, (room, assignment, &transport))
                });
                match map {
                    Some(map) if map.verdict().is_some() => {
                        to.close(received);
                        Err(HandoffError::Audit { map: Box::new(map) })
                    }
                    map => Ok(Moved { kv: received, map }),
                }
            }
            Err((error, quiet)) => {
                match quiet {
                    true => to.close(received),
                    // The transport may still write there, so nobody gets these pages before it has ended.
                    false => self.lost.keep(cell, received),
                }
                Err(error)
            }
        }
    }

    /// Gives `to` back what transports could write to that have ended.
    pub(crate) fn reclaim(&mut self, to: &mut KvStore) {
        self.lost.reclaim(to);
    }
}

/// Puts every transfer, then waits for all. On an error the tickets that are still open are cancelled; the flag beside
/// the error says whether the transport confirmed that it writes no more.
fn move_all(
    cell: &TransportCell,
    transfers: &[Transfer],
    room: u64,
    items: &ItemBytes,
) -> Result<(), (HandoffError, bool)> {
    let mut open: Vec<Open> = Vec::with_capacity(transfers.len());
    let result = (|| {
        for t in transfers {
            let place = (t.component, t.layer);
            let bytes = t.src.len() as u64 * items.get(&place).copied().unwrap_or(0);
            let put = Open::put(cell, (room, 0), place, (&t.src, &t.dst), bytes);
            open.push(put.map_err(TransferError::from)?);
        }
        let start = Instant::now();
        while let Some(last) = open.last() {
            match last.is_done(cell) {
                Ok(true) => drop(open.pop()),
                Ok(false) if start.elapsed() > DEADLINE => {
                    return Err(HandoffError::Timeout { component: last.component(), layer: last.layer });
                }
                Ok(false) => std::thread::yield_now(),
                Err(error) => {
                    if matches!(error, TransferError::Short { .. }) {
                        open.pop();
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(())
    })();
    let quiet = cancel(cell, &open);
    result.map_err(|error| (error, quiet))
}
