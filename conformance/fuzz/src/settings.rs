//! Target `settings`: settings strings, read by parkade and by the second parsers of the reference model.

use parkade::profile::RELEASES;
use parkade::settings::Settings;
use parkade_conformance::core_laws::check_settings;

use crate::choices::Choices;
use crate::texts;

/// The most strings that are applied one after another.
const MOST_STRINGS: usize = 4;

/// Reads strings: those in the bytes, separated by a byte that UTF-8 does not have, or those that the bytes choose. Returns
/// whether 2.11 accepts the first one.
///
/// # Panics
/// If a string does not have the effect or the error that the specification states, or if a release's parser panics.
pub fn run(data: &[u8]) -> bool {
    let Some((first, rest)) = data.split_first() else { return false };
    let texts: Vec<String> = if first & 1 == 0 {
        rest.split(|byte| *byte == 0xff).take(MOST_STRINGS).map(|text| String::from_utf8_lossy(text).into_owned()).collect()
    } else {
        let mut choices = Choices::new(rest);
        (0..=choices.below(MOST_STRINGS)).map(|_| texts::settings(&mut choices)).collect()
    };
    // Each string has a bit that says whether a new process begins with it.
    let strings: Vec<(String, bool)> =
        texts.into_iter().enumerate().map(|(place, text)| (text, first >> (place + 2) & 1 == 1)).collect();
    for release in RELEASES {
        check_settings(release.profile, &strings).unwrap_or_else(|broken| panic!("{broken}"));
    }
    Settings::from_environment(&strings[0].0).is_ok()
}
