//! Second readers for the settings string: their effects and their errors.
//!
//! `Reader` reads it as releases since 2.10 do, based on the specification (spec sections 8 and 11.0). It also has its own
//! parser for doubles (spec 8.2). `OlderReader` reads it as earlier releases do, which have one parser for all keys and
//! expect a certain separator after each token. It is based on PyTorch's `CUDAAllocatorConfig.cpp`; in 2.1, the parser is in
//! `CUDACachingAllocator.cpp`.

use parkade::settings::{Backend, ErrorKind, ReserveSize, Settings};
use parkade::units::MIB;

/// The kind and the text of an error.
pub type Refusal = (ErrorKind, String);

/// The keys: the 2.x release that added each of them, and whether it is common to all accelerators or CUDA's own.
const KEYS: [(&str, u32, bool); 22] = [
    ("max_split_size_mb", 1, true),
    ("garbage_collection_threshold", 1, true),
    ("roundup_power2_divisions", 1, true),
    ("expandable_segments", 1, true),
    ("backend", 1, false),
    ("release_lock_on_cudamalloc", 2, false),
    ("release_lock_on_hipmalloc", 2, false),
    ("pinned_use_cuda_host_register", 2, false),
    ("pinned_use_hip_host_register", 2, false),
    ("pinned_num_register_threads", 2, false),
    ("max_non_split_rounding_mb", 6, true),
    ("pinned_use_background_threads", 6, true),
    ("graph_capture_record_stream_reuse", 9, false),
    ("pinned_reserve_segment_size_mb", 10, false),
    ("per_process_memory_fraction", 10, false),
    ("large_segment_size_mb", 11, true),
    ("pinned_free_catch_all", 12, false),
    ("throw_on_cudamalloc_oom", 12, false),
    ("pinned_max_round_threshold_mb", 13, true),
    ("pinned_max_cached_size_mb", 13, true),
    ("expandable_segments_reserve", 15, false),
    ("expandable_segments_reserve_by_class", 15, false),
];

/// Returns every key that release 2.`minor` knows, sorted.
#[must_use]
pub fn keys_of(minor: u32) -> Vec<&'static str> {
    let known = KEYS.iter().filter(|(_, since, _)| *since <= minor);
    let mut keys: Vec<&str> = known.map(|(name, ..)| *name).collect();
    keys.sort_unstable();
    keys
}

/// Returns whether release 2.`minor` knows a key.
fn is_key_of(minor: u32, key: &str) -> bool {
    KEYS.iter().any(|&(name, since, _)| name == key && since <= minor)
}

/// Source lines: in 2.10, from 2.11 to 2.14, and in 2.15.
type Lines = [u32; 3];

/// The settings when nothing is set (spec 8.4).
pub fn defaults() -> Settings {
    Settings {
        max_split_bytes: u64::MAX,
        max_non_split_rounding_bytes: 20 * MIB,
        large_segment_bytes: 20 * MIB,
        garbage_collection_threshold: 0.0,
        roundup_power2_divisions: [0; 16],
        expandable_segments: false,
        release_lock_on_cudamalloc: false,
        graph_capture_record_stream_reuse: false,
        per_process_memory_fraction: 1.0,
        throw_on_cudamalloc_oom: false,
        expandable_segments_reserve: None,
        pinned_use_background_threads: false,
        pinned_use_cuda_host_register: false,
        pinned_num_register_threads: 1,
        pinned_reserve_segment_mb: 0,
        pinned_free_catch_all: false,
        pinned_max_round_threshold_mb: 0,
        pinned_max_cached_size_mb: 0,
        backend: Backend::Native,
        text: String::new(),
    }
}

/// The first 2.x release with two parsers, one of which reads the keys that all accelerators share.
const TWO_PARSERS: u32 = 10;

/// Reads a string at run time, as release 2.`minor` does. Keys before an error are kept.
///
/// # Errors
/// PyTorch's error.
pub fn at_run_time(minor: u32, text: &str, settings: &mut Settings) -> Result<(), Refusal> {
    if minor < TWO_PARSERS {
        return OlderReader::new(text, minor).read(settings);
    }
    let reader = Reader::new(text, minor);
    reader.read_common(settings).and_then(|()| reader.read_own(settings))
}

/// Reads a string from the environment, as release 2.`minor` does: the backend first, then CUDA's keys, then the others (spec
/// 8.4).
///
/// # Errors
/// PyTorch's error.
pub fn at_load(minor: u32, text: &str) -> Result<Settings, Refusal> {
    if minor < TWO_PARSERS {
        let mut settings = Settings { backend: OlderReader::backend(text), text: text.to_owned(), ..defaults() };
        return OlderReader::new(text, minor).read(&mut settings).map(|()| settings);
    }
    let reader = Reader::new(text, minor);
    let mut settings = Settings { backend: reader.backend()?, ..defaults() };
    reader.read_own(&mut settings)?;
    settings.text = text.to_owned();
    reader.read_common(&mut settings)?;
    Ok(settings)
}

/// A settings string in the dialect of a release since 2.10.
struct Reader {
    tokens: Vec<String>,
    minor: u32,
}

fn value_error<T>(text: impl Into<String>) -> Result<T, Refusal> {
    Err((ErrorKind::Value, text.into()))
}

impl Reader {
    /// Splits a string into tokens, as release 2.`minor` does.
    fn new(text: &str, minor: u32) -> Reader {
        let mut spaced = String::new();
        for letter in text.chars().filter(|letter| !matches!(letter, ' ' | '\t' | '\n' | '\u{b}' | '\u{c}' | '\r')) {
            match letter {
                ',' | ':' | '[' | ']' => spaced.extend([' ', letter, ' ']),
                _ => spaced.push(letter),
            }
        }
        let tokens = spaced.split(' ').filter(|token| !token.is_empty()).map(str::to_owned).collect();
        Reader { tokens, minor }
    }

    fn failed_assert<T>(&self, what: &str, file: &str, lines: Lines, text: &str) -> Result<T, Refusal> {
        let root = if self.minor >= 13 { "/__w/pytorch/pytorch" } else { "/pytorch" };
        let line = lines[usize::from(self.minor > 10) + usize::from(self.minor > 14)];
        let place = format!("\"{root}/c10/{file}\":{line}");
        Err((ErrorKind::Internal, format!("{what} INTERNAL ASSERT FAILED at {place}, please report a bug to PyTorch. {text}")))
    }

    /// Expects a token; `lines` are the source lines at which the releases report that it is missing.
    fn token(&self, place: usize, lines: Lines) -> Result<&str, Refusal> {
        let missing = || {
            self.failed_assert("i < config_.size()", "core/AllocatorConfig.h", lines, "Index out of bounds in ConfigTokenizer")
        };
        self.tokens.get(place).map(String::as_str).map_or_else(missing, Ok)
    }

    fn checked(&self, place: usize) -> Result<&str, Refusal> {
        self.token(place, [126, 124, 123])
    }

    fn direct(&self, place: usize) -> Result<&str, Refusal> {
        self.token(place, [57, 55, 54])
    }

    fn endless<T>(&self, what: &str, file: &str, lines: Lines) -> Result<T, Refusal> {
        self.failed_assert(what, file, lines, "Expected closing bracket ']' in ConfigTokenizer but reached end of config")
    }

    fn is_known(&self, key: &str, is_common: bool) -> bool {
        KEYS.iter().any(|&(name, since, common)| name == key && since <= self.minor && common == is_common)
    }

    fn is_common(&self, key: &str) -> bool {
        self.is_known(key, true)
    }

    fn is_own(&self, key: &str) -> bool {
        self.is_known(key, false)
    }

    fn unsigned(&self, place: usize) -> Result<u64, Refusal> {
        let text = self.checked(place)?;
        let (sign, rest) = sign_of(text);
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        if digits.is_empty() {
            return Err((ErrorKind::InvalidNumber, "stoull".to_owned()));
        }
        let value: u64 = digits.parse().map_err(|_| (ErrorKind::NumberOutOfRange, "stoull".to_owned()))?;
        Ok(if sign < 0.0 { value.wrapping_neg() } else { value })
    }

    fn double(&self, place: usize) -> Result<f64, Refusal> {
        double(self.checked(place)?).map_err(|kind| (kind, "stod".to_owned()))
    }

    fn boolean(&self, place: usize) -> Result<bool, Refusal> {
        match self.checked(place)? {
            "True" => Ok(true),
            "False" => Ok(false),
            other => value_error(format!("Expected 'True' or 'False' at index {place} in ConfigTokenizer but got '{other}'")),
        }
    }

    /// Returns the position of the last token in the value of the key at `place`, which is skipped.
    fn skip(&self, place: usize) -> Result<usize, Refusal> {
        self.checked(place + 1)?;
        if self.checked(place + 2)? != "[" {
            return Ok(place + 2);
        }
        match (place + 3..self.tokens.len()).find(|&end| self.tokens[end] == "]") {
            Some(end) => Ok(end),
            None => self.endless("i < config_.size()", "core/AllocatorConfig.h", [117, 115, 114]),
        }
    }

    /// Reads the half that is common to all accelerators (spec 8.3, steps 1 to 4).
    fn read_common(&self, settings: &mut Settings) -> Result<(), Refusal> {
        settings.max_split_bytes = u64::MAX;
        settings.roundup_power2_divisions = [0; 16];
        settings.garbage_collection_threshold = 0.0;
        let has_segment_size = self.is_common("large_segment_size_mb");
        let mut place = 0;
        while place < self.tokens.len() {
            if has_segment_size && self.tokens[place] == "large_segment_size_mb" {
                self.checked(place + 1)?;
                place += 2;
                match self.unsigned(place)? {
                    0..=10 => return value_error("CachingAllocator option large_segment_size_mb must be > 10 MB"),
                    mib => settings.large_segment_bytes = clamped(mib),
                }
            }
            place += 1;
        }
        if has_segment_size {
            settings.max_non_split_rounding_bytes = settings.large_segment_bytes;
        }
        place = 0;
        while place < self.tokens.len() {
            let key = self.tokens[place].as_str();
            let last = if self.is_own(key) || has_segment_size && key == "large_segment_size_mb" {
                self.skip(place)?
            } else if self.is_common(key) {
                self.checked(place + 1)?;
                self.set_common(settings, key, place + 2)?
            } else {
                return value_error(format!("Unrecognized key '{key}' in Accelerator allocator config."));
            };
            place = last + 2;
        }
        Ok(())
    }

    fn set_common(&self, settings: &mut Settings, key: &str, value: usize) -> Result<usize, Refusal> {
        match key {
            "max_split_size_mb" => settings.max_split_bytes = self.size(settings, key, value)?,
            "max_non_split_rounding_mb" => settings.max_non_split_rounding_bytes = self.size(settings, key, value)?,
            "garbage_collection_threshold" => match self.double(value)? {
                part if (0.0..1.0).contains(&part) && part > 0.0 => settings.garbage_collection_threshold = part,
                _ => return value_error("garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),
            },
            "expandable_segments" => settings.expandable_segments = self.boolean(value)?,
            "pinned_use_background_threads" => settings.pinned_use_background_threads = self.boolean(value)?,
            "pinned_max_round_threshold_mb" => settings.pinned_max_round_threshold_mb = self.unsigned(value)?,
            "pinned_max_cached_size_mb" => settings.pinned_max_cached_size_mb = self.unsigned(value)?,
            _ if self.direct(value)? == "[" => return self.list(&mut settings.roundup_power2_divisions, value + 1),
            _ => match self.unsigned(value)? {
                divisions if divisions.count_ones() == 1 => settings.roundup_power2_divisions = [divisions; 16],
                _ => return value_error("For roundups, the divisions has to be power of 2 "),
            },
        }
        Ok(value)
    }

    fn size(&self, settings: &Settings, key: &str, value: usize) -> Result<u64, Refusal> {
        let (mib, least) = (self.unsigned(value)?, settings.large_segment_bytes / MIB);
        if mib < least {
            return value_error(format!("CachingAllocator option {key} too small, must be >= {least}"));
        }
        Ok(clamped(mib))
    }

    /// Reads the list of divisions (spec 8.5). Returns the index of its end.
    fn list(&self, slots: &mut [u64; 16], mut place: usize) -> Result<usize, Refusal> {
        let mut named: Option<usize> = None;
        loop {
            match self.tokens.get(place).map(String::as_str) {
                None => {
                    let line = if self.minor >= 13 { 211 } else { 185 };
                    return self.endless("i < tokenizer.size()", "core/AllocatorConfig.cpp", [162, line, 213]);
                }
                Some("]") => return Ok(place),
                Some(interval) => {
                    self.checked(place + 1)?;
                    let divisions = self.unsigned(place + 2)?;
                    if divisions.count_ones() > 1 {
                        return value_error("For roundups, the divisions has to be power of 2 or 0 to disable roundup ");
                    }
                    if interval == ">" {
                        (named.unwrap_or(0) + 1..16).for_each(|slot| slots[slot] = divisions);
                    } else {
                        let mib = self.unsigned(place)?;
                        if mib.count_ones() != 1 {
                            return value_error("For roundups, the intervals have to be power of 2 ");
                        }
                        let slot = (mib.trailing_zeros() as usize).min(15);
                        (named.map_or(0, |_| slot)..=slot).for_each(|slot| slots[slot] = divisions);
                        named = Some(slot);
                    }
                    place += if self.direct(place + 3)? == "]" { 3 } else { 4 };
                }
            }
        }
    }

    /// Returns the backend that the environment selects.
    fn backend(&self) -> Result<Backend, Refusal> {
        let mut place = 0;
        while place < self.tokens.len() {
            if self.tokens[place] == "backend" {
                self.checked(place + 1)?;
                let is_async = self.direct(place + 2)? == "cudaMallocAsync";
                return Ok(if is_async { Backend::CudaMallocAsync } else { Backend::Native });
            }
            place = self.skip(place)? + 2;
        }
        Ok(Backend::Native)
    }

    /// Reads CUDA's own half (spec 8.3, step 5).
    fn read_own(&self, settings: &mut Settings) -> Result<(), Refusal> {
        let mut place = 0;
        while place < self.tokens.len() {
            let key = self.tokens[place].as_str();
            let last = if self.is_common(key) {
                self.skip(place)?
            } else if self.is_own(key) {
                self.checked(place + 1)?;
                self.set_own(settings, key, place + 2)?
            } else {
                return value_error(format!("Unrecognized key '{key}' in CUDA allocator config."));
            };
            place = last + 2;
        }
        Ok(())
    }

    fn set_own(&self, settings: &mut Settings, key: &str, value: usize) -> Result<usize, Refusal> {
        match key {
            "backend" => {
                let name = self.direct(value)?;
                if !["native", "cudaMallocAsync"].contains(&name) {
                    return value_error("Unknown allocator backend, options are native and cudaMallocAsync");
                }
                let loaded = if settings.backend == Backend::Native { "native" } else { "cudaMallocAsync" };
                if name != loaded {
                    let says = format!(
                        "Allocator backend parsed at runtime != allocator backend parsed at load time, {name} != {loaded}"
                    );
                    return self.failed_assert(
                        "tokenizer[i] == get()->name()",
                        "cuda/CUDAAllocatorConfig.cpp",
                        [44, 44, 64],
                        &says,
                    );
                }
            }
            "release_lock_on_cudamalloc" | "release_lock_on_hipmalloc" => {
                settings.release_lock_on_cudamalloc = self.boolean(value)?;
            }
            "pinned_use_cuda_host_register" | "pinned_use_hip_host_register" => {
                settings.pinned_use_cuda_host_register = self.boolean(value)?;
            }
            "pinned_num_register_threads" => match self.unsigned(value)? {
                threads if threads.count_ones() != 1 => {
                    return value_error(format!("Number of register threads has to be power of 2, got {threads}"));
                }
                threads if threads > 128 => {
                    let says = "Number of register threads should be less than or equal to 128, got";
                    return value_error(format!("{says} {threads}"));
                }
                threads => settings.pinned_num_register_threads = threads,
            },
            "pinned_reserve_segment_size_mb" => match self.unsigned(value)? {
                0 => return value_error("Pinned reserve segment size has to be greater than 0"),
                mib => settings.pinned_reserve_segment_mb = mib,
            },
            "graph_capture_record_stream_reuse" => settings.graph_capture_record_stream_reuse = self.boolean(value)?,
            "per_process_memory_fraction" => match self.double(value)? {
                part if (0.0..=1.0).contains(&part) => settings.per_process_memory_fraction = part,
                _ => return value_error("per_process_memory_fraction is invalid, set it in [0.0, 1.0]"),
            },
            "pinned_free_catch_all" => settings.pinned_free_catch_all = self.boolean(value)?,
            "throw_on_cudamalloc_oom" => settings.throw_on_cudamalloc_oom = self.boolean(value)?,
            "expandable_segments_reserve" => {
                let text = self.checked(value)?;
                let number = |text: &str| double(text).ok().filter(|number| number.is_finite() && *number > 0.0);
                let size = match text.strip_suffix('G') {
                    Some(count) => number(count).map(ReserveSize::Gibibytes),
                    None => number(text).map(ReserveSize::Fraction),
                };
                settings.expandable_segments_reserve = size.or(settings.expandable_segments_reserve);
            }
            _ => return self.skip_classes(value + 1),
        }
        Ok(value)
    }

    fn skip_classes(&self, mut place: usize) -> Result<usize, Refusal> {
        while self.checked(place)? != "]" {
            self.checked(place + 1)?;
            self.direct(place + 2)?;
            // Only a comma is a separator here.
            place += if self.tokens.get(place + 3).is_some_and(|token| token == ",") { 4 } else { 3 };
        }
        Ok(place)
    }
}

fn clamped(mib: u64) -> u64 {
    mib.saturating_mul(MIB) / MIB * MIB
}

/// Returns the sign of a number and the text after it.
fn sign_of(text: &str) -> (f64, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (-1.0, &text[1..]),
        Some(b'+') => (1.0, &text[1..]),
        _ => (1.0, text),
    }
}

/// A second parser for doubles in settings strings (spec 8.2).
///
/// Reads a double as `strtod` does.
///
/// # Errors
/// The errors of `stod`: the text does not begin with a number, or the number does not fit into a
/// double.
pub fn double(text: &str) -> Result<f64, ErrorKind> {
    let (sign, rest) = sign_of(text);
    let lower = rest.to_ascii_lowercase();
    if lower.starts_with("inf") {
        return Ok(sign * f64::INFINITY);
    }
    if lower.starts_with("nan") {
        return Ok(f64::NAN);
    }
    if let Some(digits) = lower.strip_prefix("0x") {
        return hexadecimal(digits).map(|value| sign * value);
    }
    // Returns the longest prefix that is a number.
    let numbers = (1..=lower.len())
        .rev()
        .filter_map(|end| lower.get(..end))
        .filter(|text| !text.contains(['i', 'n', '+', '-']) || text.contains('e'));
    let mut numbers = numbers.filter(|text| text.starts_with(|first: char| first.is_ascii_digit() || first == '.'));
    let Some((found, value)) = numbers.find_map(|text| Some((text, text.parse::<f64>().ok()?))) else {
        return Err(ErrorKind::InvalidNumber);
    };
    let is_zero = !found.split('e').next().unwrap_or("").contains(|digit: char| ('1'..='9').contains(&digit));
    if value.is_infinite() || (value < f64::MIN_POSITIVE && !is_zero) {
        return Err(ErrorKind::NumberOutOfRange);
    }
    Ok(sign * value)
}

fn hexadecimal(digits: &str) -> Result<f64, ErrorKind> {
    // As many digits as there is room for, and whether any of the others is not 0, which only matters halfway between two
    // doubles.
    let (mut number, mut is_more, mut power, mut is_fraction, mut rest) = (0_u128, false, 0, false, "");
    for (place, letter) in digits.char_indices() {
        match letter.to_digit(16) {
            Some(digit) if number >> 120 == 0 => {
                number = number * 16 + u128::from(digit);
                power -= if is_fraction { 4 } else { 0 };
            }
            Some(digit) => {
                is_more |= digit > 0;
                power += if is_fraction { 0 } else { 4 };
            }
            None if letter == '.' && !is_fraction => is_fraction = true,
            None => {
                rest = &digits[place..];
                break;
            }
        }
    }
    let (sign, exponent) = sign_of(rest.strip_prefix('p').unwrap_or(""));
    let exponent: String = exponent.chars().take_while(char::is_ascii_digit).collect();
    // Beyond these powers, every number is out of range.
    let most = 1_000_000;
    let exponent = if exponent.is_empty() { 0 } else { sign as i32 * exponent.parse().unwrap_or(most).min(most) };
    let value = (number | u128::from(is_more)) as f64;
    let is_exact = !is_more && value as u128 == number;
    scaled(value, power + exponent).and_then(|result| {
        if result != 0.0 && result < f64::MIN_POSITIVE && !is_exact { Err(ErrorKind::NumberOutOfRange) } else { Ok(result) }
    })
}

/// Returns a number times a power of two. A result below the normal numbers is out of range unless it is exact.
fn scaled(value: f64, power: i32) -> Result<f64, ErrorKind> {
    if value == 0.0 {
        return Ok(0.0);
    }
    // This takes two steps, because the power by itself may be out of range.
    let halves = [power / 2, power - power / 2].map(|half| 2_f64.powi(half));
    let result = value * halves[0] * halves[1];
    let is_exact = result / halves[1] / halves[0] == value;
    if result.is_infinite() || (result < f64::MIN_POSITIVE && !is_exact) {
        return Err(ErrorKind::NumberOutOfRange);
    }
    Ok(result)
}

/// The sizes in a string, in MiB, must be larger than this.
const LARGE_MIB: u64 = 20;

/// White space in C.
const BLANKS: [char; 6] = [' ', '\t', '\n', '\u{b}', '\u{c}', '\r'];

/// A settings string in the dialect of a release before 2.10. Reading consumes its tokens.
struct OlderReader {
    /// The tokens, last one first.
    tokens: Vec<String>,
    minor: u32,
}

fn check_error<T>(text: impl Into<String>) -> Result<T, Refusal> {
    Err((ErrorKind::Check, text.into()))
}

impl OlderReader {
    /// Splits a string into tokens, as release 2.`minor` does: only spaces are removed.
    fn new(text: &str, minor: u32) -> OlderReader {
        let text = text.replace(' ', "");
        let is_separator = |letter: char| matches!(letter, ',' | ':' | '[' | ']');
        let pieces = text.split_inclusive(is_separator).flat_map(|piece| match piece.char_indices().next_back() {
            Some((last, letter)) if is_separator(letter) => vec![&piece[..last], &piece[last..]],
            _ => vec![piece],
        });
        let mut tokens: Vec<String> = pieces.filter(|token| !token.is_empty()).map(str::to_owned).collect();
        tokens.reverse();
        OlderReader { tokens, minor }
    }

    /// Returns the backend that the environment selects: the first known one that is the value of a key `backend`.
    fn backend(text: &str) -> Backend {
        for option in text.split(|letter| letter == ',' || BLANKS.contains(&letter)) {
            let Some(rest) = option.strip_prefix("backend:") else { continue };
            match rest.trim_start_matches(':').split(':').next() {
                Some("native") => return Backend::Native,
                Some("cudaMallocAsync") => return Backend::CudaMallocAsync,
                _ => {}
            }
        }
        Backend::Native
    }

    fn is_next(&self, token: &str) -> bool {
        self.tokens.last().is_some_and(|next| next == token)
    }

    fn expect(&mut self, separator: &str) -> Result<(), Refusal> {
        if !self.is_next(separator) {
            return check_error(format!("Error parsing CachingAllocator settings, expected {separator}"));
        }
        self.tokens.pop();
        Ok(())
    }

    fn value(&mut self, missing: &str) -> Result<String, Refusal> {
        self.tokens.pop().map_or_else(|| check_error(missing), Ok)
    }

    /// Reads all keys and changes the settings; those before an error keep their new values.
    ///
    /// # Errors
    /// PyTorch's error.
    fn read(mut self, settings: &mut Settings) -> Result<(), Refusal> {
        settings.max_split_bytes = u64::MAX;
        settings.roundup_power2_divisions = [0; 16];
        settings.garbage_collection_threshold = 0.0;
        while let Some(key) = self.tokens.pop() {
            if !is_key_of(self.minor, &key) {
                return check_error(format!("Unrecognized CachingAllocator option: {key}"));
            }
            self.expect(":")?;
            self.set(settings, &key)?;
            if !self.tokens.is_empty() {
                self.expect(",")?;
            }
        }
        Ok(())
    }

    fn set(&mut self, settings: &mut Settings, key: &str) -> Result<(), Refusal> {
        match key {
            "max_split_size_mb" => settings.max_split_bytes = self.size(key)?,
            "max_non_split_rounding_mb" => settings.max_non_split_rounding_bytes = self.size(key)?,
            "garbage_collection_threshold" => settings.garbage_collection_threshold = self.threshold()?,
            "roundup_power2_divisions" => self.divisions(&mut settings.roundup_power2_divisions)?,
            "expandable_segments" => settings.expandable_segments = self.flag(key)?,
            "pinned_use_background_threads" => settings.pinned_use_background_threads = self.flag(key)?,
            "graph_capture_record_stream_reuse" => settings.graph_capture_record_stream_reuse = self.flag(key)?,
            "release_lock_on_cudamalloc" | "release_lock_on_hipmalloc" => {
                settings.release_lock_on_cudamalloc = self.flag("release_lock_on_cudamalloc")?;
            }
            "pinned_use_cuda_host_register" | "pinned_use_hip_host_register" => {
                settings.pinned_use_cuda_host_register = self.flag("pinned_use_cuda_host_register")?;
            }
            "pinned_num_register_threads" => settings.pinned_num_register_threads = self.threads()?,
            _ => self.check_backend(settings.backend)?,
        }
        Ok(())
    }

    fn size(&mut self, key: &str) -> Result<u64, Refusal> {
        let mib = stoi(&self.value(&format!("Error, expecting {key} value"))?)?;
        if mib > LARGE_MIB {
            Ok(clamped(mib))
        } else {
            check_error(format!("CachingAllocator option {key} too small, must be > {LARGE_MIB}"))
        }
    }

    fn threshold(&mut self) -> Result<f64, Refusal> {
        let text = self.value("Error, expecting garbage_collection_threshold value")?;
        let number = double(text.trim_start_matches(BLANKS)).map_err(|kind| (kind, "stod".to_owned()))?;
        if number > 0.0 && number < 1.0 {
            Ok(number)
        } else if number >= 1.0 {
            check_error("garbage_collect_threshold too big, set it 0.0~1.0")
        } else {
            check_error("garbage_collect_threshold too small, set it 0.0~1.0")
        }
    }

    fn flag(&mut self, key: &str) -> Result<bool, Refusal> {
        match self.tokens.pop().as_deref() {
            Some("True") => Ok(true),
            Some("False") => Ok(false),
            _ => check_error(format!("Expected a single True/False argument for {key}")),
        }
    }

    fn threads(&mut self) -> Result<u64, Refusal> {
        match stoi(&self.value("Error, expecting pinned_num_register_threads value")?)? {
            threads if threads.count_ones() != 1 => check_error("Number of register threads has to be power of 2 "),
            threads if threads > 128 => check_error("Number of register threads should be less than or equal to 128"),
            threads => Ok(threads),
        }
    }

    fn check_backend(&mut self, loaded: Backend) -> Result<(), Refusal> {
        let name = self.value("Error parsing backend value")?;
        let backend = match name.as_str() {
            "native" => Backend::Native,
            "cudaMallocAsync" => Backend::CudaMallocAsync,
            _ => return check_error("Unknown allocator backend, options are native and cudaMallocAsync"),
        };
        if backend == loaded {
            return Ok(());
        }
        let place = match self.minor {
            1 => "../c10/cuda/CUDACachingAllocator.cpp\":1058",
            2 => "../c10/cuda/CUDAAllocatorConfig.cpp\":225",
            3 => "../c10/cuda/CUDAAllocatorConfig.cpp\":226",
            4 | 5 => "../c10/cuda/CUDAAllocatorConfig.cpp\":227",
            6 | 7 => "/pytorch/c10/cuda/CUDAAllocatorConfig.cpp\":250",
            8 => "/pytorch/c10/cuda/CUDAAllocatorConfig.cpp\":287",
            _ => "/pytorch/c10/cuda/CUDAAllocatorConfig.cpp\":288",
        };
        let says = "Allocator backend parsed at runtime != allocator backend parsed at load time";
        let text =
            format!("config[i] == get()->name() INTERNAL ASSERT FAILED at \"{place}, please report a bug to PyTorch. {says}");
        Err((ErrorKind::Internal, text))
    }

    /// Returns the error for a number of divisions that is no power of two.
    fn not_a_power<T>(&self, ending: &str) -> Result<T, Refusal> {
        let divisions = if self.minor < 8 { "divisons" } else { "divisions" };
        check_error(format!("For roundups, the {divisions} has to be power of 2 {ending}"))
    }

    fn divisions(&mut self, slots: &mut [u64; 16]) -> Result<(), Refusal> {
        if self.is_next("[") {
            self.tokens.pop();
            return self.list(slots);
        }
        let divisions = stoi(&self.value("Error, expecting roundup_power2_divisions value")?)?;
        if divisions.count_ones() != 1 {
            return self.not_a_power("");
        }
        *slots = [divisions; 16];
        Ok(())
    }

    /// Reads the list up to its end or to the end of the string.
    fn list(&mut self, slots: &mut [u64; 16]) -> Result<(), Refusal> {
        let may_be_zero = self.minor >= 4;
        let mut named: Option<usize> = None;
        while let Some(interval) = self.tokens.pop().filter(|token| token != "]") {
            self.expect(":")?;
            let divisions = stoi(&self.value("Error parsing roundup_power2_divisions value")?)?;
            match divisions.count_ones() {
                1 => {}
                0 if may_be_zero => {}
                _ => return self.not_a_power(if may_be_zero { "or 0 to disable roundup " } else { "" }),
            }
            if interval == ">" {
                // The interval named last is overwritten too.
                slots[named.unwrap_or(0)..].fill(divisions);
            } else {
                let mib = stoul(&interval)?;
                if mib.count_ones() != 1 {
                    return check_error("For roundups, the intervals have to be power of 2 ");
                }
                let slot = (mib.ilog2() as usize).min(15);
                if named.is_none() {
                    slots[..slot].fill(divisions);
                }
                slots[slot] = divisions;
                named = Some(slot);
            }
            if !self.is_next("]") {
                self.expect(",")?;
            }
        }
        Ok(())
    }
}

/// Returns the integer at the beginning of a text, after white space.
fn integer(text: &str, function: &str) -> Result<i128, Refusal> {
    let (sign, rest) = sign_of(text.trim_start_matches(BLANKS));
    let digits = &rest[..rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len())];
    if digits.is_empty() {
        return Err((ErrorKind::InvalidNumber, function.to_owned()));
    }
    let number: i128 = digits.parse().map_err(|_| (ErrorKind::NumberOutOfRange, function.to_owned()))?;
    Ok(number * sign as i128)
}

/// Reads an unsigned integer of 64 bits. A negative one wraps around.
fn stoul(text: &str) -> Result<u64, Refusal> {
    let number = integer(text, "stoul")?;
    let size = u64::try_from(number.unsigned_abs()).map_err(|_| (ErrorKind::NumberOutOfRange, "stoul".to_owned()))?;
    Ok(if number < 0 { size.wrapping_neg() } else { size })
}

/// Reads a 32-bit integer, which PyTorch converts to an unsigned number of 64 bits.
fn stoi(text: &str) -> Result<u64, Refusal> {
    let number = i32::try_from(integer(text, "stoi")?).map_err(|_| (ErrorKind::NumberOutOfRange, "stoi".to_owned()))?;
    Ok(i64::from(number) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers of PyTorch 2.11's parser (`settings_probe`).
    #[test]
    fn hexadecimal_numbers_have_a_range() {
        for text in ["+0x000.AAP1055", "0x1p-1080", "0x1p1024", "0x1p99999999999"] {
            assert_eq!(double(text), Err(ErrorKind::NumberOutOfRange), "{text}");
        }
        assert_eq!(double("0x0p5000"), Ok(0.0));
        assert_eq!(double("0x.8p-1021"), Ok(f64::MIN_POSITIVE));
        assert_eq!(double("0x1p-1060"), Ok(f64::from_bits(1 << 14)));
        assert_eq!(double("-0x1p1023"), Ok(-2_f64.powi(1023)));
        assert_eq!(double("0x1.00000000000008p-1"), Ok(0.5));
        assert_eq!(double("0x1.000000000000080000000000000000000000001p-1"), Ok(0.5_f64.next_up()));
        assert_eq!(double("0x1.00000000000008p-1040"), Err(ErrorKind::NumberOutOfRange));
    }
}
