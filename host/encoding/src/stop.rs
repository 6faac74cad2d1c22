//! Stop strings.

/// Ends a text at the first of several strings, which may be spread over several pieces.
///
/// Text that could be the start of a stop string is held back until it is decided.
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    /// Index of the one that was found.
    found: Option<usize>,
}

/// What [`StopMatcher::push`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// Text that certainly precedes any stop string.
    pub text: String,
    /// True once a stop string was found; the text after `text` is to be dropped.
    pub stopped: bool,
}

impl StopMatcher {
    /// A matcher for `stops`; empty strings are ignored.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        Self {
            stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(),
            held: String::new(),
            found: None,
        }
    }

    /// Adds `piece` and gives what can be shown.
    pub fn push(&mut self, piece: &str) -> Stopped {
        self.held.push_str(piece);
        let hits =
            self.stops.iter().enumerate().filter_map(|(index, stop)| Some((self.held.find(stop)?, index)));
        if let Some((at, index)) = hits.min() {
            self.found = Some(index);
            self.held.truncate(at);
            return Stopped { text: std::mem::take(&mut self.held), stopped: true };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Stopped { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }

    /// The stop string that was found.
    pub fn matched(&self) -> Option<&str> {
        self.found.map(|index| self.stops[index].as_str())
    }

    /// The text held back, when the sequence ends without a stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length in bytes of the longest proper prefix of `stop` that `text` ends with.
fn overlap(text: &str, stop: &str) -> usize {
    stop.char_indices()
        .map(|(length, _)| length)
        .rev()
        .find(|length| text.as_bytes().ends_with(&stop.as_bytes()[..*length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes `pieces` and gives all text shown and whether it stopped.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()));
        let mut shown = String::new();
        for piece in pieces {
            let step = matcher.push(piece);
            shown += &step.text;
            if step.stopped {
                return (shown, true);
            }
        }
        (shown + &matcher.finish(), false)
    }

    #[test]
    fn a_stop_over_piece_boundaries() {
        assert_eq!(run(&["END"], &["abcE", "N", "D tail"]), ("abc".into(), true));
        assert_eq!(run(&["END"], &["abcE", "N", "d tail"]), ("abcENd tail".into(), false));
        assert_eq!(run(&["END"], &["EE", "EN", "END"]), ("EEEN".into(), true));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), true));
    }

    #[test]
    fn the_earliest_stop_wins() {
        assert_eq!(run(&["world", "o"], &["hello world"]), ("hell".into(), true));
        assert_eq!(run(&["b", "ab"], &["xab"]), ("x".into(), true));
    }

    #[test]
    fn the_found_string_is_named() {
        let mut matcher = StopMatcher::new(["b".to_owned(), "ab".to_owned()]);
        assert_eq!((matcher.push("xa").stopped, matcher.matched()), (false, None));
        assert_eq!((matcher.push("b").stopped, matcher.matched()), (true, Some("ab")));
    }

    #[test]
    fn partial_matches_are_held_back_and_released() {
        let mut matcher = StopMatcher::new(["\n\n".to_owned()]);
        assert_eq!(matcher.push("one\n"), Stopped { text: "one".into(), stopped: false });
        assert_eq!(matcher.push("two\n"), Stopped { text: "\ntwo".into(), stopped: false });
        assert_eq!(matcher.finish(), "\n");
    }

    #[test]
    fn stops_of_several_bytes_and_none() {
        assert_eq!(run(&["é→"], &["caf", "é", "→x"]), ("caf".into(), true));
        assert_eq!(run(&["→é"], &["a→", "→b"]), ("a→→b".into(), false));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), false));
        assert_eq!(run(&[""], &["a", "b"]), ("ab".into(), false));
    }

    #[test]
    fn every_split_of_a_text_gives_the_same() {
        let text = "aXabXYaXYZb";
        let whole = run(&["XYZ", "YaXYY"], &[text]);
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(run(&["XYZ", "YaXYY"], &pieces), whole, "split at {first}, {second}");
            }
        }
    }
}
