//! Errors with the exit code they lead to.

use std::io;

/// Exit code of wrong usage, a bad configuration included.
pub(crate) const USAGE: u8 = 2;
/// Exit code after the reader of stdout went away, as a shell reports it (128 + SIGPIPE).
pub(crate) const CLOSED_PIPE: u8 = 141;

/// An error and its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) error: anyhow::Error,
}

impl Failure {
    /// Wrong usage.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self { code: USAGE, error: error.into() }
    }

    /// The error and its causes, each said once. What would steer a terminal, such as a name out of somebody's file, is
    /// escaped.
    pub(crate) fn chain(&self) -> String {
        let mut text = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if !text.contains(&cause) {
                text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
            }
        }
        let mut safe = String::new();
        for c in text.chars() {
            match c.is_control() && c != '\n' && c != '\t' {
                true => safe.extend(c.escape_default()),
                false => safe.push(c),
            }
        }
        safe
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { code: 1, error: error.into() }
    }
}

/// True if the error is that nobody reads stdout any more.
pub(crate) fn closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn a_closed_pipe_is_seen_through_context() {
        let error: Result<(), io::Error> = Err(io::ErrorKind::BrokenPipe.into());
        assert!(closed_pipe(&error.context("writing").unwrap_err()));
        assert!(!closed_pipe(&anyhow::anyhow!("broken pipe")));
    }

    #[test]
    fn causes_are_said_once() {
        let inner = io::Error::other("no such file");
        let error: Result<(), io::Error> = Err(inner);
        let failure = Failure::from(error.context("model /x: no such file").unwrap_err());
        assert_eq!(failure.chain(), "model /x: no such file");
    }

    #[test]
    fn errors_do_not_steer_the_terminal() {
        let failure = Failure::from(anyhow::anyhow!("a.yaml:1:2: `x\u{1b}[31m`\n\t1 |\r"));
        assert_eq!(failure.chain(), "a.yaml:1:2: `x\\u{1b}[31m`\n\t1 |\\r");
    }
}
