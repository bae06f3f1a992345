//! Names from a stranger's file, cut to a length that can be shown, and counted.

use std::collections::BTreeMap;

/// The longest name that is kept, in bytes.
const LONGEST_NAME: usize = 80;
/// How many names are counted separately.
const MOST_NAMES: usize = 256;
/// The name under which the others are counted.
const OTHERS: &str = "...";

/// A text that can be shown: cut, and with replacement characters for bytes that are not UTF-8.
pub(crate) fn shown(text: &[u8]) -> String {
    let cut = text.get(..LONGEST_NAME).unwrap_or(text);
    let mut shown = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < text.len() {
        shown.push_str(OTHERS);
    }
    shown
}

/// Counts a name; the number of names stays bounded.
pub(crate) fn count(names: &mut BTreeMap<String, u64>, name: String, times: u64) {
    let name = if names.len() < MOST_NAMES || names.contains_key(&name) { name } else { OTHERS.to_owned() };
    *names.entry(name).or_insert(0) += times;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        assert_eq!(shown(b"abc"), "abc");
        assert_eq!(shown(&[b'x'; 81]), format!("{}...", "x".repeat(80)));
        let mut names = BTreeMap::new();
        for number in 0..1000 {
            count(&mut names, number.to_string(), 1);
        }
        assert_eq!(names.len(), 257);
        assert_eq!(names.get("..."), Some(&744));
    }
}
