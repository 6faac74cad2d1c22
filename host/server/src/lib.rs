//! The HTTP side of Hotseam: OpenAI endpoints on a public listener, and an admin socket.
//!
//! The only crate that knows HTTP. [`Server`] serves `/v1/models`, `/v1/completions`, `/v1/chat/completions`, SGLang's
//! `/generate`, and what routers ask of a worker: `/health`, `/server_info`, `/v1/loads` and their like. Wire types and validation are pure functions apart from the routes; what they need of an
//! engine is the narrow [`Backend`]. [`admin`] serves swaps, slots and receipts on a unix socket.

pub mod admin;
mod answer;
mod backend;
mod body;
mod choice;
mod connect;
mod error;
mod fields;
mod form;
mod generation;
mod id;
mod lifecycle;
mod live;
mod meeting;
mod native;
mod openai;
mod public;
mod server;
mod worker;

pub use backend::{Backend, Load, ModelInfo, Running, Waited};
pub use error::ApiError;
pub use lifecycle::Life;
pub use public::Served;
pub use server::{Server, ServerError, ServerHandle, ServerOptions};
