//! Rules about source code: what the core must not contain, and the maximum size of a module.
//!
//! The checks read text: they first remove comments, strings and test modules, and then search for words.

use std::path::{Path, PathBuf};

/// Words that do not belong in the core, each with the reason.
const FORBIDDEN: [(&str, &str); 11] = [
    ("extern crate std", "the core is no_std"),
    ("std::", "the core is no_std"),
    ("unsafe", "the core has no unsafe code"),
    ("HashMap", "hash maps have no stable order"),
    ("HashSet", "hash sets have no stable order"),
    ("RandomState", "random hashers differ from run to run"),
    ("Instant", "the core reads no clock"),
    ("SystemTime", "the core reads no clock"),
    ("rand", "the core draws no random number"),
    ("thread", "the core starts no thread"),
    ("println", "the core does no output"),
];

/// Attributes that the core's root must have.
const REQUIRED: [&str; 2] = ["#![no_std]", "#![forbid(unsafe_code)]"];

/// Returns the source without comments, quoted text and test modules. Line breaks are kept.
pub(super) fn code_of(source: &str) -> String {
    without_tests(&without_comments_and_texts(source))
}

fn without_comments_and_texts(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            end_of_block_comment(rest)
        } else if let Some(length) = raw_text(rest).filter(|_| !out.ends_with(is_word)) {
            length
        } else if c == '"' {
            end_of_text(rest)
        } else if let Some(length) = character(rest) {
            length
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        out.push(' ');
        out.extend(rest[..skipped].chars().filter(|&c| c == '\n'));
        rest = &rest[skipped..];
    }
    out
}

fn end_of_block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at.min(text.len())
}

fn end_of_text(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of a raw string that begins here.
fn raw_text(text: &str) -> Option<usize> {
    let after = text.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = 1 + hashes + 1;
    Some(text[start..].find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// Returns the length of a character literal that begins here; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.strip_prefix('\'')?.char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        return text[2..].char_indices().skip(1).find(|&(_, c)| c == '\'').map(|(at, _)| at + 3);
    }
    chars.next().filter(|&(_, c)| c == '\'').map(|(at, _)| at + 2)
}

/// Removes every item after `#[cfg(test)]`, up to its closing brace or its semicolon.
fn without_tests(code: &str) -> String {
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..at]);
        let item = &rest[at..];
        let mut depth = 0_i32;
        let end = item.char_indices().find(|&(_, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && (c == '}' || c == ';')
        });
        let end = end.map_or(item.len(), |(end, _)| end + 1);
        out.extend(item[..end].chars().filter(|&c| c == '\n'));
        rest = &item[end..];
    }
    out.push_str(rest);
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns whether the text contains the word with no letter, digit or underscore next to it.
fn contains_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let begins = !text[..at].ends_with(is_word);
        let ends = word.ends_with(':') || !text[at + word.len()..].starts_with(is_word);
        begins && ends
    })
}

/// Returns the violations in one of the core's source files: line and reason.
pub(super) fn impurities(source: &str) -> Vec<String> {
    let code = code_of(source);
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        // This is the only line where the word is allowed.
        let line = line.replace("#![forbid(unsafe_code)]", "");
        for (word, why) in FORBIDDEN.iter().filter(|(word, _)| contains_word(&line, word)) {
            found.push(format!("line {}: {word:?}: {why}", number + 1));
        }
    }
    found
}

/// Returns whether the source has unsafe code. Comments, strings and attributes about it do not count, but tests do.
pub(super) fn has_unsafe(source: &str) -> bool {
    contains_word(&without_comments_and_texts(source), "unsafe")
}

/// Returns the attributes that a crate root lacks.
pub(super) fn missing_attributes(root: &str) -> Vec<&'static str> {
    let code = code_of(root);
    REQUIRED.into_iter().filter(|attribute| !code.lines().any(|line| line.trim() == *attribute)).collect()
}

/// Returns the names in a manifest's `[dependencies]`, which must list all of a crate's own dependencies. Other forms
/// of dependency tables are also reported as a name.
pub(super) fn dependencies(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in manifest.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
            let other = (line.starts_with("[dependencies.") || line.starts_with("[target.") && line.contains("dependencies"))
                || line.starts_with("[build-dependencies");
            names.extend(other.then(|| line.to_owned()));
        } else if inside && !line.is_empty() {
            names.extend(line.split(['=', '.']).next().map(|name| name.trim().to_owned()));
        }
    }
    names
}

/// Returns all files under a folder except those that git ignores: hidden ones and build output.
///
/// # Panics
/// If a folder cannot be read.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match path.is_dir() {
                true if name == "target" || name.starts_with('.') => {}
                true => folders.push(path),
                // In a worktree, `.git` is a file with the path of the repository.
                false if name == ".git" => {}
                false => found.push(path),
            }
        }
    }
    found.sort();
    found
}
