//! What hand-offs of the bad end brought, by component.

use std::fmt::Write as _;

use super::super::{Report, ranges};
use super::escape;

/// A row a component.
pub(super) fn table(out: &mut String, report: &Report) {
    let Some(handoff) = &report.handoff else { return };
    let _ = write!(
        out,
        "<section>\n<h2>Hand-off of the bad end</h2>\n<p class=\"soft\">Audited over {} requests through <code>{}</code>.</p>\n\
         <div class=\"wide\"><table><thead><tr><th scope=\"col\">component</th><th scope=\"col\">layers</th>\
         <th scope=\"col\">items</th><th scope=\"col\">as sent</th><th scope=\"col\">damage</th></tr></thead><tbody>\n",
        handoff.requests,
        escape(&handoff.transport)
    );
    for own in &handoff.components {
        let on: Vec<usize> = own.layers.iter().map(|layer| *layer as usize).collect();
        let (class, word) = if own.changed() { ("bad", "changed") } else { ("good", "whole") };
        let damage: Vec<String> = own.damage.iter().map(|damage| escape(&damage.what)).collect();
        let _ = writeln!(
            out,
            "<tr><td><span class=\"badge {class}\">{word}</span> {}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&own.component),
            ranges(&on),
            own.items,
            own.whole,
            damage.join("<br>")
        );
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}
