//! Storage forms: which there are, and which tensors make up a matrix in each.

mod class;
mod form;

pub use class::Class;
pub use form::Form;

pub(crate) use class::{module, role};
pub(crate) use form::tensors;
