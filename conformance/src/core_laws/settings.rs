//! The settings law: every string has the effect or the error that the specification states, in the dialects of all
//! releases, at load time and at run time.
//!
//! Strings are drawn from the significant words: all keys, values at every limit, and separators in correct and
//! incorrect positions. Numbers and lists are generated from their grammar, and some strings are then corrupted in one
//! position.

use std::rc::Rc;

use parkade::profile::Profile;
use parkade::settings::{Settings, SettingsError, read_double};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::drawn::one_of;
use crate::drawn::{Draws, Outcome, run_law};
use crate::law::{Broken, Law, ensure};
use crate::program::step::profiles;
use crate::reference_model::settings::{Refusal, at_load, at_run_time, defaults, double, keys_of};

/// The number of strings for each program; reading one costs almost nothing.
const STRINGS_PER_CASE: usize = 24;

/// Returns the oldest and the newest release with each of the two kinds of parsers.
fn extremes() -> impl Iterator<Item = &'static Profile> {
    profiles().filter(|profile| matches!(profile.name, "2.1" | "2.9" | "2.10" | "2.15"))
}

/// Every key with every value and every list: one after another at run time, and each one at load time.
fn check_all_pairs() -> Result<(), Broken> {
    for profile in profiles() {
        for key in Profile::PYTORCH_2_15.dialect.keys() {
            let strings = VALUES.iter().chain(&LISTS).map(|value| format!("{key}:{value}"));
            let strings: Vec<(String, bool)> = strings.flat_map(|text| [(text.clone(), false), (text, true)]).collect();
            for begins in [false, true] {
                let strings: Vec<_> = strings.iter().filter(|(_, at_load)| *at_load == begins).cloned().collect();
                check_settings(profile, &strings)?;
            }
        }
    }
    Ok(())
}

/// Tries every key, and every value of every key, with the case of one letter changed.
fn check_other_cases() -> Result<(), Broken> {
    for profile in extremes() {
        for key in Profile::PYTORCH_2_15.dialect.keys() {
            let keys = in_other_cases(key).map(|key| format!("{key}:True"));
            let values = VALUES.iter().flat_map(|value| in_other_cases(value)).map(|value| format!("{key}:{value}"));
            for text in keys.chain(values) {
                check_settings(profile, &[(text.clone(), false)])?;
                check_settings(profile, &[(text, true)])?;
            }
        }
    }
    Ok(())
}

/// Tries every value that is a word, with a prefix, with a suffix, and without its last letter.
fn check_affixes() -> Result<(), Broken> {
    for profile in extremes() {
        for key in Profile::PYTORCH_2_15.dialect.keys() {
            for word in VALUES.iter().filter(|value| value.starts_with(|letter: char| letter.is_alphabetic())) {
                let shorter = &word[..word.len() - 1];
                let spoiled =
                    [format!("{word}2"), format!("{word}x"), format!("x{word}"), format!("{word}{word}"), shorter.to_owned()];
                for value in spoiled {
                    let text = format!("{key}:{value}");
                    check_settings(profile, &[(text.clone(), false)])?;
                    check_settings(profile, &[(text, true)])?;
                }
            }
        }
    }
    Ok(())
}

/// A key, and the values that a parser accepts for it.
type Fitting = (&'static str, Vec<&'static str>);

/// Returns every key with the values that fit it, in the dialect of the last release with one parser or of the newest one.
fn fitting() -> Vec<Fitting> {
    let keys = Profile::PYTORCH_2_15.dialect.keys().map(|key| {
        let fits = |value: &&&str| [9, 15].into_iter().any(|minor| at_load(minor, &format!("{key}:{value}")).is_ok());
        (key, VALUES.iter().chain(&LISTS).filter(fits).copied().collect())
    });
    keys.collect()
}

/// Tries every key twice with different values, side by side and with a different key between them, which may be wrong.
fn check_repeated(fitting: &[Fitting]) -> Result<(), Broken> {
    let between = ["", "max_split_size_mb:1,", "expandable_segments:True,", "unknown:1,", "backend:native,"];
    for profile in extremes() {
        for (key, values) in fitting {
            // The values are sorted by their kind, so a few of them from everywhere are of several kinds.
            let values: Vec<&str> = values.iter().step_by(values.len().div_ceil(3)).copied().collect();
            for (first, second) in values.iter().flat_map(|first| values.iter().map(move |second| (first, second))) {
                for text in between.map(|between| format!("{key}:{first},{between}{key}:{second}")) {
                    check_settings(profile, &[(text.clone(), false)])?;
                    check_settings(profile, &[(text, true)])?;
                }
            }
        }
    }
    Ok(())
}

/// Tries every key that takes a number with everything that may stand before the digits, twice.
fn check_before_digits(fitting: &[Fitting]) -> Result<(), Broken> {
    let before = ["", "+", "-", " ", "\t", "0", ".", "0x"];
    for profile in extremes() {
        for (key, values) in fitting {
            for number in ["64", "0.5"].into_iter().filter(|number| values.contains(number)) {
                for (first, second) in before.iter().flat_map(|first| before.map(|second| (first, second))) {
                    let text = format!("{key}:{first}{second}{number}");
                    check_settings(profile, &[(text.clone(), false)])?;
                    check_settings(profile, &[(text, true)])?;
                }
            }
        }
    }
    Ok(())
}

/// Tries hexadecimal numbers with more digits than a double holds: halfway values round to even unless more digits
/// follow.
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
        ensure(Law::Settings, is_right, || format!("the number {text} is read as {}", settings.garbage_collection_threshold))?;
    }
    Ok(())
}

/// Checks that each release knows its keys, each exactly once.
fn check_keys() -> Result<(), Broken> {
    for profile in profiles() {
        let mut seen: Vec<&str> = profile.dialect.keys().collect();
        seen.sort_unstable();
        let expected = keys_of(minor(profile));
        ensure(Law::Settings, seen == expected, || format!("{} has the keys {seen:?}, expected {expected:?}", profile.name))?;
    }
    Ok(())
}

pub(crate) fn check(draws: &Draws) -> Outcome {
    check_keys()?;
    check_all_pairs()?;
    check_other_cases()?;
    check_affixes()?;
    let fitting = fitting();
    check_repeated(&fitting)?;
    check_before_digits(&fitting)?;
    check_long_numbers()?;
    let release = prop::sample::select(profiles().collect::<Vec<_>>());
    let strategy = (release, prop::collection::vec((text(fitting), prop::bool::weighted(0.4)), STRINGS_PER_CASE));
    run_law(draws, 36, prop::collection::vec(number(), STRINGS_PER_CASE), |numbers| {
        numbers.iter().try_for_each(|text| one_number(text))?;
        Ok(numbers.len() as u64)
    })?;
    run_law(draws, 33, strategy, |(profile, strings)| check_settings(profile, strings))
}

/// Reads a number on its own.
fn one_number(text: &str) -> Result<(), Broken> {
    let (seen, expected) = (read_double(text), double(text).ok());
    let same = seen.map(f64::to_bits) == expected.map(f64::to_bits)
        || (seen.is_some_and(f64::is_nan) && expected.is_some_and(f64::is_nan));
    ensure(Law::Settings, same, || format!("{text:?} is read as {seen:?}, expected {expected:?}"))
}

/// Applies strings one after another, as the release does; those with the mark begin a new process instead. Returns the
/// number of strings.
///
/// # Errors
/// The first effect or error that differs from the specification.
pub fn check_settings(profile: &Profile, strings: &[(String, bool)]) -> Result<u64, Broken> {
    let (dialect, minor) = (&profile.dialect, minor(profile));
    let (mut seen, mut expected) = (Settings::default(), defaults());
    for (text, begins) in strings {
        let (answer, wanted) = if *begins {
            let (answer, wanted) = (Settings::from_environment_as(dialect, text), at_load(minor, text));
            seen = answer.clone().unwrap_or_default();
            expected = wanted.clone().unwrap_or_else(|_| defaults());
            (answer.map(drop), wanted.map(drop))
        } else {
            expected.text.clone_from(text);
            (seen.apply_as(dialect, text), at_run_time(minor, text, &mut expected))
        };
        let found = compare((answer, &seen), (wanted, &expected));
        found.map_err(|broken| broken.during(format!("{text:?}, read by {}", profile.name)))?;
    }
    Ok(strings.len() as u64)
}

/// Returns the number of a 2.x release.
fn minor(profile: &Profile) -> u32 {
    profile.name.strip_prefix("2.").and_then(|minor| minor.parse().ok()).expect("the name of a release")
}

type Side<'a, E> = (Result<(), E>, &'a Settings);

fn compare((answer, seen): Side<'_, SettingsError>, (wanted, expected): Side<'_, Refusal>) -> Result<(), Broken> {
    let refusal = answer.as_ref().err().map(|error| (error.kind(), error.to_string()));
    ensure(Law::Settings, refusal == wanted.clone().err(), || format!("the answer is {answer:?}, expected {wanted:?}"))?;
    let is_std = answer.as_ref().is_err_and(SettingsError::is_std_exception);
    let is_plain = wanted.err().is_some_and(|(_, text)| text.starts_with("sto"));
    ensure(Law::Settings, is_std == is_plain, || format!("{answer:?} is a different kind of exception"))?;
    ensure(Law::Settings, seen == expected, || format!("the settings are {seen:?}, expected {expected:?}"))
}

/// Values at the limits of the rules.
const VALUES: [&str; 64] = [
    "True",
    "False",
    "true",
    "0",
    "1",
    "2",
    "3",
    "4",
    "8",
    "10",
    "11",
    "12",
    "16",
    "19",
    "20",
    "21",
    "30xyz",
    "32",
    "64",
    "100",
    "127",
    "128",
    "129",
    "256",
    "-1",
    "-5",
    "+7",
    "+20",
    "17592186044415",
    "17592186044416",
    "18446744073709551615",
    "18446744073709551616",
    "0.0",
    "0.5",
    "0.999999",
    "1.0",
    "1.0000001",
    "-0.0",
    "-0.1",
    "1e-3",
    "5e-1x",
    "1e999",
    "1e-400",
    ".25",
    "5.",
    "0x.8",
    "0x1p-2",
    "0x",
    "inf",
    "nan",
    "-inf",
    "x",
    "native",
    "cudaMallocAsync",
    "0.25",
    "2G",
    "0G",
    "1.5G",
    "Native",
    "5E-1",
    "0X1P-1",
    "0x1p-1x",
    "INF",
    "NaN",
];

/// Keys that no release knows, and words in positions where keys belong.
const ODD_KEYS: [&str; 6] = ["unknown", "Expandable_segments", ",", "]", "max_split_size", "[large_segment_size_mb:74]"];

/// Lists of roundup divisions and lists of classes.
const LISTS: [&str; 30] = [
    "[1:4,2:1,>:2]",
    "[64:8,256:4,1024:4,>:1]",
    "[256:1,512:2,1024:4,>:8]",
    "[>:4]",
    "[8192:2,16384:4,32768:8]",
    "[16384:4]",
    "[32768:4]",
    "[65536:4,1:2]",
    "[16384:2,>:8]",
    "[2:0,4:1]",
    "[]",
    "[1:4",
    "[1:4,",
    "[1",
    "[1:",
    "[3:4]",
    "[4:3]",
    "[x:4]",
    "[4:x]",
    "[0:4]",
    "[1:4,>:3]",
    "[a:0.5,b:2G]",
    "[a:0.5",
    "[1;4;2;8]",
    "[>:8,4:2]",
    "[>:8,4:2,16:4]",
    "[>:8,>:2,4:1]",
    "[4:2,>:8,16:4,>:1]",
    "[1:4,1:2]",
    "[16384:2,1:8]",
];

/// Returns a number in any notation, usually an integer, with an arbitrary suffix.
fn number() -> impl Strategy<Value = String> {
    let sign = prop::sample::select(vec!["", "", "", "", "", "+", "-", "--", "++", "+-", "-+"]);
    let digits = || one_of![4 => "[0-9]{1,3}", 1 => "0{0,3}[0-9]{1,22}", 1 => Just(String::new())];
    let power = one_of![3 => Just(String::new()), 2 => "[eE][+-]?[0-9]{1,2}", 1 => "[eE][+-]?"];
    let fraction = one_of![3 => Just(String::new()), 2 => r"\.[0-9]{0,4}"];
    let decimal = (digits(), fraction, power).prop_map(|(whole, fraction, power)| whole + &fraction + &power);
    // The number is short enough to be exact.
    let hexadecimal = r"0[xX][0-9a-fA-F]{0,4}(\.[0-9a-fA-F]{0,3})?([pP][+-]?[0-9]{0,2})?";
    let word = prop::sample::select(vec!["inf", "INFINITY", "Inf", "nan", "NaN(1)", "infx", "na", "i"]).prop_map(str::to_owned);
    let magnitude = one_of![6 => decimal, 3 => hexadecimal, 1 => word];
    let behind = prop::sample::select(vec!["", "", "", "", "x", "G", ".", "e", "-1", " 5"]);
    (sign, magnitude, behind).prop_map(|(sign, magnitude, behind)| format!("{sign}{magnitude}{behind}"))
}

/// Returns a list of divisions or classes that follows the grammar, sometimes with a small error.
fn list() -> impl Strategy<Value = String> {
    let interval = one_of![
        6 => (0..18_u32).prop_map(|bits| (1_u64 << bits).to_string()),
        3 => Just(">".to_owned()),
        1 => number(),
    ];
    let divisions =
        one_of![6 => (0..8_u32).prop_map(|bits| (1_u64 << bits).to_string()), 1 => Just("0".to_owned()), 1 => number()];
    let colon = prop::sample::select(vec![":", ":", ":", ":", ":", ":", ":", ":", ",", ""]);
    let comma = prop::sample::select(vec![",", ",", ",", ",", ",", ",", ",", ",", ":", ";"]);
    let pair = (interval, colon, divisions, comma);
    (prop::collection::vec(pair, 0..6), prop::bool::weighted(0.95)).prop_map(|(pairs, is_closed)| {
        let mut text = String::from("[");
        for (place, (interval, colon, divisions, comma)) in pairs.iter().enumerate() {
            let comma = if place == 0 { "" } else { comma };
            text.extend([comma, interval, colon, divisions]);
        }
        text + if is_closed { "]" } else { "" }
    })
}

/// Returns one key with a value, usually in the right order.
fn pair() -> impl Strategy<Value = String> {
    let keys: Vec<&'static str> = Profile::PYTORCH_2_15.dialect.keys().collect();
    let key = one_of![20 => prop::sample::select(keys), 1 => prop::sample::select(ODD_KEYS.to_vec())];
    let value = one_of![
        5 => prop::sample::select(VALUES.to_vec()).prop_map(str::to_owned),
        3 => number(),
        1 => prop::sample::select(LISTS.to_vec()).prop_map(str::to_owned),
    ];
    let list = one_of![prop::sample::select(LISTS.to_vec()).prop_map(str::to_owned), list()];
    let roundup = list.prop_map(|list| format!("roundup_power2_divisions:{list}"));
    let joint = prop::sample::select(vec![":", ":", ":", ":", ":", ":", ",", " : ", ""]);
    one_of![
        8 => (key, joint, value).prop_map(|(key, joint, value)| format!("{key}{joint}{value}")),
        2 => roundup,
        1 => prop::sample::select(VALUES.to_vec()).prop_map(|value| format!("large_segment_size_mb:{value}")),
    ]
}

/// Characters to insert where they do not belong: characters that are white space in C or elsewhere, and letters.
const STRANGE: [char; 22] = [
    ' ', '\t', '\n', '\u{b}', '\u{c}', '\r', '\u{a0}', '\u{85}', '\u{2003}', '\u{3000}', '\u{feff}', '\0', 'x', '_', '.', '-',
    '\u{e9}', ',', ':', '[', ']', '>',
];

/// Removes, adds or doubles one letter, or changes its case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spoil {
    Drop,
    Insert(char),
    Double,
    Flip,
}

/// Returns any of these changes.
pub(crate) fn spoil() -> impl Strategy<Value = Spoil> {
    let strange = prop::sample::select(STRANGE.to_vec()).prop_map(Spoil::Insert);
    one_of![strange, Just(Spoil::Drop), Just(Spoil::Double), Just(Spoil::Flip)]
}

/// Returns the text with a change at one place.
pub(crate) fn spoiled(text: &str, place: usize, spoil: Spoil) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    let place = place % (letters.len() + 1);
    match (spoil, letters.get(place).copied()) {
        (Spoil::Insert(letter), _) => letters.insert(place, letter),
        (_, None) => {}
        (Spoil::Drop, _) => drop(letters.remove(place)),
        (Spoil::Double, Some(letter)) => letters.insert(place, letter),
        (Spoil::Flip, Some(letter)) => letters[place] = flipped(letter),
    }
    letters.into_iter().collect()
}

fn flipped(letter: char) -> char {
    if letter.is_ascii_lowercase() { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() }
}

/// Returns variants of the text, each with the case of one letter changed.
fn in_other_cases(text: &str) -> impl Iterator<Item = String> {
    let places = text.char_indices().filter(|(_, letter)| letter.is_ascii_alphabetic());
    places.map(|(place, letter)| format!("{}{}{}", &text[..place], flipped(letter), &text[place + 1..]))
}

/// Returns a settings string. One in four is corrupted in one position.
fn text(fitting: Vec<Fitting>) -> impl Strategy<Value = String> {
    let plain = one_of![3 => plain_text(), 2 => of_few_keys(fitting)];
    (plain, prop::option::weighted(0.25, (any::<usize>(), spoil()))).prop_map(|(text, spoil)| match spoil {
        Some((place, spoil)) => spoiled(&text, place, spoil),
        None => text,
    })
}

/// Returns a string with up to six values, most of which fit, for one or two keys.
fn of_few_keys(fitting: Vec<Fitting>) -> impl Strategy<Value = String> {
    let fitting = Rc::new(fitting);
    let parts = prop::collection::vec((any::<bool>(), any::<Index>(), prop::bool::weighted(0.8)), 2..7);
    let separator = prop::sample::select(vec![",", ",", ",", ",", " , ", ",,"]);
    (any::<[Index; 2]>(), parts, separator).prop_map(move |(keys, parts, separator)| {
        let pairs = parts.iter().map(|(is_second, value, fits)| {
            let (key, values) = &fitting[keys[usize::from(*is_second)].index(fitting.len())];
            format!("{key}:{}", if *fits { values[value.index(values.len())] } else { VALUES[value.index(VALUES.len())] })
        });
        pairs.collect::<Vec<_>>().join(separator)
    })
}

fn plain_text() -> impl Strategy<Value = String> {
    let separator = prop::sample::select(vec![",", ",", ",", ",", " ,\t", ":", ",,", "]"]);
    prop::collection::vec((pair(), separator), 0..4).prop_map(|pairs| {
        let last = pairs.len().saturating_sub(1);
        let piece = |(place, (pair, separator)): (usize, (String, &str))| {
            if place < last || separator != "," { pair + separator } else { pair }
        };
        pairs.into_iter().enumerate().map(piece).collect()
    })
}
