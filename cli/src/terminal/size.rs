//! Parses and prints sizes as people write them: `16GiB`, `6G`, `7.2 GiB`, `512M`, or exact bytes.

use parkade::texts::format_bytes;

use crate::terminal::output;

/// Units in bytes; upper and lower case are equal. A single letter is binary, as in `du` and `dd`; `GB` is the decimal SI unit.
const UNITS: [(&str, u64); 18] = [
    ("", 1),
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// A smaller number without a unit cannot be a GPU's memory in bytes: the unit is missing.
const LEAST_BARE_BYTES: u64 = 1 << 20;
/// A number without a unit up to this is assumed to mean GiB, and a larger one MiB: no GPU has this many GiB ...
const MOST_GIB: u64 = 512;
/// ... or this many MiB.
const MOST_MIB: u64 = MOST_GIB << 10;
/// The minimum that the allocator takes from a device: a segment for small blocks, or a page (spec 1.3, 4.1).
const LEAST_BYTES: u64 = 2 << 20;

/// Parses an amount of memory, such as a limit or a capacity, and rounds it down to whole bytes.
///
/// # Errors
/// A line that states what is wrong and what to write. Less than 2 MiB is refused, because nothing could be allocated.
pub fn parse(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    let written = text.trim();
    if bytes >= LEAST_BYTES {
        return Ok(bytes);
    }
    if bytes == 0 && is_zero(written) {
        return Err(format!("{written} leaves no memory to allocate: for no limit, leave the option out"));
    }
    let meant = meant(written).map_or_else(String::new, |meant| format!(": did you mean {meant}?"));
    let least = show_bytes(LEAST_BYTES);
    // An amount that is only a few bytes short would look the same.
    let is = match show_bytes(bytes) {
        shown if shown == least => format!("{bytes} bytes, {} short of 2 MiB", LEAST_BYTES - bytes),
        shown => shown,
    };
    Err(format!("{written} is {is}, and PyTorch reserves at least {} MiB at a time{meant}", LEAST_BYTES >> 20))
}

/// Parses an amount of memory that may be 0, such as the amount that other processes use.
///
/// # Errors
/// A line that states what is wrong and what to write. A number below 1 MiB without a unit is refused, except for 0,
/// which is the same in every unit.
pub fn parse_or_none(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    let bare = text.trim();
    let has_unit = bare.contains(|c: char| !c.is_ascii_digit() && c != '.');
    if has_unit || is_zero(bare) || bytes >= LEAST_BARE_BYTES {
        return Ok(bytes);
    }
    let meant = meant(bare).map_or_else(String::new, |meant| format!(": did you mean {meant}?"));
    // A fraction of a byte counts as nothing.
    let in_bytes = if bare.contains('.') { String::new() } else { format!(" (for bytes, write {bare}B)") };
    Err(format!("{bare} is {}{meant}{in_bytes}", show_bytes(bytes)))
}

/// Returns whether a size is 0 in every unit.
fn is_zero(size: &str) -> bool {
    let (number, _) = number_and_unit(size);
    number.chars().all(|c| matches!(c, '0' | '.'))
}

/// Returns the probable meaning of a size that is too small: the same number with the unit that makes it a plausible GPU memory.
fn meant(size: &str) -> Option<String> {
    let (number, unit) = number_and_unit(size);
    let is_kilo = unit.starts_with(['k', 'K']);
    let of_unit =
        |unit: &str| Some(format!("{number}{unit}")).filter(|text| parse_bytes(text).is_ok_and(|bytes| bytes >= LEAST_BYTES));
    let is_gib = !is_kilo && parse_bytes(&format!("{number}B")).is_ok_and(|number| number <= MOST_GIB);
    let is_possible = parse_bytes(&format!("{number}B")).is_ok_and(|number| number <= MOST_MIB);
    let in_order = if is_gib { ["GiB", "TiB"] } else { ["MiB", "GiB"] };
    in_order.into_iter().filter(|_| is_possible).find_map(of_unit)
}

/// Splits a size into its two parts.
fn number_and_unit(size: &str) -> (&str, &str) {
    let (number, unit) = size.split_at(size.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(size.len()));
    (number, unit.trim())
}

/// Parses a size that may be a few bytes, such as that of a file, and rounds it down to whole bytes.
///
/// # Errors
/// A line that states what is wrong and what to write.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let (number, unit) = number_and_unit(trimmed);
    let refused = |why: &str| format!("{text:?} is not a size: {why}; write a number with a unit (16GiB, 7.2GiB, 512M) or bytes");
    let Some(&(_, factor)) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) else {
        return Err(refused(&why_not_a_unit(number, unit)));
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(refused(if trimmed.is_empty() { "it is empty" } else { "it has no number" }));
    }
    let too_large = || format!("{text:?} is more than 64 bits can hold");
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_large())? };
    let fraction = fraction_of(fraction, factor).ok_or_else(|| refused("it has two decimal points"))?;
    u64::try_from(u128::from(whole) * u128::from(factor) + fraction).map_err(|_| too_large())
}

/// Explains why the text after the number is not a unit.
fn why_not_a_unit(number: &str, unit: &str) -> String {
    let is_comma = unit.strip_prefix(',').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    match number {
        "" if unit.starts_with('-') => "it is negative".to_owned(),
        "" => "it does not begin with a number".to_owned(),
        _ if is_comma => "a comma is not accepted: decimals follow a point (1.5GiB)".to_owned(),
        _ => format!("{:?} is not a unit", output::shorten(unit, 40)),
    }
}

/// Returns `factor` times the decimal fraction `0.digits`, rounded down; `None` if these are not digits. In no unit do digits after the
/// eighteenth change a byte.
fn fraction_of(digits: &str, factor: u64) -> Option<u128> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = digits.get(..18).unwrap_or(digits);
    if digits.is_empty() {
        return Some(0);
    }
    let scale = 10_u128.pow(u32::try_from(digits.len()).ok()?);
    Some(u128::from(factor) * digits.parse::<u128>().ok()? / scale)
}

/// Formats a signed size in human-readable form.
pub fn show(bytes: i64) -> String {
    u64::try_from(bytes).map_or_else(|_| format!("{bytes} bytes"), show_bytes)
}

/// Formats a size as PyTorch does, except that 1024 of a unit become one of the next, and one byte is singular.
pub fn show_bytes(bytes: u64) -> String {
    let text = format_bytes(bytes);
    let rounded = match text.as_str() {
        "1 bytes" => "1 byte",
        "1024 bytes" => "1.00 KiB",
        "1024.00 KiB" => "1.00 MiB",
        "1024.00 MiB" => "1.00 GiB",
        _ => return text,
    };
    rounded.to_owned()
}

/// Formats a range of sizes, or one size if both look the same.
#[must_use]
pub fn show_range(least: i64, most: i64) -> String {
    let (least, most) = (show(least), show(most));
    if least == most { least } else { format!("{least} to {most}") }
}

/// Formats the two ends of a range, in smaller units if they differ but would look the same.
#[must_use]
pub fn show_apart(least: u64, most: u64) -> [String; 2] {
    let usual = [least, most].map(show_bytes);
    if least == most || usual[0] != usual[1] {
        return usual;
    }
    let smaller = [(20, "MiB"), (10, "KiB")]
        .map(|(shift, unit)| [least, most].map(|bytes| format!("{:.2} {unit}", bytes as f64 / f64::from(1_u32 << shift))));
    let in_bytes = || [least, most].map(|bytes| format!("{bytes} bytes"));
    smaller.into_iter().find(|[least, most]| least != most).unwrap_or_else(in_bytes)
}

/// Formats a size as an argument: the shortest exact form, in the largest possible unit.
#[must_use]
pub fn exact(bytes: u64) -> String {
    const LARGE: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    const DECIMALS: u32 = 3;
    let written = |(unit, shift): (&str, u32), decimals: u32| {
        let scale = 10_u128.pow(decimals);
        // Rounded up, because parsing cuts off a fraction of a byte.
        let number = (u128::from(bytes) * scale).div_ceil(1 << shift);
        let fraction =
            if decimals == 0 { String::new() } else { format!(".{:0width$}", number % scale, width = decimals as usize) };
        format!("{}{fraction}{unit}", number / scale)
    };
    let ways = LARGE.into_iter().flat_map(|unit| (0..=DECIMALS).map(move |decimals| written(unit, decimals)));
    let exact = ways.filter(|text| parse(text) == Ok(bytes));
    exact.chain([bytes.to_string()]).min_by_key(String::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_whose_ends_look_alike_is_one_size() {
        let gib = |gib: f64| (gib * f64::from(1 << 30)) as i64;
        assert_eq!(show_range(gib(15.341), gib(15.342)), "15.34 GiB");
        assert_eq!(show_range(gib(15.34), gib(15.35)), "15.34 GiB to 15.35 GiB");
    }

    #[test]
    fn sizes_between_which_something_lies_look_different() {
        const GIB: u64 = 1 << 30;
        assert_eq!(show_apart(2 * GIB, 3 * GIB), ["2.00 GiB", "3.00 GiB"]);
        assert_eq!(show_apart(2 * GIB, 2 * GIB + (2 << 20)), ["2048.00 MiB", "2050.00 MiB"]);
        assert_eq!(show_apart(2 * GIB, 2 * GIB + 512), ["2097152.00 KiB", "2097152.50 KiB"]);
        assert_eq!(show_apart(2 * GIB, 2 * GIB + 1), ["2147483648 bytes", "2147483649 bytes"]);
        assert_eq!(show_apart(2 * GIB, 2 * GIB), ["2.00 GiB", "2.00 GiB"]);
    }

    #[test]
    fn a_size_in_a_command_is_what_was_typed_and_exact() {
        for text in ["2.4GiB", "16GiB", "7.25GiB", "37MiB", "12.1GiB", "2576980379"] {
            let bytes = parse(text).expect("a size");
            assert_eq!(exact(bytes), text);
        }
        assert_eq!(exact(parse("1536MiB").expect("a size")), "1.5GiB");
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!(parse("16GiB"), Ok(16 << 30));
        assert_eq!(parse("7.2GiB"), Ok(7_730_941_132));
        assert_eq!(parse("1.15 gib"), Ok(1_234_803_097));
        assert_eq!(parse("12345678"), Ok(12_345_678));
        assert_eq!(parse("2GB"), Ok(2_000_000_000));
        assert_eq!(parse_or_none(".5KiB"), Ok(512));
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn a_letter_alone_is_binary() {
        for text in ["6G", "6g", "6Gi", "6GiB", "6 GiB", " 6 gib ", "6.0G", "6144M", "6442450944", "6442450944B"] {
            assert_eq!(parse(text), Ok(6 << 30), "{text}");
        }
        assert_eq!([parse("6GB"), parse("6gb")], [Ok(6_000_000_000), Ok(6_000_000_000)]);
        assert_eq!([parse("1.5GiB"), parse("512M"), parse("3072k"), parse("2T")], [3 << 29, 512 << 20, 3 << 20, 2 << 40].map(Ok));
    }

    #[test]
    fn less_than_the_allocator_takes_at_once_is_refused_with_the_likely_meaning() {
        for (text, said) in [
            ("16", "16 is 16 bytes, and PyTorch reserves at least 2 MiB at a time: did you mean 16GiB?"),
            ("1", "1 is 1 byte, and PyTorch reserves at least 2 MiB at a time: did you mean 1GiB?"),
            ("7.5", "7.5 is 7 bytes,"),
            ("7.5", "did you mean 7.5GiB?"),
            ("0.5", "did you mean 0.5GiB?"),
            ("16384", "did you mean 16384MiB?"),
            ("524288", "did you mean 524288MiB?"),
            ("1B", "did you mean 1GiB?"),
            ("80 b", "did you mean 80GiB?"),
            ("512K", "512K is 512.00 KiB, and PyTorch reserves at least 2 MiB at a time: did you mean 512MiB?"),
            ("1k", "did you mean 1GiB?"),
            ("1MiB", "did you mean 1GiB?"),
            ("1.99M", "did you mean 1.99GiB?"),
            ("2MB", "did you mean 2GiB?"),
            ("2097151", "2097151 is 2097151 bytes, 1 short of 2 MiB, and PyTorch reserves at least 2 MiB at a time"),
        ] {
            let refusal = parse(text).expect_err(text);
            assert!(refusal.contains(said), "{refusal}");
            assert!(parse_bytes(text).is_ok(), "{text} may be a small size elsewhere");
        }
        for text in ["524289", "1048576", "2097151B", "0.0000000001GiB"] {
            let refusal = parse(text).expect_err(text);
            assert!(refusal.ends_with("at least 2 MiB at a time"), "{refusal}");
        }
        assert_eq!([parse("2M"), parse("2097152"), parse("2048k")], [2 << 20; 3].map(Ok));
    }

    #[test]
    fn where_a_few_bytes_make_sense_a_forgotten_unit_is_refused() {
        for (text, said) in [
            ("16", "16 is 16 bytes: did you mean 16GiB? (for bytes, write 16B)"),
            ("16384", "mean 16384MiB?"),
            ("6.5", "mean 6.5GiB?"),
        ] {
            let refusal = parse_or_none(text).expect_err(text);
            assert!(refusal.contains(said), "{refusal}");
        }
        assert_eq!(["0", "0.0", "16B", "1048576"].map(parse_or_none), [0, 0, 16, 1 << 20].map(Ok));
    }

    #[test]
    fn no_memory_is_refused() {
        for text in ["0", "0.0", "0GiB", " 0 B", ".0k"] {
            let refusal = parse(text).expect_err(text);
            assert!(refusal.starts_with(text.trim()) && refusal.contains("for no limit, leave the option out"), "{refusal}");
            assert_eq!(parse_or_none(text), Ok(0), "{text}");
        }
    }

    #[test]
    fn one_byte_is_singular() {
        assert_eq!([0, 1, 2].map(show_bytes), ["0 bytes", "1 byte", "2 bytes"]);
        assert_eq!([1 << 10, 1 << 20, 1 << 30, 1 << 40].map(show_bytes), ["1.00 KiB", "1.00 MiB", "1.00 GiB", "1024.00 GiB"]);
        assert_eq!([(1 << 20) - 1, (1 << 30) - 1, 1023 << 20].map(show_bytes), ["1.00 MiB", "1.00 GiB", "1023.00 MiB"]);
    }

    #[test]
    fn other_text_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "it is empty"),
            ("GiB", "it has no number"),
            (".", "it has no number"),
            ("-1", "it is negative"),
            ("1e9", "\"e9\" is not a unit"),
            ("16 apples", "\"apples\" is not a unit"),
            ("0x10", "\"x10\" is not a unit"),
            ("all", "it does not begin with a number"),
            ("1..2", "two decimal points"),
            ("1.2.3GiB", "two decimal points"),
            ("1,5GiB", "decimals follow a point"),
            ("99999999999GiB", "more than 64 bits can hold"),
            ("18446744073709551616", "more than 64 bits can hold"),
        ] {
            let refusal = parse(text).expect_err(text);
            assert!(refusal.starts_with(&format!("{text:?}")) && refusal.contains(why), "{refusal}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_in_a_line(text in any::<String>()) {
            for refusal in [parse(&text).err(), parse_bytes(&text).err()].into_iter().flatten() {
                prop_assert!(!refusal.contains('\n'), "{refusal:?}");
            }
        }

        #[test]
        fn what_looks_like_a_size_is_read_or_refused(text in r" ?[-0-9.,]{0,25} ?[kKmMgGtT]?i?[bB]? ?") {
            let read = parse_bytes(&text);
            if let Ok(bytes) = parse(&text) {
                prop_assert_eq!(read, Ok(bytes), "an amount of memory is read as any size");
                prop_assert!(bytes >= LEAST_BYTES);
            }
        }

        #[test]
        fn whole_numbers_are_multiples_of_the_unit(number in 0..1_u64 << 20, unit in 1..UNITS.len(), upper: bool, space: bool) {
            let (name, factor) = UNITS[unit];
            let name = if upper { name.to_uppercase() } else { name.to_lowercase() };
            let text = format!("{number}{}{name}", if space { " " } else { "" });
            prop_assert_eq!(parse_or_none(&text), Ok(number * factor));
        }

        #[test]
        fn decimals_are_cut_to_the_byte(number in 0..1_u64 << 20, digits in "[0-9]{1,18}", unit in 1..UNITS.len()) {
            let (name, factor) = UNITS[unit];
            let tenths = 10_u128.pow(u32::try_from(digits.len()).expect("few"));
            let exact = (u128::from(number) * tenths + digits.parse::<u128>().expect("digits")) * u128::from(factor) / tenths;
            prop_assert_eq!(parse_or_none(&format!("{number}.{digits}{name}")).map(u128::from), Ok(exact));
        }

        #[test]
        fn what_a_refusal_proposes_is_accepted(number in 1..LEAST_BARE_BYTES, unit in prop_oneof![Just(""), Just("B"), Just("KiB")]) {
            let text = format!("{number}{unit}");
            if let Err(refusal) = parse(&text) {
                let proposed = refusal.split("did you mean ").nth(1).and_then(|rest| rest.split('?').next());
                prop_assert!(proposed.is_some() == (number <= MOST_MIB), "{}", refusal);
                prop_assert!(proposed.is_none_or(|proposed| parse(proposed).is_ok()), "{}", refusal);
            }
            let refusal = parse_or_none(&number.to_string()).expect_err("no unit");
            let bytes = refusal.split("write ").nth(1).expect("another").trim_end_matches(')');
            prop_assert_eq!(parse_or_none(bytes), Ok(number));
        }

        #[test]
        fn a_bare_number_from_a_page_on_is_bytes(number in LEAST_BYTES..=u64::MAX) {
            prop_assert_eq!(parse(&number.to_string()), Ok(number));
        }
    }
}
