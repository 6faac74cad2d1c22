//! The admin endpoints, on a unix socket and never on the public listener.
//!
//! | method and path | body | answer |
//! | --- | --- | --- |
//! | `GET /slots` | | [`SlotsView`]: cells, rules and digests of each assignment, plugins |
//! | `POST /swap` | [`SwapRequest`] | [`SwapAnswer`] |
//! | `POST /rollback` | [`RollbackRequest`] | [`SwapAnswer`] |
//! | `GET /trace?assignment=NAME` | | [`TraceView`]: what ran since the last change |
//! | `POST /variant` | [`VariantRequest`] | [`VariantView`]: options, hash and layout of a variant that no cell need use |
//! | `GET /stats` | | [`StatsView`] |
//! | `PUT /assignments/NAME` | [`DefineRequest`] or a list of rules | [`AssignmentView`] |
//! | `DELETE /assignments/NAME` | | `{"removed": NAME}` |
//!
//! Errors have OpenAI's shape; `code` is the `E-PLUG` number where there is one.

mod actions;
mod routes;
mod socket;
mod wire;

pub use socket::{AdminSocket, default_admin_path};
pub use wire::{
    AssignmentView, CellLine, DefineRequest, RollbackRequest, SlotsView, StatsView, SwapAnswer, SwapRequest,
    TraceLine, TraceView, VariantRequest, VariantView,
};
