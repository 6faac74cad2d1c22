//! Short forms of abi_stable's reports, which run to hundreds of lines.

use std::io::Write;

/// Longest summary, in characters.
const LIMIT: usize = 240;

/// The innermost difference of a layout report: its last `Error:` block on one line.
pub(crate) fn summary(report: &str) -> String {
    match report.rfind("\nError:") {
        Some(at) => {
            let block = report[at + "\nError:".len()..].split("\nExtra:").next().unwrap_or_default();
            one_line(&block.replace("Expected:", ", expected").replace("Found:", ", found"))
                .replace(" ,", ",")
        }
        None => one_line(report),
    }
}

/// Writes a whole report to a new file that outlives the process, and returns its path.
pub(crate) fn keep(report: &str) -> std::io::Result<String> {
    let mut file = tempfile::Builder::new().prefix("hotseam-layout-").suffix(".txt").tempfile()?;
    file.write_all(report.as_bytes())?;
    let (_, path) = file.keep()?;
    Ok(path.display().to_string())
}

/// `text` with runs of white space made single, cut to a length that fits a message.
pub(crate) fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// As [`one_line`], but what is cut out is the middle: a first message says what went wrong, the last how it ended.
pub(crate) fn ends_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let chars = line.chars().count();
    if chars <= LIMIT {
        return line;
    }
    let end = LIMIT / 3;
    let (first, last) = (line.chars().take(LIMIT - end), line.chars().skip(chars - end));
    format!("{}...{}", first.collect::<String>(), last.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_the_innermost_error() {
        let report = "Compared <this>:\n    A\n1 error(s)inside:\n    <other>\n\nError:outer\nExpected:\n    1\nFound:\n    \
                      2\n\n2 error(s).\n\nError:incompatible type size\nExpected:\n    64\nFound:\n    72\n";
        assert_eq!(summary(report), "incompatible type size, expected 64, found 72");
    }

    #[test]
    fn without_a_block_the_text_is_cut() {
        let text = "é ".repeat(1000);
        let short = summary(&text);
        assert_eq!(short.chars().count(), LIMIT + 3);
        assert!(short.ends_with("..."));
    }

    #[test]
    fn of_a_long_text_both_ends_stay() {
        let text = format!("told to panic\n{}\naborting.", "é ".repeat(1000));
        let short = ends_line(&text);
        assert_eq!(short.chars().count(), LIMIT + 3);
        assert!(short.starts_with("told to panic é") && short.ends_with("é aborting."), "{short}");
        assert_eq!(ends_line("a\n b"), "a b");
    }
}
