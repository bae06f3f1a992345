//! What docs/json.md says, and whether what the binary prints is that.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// A documented key.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) path: String,
    pub(crate) is_optional: bool,
    /// The path of an object with the same keys.
    pub(crate) like: Option<String>,
}

/// The rows of the section with this heading.
pub(crate) fn documented(heading: &str) -> Vec<Row> {
    let text = include_str!("../../../docs/json.md");
    let section = text.split("\n## ").find(|section| section.lines().next() == Some(heading));
    let rows = section.unwrap_or_else(|| panic!("no section {heading:?}")).lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (path, kind) = (cells.next()?.trim_end_matches('`'), cells.next()?);
        let like = kind.strip_prefix("as `").and_then(|rest| rest.split('`').next());
        Some(Row { path: path.to_owned(), is_optional: kind.contains("optional"), like: like.map(str::to_owned) })
    });
    let mut rows: Vec<Row> = rows.collect();
    assert!(!rows.is_empty(), "{heading}");
    // What several commands have in the same form has a section of its own.
    for section in ["made_by", "self_check"] {
        for row in rows.clone().iter().filter(|row| row.path.ends_with(section)) {
            let inner = documented(section).into_iter();
            rows.extend(inner.map(|key| Row { path: format!("{}.{}", row.path, key.path), is_optional: true, like: None }));
        }
    }
    // "as" may lead to a row that says "as" in its turn.
    for _ in 0..2 {
        for row in rows.clone() {
            let Some(like) = &row.like else { continue };
            for inner in rows.clone() {
                let Some(rest) = inner.path.strip_prefix(like.as_str()).filter(|rest| rest.starts_with(['.', '['])) else {
                    continue;
                };
                let path = format!("{}{rest}", row.path);
                if rows.iter().all(|known| known.path != path) {
                    rows.push(Row { path, is_optional: true, like: None });
                }
            }
        }
    }
    rows
}

/// Whether a documented path is that of a key; `*` stands for any one, and at its end for everything below too.
pub(crate) fn is_path_of(documented: &str, path: &[String]) -> bool {
    let parts: Vec<&str> = documented.split('.').collect();
    let is_part = |(part, key): (&&str, &String)| *part == "*" || part == key;
    parts.len() == path.len() && parts.iter().zip(path).all(is_part)
}

/// The keys of a value. Elements of a list have `[]` behind its key.
pub(crate) fn keys(value: &Value, path: &[String], found: &mut BTreeSet<Vec<String>>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let path = [path, std::slice::from_ref(key)].concat();
                found.insert(path.clone());
                keys(value, &path, found);
            }
        }
        Value::Array(items) => {
            let mut path = path.to_vec();
            if let Some(last) = path.last_mut() {
                last.push_str("[]");
            }
            items.iter().for_each(|item| keys(item, &path, found));
        }
        _ => {}
    }
}

/// Compares lines of JSON with the section.
pub(crate) fn check_text(heading: &str, text: &str) {
    let mut found = BTreeSet::new();
    for line in text.lines() {
        keys(&serde_json::from_str(line).expect("an object a line"), &[], &mut found);
    }
    let rows = documented(heading);
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for path in &found {
        let row = rows.iter().find(|row| is_path_of(&row.path, path));
        let row = row.unwrap_or_else(|| panic!("{heading}: {} is not in docs/json.md", path.join(".")));
        *seen.entry(&row.path).or_default() += 1;
    }
    let missing: Vec<&str> =
        rows.iter().filter(|row| !row.is_optional && !seen.contains_key(&*row.path)).map(|row| &*row.path).collect();
    assert!(missing.is_empty(), "{heading}: documented, but not printed: {missing:?}");
}
