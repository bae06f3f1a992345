//! The pickle machine's state, and what opcodes do to it: the value stack with its MARKs, the containers that are filled from
//! it, and the memo. `load` contains the loop over the opcodes.
//!
//! The machine cannot import or call anything. Neither this code nor any object that it builds recurses over the file's
//! nesting.
//!
//! The memo has numbered slots for the objects that a pickle refers to more than once. Picklers number from zero without
//! gaps, so the slots are a vector. In a file with gaps, the slots beyond the first gap are in a map: a single `LONG_BINPUT
//! 0xffffffff` must not cost 32 GiB.
//!
//! Dicts of scalars, which make up nearly all of a recording, take a shortcut: keys and values are stored directly, without
//! passing through the stack. The shortcut leaves everything else, including damage, to the machine's loop, with the stack
//! and the position as the loop expects them.
//!
//! Dicts with the same keys as the previous dict are read even faster: a trace can contain a million consecutive dicts that
//! differ only in their values. The keys of these dicts are references to the memo, the same bytes each time, so they are
//! compared as bytes and never looked up. A dict that differs is read key by key, and the reader learns its form in the
//! process.

use std::collections::BTreeMap;

use super::objects::{Container, EMPTY_SHAPE, Objects, Tag, Texts, Value, with_room};
use super::opcode::*;

/// The machine's state.
pub(crate) struct Machine<'a> {
    pub(crate) cursor: Cursor<'a>,
    pub(crate) texts: Texts,
    pub(crate) objects: Objects,
    pub(crate) memo: Memo,
    pub(crate) stack: Vec<Value>,
    /// Stack heights at the open MARKs.
    marks: Vec<usize>,
    /// The stack height at the last MARK, below which opcodes may not reach.
    pub(crate) fence: usize,
    /// The protocol that the file states.
    pub(crate) protocol: u8,
}

pub(crate) type Outcome = Result<(), PickleProblem>;

impl<'a> Machine<'a> {
    pub(crate) fn new(expected_length: usize, next_piece: NextPiece<'a>) -> Self {
        Machine {
            cursor: Cursor::new(next_piece),
            texts: Texts::default(),
            objects: Objects::for_input(expected_length),
            memo: Memo::for_input(expected_length),
            stack: Vec::new(),
            marks: Vec::new(),
            fence: 0,
            protocol: 0,
        }
    }

    /// Forgets the values read so far, but keeps the position in the input.
    pub(crate) fn forget(&mut self) {
        (self.objects, self.memo, self.texts) = (Objects::for_input(0), Memo::for_input(0), Texts::default());
        self.stack.clear();
        self.marks.clear();
        (self.fence, self.protocol) = (0, 0);
    }

    /// Returns the bytes of memory in use, excluding the input.
    pub(crate) fn held(&self) -> u64 {
        let values = self.stack.len() * size_of::<Value>() + self.marks.len() * size_of::<usize>();
        (values + self.objects.held() + self.memo.held() + self.texts.held()) as u64
    }

    /// Reads a LONG1, usually the six or seven bytes of an address or a time.
    #[inline]
    pub(crate) fn long1(&mut self) -> Result<Value, PickleProblem> {
        let length = self.cursor.byte()?;
        let ahead = self.cursor.rest().first_chunk::<8>();
        if let (1..=8, Some(bytes)) = (length, ahead) {
            let unused_bits = 64 - 8 * u32::from(length);
            let number = i64::from_le_bytes(*bytes) << unused_bits >> unused_bits;
            if let Some(value) = Value::small_int(number) {
                self.cursor.at += usize::from(length);
                return Ok(value);
            }
        }
        Ok(integer_from_bytes(self.cursor.bytes(u64::from(length))?, &mut self.objects))
    }

    #[inline]
    pub(crate) fn push_text(&mut self, length: u64) -> Outcome {
        let text = self.texts.copy(self.cursor.bytes(length)?);
        self.stack.push(text);
        Ok(())
    }

    #[inline]
    pub(crate) fn get(&mut self, index: u64) -> Outcome {
        match self.memo.get(index) {
            Some(value) => {
                self.stack.push(value);
                Ok(())
            }
            None => Err(PickleProblem::MissingMemo { index }),
        }
    }

    #[inline]
    pub(crate) fn put(&mut self, index: u64, code: u8) -> Outcome {
        let value = self.top(code)?;
        self.memo.put(index, value);
        Ok(())
    }
}

impl Machine<'_> {
    #[inline]
    pub(crate) fn top(&self, code: u8) -> Result<Value, PickleProblem> {
        match self.stack.last() {
            Some(&value) if self.stack.len() > self.fence => Ok(value),
            _ => Err(PickleProblem::StackUnderflow { code }),
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self, code: u8) -> Result<Value, PickleProblem> {
        let value = self.top(code)?;
        self.stack.pop();
        Ok(value)
    }

    /// Removes the value below the top.
    pub(crate) fn pop_second(&mut self, code: u8) -> Result<Value, PickleProblem> {
        let start = self.checked_below_top(2, code)?;
        Ok(self.stack.swap_remove(start))
    }

    /// Returns the stack height below the top `count` values.
    pub(crate) fn checked_below_top(&self, count: usize, code: u8) -> Result<usize, PickleProblem> {
        match self.stack.len().checked_sub(count) {
            Some(start) if start >= self.fence => Ok(start),
            _ => Err(PickleProblem::StackUnderflow { code }),
        }
    }

    #[inline]
    pub(crate) fn open_mark(&mut self) {
        self.fence = self.stack.len();
        self.marks.push(self.fence);
    }

    /// Closes the last MARK and returns the stack height at it.
    #[inline]
    pub(crate) fn pop_mark(&mut self, code: u8) -> Result<usize, PickleProblem> {
        let start = self.marks.pop().ok_or(PickleProblem::MissingMark { code })?;
        self.fence = self.marks.last().copied().unwrap_or(0);
        Ok(start)
    }

    /// Returns a tuple, list or dict of everything above a stack height.
    pub(crate) fn gather(&mut self, start: usize, code: u8) -> Result<Value, PickleProblem> {
        if code == TUPLE {
            return Ok(self.objects.new_tuple(&self.stack[start..]));
        }
        if code == LIST {
            let list = self.objects.new_list();
            self.objects.extend_list(list, &self.stack[start..]);
            return Ok(list);
        }
        let dict = self.objects.new_dict();
        self.check_keys(&self.stack[start..], code)?;
        self.objects.extend_dict(dict, &self.stack[start..], &self.texts);
        Ok(dict)
    }

    pub(crate) fn append(&mut self, code: u8) -> Outcome {
        let item = self.pop(code)?;
        let list = self.top(code)?;
        if self.objects.extend_list(list, &[item]) { Ok(()) } else { Err(self.wrong_target(list, "list", code)) }
    }

    pub(crate) fn appends(&mut self, code: u8) -> Outcome {
        let start = self.pop_mark(code)?;
        let list = self.target_below(start, code)?;
        if !self.objects.extend_list(list, &self.stack[start..]) {
            return Err(self.wrong_target(list, "list", code));
        }
        self.stack.truncate(start);
        Ok(())
    }

    #[inline]
    pub(crate) fn set_items(&mut self, code: u8) -> Outcome {
        let start = self.pop_mark(code)?;
        let dict = self.target_below(start, code)?;
        self.check_keys(&self.stack[start..], code)?;
        if !self.objects.extend_dict(dict, &self.stack[start..], &self.texts) {
            return Err(self.wrong_target(dict, "dict", code));
        }
        self.stack.truncate(start);
        Ok(())
    }

    pub(crate) fn extend_dict(&mut self, dict: Value, items: &[Value], code: u8) -> Outcome {
        self.check_keys(items, code)?;
        if self.objects.extend_dict(dict, items, &self.texts) { Ok(()) } else { Err(self.wrong_target(dict, "dict", code)) }
    }

    /// Returns the value directly below a MARK.
    fn target_below(&self, start: usize, code: u8) -> Result<Value, PickleProblem> {
        match start.checked_sub(1) {
            Some(below) if below >= self.fence && start <= self.stack.len() => Ok(self.stack[below]),
            _ => Err(PickleProblem::StackUnderflow { code }),
        }
    }

    #[cold]
    fn wrong_target(&self, target: Value, expected: &'static str, code: u8) -> PickleProblem {
        PickleProblem::WrongTarget { code, expected, found: self.objects.type_name(target) }
    }

    /// Checks that keys and values come in pairs and that no key is a list or a dict.
    /// (A tuple of lists passes, as it is never looked up.)
    #[inline]
    fn check_keys(&self, items: &[Value], code: u8) -> Outcome {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(PickleProblem::OddItems { code });
        }
        for &[key, _] in pairs {
            if key.tag() == Tag::Container && self.objects.type_name(key) != "tuple" {
                return Err(PickleProblem::UnhashableKey { found: self.objects.type_name(key) });
            }
        }
        Ok(())
    }
}

/// Memo slots.
pub(crate) struct Memo {
    dense: Vec<Value>,
    sparse: BTreeMap<u64, Value>,
    /// The number of times that a slot was overwritten or written beyond a gap.
    changes: u64,
}

impl Memo {
    /// Creates an empty memo, with the capacity that a recording of `length` bytes needs.
    fn for_input(length: usize) -> Self {
        Memo { dense: with_room(length / 30), sparse: BTreeMap::new(), changes: 0 }
    }

    /// Executes MEMOIZE: writes the next slot, whose number is the number of slots.
    #[inline]
    pub(crate) fn push(&mut self, value: Value) {
        if self.sparse.is_empty() {
            self.dense.push(value);
        } else {
            self.put((self.dense.len() + self.sparse.len()) as u64, value);
        }
    }

    /// Executes PUT, BINPUT or LONG_BINPUT: writes a slot by number.
    #[inline]
    pub(crate) fn put(&mut self, index: u64, value: Value) {
        let next = self.dense.len() as u64;
        // A number truncated to the width of an address would be the number of a different slot.
        match usize::try_from(index).ok().and_then(|index| self.dense.get_mut(index)) {
            Some(slot) => {
                *slot = value;
                self.changes += 1;
            }
            None if index == next => {
                // If the slot was beyond a gap, it is overwritten.
                if !self.sparse.is_empty() && self.sparse.remove(&index).is_some() {
                    self.changes += 1;
                }
                self.dense.push(value);
            }
            None => {
                self.sparse.insert(index, value);
                self.changes += 1;
            }
        }
    }

    /// Returns the value of a slot, or `None` if it was never written.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<Value> {
        match usize::try_from(index).ok().and_then(|index| self.dense.get(index)) {
            Some(&value) => Some(value),
            None => self.sparse.get(&index).copied(),
        }
    }

    /// Returns a count that stays the same as long as no slot changes its value. It may also grow when no value changes.
    #[inline]
    fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns whether there are slots beyond a gap.
    #[inline]
    fn has_gaps(&self) -> bool {
        !self.sparse.is_empty()
    }

    /// Returns the number of slots before the first gap.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.dense.len()
    }

    /// Drops the slots that have been added since there were `length` slots. There must be no gaps.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.dense.truncate(length);
    }

    /// Returns the number of bytes of memory in use.
    fn held(&self) -> usize {
        self.dense.len() * size_of::<Value>() + self.sparse.len() * 4 * size_of::<u64>()
    }
}

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

    /// Reads the keys and values of a dict after its MARK.
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
            // The string must be complete.
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
    use super::*;

    #[test]
    fn slots_beyond_a_gap_cost_little() {
        let mut memo = Memo::for_input(0);
        memo.put(u64::from(u32::MAX), Value::NONE);
        memo.put(1, Value::int32(1));
        memo.put(0, Value::int32(0));
        memo.put(1, Value::int32(2));
        assert_eq!(memo.get(u64::from(u32::MAX)), Some(Value::NONE));
        assert_eq!(memo.get(0), Some(Value::int32(0)));
        assert_eq!(memo.get(1), Some(Value::int32(2)));
        // Where addresses have 32 bits, this number must not be cut to 1.
        assert_eq!(memo.get((1 << 32) + 1), None);
        memo.put((1 << 32) + 1, Value::int32(3));
        assert_eq!((memo.get(1), memo.get((1 << 32) + 1)), (Some(Value::int32(2)), Some(Value::int32(3))));
        assert_eq!(memo.get(2), None);
        assert!(memo.held() < 200);
    }
}
