//! The settings law: every string sets what the specification says, and fails as it says, in the dialects of both releases, at
//! load time and at run time.
//!
//! Strings are drawn from the words that matter: all keys, values at every border, and separators in and out of place.

use parkade::profile::Profile;
use parkade::settings::{Settings, SettingsError};
use proptest::prelude::*;

use super::campaign::Stopped;
use super::cases;
use crate::backend::Backend;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::settings::{Reader, Refusal, defaults};
use crate::suite::{Effort, Entry, Group, Trouble, Verdict};

/// Strings for each program: reading one costs almost nothing.
const STRINGS_PER_CASE: usize = 24;

/// Values at the borders of the rules.
const VALUES: [&str; 58] = [
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
];

/// Keys that no release knows, and words in places where keys stand.
const ODD_KEYS: [&str; 6] = ["unknown", "Expandable_segments", ",", "]", "max_split_size", "[large_segment_size_mb:74]"];

/// Lists of roundup divisions and of classes.
const LISTS: [&str; 24] = [
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
];

/// The entry of this law.
pub(super) fn entries<B: Backend + 'static>() -> Vec<Entry<B>> {
    let says = "every settings string sets what the specification says, and fails with its error";
    vec![Entry::new(Group::Law, "settings", says, check)]
}

/// One key with a value, mostly in order.
fn pair() -> impl Strategy<Value = String> {
    let keys: Vec<&'static str> = Profile::PYTORCH_2_15.dialect.keys().collect();
    let key = prop_oneof![20 => prop::sample::select(keys), 1 => prop::sample::select(ODD_KEYS.to_vec())];
    let value = prop_oneof![6 => prop::sample::select(VALUES.to_vec()), 1 => prop::sample::select(LISTS.to_vec())];
    let roundup = prop::sample::select(LISTS.to_vec()).prop_map(|list| format!("roundup_power2_divisions:{list}"));
    let joint = prop::sample::select(vec![":", ":", ":", ":", ":", ":", ",", " : ", ""]);
    prop_oneof![
        8 => (key, joint, value).prop_map(|(key, joint, value)| format!("{key}{joint}{value}")),
        2 => roundup,
        1 => prop::sample::select(VALUES.to_vec()).prop_map(|value| format!("large_segment_size_mb:{value}")),
    ]
}

fn text() -> impl Strategy<Value = String> {
    let separator = prop::sample::select(vec![",", ",", ",", ",", " ,\t", ":", ",,", "]"]);
    prop::collection::vec((pair(), separator), 0..4).prop_map(|pairs| {
        let last = pairs.len().saturating_sub(1);
        let piece = |(place, (pair, separator)): (usize, (String, &str))| {
            if place < last || separator != "," { pair + separator } else { pair }
        };
        pairs.into_iter().enumerate().map(piece).collect()
    })
}

/// Every key with every value and every list: one after the other at run time, and each at load time.
fn check_all_pairs() -> Result<(), Trouble> {
    for is_newer in [false, true] {
        for key in Profile::PYTORCH_2_15.dialect.keys() {
            let strings = VALUES.iter().chain(&LISTS).map(|value| format!("{key}:{value}"));
            let strings: Vec<(String, bool)> = strings.flat_map(|text| [(text.clone(), false), (text, true)]).collect();
            for begins in [false, true] {
                let strings: Vec<_> = strings.iter().filter(|(_, at_load)| *at_load == begins).cloned().collect();
                one(is_newer, &strings).map_err(|stopped| match stopped {
                    Stopped::Unable(unable) => unable.into(),
                    Stopped::Broken(broken, script) => Trouble::Fail { reason: broken.to_string(), script: Some(script) },
                })?;
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

fn check<B: Backend>(_: &B, effort: &Effort) -> Verdict {
    check_all_pairs()?;
    check_long_numbers()?;
    let strategy = (any::<bool>(), prop::collection::vec((text(), prop::bool::weighted(0.3)), STRINGS_PER_CASE));
    cases::run(effort, 33, &strategy, |(is_newer, strings)| one(*is_newer, strings))
}

/// Applies the strings one after the other; some begin a new process instead.
fn one(is_newer: bool, strings: &[(String, bool)]) -> Result<u64, Stopped> {
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
        compare((answer, &seen), (wanted, &expected)).map_err(|broken| {
            Stopped::Broken(broken.during(format!("{text:?}")), format!("# newer: {is_newer}, {strings:?}\n"))
        })?;
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
