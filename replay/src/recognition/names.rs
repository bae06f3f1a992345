//! Releases in words: "2.4 to 2.9", "2.10, 2.11 and 2.12.1".

use parkade::profile::{RELEASES, Release};

/// The series of a release: `2.11` of `2.11.0`.
fn series(release: &Release) -> &'static str {
    release.name.rsplit_once('.').map_or(release.name, |(series, _)| series)
}

/// A series of which all releases are named, or a release of one of which not all are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    text: &'static str,
    /// Where it stands among all series.
    place: Option<usize>,
}

/// Oldest first.
pub(crate) fn in_order(releases: impl IntoIterator<Item = &'static Release>) -> Vec<&'static Release> {
    let mut releases: Vec<_> = releases.into_iter().collect();
    releases.sort_by_key(|release| RELEASES.iter().position(|other| other == *release));
    releases
}

/// Releases as people name them: whole series by the series, neighbours as a range. `releases` are in the order of [`RELEASES`].
#[must_use]
pub fn in_words(releases: &[&'static Release]) -> String {
    let mut all: Vec<&'static str> = RELEASES.iter().map(series).collect();
    all.dedup();
    let mut names: Vec<Name> = Vec::new();
    for &release in releases {
        let of_series = series(release);
        let is_whole = RELEASES.iter().filter(|other| series(other) == of_series).all(|other| releases.contains(&other));
        let name = match is_whole {
            true => Name { text: of_series, place: all.iter().position(|&other| other == of_series) },
            false => Name { text: release.name, place: None },
        };
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    let mut parts: Vec<String> = Vec::new();
    let follows = |pair: &[Name]| matches!((pair[0].place, pair[1].place), (Some(first), Some(second)) if second == first + 1);
    let mut from = 0;
    while from < names.len() {
        let run = 1 + names[from..].windows(2).take_while(|pair| follows(pair)).count();
        match run {
            1 | 2 => parts.extend(names[from..from + run].iter().map(|name| name.text.to_owned())),
            _ => parts.push(format!("{} to {}", names[from].text, names[from + run - 1].text)),
        }
        from += run;
    }
    match parts.split_last() {
        None => "none".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_releases_are_one_range() {
        let all: Vec<_> = RELEASES.iter().collect();
        let (first, last) = (series(all[0]), series(all[all.len() - 1]));
        let said = in_words(&all);
        assert!(said.starts_with(first) && said.ends_with(last), "{said}");
        assert_eq!(in_words(&all[..1]), if series(all[0]) == series(all[1]) { all[0].name } else { first });
        assert_eq!(in_words(&[]), "none");
    }
}
