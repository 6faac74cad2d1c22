//! The OpenAI endpoints as pure functions: request JSON to engine requests, generated pieces to response JSON.

pub(crate) mod accepted;
pub(crate) mod chat;
pub(crate) mod common;
pub(crate) mod completions;
pub(crate) mod logprobs;
pub(crate) mod models;
mod shape;
#[cfg(test)]
mod tests;

pub(crate) use common::LIVE;
pub(crate) use shape::OpenAi;
