//! The tables of docs/json.md: a row for each key of an object and of the objects in it.

use std::fmt::Write as _;

use super::sections::{Section, sections, shared};
use crate::terminal::shape::{Key, Object, Shape};

const HEADER: &str = "| key | type | meaning |\n|---|---|---|\n";

/// The page with the table below each heading made anew. A table ends at an empty line; what else the page has stays.
pub(super) fn with_tables(page: &str) -> String {
    let mut page = page.to_owned();
    for section in sections() {
        let heading = format!("\n## {}\n", section.heading);
        let start = page.find(&heading).unwrap_or_else(|| panic!("docs/json.md has no heading {:?}", section.heading));
        let after = start + heading.len();
        let end = page[after..].find("\n## ").map_or(page.len(), |length| after + length);
        let table = page[after..end].find(HEADER).unwrap_or_else(|| panic!("{:?} has no table", section.heading)) + after;
        let table_end = page[table..].find("\n\n").map_or(page.len(), |length| table + length + 1);
        page.replace_range(table..table_end, &table_of(section));
    }
    page
}

fn table_of(section: Section) -> String {
    let mut table = Table { rows: HEADER.to_owned(), shared: shared(), ..Table::default() };
    table.shared.retain(|(heading, _)| *heading != section.heading);
    table.add("", section.keys);
    table.rows
}

#[derive(Default)]
struct Table {
    rows: String,
    /// Objects with tables of their own.
    shared: Vec<(&'static str, Object)>,
    /// Objects that have rows already.
    shown: Vec<Shown>,
}

struct Shown {
    object: Object,
    /// In front of their keys.
    prefix: String,
    /// The first and the last key.
    ends: (&'static str, &'static str),
}

impl Table {
    /// Adds a row for each key, and those of what is in them.
    fn add(&mut self, prefix: &str, keys: Vec<Key>) {
        let mut rest = &keys[..];
        while let Some(key) = rest.first() {
            let same = rest.iter().take_while(|other| other.flat == key.flat).count();
            let (group, others) = rest.split_at(if key.flat.is_some() { same } else { 1 });
            rest = others;
            if let Some(object) = key.flat {
                if let Some(row) = self.the_same(prefix, object) {
                    self.rows += &row;
                    continue;
                }
                self.remember(object, prefix, group);
            }
            group.iter().for_each(|key| self.add_key(prefix, key));
        }
    }

    fn add_key(&mut self, prefix: &str, key: &Key) {
        let path = format!("{prefix}{}", key.key);
        let (kind, inner) = kind(&key.shape);
        let mut kind = kind;
        let mut below = None;
        if let Some((object, suffix)) = inner {
            let each = if suffix.is_empty() { "as" } else { "each as" };
            let shown = self.shown.iter().find(|shown| shown.object == object);
            if let Some((heading, _)) = self.shared.iter().find(|(_, shared)| *shared == object) {
                let _ = write!(kind, ", {each} [{heading}](#{heading})");
            } else if let Some(place) = shown.and_then(|shown| shown.prefix.strip_suffix('.')) {
                let _ = write!(kind, ", {each} `{place}`");
            } else {
                below = Some((object, format!("{path}{suffix}.")));
            }
        }
        if key.may_be_missing {
            kind.push_str(", optional");
        }
        let _ = writeln!(self.rows, "| `{path}` | {kind} | {} |", meaning(&path, key));
        if let Some((object, prefix)) = below {
            match self.the_same(&prefix, object) {
                Some(row) => self.rows += &row,
                None => {
                    let keys = object.keys();
                    self.remember(object, &prefix, &keys);
                    self.add(&prefix, keys);
                }
            }
        }
    }

    fn remember(&mut self, object: Object, prefix: &str, keys: &[Key]) {
        if let [first, .., last] = keys {
            self.shown.push(Shown { object, prefix: prefix.to_owned(), ends: (first.key, last.key) });
        }
    }

    /// The row that stands for the keys of an object that has rows with another prefix.
    fn the_same(&self, prefix: &str, object: Object) -> Option<String> {
        let shown = self.shown.iter().find(|shown| shown.object == object && shown.prefix != prefix)?;
        let (first, last) = shown.ends;
        Some(format!("| `{prefix}*` | optional | the keys from `{0}{first}` to `{0}{last}` |\n", shown.prefix))
    }
}

/// The type in words, and the object in it with what its keys have behind the path.
fn kind(shape: &Shape) -> (String, Option<(Object, &'static str)>) {
    let many = |inner: &Shape, of: &str, suffix: &'static str| match kind(inner) {
        (word, None) => (format!("{of} of {word}s"), None),
        (word, Some((object, ""))) if word == "object" && of == "array" => ("array".to_owned(), Some((object, suffix))),
        (word, Some((object, ""))) => (format!("{of} of {}", word.replacen("object", "objects", 1)), Some((object, suffix))),
        (word, inner) => panic!("{of} of {word} ({inner:?}) has no words yet"),
    };
    match shape {
        Shape::Null => ("null".to_owned(), None),
        Shape::Text | Shape::Words(_) => ("string".to_owned(), None),
        Shape::Integer => ("integer".to_owned(), None),
        Shape::Number => ("number".to_owned(), None),
        Shape::Boolean => ("boolean".to_owned(), None),
        Shape::Nullable(inner) => match kind(inner) {
            (word, object) if word.ends_with("null") => (word, object),
            (word, object) => (format!("{word} or null"), object),
        },
        Shape::Array(inner) => many(inner, "array", "[]"),
        Shape::Map(inner) => many(inner, "map", ".*"),
        Shape::Tuple(items) => {
            let words: Vec<String> = items.iter().map(|item| kind(item).0).collect();
            match words.as_slice() {
                [a, b] if a == b => (format!("array of 2 {a}s"), None),
                words => (format!("array: {}", words.join(", ")), None),
            }
        }
        Shape::Object(object) => ("object".to_owned(), Some((*object, ""))),
        Shape::OneOf(_) => panic!("one of several objects has no words yet"),
    }
}

/// What the key means. The words that it may have are listed, unless its doc comment names them; then it must name all.
fn meaning(path: &str, key: &Key) -> String {
    assert!(!key.doc.is_empty(), "{path} has no doc comment");
    let words = words(&key.shape);
    let are_named: Vec<bool> = words.iter().map(|word| key.doc.contains(&format!("`{word}`"))).collect();
    if !are_named.contains(&true) && !words.is_empty() {
        let (last, others) = words.split_last().expect("words");
        return format!("{}: `{}` or `{last}`.", key.doc.trim_end_matches('.'), others.join("`, `"));
    }
    for (word, is_named) in words.iter().zip(are_named) {
        assert!(is_named, "{path}: the doc comment names some of its words, but not {word}");
    }
    key.doc.clone()
}

/// The strings that it is one of.
fn words(shape: &Shape) -> &'static [&'static str] {
    match shape {
        Shape::Words(words) => words,
        Shape::Nullable(inner) | Shape::Array(inner) | Shape::Map(inner) => words(inner),
        _ => &[],
    }
}
