//! How alike two names are, to suggest what may have been meant.

/// The edit distance of the first 60 characters.
pub fn distance(one: &str, other: &str) -> usize {
    let [one, other] = [one, other].map(|text| text.chars().take(60).collect::<String>());
    strsim::levenshtein(&one, &other)
}
