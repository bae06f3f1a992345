//! Finds policies by name, and suggests similar names for a wrong one.

use anyhow::Result;
use parkade_policies::{BESIDE, CATALOGUE, Named, Unknown, named};

use crate::terminal::in_process::WrongArgument;
use crate::terminal::similar::distance;

/// Returns the policy with this name, which may have parameters.
///
/// # Errors
/// There is none; the text says why or names similar policies.
pub fn policy(name: &str) -> Result<Named> {
    named(name).map_err(|why| {
        let known = CATALOGUE.iter().chain(BESIDE).map(|policy| &*policy.name);
        let why = if why == Unknown::Name { suggestion(name, known) } else { format!(": {why}") };
        WrongArgument(format!("there is no policy {name:?}{why}")).into()
    })
}

/// Returns up to three similar names as the end of a sentence. Options after the name are ignored.
pub(crate) fn suggestion<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let text = text.split(':').next().unwrap_or(text);
    let mut near: Vec<(usize, &str)> = known.into_iter().map(|name| (distance(text, name), name)).collect();
    near.sort_unstable();
    let close = near
        .iter()
        .filter(|(distance, name)| distance * 2 <= name.len().max(text.len()) || (!text.is_empty() && name.contains(text)));
    let names: Vec<&str> = close.take(3).map(|&(_, name)| name).collect();
    if names.is_empty() {
        "; parkade sweep --list names all".to_owned()
    } else {
        format!(": did you mean {}?", names.join(" or "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested() {
        assert_eq!((distance("kitten", "sitting"), distance("", "ab"), distance("same", "same")), (3, 2, 0));
        assert_eq!(suggestion("pytorhc", ["pytorch", "bfc"]), ": did you mean pytorch?");
        assert_eq!(suggestion("pytorhc:handle=32MiB", ["pytorch", "bfc"]), ": did you mean pytorch?");
        assert_eq!(suggestion(":handle=32MiB", ["pytorch", "bfc"]), "; parkade sweep --list names all");
        assert_eq!(suggestion("zzz", ["pytorch", "bfc"]), "; parkade sweep --list names all");
    }
}
