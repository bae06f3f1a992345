//! The opcodes that are rare in a large file: all but the two dozen in the loop of [`machine`](super::machine).

use super::error::PickleProblem;
use super::literals;
use super::machine::{Machine, Outcome};
use super::opcode::*;
use super::value::Value;

impl Machine<'_> {
    /// Carries out an opcode that the loop leaves out.
    #[inline(never)]
    pub(crate) fn rare_step(&mut self, code: u8) -> Outcome {
        match code {
            PROTO => {
                let version = self.cursor.byte()?;
                if version > 5 {
                    return Err(PickleProblem::Protocol { version });
                }
                self.protocol = version;
            }
            FRAME => {
                // A frame only promises that this many bytes follow. CPython checks no more than that either.
                let length = u64::from_le_bytes(self.cursor.array()?);
                let left = (self.cursor.input.len() - self.cursor.at) as u64;
                if length > left {
                    return Err(PickleProblem::Truncated { needed: length, left });
                }
            }
            SETITEM => {
                let items = [self.pop_second(code)?, self.pop(code)?];
                let dict = self.top(code)?;
                self.extend_dict(dict, &items, code)?;
            }
            TUPLE | LIST | DICT => {
                let start = self.pop_mark(code)?;
                let value = self.gather(start, code)?;
                self.stack.truncate(start);
                self.stack.push(value);
            }
            EMPTY_TUPLE | TUPLE1 | TUPLE2 | TUPLE3 => {
                let length = if code == EMPTY_TUPLE { 0 } else { usize::from(code - TUPLE1) + 1 };
                let start = self.checked_below_top(length, code)?;
                let tuple = self.objects.new_tuple(&self.stack[start..]);
                self.stack.truncate(start);
                self.stack.push(tuple);
            }
            POP => {
                if self.stack.len() == self.fence {
                    self.pop_mark(code)?;
                } else {
                    self.pop(code)?;
                }
            }
            POP_MARK => {
                let start = self.pop_mark(code)?;
                self.stack.truncate(start);
            }
            DUP => {
                let value = self.top(code)?;
                self.stack.push(value);
            }
            _ => return self.literal_step(code),
        }
        Ok(())
    }

    /// The less common literals, and the text forms of protocols 0 and 1.
    pub(crate) fn literal_step(&mut self, code: u8) -> Outcome {
        let value = match code {
            BINFLOAT => {
                let number = f64::from_be_bytes(self.cursor.array()?);
                self.objects.float(number)
            }
            LONG4 => {
                let length = self.cursor.signed_length()?;
                literals::integer_from_bytes(self.cursor.bytes(length)?, &mut self.objects)
            }
            INT | LONG => literals::integer_from_line(self.cursor.line()?, &mut self.objects)?,
            FLOAT => literals::float_from_line(self.cursor.line()?, &mut self.objects)?,
            STRING => {
                let text = literals::quoted(self.cursor.line()?)?;
                self.texts.keep(&text)
            }
            UNICODE => {
                let text = literals::raw_unicode_escape(self.cursor.line()?)?;
                self.texts.keep(&text)
            }
            BINUNICODE | BINUNICODE8 | BINSTRING => {
                let length = match code {
                    BINUNICODE => u64::from(u32::from_le_bytes(self.cursor.array()?)),
                    BINUNICODE8 => u64::from_le_bytes(self.cursor.array()?),
                    _ => self.cursor.signed_length()?,
                };
                return self.push_text(length);
            }
            SHORT_BINBYTES | BINBYTES | BINBYTES8 | BYTEARRAY8 => {
                let length = match code {
                    SHORT_BINBYTES => u64::from(self.cursor.byte()?),
                    BINBYTES => u64::from(u32::from_le_bytes(self.cursor.array()?)),
                    _ => u64::from_le_bytes(self.cursor.array()?),
                };
                self.cursor.skip(length)?;
                Value::BYTES
            }
            GET => {
                let index = literals::memo_index(self.cursor.line()?)?;
                return self.get(index);
            }
            PUT => {
                let index = literals::memo_index(self.cursor.line()?)?;
                return self.put(index, code);
            }
            GLOBAL | REDUCE => return self.type_tag_step(code),
            EMPTY_SET | ADDITEMS | FROZENSET => return Err(PickleProblem::Unsupported { code }),
            _ if reaches_outside(code) => return Err(PickleProblem::Refused { code }),
            _ => return Err(PickleProblem::UnknownOpcode { code }),
        };
        self.stack.push(value);
        Ok(())
    }

    /// GLOBAL and REDUCE, in their one accepted use: very old C++ dumps wrap containers
    /// in `torch.jit._pickle.restore_type_tag(container, "type")`, which means the
    /// container (spec 7.6). Nothing is called.
    fn type_tag_step(&mut self, code: u8) -> Outcome {
        if code == GLOBAL {
            let is_module = self.cursor.line()? == b"torch.jit._pickle";
            let is_name = self.cursor.line()? == b"restore_type_tag";
            if !is_module || !is_name {
                return Err(PickleProblem::Refused { code });
            }
            self.stack.push(Value::RESTORE_TYPE_TAG);
            return Ok(());
        }
        let arguments = self.pop(code)?;
        let function = self.pop(code)?;
        match self.objects.as_items(arguments) {
            Some(&[object, tag]) if function == Value::RESTORE_TYPE_TAG && self.texts.get(tag).is_some() => {
                self.stack.push(object);
                Ok(())
            }
            _ => Err(PickleProblem::Refused { code }),
        }
    }
}
