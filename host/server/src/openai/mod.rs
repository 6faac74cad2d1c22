//! The OpenAI endpoints as pure functions: request JSON to engine requests, generated pieces to response JSON.

mod accepted;
pub(crate) mod chat;
pub(crate) mod common;
pub(crate) mod completions;
mod logprobs;
pub(crate) mod models;
mod shape;
#[cfg(test)]
mod tests;

pub(crate) use common::LIVE;
pub(crate) use shape::{Ask, Shape, Usage};
