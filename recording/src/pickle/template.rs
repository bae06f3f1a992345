//! Dicts like the one before: a trace has a million in a row that differ in their values only.
//!
//! The keys of such dicts are references to the memo, the same bytes each time, so they are compared as bytes
//! and never looked up. A dict that differs is read by [`fast_dict`](super::fast_dict), which learns its form.

use super::memo::Memo;
use super::opcode::*;
use super::shape;
use super::texts::Texts;
use super::value::Value;

/// The most keys of a dict whose form is learned; trace entries have eight to eleven.
const MOST_KEYS: usize = 16;

/// A key as bytes: `BINGET` or `LONG_BINGET`, and the memo slot.
#[derive(Clone, Copy)]
pub(super) struct Key {
    bytes: u64,
    mask: u64,
    length: usize,
}

/// The form of the last dict that was read key by key.
pub(crate) struct Template {
    pub(super) keys: Vec<Key>,
    /// The shape of the whole dict; [`shape::EMPTY`] if no form is known.
    pub(super) shape: u32,
    /// The memo's change count when the form was learned: a slot that was overwritten since may be another key.
    pub(super) changes: u64,
    learns: bool,
}

impl Template {
    pub(crate) fn new() -> Self {
        Template { keys: Vec::with_capacity(MOST_KEYS), shape: shape::EMPTY, changes: 0, learns: false }
    }

    /// Starts learning from a dict that is read key by key.
    pub(crate) fn begin(&mut self, changes: u64) {
        self.keys.clear();
        self.shape = shape::EMPTY;
        self.changes = changes;
        self.learns = true;
    }

    /// Learns a key, which begins here.
    #[inline]
    pub(crate) fn add_key(&mut self, ahead: &[u8]) {
        let length = match ahead.first() {
            Some(&BINGET) => 2,
            Some(&LONG_BINGET) => 5,
            _ => 0,
        };
        match ahead.first_chunk::<8>() {
            Some(bytes) if self.learns && length > 0 && self.keys.len() < MOST_KEYS => {
                let mask = u64::MAX >> (64 - 8 * length as u32);
                self.keys.push(Key { bytes: u64::from_le_bytes(*bytes) & mask, mask, length });
            }
            _ => self.learns = false,
        }
    }

    /// The dict is complete.
    pub(crate) fn finish(&mut self, shape: u32) {
        if self.learns {
            self.shape = shape;
        }
    }
}

/// The value that follows a key, if the key is next and the value is simple.
#[inline(always)]
pub(super) fn value_after(key: &Key, input: &[u8], at: &mut usize, memo: &mut Memo, texts: &mut Texts) -> Option<Value> {
    // Long enough for the key, an opcode, a length and eight bytes.
    let ahead = input.get(*at..)?.first_chunk::<16>()?;
    let word = |from: usize| ahead.get(from..from + 8).and_then(<[u8]>::first_chunk::<8>).map(|bytes| u64::from_le_bytes(*bytes));
    if word(0)? & key.mask != key.bytes {
        return None;
    }
    let opcode = *ahead.get(key.length)?;
    let argument = word(key.length + 1)?;
    *at += key.length + 1;
    let (value, length) = match opcode {
        LONG_BINGET => (memo.get(argument & 0xffff_ffff)?, 4),
        BINGET => (memo.get(argument & 0xff)?, 1),
        BININT1 => (Value::int32((argument & 0xff) as i32), 1),
        BININT2 => (Value::int32((argument & 0xffff) as i32), 2),
        BININT => (Value::int32(argument as u32 as i32), 4),
        LONG1 => {
            let bytes = (argument & 0xff) as u32;
            if !(1..=7).contains(&bytes) {
                return None;
            }
            let unused_bits = 64 - 8 * bytes;
            let number = ((argument >> 8) as i64) << unused_bits >> unused_bits;
            (Value::small_int(number)?, 1 + bytes as usize)
        }
        SHORT_BINUNICODE => {
            let bytes = argument & 0xff;
            let end = *at + 1 + bytes as usize;
            // The text must be complete.
            let text = texts.copy(input.get(*at + 1..end)?);
            let is_memoised = input.get(end) == Some(&MEMOIZE);
            if is_memoised {
                memo.push(text);
            } else if matches!(input.get(end), Some(&(BINPUT | LONG_BINPUT)) | None) {
                return None;
            }
            (text, 1 + bytes as usize + usize::from(is_memoised))
        }
        NONE => (Value::NONE, 0),
        NEWTRUE => (Value::boolean(true), 0),
        NEWFALSE => (Value::boolean(false), 0),
        _ => return None,
    };
    *at += length;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::super::load::load_bytes;
    use super::super::objects::Dict;

    /// The one key and value of each dict of a list that begins with two texts, `a` in slot 0 and `b` in slot 1.
    fn read(items: &[&[u8]]) -> Vec<(Vec<u8>, i64)> {
        let mut bytes = b"\x80\x02](\x8c\x01aq\x00\x8c\x01bq\x01".to_vec();
        bytes.extend(items.concat());
        bytes.extend(b"e.");
        read_pickle(&bytes)
    }

    /// The one key and value of each dict of a list.
    fn read_pickle(bytes: &[u8]) -> Vec<(Vec<u8>, i64)> {
        let mut bytes = bytes.to_vec();
        // Bytes after the end, so that the short cut can look ahead.
        bytes.extend([0; 32]);
        let loaded = load_bytes(&bytes).expect("a pickle");
        let items = loaded.objects.as_items(loaded.root).expect("a list");
        let pairs = items.iter().filter_map(|&item| match loaded.objects.as_dict(item)? {
            Dict::Shaped { shape, values } => {
                let key = loaded.texts.get(loaded.objects.shapes.keys(shape)[0]).expect("a text");
                Some((key.to_vec(), values[0].as_small_int()))
            }
            Dict::Loose(_) => panic!("a loose dict"),
        });
        pairs.collect()
    }

    const A: [&[u8]; 3] = [b"}(h\x00K\x01u", b"}(h\x00K\x02u", b"}(h\x00M\x03\x00u"];

    fn pairs(expected: &[(&str, i64)]) -> Vec<(Vec<u8>, i64)> {
        expected.iter().map(|&(key, value)| (key.as_bytes().to_vec(), value)).collect()
    }

    #[test]
    fn dicts_like_the_last_are_read_and_others_too() {
        assert_eq!(read(&A), pairs(&[("a", 1), ("a", 2), ("a", 3)]));
        let other: &[u8] = b"}(h\x01K\x04u";
        assert_eq!(read(&[A[0], A[1], other, A[2]]), pairs(&[("a", 1), ("a", 2), ("b", 4), ("a", 3)]));
    }

    #[test]
    fn a_slot_that_is_overwritten_is_another_key() {
        assert_eq!(read(&[A[0], A[1], b"h\x01q\x00", A[2]]), pairs(&[("a", 1), ("a", 2), ("b", 3)]));
    }

    /// While the first dict is read, slot 1 is beyond a gap. Overwriting slot 1
    /// closes the gap, and makes it another key.
    #[test]
    fn a_slot_beyond_a_gap_that_is_overwritten_is_another_key() {
        let bytes = b"\x80\x02](\x8c\x01aq\x01}(h\x01K\x01u\x8c\x01xq\x00\x8c\x01bq\x01}(h\x01K\x02u}(h\x01K\x03ue.";
        assert_eq!(read_pickle(bytes), pairs(&[("a", 1), ("b", 2), ("b", 3)]));
    }

    /// A text is memoised once, even if the dict is read a second time: the next slots are 2 and 3.
    #[test]
    fn a_text_read_before_a_dict_turns_out_different_is_memoised_once() {
        let texts: [&[u8]; 3] = [b"}(h\x00\x8c\x01x\x94u", b"}(h\x00\x8c\x01y\x94u", b"}(h\x00\x8c\x01z\x94h\x01K\x00u"];
        let use_slot: &[u8] = b"}(h\x04K\x09u";
        let read = read(&[texts[0], texts[1], texts[2], use_slot]);
        assert_eq!(read.last(), Some(&(b"z".to_vec(), 9)));
    }
}
