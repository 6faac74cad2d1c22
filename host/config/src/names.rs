//! "Did you mean": nearest known names.

/// The entry of `known` closest to `name`, if it is close enough to be a misspelling of it.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(2);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// A hint for an unknown `name`: the nearest known one, and the list.
pub(crate) fn hint(name: &str, known: &[&str]) -> String {
    let list = known.join(", ");
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`? known: {list}"),
        None => format!("known: {list}"),
    }
}

/// `message` with long quotations cut: a file that was named by mistake is not to be told whole.
pub fn cut_quotations(message: &str) -> String {
    /// Characters of a quotation, at most.
    const MOST: usize = 60;
    let mut text = String::new();
    for (index, piece) in message.split_inclusive(['"', '`']).enumerate() {
        // Every second piece is a quotation, its closing mark included.
        match index % 2 == 1 && piece.chars().count() > MOST + 1 {
            true => text.extend(piece.chars().take(MOST).chain("...".chars()).chain(piece.chars().last())),
            false => text += piece,
        }
    }
    text
}

/// Rust's names of numbers in words.
fn plain(message: String) -> String {
    ["usize", "u64", "u32", "u16"].iter().fold(message, |text, name| {
        match text.strip_suffix(&format!("expected {name}")) {
            Some(head) => format!("{head}expected a whole number, 0 or more"),
            None => text,
        }
    })
}

/// Splits serde's "unknown field `x`, expected one of `a`, `b`" into the complaint and a hint; other messages
/// stay as they are.
pub(crate) fn explain(message: &str) -> (String, Option<String>) {
    let message = cut_quotations(message);
    if !message.starts_with("unknown field") && !message.starts_with("unknown variant") {
        return (plain(message), None);
    }
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match quoted.split_first() {
        Some((name, known)) if !known.is_empty() => {
            let head = message.split(',').next().unwrap_or(&message);
            (head.replace("unknown variant", "unknown value"), Some(hint(name, known)))
        }
        _ => (message, None),
    }
}
