//! A server that died in the middle of a swap: its next start is on what was in force before.

use hotseam_loader::Loader;
use hotseam_slots::{Slots, SwapMarker};

use crate::terminal;

/// What the last process of `owner` left behind if it died while a swap was on probation; who is to blame is in quarantine then.
/// That it cannot be read is told, and is no reason not to serve.
pub(crate) fn recovered(loader: &Loader, owner: &str) -> Option<SwapMarker> {
    let marker = SwapMarker::recover(loader, owner).unwrap_or_else(|error| {
        terminal::talk(&format!("notice: what a crash may have left behind cannot be made good: {error}"));
        None
    })?;
    terminal::talk(&format!("notice: {}", marker.notice()));
    Some(marker)
}

/// Defines the assignment of a marker as it was before the swap; `false` if it is another one, or that cannot be done.
pub(crate) fn restored(marker: Option<&SwapMarker>, slots: &Slots, name: &str) -> bool {
    let Some(marker) = marker.filter(|marker| marker.assignment == name) else { return false };
    match slots.define(name, marker.rules_before.clone()) {
        Ok(_) => true,
        Err(error) => {
            terminal::talk(&format!(
                "notice: `{name}` cannot be as it was before the swap, so it is as the file says: {error}"
            ));
            false
        }
    }
}
