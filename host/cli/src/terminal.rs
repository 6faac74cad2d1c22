//! stdout for data, stderr for talk.

use std::io::{self, IsTerminal as _, Write as _};

use hotseam_bisect::report::Style;
use serde::Serialize;

/// Columns of a report where the width is not known.
const WIDTH: usize = 80;
/// Columns beyond which lines are hard to read.
const WIDEST: usize = 110;

/// Writes data to stdout.
///
/// # Errors
/// The write error, a closed pipe included.
pub(crate) fn data(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Writes a value to stdout as indented JSON.
///
/// # Errors
/// The write error, a closed pipe included.
pub(crate) fn json(value: &impl Serialize) -> io::Result<()> {
    data(&serde_json::to_string_pretty(value)?)
}

/// Writes a line to stderr. Talk that nobody can hear is dropped.
pub(crate) fn talk(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// True if stderr is a terminal, so that progress may be drawn.
pub(crate) fn interactive() -> bool {
    io::stderr().is_terminal()
}

/// How text on stdout is drawn.
pub(crate) fn stdout_style() -> Style {
    Style { color: color(io::stdout().is_terminal()), width: width() }
}

/// How text on stderr is drawn.
pub(crate) fn stderr_style() -> Style {
    Style { color: color(io::stderr().is_terminal()), width: width() }
}

/// Colours only on a terminal, and not if `NO_COLOR` is set to anything (<https://no-color.org>).
pub(crate) fn color(terminal: bool) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    terminal && !refused && !dumb
}

fn width() -> usize {
    let known = terminal_size::terminal_size().map(|(columns, _)| usize::from(columns.0));
    known.map_or(WIDTH, |columns| columns.clamp(40, WIDEST))
}
