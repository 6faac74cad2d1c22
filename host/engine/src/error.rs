//! Errors of starting an engine and of handing it requests. What fails later reaches the request as
//! [`crate::Event::Failed`].

use crate::Role;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A size that cannot work.
    #[error("{field} is {found}, expected {expected}")]
    Config {
        /// Configuration key.
        field: &'static str,
        /// What would work.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The control listener of a prefill worker cannot be had.
    #[error("disaggregation.listen: cannot listen on {address}: {source}; choose another address")]
    Control {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The device cannot be had, or has not the memory.
    #[error("engine.device: {0}")]
    Device(#[from] hotseam_cuda::CudaError),
    /// The host's kernels cannot be loaded.
    #[error("engine.device: {0}")]
    Kernels(String),
    /// This build has no code for the device.
    #[error(
        "engine.device is cuda, and this build of hotseam has no code for it: build it with `scripts/get-nvrtc && cargo build \
         --release --workspace --features hotseam/cuda`, or set engine.device to cpu"
    )]
    NoCuda,
    /// The KV memory cannot be had.
    #[error(transparent)]
    Kv(#[from] hotseam_kv::KvError),
    /// The ranks of the tensor-parallel group did not start.
    #[error("engine.tp_size: {0}")]
    Ranks(String),
    /// The engine thread did not start.
    #[error("engine thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Why a request was not taken. Nothing has run then.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SubmitError {
    /// No tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// Nothing to generate.
    #[error("max_tokens is 0, expected at least 1")]
    NoTokens,
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// Prompt and answer do not fit.
    #[error(
        "the context is at most {max_context} tokens, but {prompt} tokens of prompt and {max_tokens} of answer were asked for"
    )]
    Context {
        /// Longest context.
        max_context: usize,
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens asked for.
        max_tokens: usize,
    },
    /// No such assignment.
    #[error("assignment `{name}` is not defined; there are: {known}")]
    Assignment {
        /// The name.
        name: String,
        /// Those that exist.
        known: String,
    },
    /// Sampling values that mean nothing.
    #[error("{field} is {found}, expected {expected}")]
    Sampling {
        /// The field.
        field: &'static str,
        /// What would work.
        expected: &'static str,
        /// What was given.
        found: String,
    },
    /// A request that this worker's role does not serve.
    #[error("this worker's role is {role}: {message}")]
    Role {
        /// The role.
        role: Role,
        /// What is wrong with the request and what to do.
        message: &'static str,
    },
    /// A prefill worker that this one does not ask.
    #[error("bootstrap_host is `{host}`, which is not among disaggregation.hosts")]
    Host {
        /// The host, as the request names it.
        host: String,
    },
    /// Calls of several ranks cannot be looked at.
    #[error(
        "the engine has {0} ranks, and who looks at calls would change or see those of one; set engine.tp_size to 1, or compare \
         answers with `hotseam bisect`"
    )]
    ObservedRanks(u32),
    /// The waiting line is full.
    #[error("{0} requests are waiting; try again later")]
    Full(usize),
    /// The engine has stopped.
    #[error("the engine has stopped")]
    Stopped,
}
