//! The admin endpoints: on a unix socket, and on the loopback for those who have a token. Never on the public listener.
//!
//! | method and path | body | answer |
//! | --- | --- | --- |
//! | `GET /slots` | | [`SlotsView`]: cells, rules and digests of each assignment, plugins, the swap that runs |
//! | `POST /swap` | [`SwapRequest`] | [`SwapAnswer`] |
//! | `POST /rollback` | [`RollbackRequest`] | [`SwapAnswer`] |
//! | `POST /reload` | [`ReloadRequest`] | [`ReloadAnswer`]: the configuration file is read again, the difference swapped in |
//! | `GET /swaps` | | [`SwapsView`]: the last swaps |
//! | `GET /events?swap=ID` | | server-sent events: one `state`, then a `swap` for each stage ([`hotseam_slots::SwapEvent`]) |
//! | `GET /trace?assignment=NAME` | | [`TraceView`]: what ran since the last change |
//! | `GET /kv` | | [`hotseam_engine::KvMap`] of the last audited hand-off, or `null` |
//! | `POST /variant` | [`VariantRequest`] | [`VariantView`]: options, hash and layout of a variant that no cell need use |
//! | `GET /stats` | | [`StatsView`] |
//! | `PUT /assignments/NAME` | [`DefineRequest`] or a list of rules | [`AssignmentView`] |
//! | `DELETE /assignments/NAME` | | `{"removed": NAME}` |
//!
//! Errors have OpenAI's shape; `code` is the `E-PLUG` number where there is one. With an audit log, every change is
//! written down before it is made, and again when it is done.

mod actions;
mod audit;
mod events;
mod listen;
mod reload;
mod routes;
mod socket;
mod swap;
mod who;
mod wire;

pub use actions::Admin;
pub use audit::Audit;
pub use listen::AdminTcp;
pub use reload::{Reload, Reloaded};
pub use socket::{AdminSocket, default_admin_path};
pub use who::{Tokens, Who};
pub use wire::{
    AssignmentReload, AssignmentView, CellLine, DefineRequest, ReloadAnswer, ReloadRequest, RollbackRequest,
    SlotsView, StatsView, SwapAnswer, SwapRequest, SwapsView, TraceLine, TraceView, VariantRequest,
    VariantView, Wait,
};
