//! Lists of workloads: what their items are, although names of files may hold commas, blanks and what no text holds.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::{Result, bail};

/// The items of a list of workloads. A file that exists is one item, whatever its name; options stay with their description:
/// `gpt2,mlp:batch=8,layers=4` has two items.
pub(super) fn workload_items(list: &OsStr) -> Result<Vec<OsString>> {
    if Path::new(list).exists() {
        return Ok(vec![list.to_owned()]);
    }
    let Some(text) = list.to_str() else {
        bail!("there is no file {list:?}; a file whose name is not UTF-8 needs a --workloads of its own");
    };
    let parts: Vec<&str> = text.split(',').collect();
    let mut items: Vec<String> = Vec::new();
    let mut place = 0;
    while place < parts.len() {
        if let Some((file, length)) = longest_file(&parts[place..]) {
            items.push(file);
            place += length;
            continue;
        }
        let part = parts[place].trim();
        place += 1;
        let is_option = part.contains('=') && !part.contains(':');
        match items.last_mut().filter(|last| is_option && last.contains(':') && !Path::new(last).is_file()) {
            Some(last) => *last = format!("{last},{part}"),
            None if part.is_empty() => {}
            None => items.push(part.to_owned()),
        }
    }
    Ok(items.into_iter().map(OsString::from).collect())
}

/// The file with the most commas in its name that these parts begin with, and how many parts it takes.
fn longest_file(parts: &[&str]) -> Option<(String, usize)> {
    /// No name of a file has more commas.
    const MOST_PARTS: usize = 256;
    let lengths = (1..=parts.len().min(MOST_PARTS)).rev();
    let mut files = lengths.map(|length| (parts[..length].join(","), length));
    // A part alone may be the name of a workload, beside which a folder is nothing.
    files.find(|(name, _)| Path::new(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stay_with_their_description() {
        let items = |list: &str| workload_items(OsStr::new(list)).expect("text");
        assert_eq!(items("gpt2, mlp:batch=8,layers=4,x"), ["gpt2", "mlp:batch=8,layers=4", "x"]);
        assert_eq!(items(",,"), [""; 0]);
    }
}
