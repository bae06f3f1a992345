//! Compares the settings parser with the answers of the real PyTorch 2.11 allocator, and tests it with arbitrary strings.

use proptest::prelude::*;

include!("common/settings_fields.rs");

/// The outcome and the fields that differ from a fresh start, in the form of the pinned tables.
fn row(error: Option<&SettingsError>, settings: Option<&Settings>) -> String {
    let defaults = fields(&Settings::default());
    let defaults: Vec<&str> = defaults.split('\t').collect();
    let now = settings.map(fields).unwrap_or_default();
    let changed: Vec<&str> = now.split('\t').filter(|field| !defaults.contains(field) && !field.starts_with("text=")).collect();
    let kind = outcome(error);
    let message = error.map(ToString::to_string).unwrap_or_default();
    format!("{}\t{message}\t{}", kind.split('\t').next().unwrap(), changed.join(" "))
}

fn unescape(text: &str) -> String {
    text.replace("\\r", "\r").replace("\\v", "\u{b}").replace("\\f", "\u{c}")
}

#[test]
fn strings_at_run_time_do_what_the_real_allocator_does() {
    let mut settings = Settings::default();
    for line in include_str!("data/settings_at_run_time.tsv").lines() {
        let (text, expected) = line.split_once('\t').unwrap();
        let text = unescape(text);
        let error = if text == "!" {
            // No string undoes the reserved segment.
            let kept = settings.pinned_reserve_segment_mb;
            settings = Settings { pinned_reserve_segment_mb: kept, ..Settings::default() };
            None
        } else {
            let error = settings.apply(&text).err();
            assert_eq!(settings.text, text, "an invalid string is also stored");
            error
        };
        assert_eq!(row(error.as_ref(), Some(&settings)), expected, "{text:?}");
    }
}

#[test]
fn strings_at_load_time_do_what_the_real_allocator_does() {
    for line in include_str!("data/settings_at_load_time.tsv").lines() {
        let (text, expected) = line.split_once('\t').unwrap();
        let result = Settings::from_environment(text);
        let expected = expected.split('\t').chain(std::iter::repeat("")).take(3).collect::<Vec<_>>().join("\t");
        assert_eq!(row(result.as_ref().err(), result.as_ref().ok()), expected, "{text:?}");
    }
}

#[test]
fn errors_tell_which_exception_they_are() {
    let error = |text: &str| Settings::default().apply(text).unwrap_err();
    assert_eq!(error("max_split_size_mb:x").kind(), ErrorKind::InvalidNumber);
    assert_eq!(error("max_split_size_mb:99999999999999999999").kind(), ErrorKind::NumberOutOfRange);
    assert!(error("max_split_size_mb:x").is_std_exception());
    assert!(error("garbage_collection_threshold:1e999").is_std_exception());
    assert!(!error("max_split_size_mb").is_std_exception());
    assert!(!error("bogus").is_std_exception());
    assert_eq!(error("max_split_size_mb:x").message(), "stoull", "the C++ library's own text");
    assert!(error("bogus").message().contains("bogus"));
}

/// A double is out of range only if digits are lost: a subnormal written in full is fine (checked on the real
/// parser).
#[test]
fn denormal_numbers_are_accepted_when_exact() {
    let smallest = f64::from_bits(1);
    for exact in [format!("{smallest:.1074}"), format!("{:.1080}", smallest * 12345.0), String::from("0x1p-1074")] {
        let mut settings = Settings::default();
        settings.apply(&format!("per_process_memory_fraction:{exact}")).unwrap();
        assert!(settings.per_process_memory_fraction > 0.0);
        let inexact = exact.replace("0x1p-1074", "0x1.8p-1074") + "1";
        let error = settings.apply(&format!("per_process_memory_fraction:{inexact}")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NumberOutOfRange);
    }
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<String>()) {
        let _ = Settings::default().apply(&text);
        let _ = Settings::from_environment(&text);
    }

    #[test]
    fn text_made_of_likely_tokens_never_panics(
        tokens in prop::collection::vec(
            prop::sample::select(vec![
                "large_segment_size_mb", "max_split_size_mb", "garbage_collection_threshold", "roundup_power2_divisions",
                "backend", "pinned_num_register_threads", "per_process_memory_fraction", "expandable_segments",
                ":", ":", ":", ",", ",", "[", "]", ">", "True", "native", "64", "-1", "0x1p-1074", "0x.8p99999999999999999999",
                "1e-99999999999999999999", "18446744073709551616", "nan", " ", "é",
            ]),
            0..24,
        )
    ) {
        let text = tokens.concat();
        let mut settings = Settings::default();
        let _ = settings.apply(&text);
        prop_assert_eq!(&settings.text, &text);
        let _ = Settings::from_environment(&text);
    }

    /// Rust's own parser judges decimal numbers in range.
    #[test]
    fn decimal_fractions_are_read_to_the_last_bit(bits in 0..=1.0_f64.to_bits()) {
        let value = f64::from_bits(bits);
        prop_assume!(value == 0.0 || value >= f64::MIN_POSITIVE);
        let mut settings = Settings::default();
        settings.apply(&format!("per_process_memory_fraction:{value:e}")).unwrap();
        prop_assert_eq!(settings.per_process_memory_fraction.to_bits(), bits);
    }
}

/// 2.15 skips a list of classes up to its bracket, whatever it contains; what follows counts.
#[test]
fn a_list_of_classes_is_read_over() {
    let version = parkade::settings::Dialect::PYTORCH_2_15;
    let after = |list: &str| {
        let mut settings = Settings::default();
        let text = format!("expandable_segments_reserve_by_class:{list},expandable_segments_reserve:0.5");
        settings.apply_as(&version, &text).map(|()| settings.expandable_segments_reserve)
    };
    let half = Some(parkade::settings::ReserveSize::Fraction(0.5));
    for list in ["[]", "[a:1G]", "[a:1G,b:2G]", "[a:1G;b:2G,c:0.5]"] {
        // A semicolon is part of a word: the names and sizes of that list are others, and it ends all the same.
        assert_eq!(after(list).ok(), Some(half), "{list}");
    }
    // At load time CUDA's parser runs first, and misses the token.
    for cut in ["[", "[a", "[a:", "[a:1G", "[a:1G,"] {
        let text = format!("expandable_segments_reserve_by_class:{cut}");
        let error = Settings::from_environment_as(&version, &text).unwrap_err();
        assert!(error.to_string().contains("INTERNAL ASSERT FAILED"), "{text}: {error}");
    }
}

/// What 2.15 answers where the list has fewer tokens than it takes for one, or others: a name, anything, a size, and a comma if there is one.
#[test]
fn what_is_no_list_of_classes_is_read_as_one() {
    let version = parkade::settings::Dialect::PYTORCH_2_15;
    let line_of = |list: &str| {
        let mut settings = Settings::default();
        let applied = settings.apply_as(&version, &format!("expandable_segments_reserve_by_class:{list}"));
        let text = applied.err()?.to_string();
        text.split_once("AllocatorConfig.h\":").and_then(|(_, rest)| rest.split_once(',')?.0.parse::<u32>().ok())
    };
    for list in ["[1]", "[[]", "1,max_split_size_mb:64,", "1,max_split_size_mb:64]"] {
        assert_eq!(line_of(list), Some(54), "{list}");
    }
    for list in ["x", "[40G,,True],", "[,max_split_size_mb:641]1"] {
        assert_eq!(line_of(list), Some(123), "{list}");
    }
    for list in ["[]", "[,max_split_size_mb:64,1]", "[,max_split_size_mb:[a]]"] {
        assert_eq!(line_of(list), None, "{list}");
    }
}

/// The ends of the range of doubles in hexadecimal, as strtod reads them.
#[test]
fn hexadecimal_doubles_at_the_ends_of_their_range() {
    let read = |text| parkade::settings::read_double(text).map(f64::to_bits);
    assert_eq!(read("0x1p1023"), Some(2_f64.powi(1023).to_bits()));
    assert_eq!(read("0x1.fffffffffffffp1023"), Some(f64::MAX.to_bits()));
    assert_eq!((read("0x1p1024"), read("0x1.fffffffffffff8p1023")), (None, None));
    assert_eq!(read("0x1p-1022"), Some(f64::MIN_POSITIVE.to_bits()));
}
