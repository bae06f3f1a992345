//! A shortcut for dicts of scalars, which make up nearly all of a recording: keys and values are stored directly, without
//! passing through the stack.
//!
//! The shortcut leaves everything else, including damage, to the machine's loop, with the stack and the position as the loop
//! expects them.
//!
//! Dicts with the same keys as the previous dict are read even faster: a trace can contain a million consecutive dicts that
//! differ only in their values. The keys of these dicts are references to the memo, the same bytes each time, so they are
//! compared as bytes and never looked up. A dict that differs is read key by key, and the reader learns its form in the
//! process.

use super::error::PickleProblem;
use super::machine::{Machine, Memo, Outcome};
use super::objects::{Container, EMPTY_SHAPE};
use super::opcode::*;
use super::value::{Texts, Value};

/// The maximum number of keys in a dict whose form is learned; trace entries have eight to eleven.
const MOST_KEYS: usize = 16;

/// A key as bytes: `BINGET` or `LONG_BINGET`, and the memo slot.
#[derive(Clone, Copy)]
struct Key {
    bytes: u64,
    mask: u64,
    length: usize,
}

/// The form of the last dict that was read key by key.
pub(crate) struct Template {
    keys: Vec<Key>,
    /// The shape of the entire dict; [`EMPTY_SHAPE`] if no form is known.
    shape: u32,
    /// The memo's change count when the form was learned: if a slot has been overwritten since, it may hold a different key.
    changes: u64,
    learns: bool,
}

impl Template {
    pub(crate) fn new() -> Self {
        Template { keys: Vec::with_capacity(MOST_KEYS), shape: EMPTY_SHAPE, changes: 0, learns: false }
    }

    /// Starts learning the form of a dict that is read key by key.
    fn begin(&mut self, changes: u64) {
        self.keys.clear();
        self.shape = EMPTY_SHAPE;
        self.changes = changes;
        self.learns = true;
    }

    /// Learns the key that begins at this position.
    #[inline]
    fn add_key(&mut self, ahead: &[u8]) {
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

    /// Completes the form of the dict.
    fn finish(&mut self, shape: u32) {
        if self.learns {
            self.shape = shape;
        }
    }

    /// Reads an EMPTY_DICT and everything up to SETITEMS, if it has the usual simple form.
    #[inline]
    pub(crate) fn begin_dict(&mut self, machine: &mut Machine<'_>) -> Outcome {
        let dict = machine.objects.new_dict();
        machine.stack.push(dict);
        machine.memoise_if_next(dict);
        if machine.cursor.peek() == MARK {
            machine.cursor.at += 1;
            if !self.like_the_last(machine, dict) {
                self.pairs(machine, dict);
            }
        }
        Ok(())
    }

    /// Reads the rest of a dict after its MARK, if it has the previous dict's keys and simple values. If not, reads nothing
    /// and returns false.
    #[inline]
    fn like_the_last(&mut self, machine: &mut Machine<'_>, dict: Value) -> bool {
        if self.shape == EMPTY_SHAPE || self.changes != machine.memo.changes() || machine.memo.has_gaps() {
            return false;
        }
        let (input, mut at) = (machine.cursor.input.as_slice(), machine.cursor.at);
        let (start, slots, texts) = (machine.objects.slots.len(), machine.memo.length(), machine.texts.length());
        for key in &self.keys {
            match value_after(key, input, &mut at, &mut machine.memo, &mut machine.texts) {
                Some(value) => machine.objects.slots.push(value),
                None => {
                    machine.objects.slots.truncate(start);
                    machine.memo.truncate(slots);
                    machine.texts.truncate(texts);
                    return false;
                }
            }
        }
        if input.get(at) != Some(&SETITEMS) {
            machine.objects.slots.truncate(start);
            machine.memo.truncate(slots);
            machine.texts.truncate(texts);
            return false;
        }
        machine.cursor.at = at + 1;
        let shape = self.shape;
        machine.objects.set_container(dict, Container::Dict { start: start as u32, shape });
        true
    }

    /// The keys and values of a dict after its MARK.
    fn pairs(&mut self, machine: &mut Machine<'_>, dict: Value) {
        let start = machine.objects.slots.len();
        let mut shape = EMPTY_SHAPE;
        self.begin(machine.memo.changes());
        loop {
            if machine.cursor.peek() == SETITEMS {
                machine.cursor.at += 1;
                self.finish(shape);
                machine.objects.set_container(dict, Container::Dict { start: start as u32, shape });
                return;
            }
            self.add_key(machine.cursor.rest());
            let Some(key) = machine.scalar() else {
                return machine.leave_pairs(start, shape, &[]);
            };
            let Some(value) = machine.scalar() else {
                return machine.leave_pairs(start, shape, &[key]);
            };
            let Some(longer) = machine.objects.shapes.step(shape, key, &machine.texts) else {
                return machine.leave_pairs(start, shape, &[key, value]);
            };
            machine.objects.slots.push(value);
            shape = longer;
        }
    }
}

impl Machine<'_> {
    /// Abandons the shortcut: pushes the pairs so far, and `rest`, onto the stack above a MARK.
    fn leave_pairs(&mut self, start: usize, shape: u32, rest: &[Value]) {
        self.open_mark();
        let keys = self.objects.shapes.keys(shape);
        for (key, value) in keys.into_iter().zip(self.objects.slots.drain(start..)) {
            self.stack.extend([key, value]);
        }
        self.stack.extend_from_slice(rest);
    }

    /// Reads a scalar, a reference or a new empty list, and memoises it if the file requires this. For anything else, reads
    /// nothing and returns `None`.
    #[inline]
    fn scalar(&mut self) -> Option<Value> {
        let before = self.cursor.at;
        let value = self.scalar_or_problem();
        if !matches!(value, Ok(Some(_))) {
            self.cursor.at = before;
        }
        value.ok().flatten()
    }

    #[inline]
    fn scalar_or_problem(&mut self) -> Result<Option<Value>, PickleProblem> {
        let value = match self.cursor.byte()? {
            LONG_BINGET => {
                let index = u64::from(u32::from_le_bytes(self.cursor.array()?));
                return Ok(self.memo.get(index));
            }
            BINGET => {
                let index = u64::from(self.cursor.byte()?);
                return Ok(self.memo.get(index));
            }
            LONG1 => self.long1()?,
            BININT1 => Value::int32(i32::from(self.cursor.byte()?)),
            BININT2 => Value::int32(i32::from(u16::from_le_bytes(self.cursor.array()?))),
            BININT => Value::int32(i32::from_le_bytes(self.cursor.array()?)),
            SHORT_BINUNICODE => {
                let length = u64::from(self.cursor.byte()?);
                let text = self.texts.copy(self.cursor.bytes(length)?);
                self.memoise_if_next(text);
                text
            }
            EMPTY_LIST => {
                let list = self.objects.new_list();
                self.memoise_if_next(list);
                list
            }
            NONE => Value::NONE,
            NEWTRUE => Value::boolean(true),
            NEWFALSE => Value::boolean(false),
            _ => return Ok(None),
        };
        Ok(Some(value))
    }

    /// Executes a MEMOIZE or PUT if one comes next; leaves an incomplete one to the loop.
    #[inline]
    fn memoise_if_next(&mut self, value: Value) {
        match *self.cursor.rest() {
            [MEMOIZE, ..] => {
                self.cursor.at += 1;
                self.memo.push(value);
            }
            [BINPUT, index, ..] => {
                self.cursor.at += 2;
                self.memo.put(u64::from(index), value);
            }
            [LONG_BINPUT, a, b, c, d, ..] => {
                self.cursor.at += 5;
                self.memo.put(u64::from(u32::from_le_bytes([a, b, c, d])), value);
            }
            _ => {}
        }
    }
}

/// Reads the value that follows a key, if that key comes next and the value is simple.
#[inline(always)]
fn value_after(key: &Key, input: &[u8], at: &mut usize, memo: &mut Memo, texts: &mut Texts) -> Option<Value> {
    // This is long enough for the key, an opcode, a length and eight bytes.
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
