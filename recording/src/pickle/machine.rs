//! The pickle machine's state, and what opcodes do to it: the value stack with its MARKs, the containers that are filled from
//! it, and the memo. `load` contains the loop over the opcodes.
//!
//! The machine cannot import or call anything. Neither this code nor any object that it builds recurses over the file's
//! nesting.
//!
//! The memo has numbered slots for the objects that a pickle refers to more than once. Picklers number from zero without
//! gaps, so the slots are a vector. In a file with gaps, the slots beyond the first gap are in a map: a single `LONG_BINPUT
//! 0xffffffff` must not cost 32 GiB.

use std::collections::BTreeMap;

use super::arguments::{Cursor, NextPiece, integer_from_bytes};
use super::error::PickleProblem;
use super::objects::Objects;
use super::opcode::*;
use super::value::{Tag, Texts, Value};

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

    /// The bytes of memory in use, without the input.
    pub(crate) fn held(&self) -> u64 {
        let values = self.stack.len() * size_of::<Value>() + self.marks.len() * size_of::<usize>();
        (values + self.objects.held() + self.memo.held() + self.texts.held()) as u64
    }

    /// LONG1. It usually consists of the six or seven bytes of an address or a time.
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

    /// The stack height below the top `count` values.
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

    /// A tuple, list or dict of everything above a stack height.
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

    /// The value directly below a MARK.
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
    /// An empty memo, with the capacity that a recording of `length` bytes needs.
    fn for_input(length: usize) -> Self {
        Memo { dense: Vec::with_capacity(length / 30), sparse: BTreeMap::new(), changes: 0 }
    }

    /// MEMOIZE: writes the next slot, whose number is the number of slots.
    #[inline]
    pub(crate) fn push(&mut self, value: Value) {
        if self.sparse.is_empty() {
            self.dense.push(value);
        } else {
            self.put((self.dense.len() + self.sparse.len()) as u64, value);
        }
    }

    /// PUT, BINPUT and LONG_BINPUT: writes a slot by number.
    #[inline]
    pub(crate) fn put(&mut self, index: u64, value: Value) {
        let next = self.dense.len() as u64;
        match self.dense.get_mut(index as usize) {
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

    /// The value of a slot; `None` if it was never written.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<Value> {
        match self.dense.get(index as usize) {
            Some(&value) => Some(value),
            None => self.sparse.get(&index).copied(),
        }
    }

    /// A count that stays the same as long as no slot changes its value. It may also grow when no value changes.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether there are slots beyond a gap.
    #[inline]
    pub(crate) fn has_gaps(&self) -> bool {
        !self.sparse.is_empty()
    }

    /// The number of slots before the first gap.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.dense.len()
    }

    /// Drops the slots that have been added since there were `length` slots. There must be no gaps.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.dense.truncate(length);
    }

    /// Bytes of memory in use.
    fn held(&self) -> usize {
        self.dense.len() * size_of::<Value>() + self.sparse.len() * 4 * size_of::<u64>()
    }
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
        assert_eq!(memo.get(2), None);
        assert!(memo.held() < 200);
    }
}
