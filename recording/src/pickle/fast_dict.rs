//! A short cut for dicts of scalars, which nearly all of a recording consists of: keys and values go straight
//! to where they are stored, without passing through the stack.
//!
//! Anything that the short cut does not know, damage included, it leaves to the machine's loop, with the stack
//! and the position as the loop would have them. Dicts with the same keys as the one before are read faster
//! still ([`template`](super::template)).

use super::error::PickleProblem;
use super::machine::{Machine, Outcome};
use super::objects::Container;
use super::opcode::*;
use super::shape;
use super::template::value_after;
use super::value::Value;

impl Machine<'_> {
    /// EMPTY_DICT, and everything up to SETITEMS if that is as simple as usual.
    #[inline]
    pub(crate) fn begin_dict(&mut self) -> Outcome {
        let dict = self.objects.new_dict();
        self.stack.push(dict);
        self.memoise_if_next(dict);
        if self.cursor.peek() == MARK {
            self.cursor.at += 1;
            if !self.like_the_last(dict) {
                self.pairs(dict);
            }
        }
        Ok(())
    }

    /// Reads the rest of a dict after its MARK if it has the keys of the one before and simple values.
    /// Otherwise reads nothing and returns false.
    #[inline]
    fn like_the_last(&mut self, dict: Value) -> bool {
        let template = &self.template;
        if template.shape == shape::EMPTY || template.changes != self.memo.changes() || self.memo.has_gaps() {
            return false;
        }
        let (input, mut at) = (self.cursor.input.as_slice(), self.cursor.at);
        let (start, slots, texts) = (self.objects.slots.len(), self.memo.length(), self.texts.length());
        for key in &template.keys {
            match value_after(key, input, &mut at, &mut self.memo, &mut self.texts) {
                Some(value) => self.objects.slots.push(value),
                None => {
                    self.objects.slots.truncate(start);
                    self.memo.truncate(slots);
                    self.texts.truncate(texts);
                    return false;
                }
            }
        }
        if input.get(at) != Some(&SETITEMS) {
            self.objects.slots.truncate(start);
            self.memo.truncate(slots);
            self.texts.truncate(texts);
            return false;
        }
        self.cursor.at = at + 1;
        let shape = template.shape;
        self.objects.set_container(dict, Container::Dict { start: start as u32, shape });
        true
    }

    /// The keys and values of a dict after its MARK.
    fn pairs(&mut self, dict: Value) {
        let start = self.objects.slots.len();
        let mut shape = shape::EMPTY;
        self.template.begin(self.memo.changes());
        loop {
            if self.cursor.peek() == SETITEMS {
                self.cursor.at += 1;
                self.template.finish(shape);
                self.objects.set_container(dict, Container::Dict { start: start as u32, shape });
                return;
            }
            self.template.add_key(self.cursor.rest());
            let Some(key) = self.scalar() else {
                return self.leave_pairs(start, shape, &[]);
            };
            let Some(value) = self.scalar() else {
                return self.leave_pairs(start, shape, &[key]);
            };
            let Some(longer) = self.objects.shapes.step(shape, key, &self.texts) else {
                return self.leave_pairs(start, shape, &[key, value]);
            };
            self.objects.slots.push(value);
            shape = longer;
        }
    }

    /// Gives up the short cut: puts the pairs so far, and `rest`, on the stack above a MARK.
    fn leave_pairs(&mut self, start: usize, shape: u32, rest: &[Value]) {
        self.open_mark();
        let keys = self.objects.shapes.keys(shape);
        for (key, value) in keys.into_iter().zip(self.objects.slots.drain(start..)) {
            self.stack.extend([key, value]);
        }
        self.stack.extend_from_slice(rest);
    }

    /// A scalar, a reference or a new empty list, memoised if the file says so; `None`,
    /// with nothing read, for anything else.
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

    /// Carries out a MEMOIZE or PUT if one comes next; one that is cut short is left to the loop.
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
