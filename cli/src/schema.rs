//! docs/json.md's tables and the Python package's types, generated from the declarations of the JSON that commands print.
//!
//! `PARKADE_BLESS=1 cargo test -p parkade-cli schema` writes them; without the variable, the test says which of them is not up to date.
//! docs/json.md has a row for each key of an object and of the objects in it; `_objects.py` a `TypedDict` for each object in a result;
//! `_fields.py` the fields of each result.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::commands::{advise, conform, diagnose, diff, export, info, pack, replay, report, stats, sweep, verify};
use crate::ranks;
use crate::terminal::json_struct::Sections;
use crate::terminal::shape::{Key, Object, Shape, Shaped};
use crate::terminal::{recording, run_words, runner};

/// A generated file: its path from the repository's root, and its contents, which may depend on its current ones.
type Generated = (&'static str, fn(&str) -> String);

const FILES: [Generated; 3] =
    [("docs/json.md", with_tables), ("python/parkade/_objects.py", |_| objects()), ("python/parkade/_fields.py", |_| fields())];

/// The objects that commands print, by their headings in docs/json.md.
const SECTIONS: [Sections; 15] = [
    runner::SECTIONS,
    recording::SECTIONS,
    run_words::SECTIONS,
    advise::SECTIONS,
    conform::SECTIONS,
    diagnose::SECTIONS,
    diff::SECTIONS,
    export::SECTIONS,
    info::SECTIONS,
    pack::SECTIONS,
    replay::SECTIONS,
    report::SECTIONS,
    stats::SECTIONS,
    sweep::SECTIONS,
    verify::SECTIONS,
];

/// A heading of docs/json.md, and the keys of the object below it.
struct Section {
    pub(super) heading: &'static str,
    pub(super) keys: Vec<Key>,
}

/// All of them.
fn sections() -> Vec<Section> {
    let all = SECTIONS.iter().copied().flatten();
    let mut sections: Vec<Section> =
        all.map(|(heading, shape)| Section { heading, keys: shape().keys().expect("an object") }).collect();
    let ranks = ranks::SECTIONS.iter().map(|(heading, shape)| {
        let mut keys = shape().keys().expect("an object");
        let addition = advise::Addition::shape().keys().expect("an object");
        keys.extend(addition.into_iter().map(|key| Key { may_be_missing: true, ..key }));
        Section { heading, keys }
    });
    sections.extend(ranks);
    sections
}

/// The parts that several commands' objects share and that have their own table, by its heading.
fn shared() -> Vec<(&'static str, Object)> {
    vec![first_object(recording::SECTIONS), first_object(run_words::SECTIONS)]
}

/// The first object that a command prints, with its heading.
fn first_object(sections: Sections) -> (&'static str, Object) {
    let (heading, shape) = sections[0];
    match shape() {
        Shape::Object(object) => (heading, object),
        shape => panic!("{heading} is {shape:?}"),
    }
}

const HEADER: &str = "| key | type | meaning |\n|---|---|---|\n";

/// The page with the table below each heading regenerated. A table ends at an empty line; the rest of the page is kept.
fn with_tables(page: &str) -> String {
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
    /// Objects with their own tables.
    shared: Vec<(&'static str, Object)>,
    /// Objects that have rows already.
    shown: Vec<Shown>,
}

struct Shown {
    object: Object,
    /// The prefix of their keys.
    prefix: String,
    /// The first and the last key.
    ends: (&'static str, &'static str),
}

impl Table {
    /// Adds a row for each key and for the keys nested in it.
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

/// The type in words, and the object in it with the suffix that its keys add to the path.
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

/// What the key means. The possible words are listed, unless the doc comment names them; in that case it must name all of them.
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

/// The strings that it may be.
fn words(shape: &Shape) -> &'static [&'static str] {
    match shape {
        Shape::Words(words) => words,
        Shape::Nullable(inner) | Shape::Array(inner) | Shape::Map(inner) => words(inner),
        _ => &[],
    }
}

/// The results of the Python package: each one's name, and the source of its keys. An object with its own class is one of these
/// too.
const RESULTS: [(&str, Of); 19] = [
    ("Verification", Of::Section("verify")),
    ("Recommendation", Of::Part("advise", "recommendation")),
    ("Option", Of::Part("advise", "options")),
    ("Advice", Of::Section("advise")),
    ("DeviceDiagnosis", Of::Part("diagnose", "devices")),
    ("Diagnosis", Of::Section("diagnose")),
    ("MessageDiagnosis", Of::Section("diagnose --message")),
    ("Report", Of::Section("report")),
    ("SimulatedReport", Of::Section("report --policy")),
    ("Difference", Of::Section("diff")),
    ("Stats", Of::Section("stats")),
    ("SimulatedStats", Of::Section("stats --policy")),
    ("Lifetimes", Of::Section("stats --lifetimes")),
    ("Replay", Of::Section("replay")),
    ("Export", Of::Section("export")),
    ("SimulatedExport", Of::Section("export --policy")),
    ("LargestBatches", Of::Section("sweep --largest-batch")),
    ("Catalogue", Of::Section("sweep --list")),
    ("Info", Of::Section("info")),
];

/// The source of a result's keys.
#[derive(Clone, Copy)]
enum Of {
    /// The object below this heading of docs/json.md.
    Section(&'static str),
    /// The object under this key of such an object.
    Part(&'static str, &'static str),
}

/// For these commands, a different heading has a form of the same object: a key that is null there may be null.
const OTHER_FORMS: [(&str, &str); 1] = [("advise", "advise without a trace")];

/// The longest line.
const WIDTH: usize = 140;

const WARNING: &str = "# Generated from the declarations in cli/src by: PARKADE_BLESS=1 cargo test -p parkade-cli schema";

/// The contents of `_objects.py`.
fn objects() -> String {
    let mut objects = Vec::new();
    for (_, keys) in results() {
        keys.iter().for_each(|key| collect(&key.shape, &mut objects));
    }
    collect(&Shape::Object(summary()), &mut objects);
    let names: BTreeSet<String> = objects.iter().map(name).collect();
    assert_eq!(names.len(), objects.len(), "two objects have one name: {names:?}");
    let mut body = String::new();
    for object in &objects {
        body += &class(object);
    }
    format!(
        "\"\"\"The types of the dictionaries in results, for type checkers: docs/json.md has the same keys.\"\"\"\n\n{WARNING}\n\n\
         from __future__ import annotations\n\n\
         import sys\n\
         from typing import TYPE_CHECKING, Literal, TypedDict\n\n\
         if TYPE_CHECKING:\n    from typing_extensions import NotRequired\n\
         elif sys.version_info >= (3, 11):\n    from typing import NotRequired\n{body}"
    )
}

/// The contents of `_fields.py`.
fn fields() -> String {
    let (mut body, mut objects) = (String::new(), Vec::new());
    for (name, keys) in results() {
        let _ = write!(body, "\n\n@dataclass(frozen=True, init=False, repr=False, eq=False)\nclass {name}Fields:\n");
        for key in &keys {
            let _ = write!(body, "{}{}", comment(&key.doc), field(key));
            named(&key.shape, &mut objects);
        }
    }
    let mut classes: Vec<&str> = parts().into_iter().map(|(name, _)| name).collect();
    classes.sort_unstable();
    objects.retain(|name| !classes.contains(&name.as_str()));
    objects.sort();
    objects.dedup();
    let objects = objects.iter().fold(String::new(), |list, name| list + "    " + name + ",\n");
    format!(
        "\"\"\"The fields of the results, with the keys of docs/json.md. `_results.py` has the classes with their methods.\"\"\"\n\n{WARNING}\n\n\
         from __future__ import annotations\n\n\
         from dataclasses import dataclass, field\n\
         from typing import TYPE_CHECKING, Any, Literal\n\n\
         from ._objects import (\n{objects})\n\n\
         if TYPE_CHECKING:\n    # `_results.py` puts them here, because it imports this module.\n    from ._results import {}\n\n\n\
         def _absent() -> Any:\n    \"\"\"An object that the command did not print.\"\"\"\n    return {{}}\n\n\n\
         #: A word that the command did not print.\n_WORD: Any = \"\"\n{body}",
        classes.join(", ")
    )
}

/// The summary of a sweep, which is a dictionary in Python, too.
fn summary() -> Object {
    first_object(sweep::SECTIONS).1
}

/// The keys of each result.
fn results() -> Vec<(&'static str, Vec<Key>)> {
    RESULTS.into_iter().map(|(name, of)| (name, keys_of(of))).collect()
}

fn keys_of(of: Of) -> Vec<Key> {
    let section = |heading: &str| sections().into_iter().find(|section| section.heading == heading);
    match of {
        Of::Section(heading) => {
            let Section { mut keys, .. } = section(heading).expect("a section");
            for (_, other) in OTHER_FORMS.iter().filter(|(of, _)| *of == heading) {
                let others = section(other).expect("a section").keys;
                for key in &mut keys {
                    let is_null = others.iter().any(|other| other.key == key.key && matches!(other.shape, Shape::Nullable(_)));
                    if is_null && !matches!(key.shape, Shape::Nullable(_)) {
                        key.shape = Shape::Nullable(Box::new(key.shape.clone()));
                    }
                }
            }
            keys
        }
        Of::Part(..) => part(of).keys(),
    }
}

/// The objects that have their own classes, with their names.
fn parts() -> Vec<(&'static str, Object)> {
    let parts = RESULTS.into_iter().filter(|(_, of)| matches!(of, Of::Part(..)));
    parts.map(|(name, of)| (name, part(of))).collect()
}

fn part(of: Of) -> Object {
    let Of::Part(heading, name) = of else { panic!("no part") };
    let keys = sections().into_iter().find(|section| section.heading == heading).expect("a section").keys;
    let key = keys.into_iter().find(|key| key.key == name).expect("a key");
    object_in(&key.shape).expect("an object")
}

/// The object that a value is, contains, or is a list of.
fn object_in(shape: &Shape) -> Option<Object> {
    match shape {
        Shape::Object(object) => Some(*object),
        Shape::Nullable(inner) | Shape::Array(inner) | Shape::Map(inner) => object_in(inner),
        _ => None,
    }
}

/// The objects in a value that become dictionaries, inner ones first.
fn collect(shape: &Shape, objects: &mut Vec<Object>) {
    let Some(object) = object_in(shape) else { return };
    if objects.contains(&object) {
        return;
    }
    object.keys().iter().for_each(|key| collect(&key.shape, objects));
    if parts().iter().all(|(_, part)| *part != object) {
        objects.push(object);
    }
}

/// The name of the object's type in Python.
fn named(shape: &Shape, names: &mut Vec<String>) {
    names.extend(object_in(shape).map(|object| name(&object)));
}

/// Its class, or `{Command}{View}`: views of several commands have equal names.
fn name(object: &Object) -> String {
    if *object == summary() {
        return "SweepSummary".to_owned();
    }
    if let Some((name, _)) = parts().into_iter().find(|(_, part)| part == object) {
        return name.to_owned();
    }
    let command = object.module.split("::").skip_while(|part| *part != "commands").nth(1).filter(|part| *part != "beside");
    let command = command.map_or_else(String::new, |command| command[..1].to_uppercase() + &command[1..]);
    let view = object.name.strip_suffix("Object").unwrap_or(object.name);
    let view = view.strip_prefix("Of").filter(|rest| rest.starts_with(char::is_uppercase)).unwrap_or(view);
    command + view
}

/// A `TypedDict`. A key that is a keyword of Python needs the form of a call.
fn class(object: &Object) -> String {
    let (name, keys, doc) = (name(object), object.keys(), object.doc());
    let entry = |key: &Key| match key.may_be_missing {
        true => format!("NotRequired[{}]", python(&key.shape)),
        false => python(&key.shape),
    };
    if keys.iter().any(|key| key.key == "from") {
        let rows = keys.iter().map(|key| format!("{}    \"{}\": {},\n", comment(&key.doc), key.key, entry(key)));
        let rows: String = rows.collect::<String>().lines().map(|row| format!("    {row}\n")).collect();
        return format!("\n\n{name} = TypedDict(\n    \"{name}\",\n    {{\n{rows}    }},\n)\n");
    }
    let mut class = format!("\n\nclass {name}(TypedDict):\n");
    if !doc.is_empty() {
        let _ = write!(class, "    \"\"\"{}\"\"\"\n\n", plain(&doc));
    }
    for key in &keys {
        let _ = write!(class, "{}{}", comment(&key.doc), wrapped(&format!("    {}: ", key.key), &entry(key), ""));
    }
    class
}

/// A field of a result, which is there even if the command does not print the key.
fn field(key: &Key) -> String {
    let is_list = matches!(key.shape, Shape::Array(_));
    let kind = match &key.shape {
        Shape::Nullable(_) => python(&key.shape),
        shape if key.may_be_missing && !is_list => format!("{} | None", python(shape)),
        shape => python(shape),
    };
    let class = object_in(&key.shape).and_then(|object| parts().into_iter().find(|(_, part)| *part == object));
    let metadata = class.map_or_else(String::new, |(name, _)| format!(", metadata={{\"of\": \"{name}\"}}"));
    let default = match &key.shape {
        Shape::Array(_) | Shape::Tuple(_) => format!("field(default_factory=list{metadata})"),
        _ if kind.ends_with("None") && metadata.is_empty() => "None".to_owned(),
        _ if kind.ends_with("None") => format!("field(default=None{metadata})"),
        Shape::Object(_) => "field(default_factory=_absent)".to_owned(),
        Shape::Map(_) => "field(default_factory=dict)".to_owned(),
        Shape::Words(_) => "_WORD".to_owned(),
        Shape::Text => "\"\"".to_owned(),
        Shape::Integer => "0".to_owned(),
        Shape::Number => "0.0".to_owned(),
        Shape::Boolean => "False".to_owned(),
        shape => panic!("{shape:?} has no default yet"),
    };
    wrapped(&format!("    {}: ", key.key), &kind, &format!(" = {default}"))
}

/// The type in Python.
fn python(shape: &Shape) -> String {
    match shape {
        Shape::Null => "None".to_owned(),
        Shape::Text => "str".to_owned(),
        Shape::Integer => "int".to_owned(),
        Shape::Number => "float".to_owned(),
        Shape::Boolean => "bool".to_owned(),
        Shape::Words(words) => format!("Literal[\"{}\"]", words.join("\", \"")),
        Shape::Nullable(inner) => match python(inner) {
            inner if inner.ends_with("None") => inner,
            inner => format!("{inner} | None"),
        },
        Shape::Array(inner) => format!("list[{}]", python(inner)),
        Shape::Map(inner) => format!("dict[str, {}]", python(inner)),
        Shape::Tuple(items) => {
            let mut kinds: Vec<String> = items.iter().map(python).collect();
            kinds.dedup();
            format!("list[{}]", kinds.join(" | "))
        }
        Shape::Object(object) => name(object),
        Shape::OneOf(_) => panic!("one of several objects has no name yet"),
    }
}

/// A line, with each word of a long `Literal` on its own line.
fn wrapped(start: &str, kind: &str, end: &str) -> String {
    let line = format!("{start}{kind}{end}\n");
    if line.chars().count() <= WIDTH {
        return line;
    }
    let line = line.replacen("Literal[", "Literal[\n        ", 1).replace("\", \"", "\",\n        \"");
    line.replacen("\"]", "\",\n    ]", 1)
}

/// The lines of a comment on the field below.
fn comment(doc: &str) -> String {
    let mut lines = vec![String::from("    #:")];
    for word in with_arguments(&plain(doc)).split(' ').filter(|word| !word.is_empty()) {
        let is_full = |line: &String| line.chars().count() + 1 + word.chars().count() > WIDTH;
        if lines.last().is_some_and(is_full) {
            lines.push("    #:".to_owned());
        }
        lines.last_mut().into_iter().for_each(|line| *line += &format!(" {word}"));
    }
    if doc.is_empty() { String::new() } else { lines.join("\n") + "\n" }
}

/// A text without its links.
fn plain(doc: &str) -> String {
    let mut text = String::new();
    let mut rest = doc;
    while let Some((before, words, after)) = next_link(rest) {
        text = text + before + words;
        rest = after;
    }
    text + rest
}

/// A text with Python's arguments in place of options: `fail_above` is `--fail-above`, and `bounds=0` is `--bounds 0`.
fn with_arguments(doc: &str) -> String {
    let argument = |part: &str| {
        let option = part.strip_prefix("--")?;
        let (name, value) = option.split_at(option.find(' ').unwrap_or(option.len()));
        Some(name.replace('-', "_") + &value.replacen(' ', "=", 1))
    };
    doc.split('`').map(|part| argument(part).unwrap_or_else(|| part.to_owned())).collect::<Vec<_>>().join("`")
}

/// The text before the first link, the link's words, and the text after it.
fn next_link(text: &str) -> Option<(&str, &str, &str)> {
    let middle = text.find("](")?;
    let (before, words) = text[..middle].rsplit_once('[')?;
    let (_, after) = text[middle..].split_once(')')?;
    Some((before, words, after))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{FILES, with_arguments};

    #[test]
    fn options_are_arguments_in_python() {
        assert_eq!(with_arguments("With `--fail-above`, `--bounds 0` and `a-b`."), "With `fail_above`, `bounds=0` and `a-b`.");
    }

    #[test]
    fn what_is_generated_is_up_to_date() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut stale = Vec::new();
        for (path, generate) in FILES {
            let file = root.join(path);
            let is = fs::read_to_string(&file).unwrap_or_default();
            let should_be = generate(&is);
            if is == should_be {
                continue;
            }
            if std::env::var_os("PARKADE_BLESS").is_some() {
                fs::write(&file, should_be).expect("a file that can be written");
            } else {
                let line = is.lines().zip(should_be.lines()).take_while(|(is, should_be)| is == should_be).count();
                stale.push(format!("{path} from line {}: {:?}", line + 1, should_be.lines().nth(line).unwrap_or_default()));
            }
        }
        assert!(stale.is_empty(), "write them anew with PARKADE_BLESS=1 cargo test -p parkade-cli schema: {stale:#?}");
    }
}
