//! Which release of PyTorch has which rules.

use alloc::string::String;
use core::fmt;

use super::Profile;

/// A release of PyTorch, and the rules that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    /// Its full name: `2.11.0`.
    pub name: &'static str,
    /// Its rules. Releases that answer alike share them.
    pub profile: &'static Profile,
}

/// Every release whose rules were compared with its own binary without a difference, oldest first.
pub const RELEASES: &[Release] = &[
    Release { name: "2.1.0", profile: &Profile::PYTORCH_2_1 },
    Release { name: "2.1.1", profile: &Profile::PYTORCH_2_1 },
    Release { name: "2.1.2", profile: &Profile::PYTORCH_2_1 },
    Release { name: "2.2.0", profile: &Profile::PYTORCH_2_2 },
    Release { name: "2.2.1", profile: &Profile::PYTORCH_2_2 },
    Release { name: "2.2.2", profile: &Profile::PYTORCH_2_2 },
    Release { name: "2.3.0", profile: &Profile::PYTORCH_2_3 },
    Release { name: "2.3.1", profile: &Profile::PYTORCH_2_3 },
    Release { name: "2.4.0", profile: &Profile::PYTORCH_2_4 },
    Release { name: "2.4.1", profile: &Profile::PYTORCH_2_4 },
    Release { name: "2.5.0", profile: &Profile::PYTORCH_2_5 },
    Release { name: "2.5.1", profile: &Profile::PYTORCH_2_5 },
    Release { name: "2.6.0", profile: &Profile::PYTORCH_2_6 },
    Release { name: "2.7.0", profile: &Profile::PYTORCH_2_7 },
    Release { name: "2.7.1", profile: &Profile::PYTORCH_2_7 },
    Release { name: "2.8.0", profile: &Profile::PYTORCH_2_8 },
    Release { name: "2.9.0", profile: &Profile::PYTORCH_2_9 },
    Release { name: "2.9.1", profile: &Profile::PYTORCH_2_9 },
    Release { name: "2.10.0", profile: &Profile::PYTORCH_2_10 },
    Release { name: "2.11.0", profile: &Profile::PYTORCH_2_11 },
    Release { name: "2.12.0", profile: &Profile::PYTORCH_2_12 },
    Release { name: "2.12.1", profile: &Profile::PYTORCH_2_12 },
    Release { name: "2.13.0", profile: &Profile::PYTORCH_2_13 },
    Release { name: "2.14.0", profile: &Profile::PYTORCH_2_14 },
    Release { name: "2.14.1", profile: &Profile::PYTORCH_2_14 },
    Release { name: "2.15.0", profile: &Profile::PYTORCH_2_15 },
];

/// No rules are known for a release of this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownRelease {
    /// The name.
    pub name: String,
}

impl fmt::Display for UnknownRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rules of PyTorch {:?} are not known; known are", self.name)?;
        for (place, release) in RELEASES.iter().enumerate() {
            f.write_str(if place == 0 { " " } else { ", " })?;
            f.write_str(release.name)?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownRelease {}

impl Profile {
    /// The rules of a release: `2.11.0`, with or without what a build adds (`2.11.0+cu130`). `2.11` is the last
    /// release of that series.
    ///
    /// # Errors
    /// No release of that name is in [`RELEASES`].
    pub fn of(name: &str) -> Result<&'static Profile, UnknownRelease> {
        let public = name.split_once('+').map_or(name, |(public, _)| public);
        let is_meant = |release: &&Release| release.name == public || series(release.name) == public;
        let found = RELEASES.iter().rev().find(is_meant);
        found.map(|release| release.profile).ok_or_else(|| UnknownRelease { name: String::from(name) })
    }

    /// Whether a request fails where a free block of an expandable segment would be released for it (spec 2.9).
    pub(crate) const fn fails_to_release_expandable(&self) -> bool {
        self.asserts.expandable.is_some()
    }

    /// Whether a request fails that is for a stream that is not captured, during a capture and with the setting
    /// graph_capture_record_stream_reuse.
    pub(crate) const fn fails_outside_captures(&self) -> bool {
        self.asserts.stream.is_some() && !self.reuses_by_graph
    }

    /// The releases that have these rules, oldest first.
    pub fn releases(&self) -> impl DoubleEndedIterator<Item = &'static Release> + '_ {
        RELEASES.iter().filter(move |release| release.profile == self)
    }
}

/// A release's name without the last number.
fn series(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(series, _)| series)
}

#[cfg(test)]
mod tests {
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_release_is_found_by_its_name_and_by_its_series() {
        for name in ["2.11", "2.11.0", "2.11.0+cu130"] {
            assert_eq!(Profile::of(name), Ok(&Profile::PYTORCH_2_11), "{name}");
        }
        assert_eq!(Profile::of("2.15"), Ok(&Profile::PYTORCH_2_15));
        assert_eq!(
            [Profile::of("2.1"), Profile::of("2.1.2"), Profile::of("2.10")].map(|found| found.unwrap().name),
            ["2.1", "2.1", "2.10"]
        );
        for name in ["", "2", "2.1100", "2.11.", "2.11.9", "v2.11", "2.0", "2.16"] {
            assert_eq!(Profile::of(name), Err(UnknownRelease { name: name.to_string() }), "{name}");
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let said = Profile::of("9.9").unwrap_err().to_string();
        assert!(said.starts_with("the rules of PyTorch \"9.9\" are not known; known are 2."), "{said}");
        assert!(RELEASES.iter().all(|release| said.contains(release.name)), "{said}");
    }

    #[test]
    fn the_table_is_in_order_and_names_each_release_once() {
        let number = |release: &Release| release.name.split('.').map(|part| part.parse().unwrap()).collect::<Vec<u32>>();
        assert!(RELEASES.windows(2).all(|pair| number(&pair[0]) < number(&pair[1])));
        for release in RELEASES {
            assert!(release.profile.releases().any(|other| other == release));
            assert!(release.profile.releases().any(|other| series(other.name) == release.profile.name), "{}", release.name);
        }
    }
}
