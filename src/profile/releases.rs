//! Which release of PyTorch has which rules.

#[cfg(test)]
#[path = "../../tests/unit/releases.rs"]
mod tests;

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
