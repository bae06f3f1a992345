//! The pickle machine: one loop over the opcodes, and a value stack. Nothing in it can import or call anything.
//!
//! Sources: `Lib/pickle.py` of CPython (semantics), spec 7.6 (the opcodes that snapshots use). Nothing here
//! recurses over the file's nesting, nor does anything built from it.

use super::cursor::{Cursor, NextPiece};
use super::error::{PickleError, PickleProblem};
use super::literals;
use super::load::Length;
use super::memo::Memo;
use super::objects::Objects;
use super::opcode::*;
use super::template::Template;
use super::texts::Texts;
use super::value::Value;

/// The machine's state.
pub(crate) struct Machine<'a> {
    pub(crate) cursor: Cursor<'a>,
    pub(crate) texts: Texts,
    pub(crate) objects: Objects,
    pub(crate) memo: Memo,
    pub(crate) stack: Vec<Value>,
    /// Stack heights at the open MARKs.
    pub(crate) marks: Vec<usize>,
    /// The stack height at the last MARK, below which opcodes may not reach.
    pub(crate) fence: usize,
    /// The form of the last dict.
    pub(crate) template: Template,
    length: Length,
    /// The protocol that the file states.
    pub(crate) protocol: u8,
}

/// What a step led to.
enum Step {
    GoOn,
    Done(Value),
}

pub(crate) type Outcome = Result<(), PickleProblem>;

/// How many opcodes pass between two checks of the memory in use. Each adds at most a few
/// hundred bytes to what the file has.
const OPCODES_PER_CHECK: u32 = 1 << 16;

impl<'a> Machine<'a> {
    pub(crate) fn new(length: Length, next_piece: NextPiece<'a>) -> Self {
        Machine {
            cursor: Cursor::new(next_piece),
            texts: Texts::default(),
            objects: Objects::for_input(length.expected()),
            memo: Memo::for_input(length.expected()),
            stack: Vec::new(),
            marks: Vec::new(),
            fence: 0,
            template: Template::new(),
            length,
            protocol: 0,
        }
    }

    /// Runs to STOP and returns the root value. Bytes after STOP are ignored.
    pub(crate) fn run(&mut self) -> Result<Value, PickleError> {
        loop {
            for _ in 0..OPCODES_PER_CHECK {
                self.cursor.look_ahead();
                let offset = self.cursor.offset();
                match self.step() {
                    Ok(Step::GoOn) => {}
                    Ok(Step::Done(value)) => return Ok(value),
                    // Nothing was changed before the end of the opcode was found missing.
                    Err(PickleProblem::Truncated { .. } | PickleProblem::UnfinishedLine)
                        if self.cursor.retry_with_more(offset) => {}
                    Err(problem) => return Err(PickleError { offset, problem }),
                }
            }
            let limit = self.length.memory_bound(self.cursor.fetched());
            if self.held() > limit || self.objects.full() {
                return Err(PickleError { offset: self.cursor.offset(), problem: PickleProblem::TooMuchMemory { limit } });
            }
        }
    }

    /// Bytes of memory in use, without the input.
    fn held(&self) -> u64 {
        let values = self.stack.len() * size_of::<Value>() + self.marks.len() * size_of::<usize>();
        (values + self.objects.held() + self.memo.held() + self.texts.held()) as u64
    }

    #[inline]
    fn step(&mut self) -> Result<Step, PickleProblem> {
        let code = self.cursor.byte()?;
        match code {
            BINGET => {
                let index = u64::from(self.cursor.byte()?);
                self.get(index)?;
            }
            LONG_BINGET => {
                let index = u64::from(u32::from_le_bytes(self.cursor.array()?));
                self.get(index)?;
            }
            MEMOIZE => {
                let value = self.top(code)?;
                self.memo.push(value);
            }
            BINPUT => {
                let index = u64::from(self.cursor.byte()?);
                self.put(index, code)?;
            }
            LONG_BINPUT => {
                let index = u64::from(u32::from_le_bytes(self.cursor.array()?));
                self.put(index, code)?;
            }
            BININT1 => {
                let value = i32::from(self.cursor.byte()?);
                self.stack.push(Value::int32(value));
            }
            BININT2 => {
                let value = i32::from(u16::from_le_bytes(self.cursor.array()?));
                self.stack.push(Value::int32(value));
            }
            BININT => {
                let value = i32::from_le_bytes(self.cursor.array()?);
                self.stack.push(Value::int32(value));
            }
            LONG1 => {
                let value = self.long1()?;
                self.stack.push(value);
            }
            SHORT_BINUNICODE | SHORT_BINSTRING => {
                let length = u64::from(self.cursor.byte()?);
                self.push_text(length)?;
            }
            MARK => self.open_mark(),
            EMPTY_DICT => self.begin_dict()?,
            SETITEMS => self.set_items(code)?,
            EMPTY_LIST => {
                let list = self.objects.new_list();
                self.stack.push(list);
            }
            APPEND => self.append(code)?,
            APPENDS => self.appends(code)?,
            NONE => self.stack.push(Value::NONE),
            NEWTRUE => self.stack.push(Value::boolean(true)),
            NEWFALSE => self.stack.push(Value::boolean(false)),
            STOP => return Ok(Step::Done(self.pop(code)?)),
            _ => self.rare_step(code)?,
        }
        Ok(Step::GoOn)
    }

    /// LONG1. It usually has the six or seven bytes of an address or a time.
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
        Ok(literals::integer_from_bytes(self.cursor.bytes(u64::from(length))?, &mut self.objects))
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
