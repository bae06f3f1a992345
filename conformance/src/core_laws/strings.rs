//! Settings strings: drawn from the words that matter, from the grammar of numbers and lists, and then spoiled in one place.

use parkade::profile::Profile;
use proptest::prelude::*;

/// Values at the borders of the rules.
pub(crate) const VALUES: [&str; 64] = [
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

/// Keys that no release knows, and words in places where keys stand.
const ODD_KEYS: [&str; 6] = ["unknown", "Expandable_segments", ",", "]", "max_split_size", "[large_segment_size_mb:74]"];

/// Lists of roundup divisions and of classes.
pub(crate) const LISTS: [&str; 30] = [
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

/// A number in any notation, mostly whole, with anything behind it.
pub(crate) fn number() -> impl Strategy<Value = String> {
    let sign = prop::sample::select(vec!["", "", "", "", "+", "-", "--"]);
    let digits = || prop_oneof![4 => "[0-9]{1,3}", 1 => "0{0,3}[0-9]{1,22}", 1 => Just(String::new())];
    let power = prop_oneof![3 => Just(String::new()), 2 => "[eE][+-]?[0-9]{1,2}", 1 => "[eE][+-]?"];
    let fraction = prop_oneof![3 => Just(String::new()), 2 => r"\.[0-9]{0,4}"];
    let decimal = (digits(), fraction, power).prop_map(|(whole, fraction, power)| whole + &fraction + &power);
    // Short enough to be exact.
    let hexadecimal = r"0[xX][0-9a-fA-F]{0,4}(\.[0-9a-fA-F]{0,3})?([pP][+-]?[0-9]{0,2})?";
    let word = prop::sample::select(vec!["inf", "INFINITY", "Inf", "nan", "NaN(1)", "infx", "na", "i"]).prop_map(str::to_owned);
    let magnitude = prop_oneof![6 => decimal, 3 => hexadecimal, 1 => word];
    let behind = prop::sample::select(vec!["", "", "", "", "x", "G", ".", "e", "-1", " 5"]);
    (sign, magnitude, behind).prop_map(|(sign, magnitude, behind)| format!("{sign}{magnitude}{behind}"))
}

/// A list of divisions or classes by its grammar, and sometimes not quite.
fn list() -> impl Strategy<Value = String> {
    let interval = prop_oneof![
        6 => (0..18_u32).prop_map(|bits| (1_u64 << bits).to_string()),
        3 => Just(">".to_owned()),
        1 => number(),
    ];
    let divisions =
        prop_oneof![6 => (0..8_u32).prop_map(|bits| (1_u64 << bits).to_string()), 1 => Just("0".to_owned()), 1 => number()];
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

/// One key with a value, mostly in order.
fn pair() -> impl Strategy<Value = String> {
    let keys: Vec<&'static str> = Profile::PYTORCH_2_15.dialect.keys().collect();
    let key = prop_oneof![20 => prop::sample::select(keys), 1 => prop::sample::select(ODD_KEYS.to_vec())];
    let value = prop_oneof![
        5 => prop::sample::select(VALUES.to_vec()).prop_map(str::to_owned),
        3 => number(),
        1 => prop::sample::select(LISTS.to_vec()).prop_map(str::to_owned),
    ];
    let list = prop_oneof![prop::sample::select(LISTS.to_vec()).prop_map(str::to_owned), list()];
    let roundup = list.prop_map(|list| format!("roundup_power2_divisions:{list}"));
    let joint = prop::sample::select(vec![":", ":", ":", ":", ":", ":", ",", " : ", ""]);
    prop_oneof![
        8 => (key, joint, value).prop_map(|(key, joint, value)| format!("{key}{joint}{value}")),
        2 => roundup,
        1 => prop::sample::select(VALUES.to_vec()).prop_map(|value| format!("large_segment_size_mb:{value}")),
    ]
}

/// What may be put into a string where it does not belong: white space of C's and of others', and letters.
const STRANGE: [char; 22] = [
    ' ', '\t', '\n', '\u{b}', '\u{c}', '\r', '\u{a0}', '\u{85}', '\u{2003}', '\u{3000}', '\u{feff}', '\0', 'x', '_', '.', '-',
    '\u{e9}', ',', ':', '[', ']', '>',
];

/// One letter less, one more, twice, or in the other case.
#[derive(Clone, Copy, Debug)]
enum Spoil {
    Drop,
    Insert(char),
    Double,
    Flip,
}

fn spoiled(text: &str, place: usize, spoil: Spoil) -> String {
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

/// The text with one letter in the other case, for each of its letters.
pub(crate) fn in_other_cases(text: &str) -> impl Iterator<Item = String> {
    let places = text.char_indices().filter(|(_, letter)| letter.is_ascii_alphabetic());
    places.map(|(place, letter)| format!("{}{}{}", &text[..place], flipped(letter), &text[place + 1..]))
}

/// A settings string. One in four is spoiled in one place.
pub(crate) fn text() -> impl Strategy<Value = String> {
    let spoil = prop_oneof![
        prop::sample::select(STRANGE.to_vec()).prop_map(Spoil::Insert),
        Just(Spoil::Drop),
        Just(Spoil::Double),
        Just(Spoil::Flip),
    ];
    (plain_text(), prop::option::weighted(0.25, (any::<usize>(), spoil))).prop_map(|(text, spoil)| match spoil {
        Some((place, spoil)) => spoiled(&text, place, spoil),
        None => text,
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
