//! SGLang's own `/generate`: request JSON to engine requests, generated pieces to response JSON.

mod accepted;
mod ask;
mod sampling;
mod shape;
#[cfg(test)]
mod tests;

pub(crate) use ask::Ask;
