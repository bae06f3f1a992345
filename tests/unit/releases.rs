//! Each release has the profile of its version.

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
