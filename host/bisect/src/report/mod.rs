//! What a search found, and its forms: terminal, Markdown, HTML, JUnit, JSON.

mod escape;
mod evidence;
mod headline;
mod html;
mod junit;
mod markdown;
mod model;
mod schema;
mod text;
mod tree;
mod word;

pub use evidence::{Known, dose, suspects};
pub use headline::{About, advice, duration, headline};
pub use html::html;
pub use junit::junit;
pub use markdown::markdown;
pub use model::{
    ByTopology, Culprit, Dose, End, Ends, Exonerated, Fails, Finding, Grade, Open, Place, Points, Rate,
    Rates, Report, Setting, Standing, Suspect, WhatIf, WriterReader,
};
pub use schema::schema;
pub use text::{Style, text, trial_line};
pub use word::Word;

/// Rising numbers as ranges: `2-4,6`.
pub fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let text = |&(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

/// `layer 2` or `layers 2-4,6`; empty for no layers.
pub(crate) fn layers(numbers: &[usize]) -> String {
    match numbers {
        [] => String::new(),
        [only] => format!("layer {only}"),
        more => format!("layers {}", ranges(more)),
    }
}

#[cfg(test)]
mod tests {
    use super::{layers, ranges};

    #[test]
    fn layers_are_counted() {
        assert_eq!([layers(&[]), layers(&[3]), layers(&[2, 3])], ["", "layer 3", "layers 2-3"]);
    }

    #[test]
    fn ranges_join_neighbours() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[2, 4, 6]), "2,4,6");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
