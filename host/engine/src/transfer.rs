//! Calls of a KV transport: puts, how far they are, and what it may still touch when they did not end well.

use hotseam_abi::{PollArgs, PutArgs, StepCtx, component, layer_class, phase, transfer};
use hotseam_kv::{KvStore, SeqKv};
use hotseam_loader::{host_services, take_error};
use hotseam_slots::{CallError, TransportCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a put did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("the transport gave up {component} of layer {layer}: {why}")]
    Failed { component: &'static str, layer: u32, why: String },
    #[error(
        "the transport says that {component} of layer {layer} is done with {found} bytes moved, expected {expected}"
    )]
    Short { component: &'static str, layer: u32, expected: u64, found: u64 },
}

/// A put that is not known to be done.
#[derive(Debug)]
pub(crate) struct Open {
    ticket: u64,
    component: u32,
    pub(crate) layer: u32,
    bytes: u64,
}

impl Open {
    /// Puts items of a component and layer, `bytes` together, for a room of a peer.
    pub(crate) fn put(
        cell: &TransportCell,
        (room, peer): (u64, u64),
        (component, layer): (u32, u32),
        (src, dst): (&[i32], &[i32]),
        bytes: u64,
    ) -> Result<Self, CallError> {
        let mut ticket = 0;
        let args = PutArgs {
            size: size_of::<PutArgs>() as u32,
            component,
            layer,
            n_items: src.len() as u32,
            room,
            src_items: src.as_ptr(),
            dst_items: dst.as_ptr(),
            ticket: &raw mut ticket,
            peer,
        };
        cell.put.call(&context(), &args, src.len())?;
        Ok(Self { ticket, component, layer, bytes })
    }

    /// Whether all bytes were moved.
    pub(crate) fn is_done(&self, cell: &TransportCell) -> Result<bool, TransferError> {
        let size = size_of::<PollArgs>() as u32;
        let mut args = PollArgs { size, state: transfer::PENDING, ticket: self.ticket, bytes: 0 };
        cell.poll.call(&context(), &mut args)?;
        let (component, layer) = (self.component(), self.layer);
        match args.state {
            transfer::DONE if args.bytes == self.bytes => Ok(true),
            transfer::DONE => {
                Err(TransferError::Short { component, layer, expected: self.bytes, found: args.bytes })
            }
            transfer::FAILED => Err(TransferError::Failed { component, layer, why: reason() }),
            _ => Ok(false),
        }
    }

    /// Name of the component.
    pub(crate) fn component(&self) -> &'static str {
        component::NAMES[self.component as usize]
    }
}

/// Gives puts up; whether the transport confirmed that it touches their items no more.
pub(crate) fn cancel(cell: &TransportCell, open: &[Open]) -> bool {
    open.iter().fold(true, |quiet, put| match cell.cancel.call(&context(), put.ticket) {
        Ok(()) => quiet,
        Err(error) => {
            tracing::error!(%error, "transport did not cancel a ticket; its pages wait for the end of the instance");
            false
        }
    })
}

/// What the transport says of the ticket that it just reported as failed.
fn reason() -> String {
    match take_error() {
        text if text.is_empty() => "it gave no reason".to_owned(),
        text => text,
    }
}

/// What calls of a transport run under.
pub(crate) fn context() -> StepCtx {
    StepCtx {
        size: size_of::<StepCtx>() as u32,
        phase: phase::PREFILL,
        layer: u32::MAX,
        layer_class: layer_class::WINDOW,
        rank: 0,
        world: 1,
        step: 0,
        stream: 0,
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
        host: host_services(),
    }
}

/// Sequences whose items a transport may still touch, until its instance has ended.
#[derive(Debug, Default)]
pub(crate) struct Lost(Vec<(Arc<AtomicBool>, SeqKv)>);

impl Lost {
    pub(crate) fn keep(&mut self, cell: &TransportCell, seq: SeqKv) {
        self.0.push((cell.put.generation.instance.ended(), seq));
    }

    /// Gives a store back what transports could touch that have ended.
    pub(crate) fn reclaim(&mut self, store: &mut KvStore) {
        for (_, seq) in self.0.extract_if(.., |(ended, _)| ended.load(Ordering::Acquire)) {
            store.close(seq);
        }
    }
}
