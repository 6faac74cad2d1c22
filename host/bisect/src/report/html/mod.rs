//! The report as one HTML file: nothing outside it is loaded, and no script runs in it.

mod chart;
mod grid;
mod handoff;
mod heat;
mod parts;

use std::fmt::Write as _;

use super::{About, Report, Word, headline};

/// Written into the page as it is.
const STYLE: &str = include_str!("style.css");

/// The report as a page of its own.
pub fn html(report: &Report, about: &About) -> String {
    let mut out = String::with_capacity(64 * 1024);
    let title = escape(&format!("hotseam bisect: {}", report.verdict.title()));
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"generator\" content=\"hotseam {}\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n",
        escape(&about.version)
    );
    parts::head(&mut out, report);
    parts::culprits(&mut out, report);
    parts::what_if(&mut out, report);
    handoff::table(&mut out, report);
    grid::ends(&mut out, report);
    parts::rates(&mut out, report);
    heat::table(&mut out, report);
    chart::posterior(&mut out, report);
    parts::exonerated(&mut out, report);
    parts::open(&mut out, report);
    parts::conformance(&mut out, report);
    parts::notes(&mut out, report);
    parts::trials(&mut out, report);
    parts::reproduce(&mut out, about);
    parts::data(&mut out, report);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

/// Text between tags or in a quoted attribute; arrows are one sign, which a narrow column cannot break in two.
fn escape(text: &str) -> String {
    super::escape::escape(text).replace("-&gt;", "→")
}

/// Colour class of a verdict.
fn tone(word: Word) -> &'static str {
    match word {
        Word::Found | Word::SecondSignature | Word::OracleBroken => "bad",
        Word::SameCode | Word::OracleAgrees | Word::NoPatch => "good",
        Word::Inconclusive | Word::GoodFails | Word::BudgetSpent => "warn",
    }
}

/// The first paragraph.
fn lead(report: &Report) -> String {
    escape(&headline(report))
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn nothing_leaves_its_element_or_attribute() {
        assert_eq!(
            escape("a</script><b x='1' y=\"2\">&\u{1b}[31m"),
            "a&lt;/script&gt;&lt;b x=&#39;1&#39; y=&quot;2&quot;&gt;&amp;\u{fffd}[31m"
        );
    }
}
