//! The machine's value stack with its MARKs, and moving values from the stack into containers.

use super::error::PickleProblem;
use super::machine::{Machine, Outcome};
use super::opcode::*;
use super::value::{Tag, Value};

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
    pub(crate) fn check_keys(&self, items: &[Value], code: u8) -> Outcome {
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
