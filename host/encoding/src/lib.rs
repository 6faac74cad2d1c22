//! Tokens and the DeepSeek-V4 chat form.
//!
//! The only crate that knows the names of chat tokens. [`Tokenizer`] turns text into ids and back,
//! [`Detokenizer`] does so one id at a time without ever giving broken UTF-8, [`StopMatcher`] ends a text at
//! a stop string, and [`chat`] lays out a conversation.

pub mod chat;
mod detokenizer;
mod error;
mod stop;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use error::EncodingError;
pub use stop::{StopMatcher, Stopped};
pub use tokenizer::{Control, Tokenizer};
