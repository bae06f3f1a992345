//! Checks verifiable properties of pages: hosts, sentences per line, and numbers that follow from the sources.

use super::pages::{numbered_prose, without_targets};

/// Hosts that may be cited: those of documentation, threads and standards. Pages name software as a package with its version,
/// not by its download address.
const CITED: [&str; 8] = [
    "docs.pytorch.org",
    "docs.rs",
    "github.com",
    "keepachangelog.com",
    "pytorch.org",
    "ui.perfetto.dev",
    "www.apache.org",
    "www.w3.org",
];

/// Parts of addresses that lead to files rather than to a page.
const FILES: [&str; 5] = ["/archive/", "/releases/download/", "/raw/", "/tarball/", ".git"];

/// Returns the forbidden content of a text: addresses of hosts that serve packages or sources, and commands that fetch
/// from them.
pub(super) fn fetches(text: &str) -> Vec<String> {
    let ends = |c: char| c.is_whitespace() || "\"'`()<>[]{}\\|".contains(c);
    let addresses = text.split("://").skip(1).map(|rest| rest.split(ends).next().unwrap_or_default());
    let is_host = |address: &&str| address.split(['/', '#', ':']).next().is_some_and(|host| host.contains('.'));
    let is_cited = |address: &str| {
        let host = address.split(['/', '#', ':', ',']).next().unwrap_or_default();
        CITED.contains(&host) && !FILES.iter().any(|part| address.contains(part))
    };
    let uncited = addresses.filter(is_host).filter(|address| !is_cited(address)).map(str::to_owned);
    // These are assembled here so that this file does not contain them.
    let commands =
        [["git", "clone"], ["git", "fetch"], ["git", "submodule"], ["curl", "-"], ["wget", "-"]].map(|words| words.join(" "));
    uncited.chain(commands.into_iter().filter(|command| text.contains(command.as_str()))).collect()
}

/// The maximum number of characters in a line of prose, not counting link targets.
const LONGEST_LINE: usize = 200;

/// Returns lines of prose that are too long or contain more than one sentence, each with its number. Tables, headings
/// and code are not prose.
pub(super) fn crowded_lines(page: &str) -> Vec<String> {
    let prose = numbered_prose(page).filter(|(_, line)| !line.trim_start().starts_with(['|', '#']));
    let crowded = prose.filter_map(|(number, line)| {
        let shown = without_targets(line);
        let characters = shown.chars().count();
        if characters > LONGEST_LINE {
            return Some(format!("line {number} has {characters} characters"));
        }
        second_sentence(&shown).map(|next| format!("line {number} has a second sentence: {next}"))
    });
    crowded.collect()
}

/// Returns the text after the first sentence of a line. Code counts as a word, and sentences within parentheses do not
/// count.
fn second_sentence(line: &str) -> Option<String> {
    let (line, mut is_code, mut depth) = (without_mark(line.trim_start()), false, 0_i32);
    for (at, c) in line.char_indices() {
        is_code ^= c == '`';
        depth += i32::from(!is_code && c == '(') - i32::from(!is_code && c == ')');
        let Some(rest) = line[at..].strip_prefix(['.', '!', '?']) else { continue };
        let next = rest.trim_start_matches(['*', '"', '_']);
        let begins = next.strip_prefix(' ').is_some_and(|next| {
            next.starts_with('`') || next.trim_start_matches(['*', '[']).starts_with(|c: char| c.is_ascii_uppercase())
        });
        // A single letter is an initial.
        let word = line[..at].rsplit(' ').next().unwrap_or_default();
        if !is_code && depth == 0 && begins && word.chars().count() > 1 {
            return Some(next.trim_start().chars().take(30).collect());
        }
    }
    None
}

/// Returns a line without its list marker.
fn without_mark(line: &str) -> &str {
    let (mark, rest) = line.split_once(' ').unwrap_or(("", line));
    let is_number = mark.strip_suffix('.').is_some_and(|mark| mark.len() <= 2 && mark.chars().all(|c| c.is_ascii_alphanumeric()));
    if mark == "-" || is_number { rest } else { line }
}

/// Returns the number that a page states between two texts; `None` if the page does not contain
/// them.
pub(super) fn stated(page: &str, before: &str, after: &str) -> Option<usize> {
    let (number, _) = page.split_once(before)?.1.split_once(after)?;
    number.replace(',', "").parse().ok()
}

/// Returns the integers in a column (counted from 0) of the table whose head contains this text.
pub(super) fn column(page: &str, head: &str, place: usize) -> Vec<u64> {
    let rows = page.lines().skip_while(|line| !line.contains(head)).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.split('|').nth(place + 1)?.trim().replace(',', "").parse().ok()).collect()
}
