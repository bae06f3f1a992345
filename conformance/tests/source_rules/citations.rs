//! Finds what texts in the repository cite: sections of the specification and headings of the driver facts.

use std::collections::BTreeSet;

/// Returns the headings of a page, without their marks.
pub(super) fn headings(page: &str) -> Vec<&str> {
    page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim()).collect()
}

/// Returns the numbers at the beginning of a page's headings.
pub(super) fn sections(page: &str) -> BTreeSet<&str> {
    let numbers = headings(page).into_iter().filter_map(|heading| heading.split(' ').next());
    numbers.map(|number| number.trim_end_matches('.')).filter(|number| number.starts_with(|c: char| c.is_ascii_digit())).collect()
}

/// Returns the sections that a text cites as `spec 2.4`, each with its line.
pub(super) fn cited_sections(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (at, word) in line.match_indices("spec ") {
            let is_word = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let rest = &line[at + word.len()..];
            let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
            let section = rest[..end].trim_end_matches('.');
            if is_word && !section.is_empty() {
                found.push((number + 1, section));
            }
        }
    }
    found
}

/// Returns what a text's comments cite as `facts: Heading`, each with its line: the rest of that line and the next one.
pub(super) fn cited_facts(text: &str) -> Vec<(usize, String)> {
    let comment = |line: &'_ str| line.find("//").map(|at| line[at..].trim_start_matches(['/', '!', ' ']).to_owned());
    let comments: Vec<Option<String>> = text.lines().map(comment).collect();
    let mut found = Vec::new();
    for (number, own) in comments.iter().enumerate() {
        let Some(own) = own else { continue };
        let next = comments.get(number + 1).cloned().flatten().unwrap_or_default();
        for at in ["facts: ", "Facts: "].iter().flat_map(|mark| own.match_indices(mark).map(|(at, mark)| at + mark.len())) {
            found.push((number + 1, format!("{} {next}", &own[at..]).trim_end().to_owned()));
        }
    }
    found
}
