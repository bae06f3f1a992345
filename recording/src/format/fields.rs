//! Reads the keys and values of dicts from untrusted sources: finds keys by name, checks types and limits sizes. Also defines
//! the errors for a snapshot whose pickle is valid, with their position in the snapshot.
//!
//! The reader looks up keys once for each shape of dict, not once for each dict. Every error names the key.

use std::collections::BTreeMap;

use crate::dated_keys::{FileFields, Part};
use crate::pickle::{Dict, Loaded, Tag, Value};

/// The error for a snapshot with invalid contents. Displayed as one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct FormatError {
    /// The position of the problem.
    pub place: Place,
    /// The problem.
    pub problem: FormatProblem,
}

/// A position in a snapshot. Indices start at 0, as in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Place {
    /// The entire snapshot.
    #[error("the snapshot")]
    Snapshot,
    /// An item of `segments`.
    #[error("segment {segment}")]
    Segment {
        /// Its index in the file's list.
        segment: usize,
    },
    /// A block of a segment.
    #[error("block {block} of segment {segment}")]
    Block {
        /// The segment's index.
        segment: usize,
        /// Its index in the segment's list.
        block: usize,
    },
    /// A device's trace.
    #[error("the trace of device {device}")]
    Trace {
        /// The device's number.
        device: usize,
    },
    /// A trace entry.
    #[error("entry {entry} of device {device}")]
    Entry {
        /// The device's number.
        device: usize,
        /// Its index in the device's trace.
        entry: usize,
    },
    /// `allocator_settings`.
    #[error("allocator_settings")]
    Settings,
    /// An item of `external_annotations`.
    #[error("annotation {annotation}")]
    Annotation {
        /// Its index.
        annotation: usize,
    },
}

/// The problem at a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatProblem {
    /// The file is not a snapshot.
    #[error(
        "it is {found}, not the dict with `segments` or `device_traces` that torch.cuda.memory._snapshot() returns, \
         nor the list that memory_snapshot() returns; dump one of these"
    )]
    NotASnapshot {
        /// A description of the contents, with its article.
        found: String,
    },
    /// The file has several snapshots in a list.
    #[error("it is a list of {count} snapshots, perhaps one for each rank: write each to its own file")]
    ListOfSnapshots {
        /// The number of snapshots.
        count: usize,
    },
    /// A required key is missing.
    #[error("`{key}` is missing; every PyTorch version writes it")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value of the wrong type.
    #[error("`{key}` is {} but should be {}", with_article(found), with_article(expected))]
    WrongType {
        /// The key.
        key: &'static str,
        /// The type that it should have, by Python's name.
        expected: &'static str,
        /// The type that it has, by Python's name.
        found: &'static str,
    },
    /// A number out of range.
    #[error("`{key}` is {value} but should be {range}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The accepted range, in words.
        range: &'static str,
    },
    /// A name that is not one of the known ones.
    #[error("`{key}` is {value:?}, which is not one of {known}")]
    UnknownName {
        /// The key.
        key: &'static str,
        /// Its value, truncated to 80 bytes.
        value: String,
        /// The known names.
        known: &'static str,
    },
    /// Memory that extends past the end of the address space.
    #[error("{size} bytes at address {address} extend past the end of the 64-bit address space")]
    EndsBeyond {
        /// The address.
        address: u64,
        /// The size.
        size: u64,
    },
    /// A block that does not begin where the one before it ends.
    #[error("it is at address {found}, but the blocks before it end at {expected}; blocks must fill their segment without gaps")]
    Gap {
        /// The address where it should be.
        expected: u64,
        /// The address where it is.
        found: u64,
    },
    /// Blocks that are shorter or longer than their segment.
    #[error("its blocks add up to {blocks} bytes, but `total_size` is {total}; blocks must fill their segment without gaps")]
    WrongSum {
        /// The sum of its blocks, in bytes.
        blocks: u64,
        /// The segment's length, in bytes.
        total: u64,
    },
    /// Two segments that overlap.
    #[error("it overlaps segment {other} of device {device}, at address {address}")]
    Overlap {
        /// The other segment's index.
        other: usize,
        /// The device.
        device: u32,
        /// The first address that both segments contain.
        address: u64,
    },
    /// A dict with more keys than any PyTorch version writes.
    #[error("it has more than {limit} keys")]
    TooManyKeys {
        /// The maximum number of keys in a dict.
        limit: usize,
    },
    /// A few objects are repeated so often that they expand to more than the file's length allows.
    #[error("the same dicts are repeated more often than a file of this length can justify; no real snapshot does that")]
    Repeated,
}

/// Returns a type's name with its article.
pub(crate) fn with_article(name: &str) -> String {
    match name {
        "None" => name.to_owned(),
        _ if name.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("an {name}"),
        _ => format!("a {name}"),
    }
}

/// The maximum number of keys that a dict in a snapshot may have; PyTorch 2.11 writes at most 12.
const MAX_KEYS: usize = 64;
/// The position of a key that a shape does not have.
const NOWHERE: u8 = u8::MAX;

/// The keys of one kind of dict, and their positions in each shape seen so far.
pub(crate) struct Fields<const N: usize> {
    /// The keys to look up.
    names: [&'static str; N],
    /// Keys that the reader knows but does not need.
    ignored: &'static [&'static str],
    /// The positions, by number of the shape.
    places: Vec<Option<Places<N>>>,
    /// Unknown keys of dicts without a shape.
    unknown: BTreeMap<String, u64>,
    /// The part of the snapshot that these dicts belong to, if it has keys that some release added or removed.
    part: Option<Part>,
    /// The dated keys in dicts without a shape.
    loose: FileFields,
}

/// The positions of the keys in dicts of one shape.
struct Places<const N: usize> {
    places: [u8; N],
    /// The number of dicts with this shape.
    uses: u64,
    unknown: Vec<String>,
}

impl<const N: usize> Fields<N> {
    pub(crate) fn new(names: [&'static str; N], ignored: &'static [&'static str]) -> Self {
        Fields { names, ignored, places: Vec::new(), unknown: BTreeMap::new(), part: None, loose: FileFields::NONE }
    }

    /// Like [`Fields::new`], for a part of the snapshot whose dated keys should be recorded.
    pub(crate) fn of(part: Part, names: [&'static str; N], ignored: &'static [&'static str]) -> Self {
        Fields { part: Some(part), ..Fields::new(names, ignored) }
    }

    /// Returns the values of the keys; [`Value::ABSENT`] for keys that the dict does not have.
    ///
    /// # Errors
    /// Fails if the value is not a dict, or has too many keys. `key` is the value's name in messages.
    #[inline]
    pub(crate) fn look_up(&mut self, loaded: &Loaded, dict: Value, key: &'static str) -> Result<[Value; N], FormatProblem> {
        match loaded.objects.as_dict(dict) {
            Some(Dict::Shaped { shape, values }) => {
                let places = self.places_of(loaded, shape)?;
                places.uses += 1;
                Ok(places.places.map(|place| values.get(usize::from(place)).copied().unwrap_or(Value::ABSENT)))
            }
            Some(Dict::Loose(pairs)) => self.look_up_loose(loaded, pairs),
            None => Err(FormatProblem::WrongType { key, expected: "dict", found: loaded.type_name(dict) }),
        }
    }

    #[inline]
    fn places_of(&mut self, loaded: &Loaded, shape: u32) -> Result<&mut Places<N>, FormatProblem> {
        let index = shape as usize;
        if !matches!(self.places.get(index), Some(Some(_))) {
            self.learn(loaded, shape)?;
        }
        match self.places.get_mut(index) {
            Some(Some(places)) => Ok(places),
            _ => Err(FormatProblem::TooManyKeys { limit: MAX_KEYS }),
        }
    }

    #[cold]
    fn learn(&mut self, loaded: &Loaded, shape: u32) -> Result<(), FormatProblem> {
        let keys = loaded.objects.shapes.keys(shape);
        if keys.len() > MAX_KEYS {
            return Err(FormatProblem::TooManyKeys { limit: MAX_KEYS });
        }
        let mut learned = Places { places: [NOWHERE; N], uses: 0, unknown: Vec::new() };
        for (place, &key) in keys.iter().enumerate() {
            let text = loaded.texts.get(key).unwrap_or(b"");
            match self.number(text) {
                Some(number) => learned.places[number] = place as u8,
                None if self.is_ignored(text) => {}
                None => learned.unknown.push(shown_name(text)),
            }
        }
        let index = shape as usize;
        if self.places.len() <= index {
            self.places.resize_with(index + 1, || None);
        }
        self.places[index] = Some(learned);
        Ok(())
    }

    fn look_up_loose(&mut self, loaded: &Loaded, pairs: &[(Value, Value)]) -> Result<[Value; N], FormatProblem> {
        if pairs.len() > MAX_KEYS {
            return Err(FormatProblem::TooManyKeys { limit: MAX_KEYS });
        }
        let mut found = [Value::ABSENT; N];
        for &(key, value) in pairs {
            let text = loaded.texts.get(key);
            if let (Some(part), Some(text)) = (self.part, text) {
                self.loose.note(part, text);
            }
            match text.and_then(|text| self.number(text)) {
                Some(number) => found[number] = value,
                None if text.is_some_and(|text| self.is_ignored(text)) => {}
                None => {
                    let name = text.map_or_else(|| loaded.type_name(key).to_owned(), shown_name);
                    count_name(&mut self.unknown, name, 1);
                }
            }
        }
        Ok(found)
    }

    /// Returns the dated keys that the dicts had.
    pub(crate) fn dated(&self, loaded: &Loaded) -> FileFields {
        let mut dated = self.loose;
        let Some(part) = self.part else { return dated };
        for (shape, places) in self.places.iter().enumerate() {
            if places.as_ref().is_some_and(|places| places.uses > 0) {
                let keys = loaded.objects.shapes.keys(shape as u32);
                keys.iter().for_each(|&key| dated.note(part, loaded.texts.get(key).unwrap_or(b"")));
            }
        }
        dated
    }

    fn number(&self, text: &[u8]) -> Option<usize> {
        self.names.iter().position(|name| name.as_bytes() == text)
    }

    fn is_ignored(&self, text: &[u8]) -> bool {
        self.ignored.iter().any(|name| name.as_bytes() == text)
    }

    /// Returns the unknown keys, and the number of times that each occurred.
    pub(crate) fn into_unknown(self) -> BTreeMap<String, u64> {
        let mut unknown = self.unknown;
        for places in self.places.into_iter().flatten() {
            for name in places.unknown {
                count_name(&mut unknown, name, places.uses);
            }
        }
        unknown
    }
}

type Found<T> = Result<T, FormatProblem>;

/// Returns `None` for an absent value or Python's None, and the result of `read` for other values.
#[inline]
pub(crate) fn optional<T>(value: Value, read: impl FnOnce(Value) -> Found<T>) -> Found<Option<T>> {
    match value.tag() {
        Tag::Absent | Tag::None => Ok(None),
        _ => read(value).map(Some),
    }
}

#[cold]
fn wrong_type(loaded: &Loaded, value: Value, key: &'static str, expected: &'static str) -> FormatProblem {
    if value == Value::ABSENT {
        return FormatProblem::Missing { key };
    }
    FormatProblem::WrongType { key, expected, found: loaded.type_name(value) }
}

fn integer(loaded: &Loaded, value: Value, key: &'static str, range: &'static str) -> Found<i128> {
    match loaded.objects.as_int(value) {
        Some(number) => Ok(number),
        None if value.tag() == Tag::HugeInt => {
            Err(FormatProblem::OutOfRange { key, value: "an integer of more than 128 bits".to_owned(), range })
        }
        None => Err(wrong_type(loaded, value, key, "int")),
    }
}

/// Reads an address, a size or a time: 0 to 2^64 - 1.
#[inline]
pub(crate) fn unsigned(loaded: &Loaded, value: Value, key: &'static str) -> Found<u64> {
    if value.tag() == Tag::Int && value.as_small_int() >= 0 {
        return Ok(value.as_small_int() as u64);
    }
    unsigned_slow(loaded, value, key)
}

#[cold]
fn unsigned_slow(loaded: &Loaded, value: Value, key: &'static str) -> Found<u64> {
    const RANGE: &str = "a whole number from 0 to 2^64 - 1";
    let number = integer(loaded, value, key, RANGE)?;
    u64::try_from(number).map_err(|_| FormatProblem::OutOfRange { key, value: number.to_string(), range: RANGE })
}

/// Reads a size of at least 1.
#[inline]
pub(crate) fn positive(loaded: &Loaded, value: Value, key: &'static str) -> Found<u64> {
    match unsigned(loaded, value, key)? {
        0 => Err(FormatProblem::OutOfRange { key, value: "0".to_owned(), range: "a whole number from 1 to 2^64 - 1" }),
        size => Ok(size),
    }
}

/// Reads a signed number, -2^63 to 2^63 - 1.
pub(crate) fn signed(loaded: &Loaded, value: Value, key: &'static str) -> Found<i64> {
    const RANGE: &str = "a whole number from -2^63 to 2^63 - 1";
    let number = integer(loaded, value, key, RANGE)?;
    i64::try_from(number).map_err(|_| FormatProblem::OutOfRange { key, value: number.to_string(), range: RANGE })
}

/// Reads a 64-bit number, signed or unsigned, such as a stream's handle. A negative number keeps its bits.
#[inline]
pub(crate) fn bits(loaded: &Loaded, value: Value, key: &'static str) -> Found<u64> {
    if value.tag() == Tag::Int {
        return Ok(value.as_small_int() as u64);
    }
    const RANGE: &str = "a whole number from -2^63 to 2^64 - 1";
    let number = integer(loaded, value, key, RANGE)?;
    let bits = u64::try_from(number).ok().or_else(|| i64::try_from(number).ok().map(|negative| negative as u64));
    bits.ok_or_else(|| FormatProblem::OutOfRange { key, value: number.to_string(), range: RANGE })
}

/// Reads a device number, at most 127: `c10::DeviceIndex` is a signed byte.
pub(crate) fn device(loaded: &Loaded, value: Value, key: &'static str) -> Found<u32> {
    const RANGE: &str = "a whole number from 0 to 127";
    let number = integer(loaded, value, key, RANGE)?;
    match u32::try_from(number) {
        Ok(device @ 0..=127) => Ok(device),
        _ => Err(FormatProblem::OutOfRange { key, value: number.to_string(), range: RANGE }),
    }
}

/// Reads a boolean, or 0 or 1.
pub(crate) fn boolean(loaded: &Loaded, value: Value, key: &'static str) -> Found<bool> {
    match (value.tag(), loaded.objects.as_int(value)) {
        (Tag::Bool, _) => Ok(value == Value::boolean(true)),
        (_, Some(number @ (0 | 1))) => Ok(number == 1),
        _ => Err(wrong_type(loaded, value, key, "bool")),
    }
}

/// Reads a number that may be a float.
pub(crate) fn float(loaded: &Loaded, value: Value, key: &'static str) -> Found<f64> {
    loaded.objects.as_float(value).ok_or_else(|| wrong_type(loaded, value, key, "float"))
}

/// Returns the bytes of a string.
#[inline]
pub(crate) fn text<'l>(loaded: &'l Loaded, value: Value, key: &'static str) -> Found<&'l [u8]> {
    loaded.texts.get(value).ok_or_else(|| wrong_type(loaded, value, key, "str"))
}

/// Returns the items of a list or a tuple.
pub(crate) fn items<'l>(loaded: &'l Loaded, value: Value, key: &'static str) -> Found<&'l [Value]> {
    loaded.objects.as_items(value).ok_or_else(|| wrong_type(loaded, value, key, "list"))
}

/// Reads a pool id: a pair of numbers.
pub(crate) fn pool(loaded: &Loaded, value: Value, key: &'static str) -> Found<(u64, u64)> {
    match loaded.objects.as_items(value) {
        Some(&[first, second]) => Ok((unsigned(loaded, first, key)?, unsigned(loaded, second, key)?)),
        _ => Err(wrong_type(loaded, value, key, "tuple of two ints")),
    }
}

/// Returns the end of a range of memory, which must be within 64 bits.
#[inline]
pub(crate) fn check_end(address: u64, size: u64) -> Found<u64> {
    address.checked_add(size).ok_or(FormatProblem::EndsBeyond { address, size })
}

/// Returns the problem for a name that is not one of the known ones.
#[cold]
pub(crate) fn unknown_name(key: &'static str, value: &[u8], known: &'static str) -> FormatProblem {
    FormatProblem::UnknownName { key, value: shown_name(value), known }
}

/// The maximum length of a kept name, in bytes.
const LONGEST_NAME: usize = 80;
/// The number of names that are counted separately.
const MOST_NAMES: usize = 256;
/// The name under which all other names are counted.
const OTHERS: &str = "...";

/// Returns a string for display: truncated, with replacement characters for bytes that are not UTF-8.
pub(crate) fn shown_name(text: &[u8]) -> String {
    let cut = text.get(..LONGEST_NAME).unwrap_or(text);
    let mut shown = String::from_utf8_lossy(cut).into_owned();
    if cut.len() < text.len() {
        shown.push_str(OTHERS);
    }
    shown
}

/// Counts a name, while keeping the number of names bounded.
pub(crate) fn count_name(names: &mut BTreeMap<String, u64>, name: String, times: u64) {
    let name = if names.len() < MOST_NAMES || names.contains_key(&name) { name } else { OTHERS.to_owned() };
    *names.entry(name).or_insert(0) += times;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        assert_eq!(shown_name(b"abc"), "abc");
        assert_eq!(shown_name(&[b'x'; 81]), format!("{}...", "x".repeat(80)));
        let mut names = BTreeMap::new();
        for number in 0..1000 {
            count_name(&mut names, number.to_string(), 1);
        }
        assert_eq!(names.len(), 257);
        assert_eq!(names.get("..."), Some(&744));
    }
}
