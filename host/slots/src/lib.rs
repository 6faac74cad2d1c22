//! Variants, selectors, assignments, snapshots, receipts.
//!
//! A *cell* (seam, op, phase, layer, and rank where there are several) is the smallest thing that can be swapped. An *assignment* is a named list of
//! [`Rule`]s, each a [`Selector`] and the [`VariantSpec`] that its cells use. [`Slots`] turns rules into an immutable
//! [`Snapshot`], in which every cell is bound to a function and an instance; the engine takes one snapshot a step and
//! does nothing but call. Writers build a new snapshot and put it in place of the old one; old instances end when the
//! last snapshot that uses them is gone.

mod bound;
mod cell;
mod diff;
mod digest;
mod effective;
mod elsewhere;
mod error;
mod generation;
mod geometry;
mod invoke;
mod numbers;
mod receipt;
mod registry;
mod rule;
mod seam;
mod selector;
mod slots;
mod snapshot;
mod swap;
mod variant;

pub use bound::{
    AcceptFn, Bound, CallError, CancelFn, CloseFn, CompressFn, ConnectFn, CoreFn, EndpointFn, ExpertsFn,
    HeadFn, PollFn, PostFn, PreFn, PutFn, RegisterFn, RouteFn, SelectFn, StepFn, StoreFn,
};
pub use cell::{Cell, CellId, Class};
pub use diff::{CellChange, CellVariant, SwapReport, changes};
pub use digest::{Digest, DigestError};
pub use elsewhere::{Counted, Peers};
pub use error::SlotsError;
pub use generation::Generation;
pub use geometry::Geometry;
pub use hotseam_model::LayerClass;
pub use invoke::{Args, OwnedArgs, StepArgs};
pub use numbers::NumberSet;
pub use receipt::{CellView, Receipt};
pub use registry::{Loaded, Registry};
pub use rule::Rule;
pub use seam::{Op, Phase, Seam, Topology};
pub use selector::{Scope, Selector, SelectorError};
pub use slots::{LayoutPolicy, Slots};
pub use snapshot::{LayerCells, Layout, RemoteCell, Snapshot, TransportCell};
pub use swap::{
    Change, CheckDepth, KvPolicy, LayoutMove, MemberStep, Newcomer, Probation, SwapEvent, SwapMarker,
    SwapPlan, SwapPolicy, SwapRecord, SwapRequest, SwapStage, Verdict, Verdicts, check_conformance,
    device_memory,
};
pub use variant::{VariantError, VariantSpec};
