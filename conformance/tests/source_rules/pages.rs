//! Checks the targets in pages: links, headings within pages and files that the pages name.

use std::path::{Component, Path, PathBuf};

/// Returns the lines of a page that are outside fenced code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    numbered_prose(page).map(|(_, line)| line)
}

/// Returns the same lines with their numbers, which start at 1.
pub(super) fn numbered_prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(page.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the link fragments of a page's headings as GitHub creates them: lower case, hyphens for spaces, no
/// punctuation; a repeated fragment gets a number.
pub(super) fn anchors(page: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for line in prose(page) {
        let Some(heading) = line.strip_prefix('#').map(|rest| rest.trim_start_matches('#')).filter(|rest| rest.starts_with(' '))
        else {
            continue;
        };
        let kept = without_targets(heading.trim()).to_lowercase().replace(' ', "-");
        let anchor: String = kept.chars().filter(|&c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let earlier = (1..).map(|number| format!("{anchor}-{number}"));
        let unused = [anchor.clone()].into_iter().chain(earlier).find(|name| !anchors.contains(name));
        anchors.extend(unused);
    }
    anchors
}

/// Returns a line's text with links reduced to their words.
pub(super) fn without_targets(line: &str) -> String {
    let mut parts = line.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// Returns a page's broken links: those to a missing file, and those to a heading that the target page lacks.
pub(super) fn broken_links(page: &str, path: &Path) -> Vec<String> {
    targets(page).filter(|target| !is_there(target, page, path)).map(str::to_owned).collect()
}

/// Returns the targets of links within the repository.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    targets.filter(|target| !target.contains("::") && !target.contains("://") && !target.is_empty())
}

fn is_there(target: &str, page: &str, path: &Path) -> bool {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let linked = path.parent().expect("a folder").join(file);
    let text = match file {
        "" => Some(page.to_owned()),
        _ if !linked.exists() => return false,
        _ if linked.extension().is_some_and(|extension| extension == "md") => std::fs::read_to_string(&linked).ok(),
        _ => None,
    };
    anchor.is_empty() || text.is_none_or(|text| anchors(&text).iter().any(|known| known == anchor))
}

/// The file name endings that are recognised in pages.
const ENDINGS: [&str; 8] = [".rs", ".py", ".sh", ".md", ".mjs", ".svg", ".toml", ".cpp"];

/// Returns the paths in backticks on a page that do not exist: neither relative to the root, nor to the page's folder
/// or its sources, nor to a folder that a path or link named earlier under the same heading.
pub(super) fn missing_paths(page: &str, folder: &Path, root: &Path) -> Vec<String> {
    let own = [root.to_owned(), folder.to_owned(), folder.join("src")];
    let (mut bases, mut missing) = (own.to_vec(), Vec::new());
    let folders = |path: PathBuf| path.ancestors().take_while(|folder| *folder != root).map(Path::to_owned).collect::<Vec<_>>();
    for line in prose(page) {
        if line.starts_with('#') {
            bases = own.to_vec();
        }
        let linked = targets(line).map(|target| folder.join(target.split('#').next().unwrap_or_default()));
        bases.extend(linked.filter(|path| path.exists()).flat_map(folders));
        for word in line.split('`').skip(1).step_by(2).filter(|word| is_path(word, root)) {
            match bases.iter().map(|base| base.join(word)).find(|path| path.exists()) {
                Some(path) => bases.extend(folders(path)),
                None => missing.push(word.to_owned()),
            }
        }
    }
    missing
}

/// Returns whether a word is meant as a path in the repository: it begins with one of the repository's folders, or
/// looks like a folder or a source file.
fn is_path(word: &str, root: &Path) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    let parts: Vec<Component> = Path::new(word).components().collect();
    let Some(Component::Normal(first)) = parts.first() else { return false };
    // `NAME` is a placeholder, and build output is not part of the repository.
    let is_pattern = word.contains("NAME") || word.contains("...") || first.to_str() == Some("target");
    let is_named = parts.len() > 1 && root.join(first).is_dir() || word.ends_with('/');
    word.contains('/')
        && word.chars().all(is_plain)
        && !is_pattern
        && (is_named || ENDINGS.iter().any(|ending| word.ends_with(ending)))
}

/// Returns the page's path for messages.
pub(super) fn name(path: &Path, root: &Path) -> PathBuf {
    path.strip_prefix(root).unwrap_or(path).to_owned()
}
