//! "Did you mean": the nearest known name.

/// Returns the candidate that is nearest to `input`, if one is near enough to be a plausible slip.
pub fn nearest<'a, I>(input: &str, candidates: I) -> Option<&'a str>
where
    I: IntoIterator<Item = &'a str>,
{
    candidates
        .into_iter()
        .map(|c| (strsim::jaro_winkler(input, c), c))
        .filter(|(score, _)| *score >= 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, c)| c)
}

/// Words for the end of an error message: the nearest candidate as a question, or else the list of all of them.
pub fn did_you_mean<'a, I>(input: &str, candidates: I) -> String
where
    I: IntoIterator<Item = &'a str> + Clone,
{
    if let Some(name) = nearest(input, candidates.clone()) {
        return format!("Did you mean `{name}`?");
    }
    let all: Vec<&str> = candidates.into_iter().collect();
    if all.is_empty() { "There are none.".to_owned() } else { format!("Known: {}.", all.join(", ")) }
}
