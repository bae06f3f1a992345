//! Python stacks, each stored once however many blocks and entries have it.
//!
//! A snapshot shares one list among identical stacks (spec 7.3), so most of this is done already.
//! Equal lists that are not shared are recognised by their contents.

use std::collections::HashMap;
use std::sync::Arc;

/// A stack's index in the [`StackTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(u32);

impl StackId {
    /// No stack: none was recorded, or PyTorch dropped it.
    pub const NONE: StackId = StackId(u32::MAX);
}

/// One call in a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The source file; `??` for C++ code without symbols.
    pub filename: Arc<str>,
    /// The line in it, from 1; 0 if unknown.
    pub line: u32,
    /// The function.
    pub name: Arc<str>,
}

/// All stacks of a recording.
///
/// Two tables are equal if they have the same stacks in the same order.
#[derive(Debug, Clone, Default)]
pub struct StackTable {
    frames: Vec<Frame>,
    /// The frame numbers of all stacks, one stack after the other.
    calls: Vec<u32>,
    /// Where each stack ends in `calls`.
    ends: Vec<usize>,
    frame_numbers: HashMap<Frame, u32>,
    stack_numbers: HashMap<Box<[u32]>, u32>,
}

impl PartialEq for StackTable {
    fn eq(&self, other: &Self) -> bool {
        (&self.frames, &self.calls, &self.ends) == (&other.frames, &other.calls, &other.ends)
    }
}

impl StackTable {
    /// The number of different stacks.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether no stack was recorded.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The calls of a stack, innermost first; none for [`StackId::NONE`].
    pub fn frames(&self, stack: StackId) -> impl ExactSizeIterator<Item = &Frame> {
        self.calls(stack).iter().map(|&call| &self.frames[call as usize])
    }

    /// The frame numbers of a stack; equal numbers are equal frames.
    pub(crate) fn calls(&self, stack: StackId) -> &[u32] {
        let place = stack.0 as usize;
        let start = place.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(place).and_then(|&end| self.calls.get(start..end)).unwrap_or(&[])
    }

    /// A frame by its number.
    pub(crate) fn frame(&self, number: u32) -> Option<&Frame> {
        self.frames.get(number as usize)
    }

    /// The number of a frame, which is added if it is new.
    pub fn intern_frame(&mut self, frame: Frame) -> u32 {
        let next = self.frames.len() as u32;
        if let Some(&number) = self.frame_numbers.get(&frame) {
            return number;
        }
        self.frames.push(frame.clone());
        self.frame_numbers.insert(frame, next);
        next
    }

    /// The index of a stack, which is added if it is new. An empty stack is [`StackId::NONE`].
    ///
    /// `calls` are numbers from [`StackTable::intern_frame`], innermost first; other numbers are left out.
    pub fn intern_stack(&mut self, calls: &[u32]) -> StackId {
        if calls.is_empty() {
            return StackId::NONE;
        }
        if let Some(&place) = self.stack_numbers.get(calls) {
            return StackId(place);
        }
        let place = self.ends.len() as u32;
        let known = self.frames.len();
        self.calls.extend(calls.iter().filter(|&&call| (call as usize) < known));
        self.ends.push(self.calls.len());
        self.stack_numbers.insert(calls.into(), place);
        StackId(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one() {
        let mut table = StackTable::default();
        let frame = |line| Frame { filename: "a.py".into(), line, name: "f".into() };
        let (one, two) = (table.intern_frame(frame(1)), table.intern_frame(frame(2)));
        assert_eq!(table.intern_frame(frame(1)), one);
        let stack = table.intern_stack(&[one, two]);
        assert_eq!(table.intern_stack(&[one, two]), stack);
        let other = table.intern_stack(&[two]);
        assert_ne!(other, stack);
        assert_eq!(table.frames(stack).map(|frame| frame.line).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(table.frames(other).map(|frame| frame.line).collect::<Vec<_>>(), [2]);
        assert_eq!(table.intern_stack(&[]), StackId::NONE);
        assert_eq!(table.frames(StackId::NONE).len(), 0);
        assert_eq!(table.len(), 2);
    }
}
