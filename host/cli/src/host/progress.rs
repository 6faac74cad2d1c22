//! Progress: bars on a terminal, nothing otherwise.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal;

/// A bar on stderr, invisible where stderr is no terminal.
#[derive(Clone)]
pub(crate) struct Bar(ProgressBar);

/// A bar that begins as a spinner with `message`.
pub(crate) fn spinner(message: &str) -> Bar {
    let bar = if terminal::interactive() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let style = if terminal::stderr_style().color {
        "{spinner:.cyan} {msg} {bar:24.cyan/dim} {pos}/{len}"
    } else {
        "{spinner} {msg} {bar:24} {pos}/{len}"
    };
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.set_message(message.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    Bar(bar)
}

impl Bar {
    /// Sets how far it is.
    pub(crate) fn tick(&self, done: usize, total: usize) {
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
    }

    /// Sets what is being done.
    pub(crate) fn message(&self, message: &str) {
        self.0.set_message(message.to_owned());
    }

    /// Writes a line above the bar, to stderr.
    pub(crate) fn line(&self, text: &str) {
        self.0.suspend(|| terminal::talk(text));
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
