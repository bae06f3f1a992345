//! Reads docs/json.md, and checks whether the binary prints what it says.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// A documented key.
#[derive(Clone)]
pub(crate) struct Row {
    pub(crate) path: String,
    /// Whether objects may lack it.
    is_optional: bool,
    /// The path of the object that is its value, or of those in its value.
    inner: String,
    /// Where the keys of this object are: under a path of the same table, or in the table below a heading.
    like: Option<Like>,
}

#[derive(Clone)]
enum Like {
    Path(String),
    Heading(String),
}

impl Row {
    /// A row of a table; a map has two.
    fn read(line: &str) -> Vec<Row> {
        let mut cells = line.split(" | ");
        let (Some(path), Some(kind)) = (cells.next().and_then(|cell| cell.strip_prefix("| `")), cells.next()) else {
            return Vec::new();
        };
        let path = path.trim_end_matches('`').to_owned();
        let inner = match kind.split([' ', ',']).next() {
            Some("array") => format!("{path}[]"),
            Some("map") => format!("{path}.*"),
            _ => path.clone(),
        };
        let word = |from: &str, to: char| kind.split_once(from).and_then(|(_, rest)| rest.split(to).next()).map(str::to_owned);
        let like = word("as `", '`').map(Like::Path).or(word("](#", ')').map(Like::Heading));
        let is_optional = kind.ends_with("optional");
        let of_map =
            inner.ends_with(".*").then(|| Row { path: inner.clone(), is_optional: true, inner: inner.clone(), like: None });
        [Row { path, is_optional, inner, like }].into_iter().chain(of_map).collect()
    }
}

/// The rows of the section with this heading, including those that they refer to.
pub(crate) fn documented(heading: &str) -> Vec<Row> {
    let text = include_str!("../../../docs/json.md");
    let section = text.split("\n## ").find(|section| section.lines().next() == Some(heading));
    let section = section.unwrap_or_else(|| panic!("no section {heading:?}"));
    let mut rows: Vec<Row> = section.lines().flat_map(Row::read).collect();
    assert!(!rows.is_empty(), "{heading}");
    let mut place = 0;
    while let Some(row) = rows.get(place).cloned() {
        place += 1;
        let (found, from) = match row.like {
            None => continue,
            Some(Like::Heading(heading)) => (documented(&heading), String::new()),
            Some(Like::Path(path)) => (rows.clone(), format!("{path}.")),
        };
        for inner in found {
            let Some(key) = inner.path.strip_prefix(&from) else { continue };
            let path = format!("{}.{key}", row.inner);
            if rows.iter().all(|known| known.path != path) {
                let below = format!("{}.{}", row.inner, inner.inner.strip_prefix(&from).unwrap_or_default());
                rows.push(Row { path, inner: below, ..inner });
            }
        }
    }
    rows
}

/// Whether a documented path matches that of a key; `*` matches any key.
pub(crate) fn is_path_of(documented: &str, path: &[String]) -> bool {
    let parts: Vec<&str> = documented.split('.').collect();
    let is_part = |(part, key): (&&str, &String)| *part == "*" || part == key;
    parts.len() == path.len() && parts.iter().zip(path).all(is_part)
}

/// The keys of a value, each with the other keys of its objects. Elements of a list have `[]` after its key.
pub(crate) fn keys(value: &Value, path: &[String], found: &mut BTreeSet<Vec<String>>) {
    objects(value, path, &mut |path, object| {
        found.extend(object.keys().map(|key| [path, std::slice::from_ref(key)].concat()));
    });
}

/// Calls `each` with every object and its path.
fn objects(value: &Value, path: &[String], each: &mut impl FnMut(&[String], &serde_json::Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            each(path, object);
            for (key, value) in object {
                objects(value, &[path, std::slice::from_ref(key)].concat(), each);
            }
        }
        Value::Array(items) => {
            let mut path = path.to_vec();
            if let Some(last) = path.last_mut() {
                last.push_str("[]");
            }
            items.iter().for_each(|item| objects(item, &path, each));
        }
        _ => {}
    }
}

/// Compares lines of JSON with the section: each key is documented, and each object has all keys that are not optional. Returns the
/// documented keys that do not appear.
pub(crate) fn check_text(heading: &str, text: &str) -> Vec<String> {
    let (rows, mut found) = (documented(heading), BTreeSet::new());
    let mut expected: BTreeMap<Vec<String>, Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).expect("an object a line");
        keys(&value, &[], &mut found);
        objects(&value, &[], &mut |path, object| {
            let expected = expected.entry(path.to_vec()).or_insert_with(|| keys_at(&rows, path));
            let missing: Vec<&&str> = expected.iter().filter(|key| !object.contains_key(**key)).collect();
            assert!(missing.is_empty(), "{heading}: {} has no {missing:?}, which are not optional", path.join("."));
        });
    }
    let mut seen = BTreeSet::new();
    for path in &found {
        let documented: Vec<&str> = rows.iter().map(|row| &*row.path).filter(|row| is_path_of(row, path)).collect();
        assert!(!documented.is_empty(), "{heading}: {} is not in docs/json.md", path.join("."));
        seen.extend(documented);
    }
    rows.iter().map(|row| &row.path).filter(|path| !seen.contains(path.as_str())).cloned().collect()
}

/// Does the same, and checks that each documented key appears, unless it is one of `rare` or below one.
pub(crate) fn check_all(heading: &str, text: &str, rare: &[&str]) {
    let is_below =
        |path: &str, rare: &str| path.strip_prefix(rare).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    let mut missing = check_text(heading, text);
    missing.retain(|path| !rare.iter().any(|rare| is_below(path, rare)));
    assert!(missing.is_empty(), "{heading}: documented, but not printed: {missing:?}");
}

/// The keys that each object with this path has.
fn keys_at<'a>(rows: &'a [Row], path: &[String]) -> Vec<&'a str> {
    let of_object = rows.iter().filter(|row| !row.is_optional).filter_map(|row| {
        let (parent, key) = row.path.rsplit_once('.').unwrap_or(("", &row.path));
        let is_there = if parent.is_empty() { path.is_empty() } else { is_path_of(parent, path) };
        is_there.then_some(key)
    });
    of_object.collect()
}
