//! The parts of names and of lists of names. Brackets keep their contents together.

/// The items of a comma-separated list, without surrounding spaces and without empty items. A comma inside brackets does
/// not separate items.
///
/// ```
/// let list = "bfc, pytorch:settings=[max_split_size_mb:20,expandable_segments:True]";
/// let items: Vec<&str> = parkade_policies::items(list).collect();
/// assert_eq!(items, ["bfc", "pytorch:settings=[max_split_size_mb:20,expandable_segments:True]"]);
/// ```
pub fn items(list: &str) -> impl Iterator<Item = &str> {
    cut(list, ',').map(str::trim).filter(|item| !item.is_empty())
}

/// Splits a text at the separators that are outside brackets.
pub(crate) fn cut(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && letter == separator
    })
}

/// Whether every opening bracket has a closing one, and vice versa.
pub(crate) fn closes_brackets(text: &str) -> bool {
    let mut depth = 0_i64;
    let is_open = text.chars().all(|letter| {
        depth += i64::from(letter == '[') - i64::from(letter == ']');
        depth >= 0
    });
    is_open && depth == 0
}

/// The base name of a policy, which determines its parameters: the part before the colon.
#[must_use]
pub fn base(name: &str) -> &str {
    name.split_once(':').map_or(name, |(base, _)| base)
}
