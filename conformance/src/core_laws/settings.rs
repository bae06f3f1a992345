//! The settings law: every string sets what the specification says, and fails as it says, in the dialects of both releases, at
//! load time and at run time.
//!
//! Strings are drawn from the words that matter: all keys, values at every border, and separators in and out of place ([`strings`]).
//!
//! [`strings`]: crate::strings

use crate::law::{Broken, Law, ensure};
use crate::reference_model::numbers::double;
use crate::reference_model::settings::{Reader, Refusal, defaults};
use parkade::profile::Profile;
use parkade::settings::{Settings, SettingsError, read_double};
use proptest::prelude::*;

use crate::core_laws::run::{Draws, Outcome, run};
use crate::core_laws::strings::{LISTS, VALUES, in_other_cases, number, text};

/// Strings for each program: reading one costs almost nothing.
const STRINGS_PER_CASE: usize = 24;

/// Every key with every value and every list: one after the other at run time, and each at load time.
fn check_all_pairs() -> Result<(), Broken> {
    for is_newer in [false, true] {
        for key in Profile::PYTORCH_2_15.dialect.keys() {
            let strings = VALUES.iter().chain(&LISTS).map(|value| format!("{key}:{value}"));
            let strings: Vec<(String, bool)> = strings.flat_map(|text| [(text.clone(), false), (text, true)]).collect();
            for begins in [false, true] {
                let strings: Vec<_> = strings.iter().filter(|(_, at_load)| *at_load == begins).cloned().collect();
                one(is_newer, &strings)?;
            }
        }
    }
    Ok(())
}

/// Every key, and every value of every key, with one letter in the other case.
fn check_other_cases() -> Result<(), Broken> {
    for is_newer in [false, true] {
        for key in Profile::PYTORCH_2_15.dialect.keys() {
            let keys = in_other_cases(key).map(|key| format!("{key}:True"));
            let values = VALUES.iter().flat_map(|value| in_other_cases(value)).map(|value| format!("{key}:{value}"));
            for text in keys.chain(values) {
                one(is_newer, &[(text.clone(), false)])?;
                one(is_newer, &[(text, true)])?;
            }
        }
    }
    Ok(())
}

/// Every value that is a word, with something before or behind it, and without its last letter.
fn check_affixes() -> Result<(), Broken> {
    for is_newer in [false, true] {
        for key in Profile::PYTORCH_2_15.dialect.keys() {
            for word in VALUES.iter().filter(|value| value.starts_with(|letter: char| letter.is_alphabetic())) {
                let shorter = &word[..word.len() - 1];
                let spoiled =
                    [format!("{word}2"), format!("{word}x"), format!("x{word}"), format!("{word}{word}"), shorter.to_owned()];
                for value in spoiled {
                    let text = format!("{key}:{value}");
                    one(is_newer, &[(text.clone(), false)])?;
                    one(is_newer, &[(text, true)])?;
                }
            }
        }
    }
    Ok(())
}

/// Hexadecimal numbers with more digits than a double holds: halfway ones go to the even neighbour, unless anything follows.
const LONG_NUMBERS: [(&str, f64); 4] = [
    ("0x1.00000000000008p-1", 0.5),
    ("0x1.000000000000080000000000000001p-1", 0.500_000_000_000_000_1),
    ("0x1.00000000000018p-1", 0.500_000_000_000_000_2),
    ("0x0.8000000000000bffffffffp0", 0.500_000_000_000_000_1),
];

fn check_long_numbers() -> Result<(), Broken> {
    for (text, number) in LONG_NUMBERS {
        let mut settings = Settings::default();
        let answer = settings.apply(&format!("garbage_collection_threshold:{text}"));
        let is_right = answer.is_ok() && settings.garbage_collection_threshold == number;
        ensure(Law::Settings, is_right, || format!("{text} is read as {}", settings.garbage_collection_threshold))?;
    }
    Ok(())
}

/// Each release knows its keys, each once.
fn check_keys() -> Result<(), Broken> {
    for (profile, is_newer) in [(&Profile::PYTORCH_2_11, false), (&Profile::PYTORCH_2_15, true)] {
        let mut seen: Vec<&str> = profile.dialect.keys().collect();
        seen.sort_unstable();
        let expected = Reader::keys(is_newer);
        ensure(Law::Settings, seen == expected, || format!("{} has the keys {seen:?}, expected {expected:?}", profile.name))?;
    }
    Ok(())
}

pub(crate) fn check(draws: &Draws) -> Outcome {
    check_keys()?;
    check_all_pairs()?;
    check_other_cases()?;
    check_affixes()?;
    check_long_numbers()?;
    let strategy = (any::<bool>(), prop::collection::vec((text(), prop::bool::weighted(0.3)), STRINGS_PER_CASE));
    run(draws, 36, &prop::collection::vec(number(), STRINGS_PER_CASE), |numbers| {
        numbers.iter().try_for_each(|text| one_number(text))?;
        Ok(numbers.len() as u64)
    })?;
    run(draws, 33, &strategy, |(is_newer, strings)| one(*is_newer, strings))
}

/// Reads a number by itself.
fn one_number(text: &str) -> Result<(), Broken> {
    let (seen, expected) = (read_double(text), double(text).ok());
    let same = seen.map(f64::to_bits) == expected.map(f64::to_bits)
        || (seen.is_some_and(f64::is_nan) && expected.is_some_and(f64::is_nan));
    ensure(Law::Settings, same, || format!("{text:?} is read as {seen:?}, expected {expected:?}"))
}

/// Applies the strings one after the other; some begin a new process instead.
fn one(is_newer: bool, strings: &[(String, bool)]) -> Result<u64, Broken> {
    let dialect = if is_newer { &Profile::PYTORCH_2_15.dialect } else { &Profile::PYTORCH_2_11.dialect };
    let (mut seen, mut expected) = (Settings::default(), defaults());
    for (text, begins) in strings {
        let reader = Reader::new(text, is_newer);
        let (answer, wanted) = if *begins {
            let (answer, wanted) = (Settings::from_environment_as(dialect, text), at_load(&reader, text));
            seen = answer.clone().unwrap_or_default();
            expected = wanted.clone().unwrap_or_else(|_| defaults());
            (answer.map(drop), wanted.map(drop))
        } else {
            expected.text.clone_from(text);
            let wanted = reader.read_common(&mut expected).and_then(|()| reader.read_own(&mut expected));
            (seen.apply_as(dialect, text), wanted)
        };
        compare((answer, &seen), (wanted, &expected)).map_err(|broken| broken.during(format!("{text:?}")))?;
    }
    Ok(strings.len() as u64)
}

/// A string in the environment: the backend first, then CUDA's keys, then the others (spec 8.4).
fn at_load(reader: &Reader, text: &str) -> Result<Settings, Refusal> {
    let mut settings = Settings { backend: reader.backend()?, ..defaults() };
    reader.read_own(&mut settings)?;
    settings.text = text.to_owned();
    reader.read_common(&mut settings)?;
    Ok(settings)
}

type Side<'a, E> = (Result<(), E>, &'a Settings);

fn compare((answer, seen): Side<'_, SettingsError>, (wanted, expected): Side<'_, Refusal>) -> Result<(), Broken> {
    let refusal = answer.as_ref().err().map(|error| (error.kind(), error.to_string()));
    ensure(Law::Settings, refusal == wanted.clone().err(), || format!("the answer is {answer:?}, expected {wanted:?}"))?;
    let is_std = answer.as_ref().is_err_and(SettingsError::is_std_exception);
    let is_plain = wanted.err().is_some_and(|(_, text)| text.starts_with("sto"));
    ensure(Law::Settings, is_std == is_plain, || format!("{answer:?} is an exception of another kind"))?;
    ensure(Law::Settings, seen == expected, || format!("the settings are {seen:?}, expected {expected:?}"))
}
