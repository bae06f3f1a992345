//! Reads an entire pickle, in one loop over the opcodes.
//!
//! Sources: `Lib/pickle.py` of CPython (semantics) and spec 7.6 (the opcodes that snapshots use).

use super::machine::{Machine, Outcome, Template};
use super::objects::{Objects, Texts, Value};
use super::opcode::*;

/// Returns the maximum memory that reading a pickle of `length` bytes may use in addition to the file, in bytes.
///
/// Four times the length, or 64 MiB for small files; real recordings use less than twice their length. Only memory in use
/// counts; the vectors may reserve up to twice as much address space.
pub fn memory_bound(length: usize) -> u64 {
    (length as u64).saturating_mul(4).max(64 << 20)
}

/// A pickle in memory: its root, and the objects that the root refers to.
pub(crate) struct Loaded {
    pub(crate) root: Value,
    pub(crate) objects: Objects,
    pub(crate) texts: Texts,
    /// The length of the pickle, in bytes.
    pub(crate) length: u64,
    /// The protocol that the file states, or 0 if it states none.
    pub(crate) protocol: u8,
    /// The number of pickles before it: a program that dumps repeatedly to one file writes one pickle after another.
    pub(crate) earlier: u64,
}

impl Loaded {
    /// Returns Python's name for a value's type, for use in messages.
    pub(crate) fn type_name(&self, value: Value) -> &'static str {
        self.objects.type_name(value)
    }
}

/// Reads a pickle, or the last of several consecutive pickles. The input arrives in pieces: `next_piece` appends the next
/// piece, or nothing at the end. If the length is not known, the caller may estimate it; the memory is then bounded by the
/// bytes that have arrived so far.
///
/// # Errors
/// Returns [`PickleError`], with the byte offset, for anything that is not a complete pickle of plain data.
pub(crate) fn load(length: Length, next_piece: NextPiece<'_>) -> Result<Loaded, PickleError> {
    let machine = Machine::new(length.expected(), next_piece);
    let mut loader = Loader { machine, template: Template::new(), length };
    let mut root = loader.run()?;
    let mut earlier = 0;
    while loader.begins_another() {
        loader.machine.forget();
        loader.template = Template::new();
        root = loader.run()?;
        earlier += 1;
    }
    let length = loader.machine.cursor.fetched();
    let Machine { objects, texts, protocol, .. } = loader.machine;
    Ok(Loaded { root, objects, texts, length, protocol, earlier })
}

/// The length of a pickle, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    Known(usize),
    Estimated(usize),
}

impl Length {
    /// Returns the length for which to reserve memory.
    fn expected(self) -> usize {
        match self {
            Length::Known(length) | Length::Estimated(length) => length,
        }
    }

    /// Returns the maximum memory that may be in use after `fetched` bytes.
    fn memory_bound(self, fetched: u64) -> u64 {
        match self {
            Length::Known(length) => memory_bound(length),
            Length::Estimated(_) => memory_bound(usize::try_from(fetched).unwrap_or(usize::MAX)),
        }
    }
}

/// Reads a pickle that is in memory.
///
/// # Errors
/// Fails in the same cases as [`load`].
pub(crate) fn load_bytes(bytes: &[u8]) -> Result<Loaded, PickleError> {
    let mut pieces = bytes.chunks(PIECE);
    load(Length::Known(bytes.len()), &mut |input| input.extend_from_slice(pieces.next().unwrap_or_default()))
}

/// The number of bytes of an in-memory pickle to read at a time: few enough to fit in a cache.
const PIECE: usize = 1 << 18;

/// The result of a step.
enum Step {
    GoOn,
    Done(Value),
}

/// The number of opcodes between two checks of the memory in use. Each adds at most a few hundred bytes beyond those
/// in the file.
const OPCODES_PER_CHECK: u32 = 1 << 16;

/// The loop's state.
struct Loader<'a> {
    machine: Machine<'a>,
    /// The form of the last dict.
    template: Template,
    length: Length,
}

impl Loader<'_> {
    /// Returns whether another pickle follows, judging by the first opcode, which all but the oldest protocols write.
    fn begins_another(&mut self) -> bool {
        self.machine.cursor.look_ahead();
        matches!(self.machine.cursor.rest(), [PROTO, 2..=5, ..])
    }

    /// Runs up to STOP and returns the root value. Ignores bytes after STOP, unless they are another pickle.
    fn run(&mut self) -> Result<Value, PickleError> {
        loop {
            for _ in 0..OPCODES_PER_CHECK {
                self.machine.cursor.look_ahead();
                let offset = self.machine.cursor.offset();
                match self.step() {
                    Ok(Step::GoOn) => {}
                    Ok(Step::Done(value)) => return Ok(value),
                    // Nothing has changed when an opcode turns out to be incomplete.
                    Err(PickleProblem::Truncated { .. } | PickleProblem::UnfinishedLine)
                        if self.machine.cursor.retry_with_more(offset) => {}
                    Err(problem) => return Err(PickleError { offset, problem }),
                }
            }
            let limit = self.length.memory_bound(self.machine.cursor.fetched());
            if self.machine.held() > limit || self.machine.objects.full() {
                return Err(PickleError {
                    offset: self.machine.cursor.offset(),
                    problem: PickleProblem::TooMuchMemory { limit },
                });
            }
        }
    }

    #[inline]
    fn step(&mut self) -> Result<Step, PickleProblem> {
        let machine = &mut self.machine;
        let code = machine.cursor.byte()?;
        match code {
            BINGET => {
                let index = u64::from(machine.cursor.byte()?);
                machine.get(index)?;
            }
            LONG_BINGET => {
                let index = u64::from(u32::from_le_bytes(machine.cursor.array()?));
                machine.get(index)?;
            }
            MEMOIZE => {
                let value = machine.top(code)?;
                machine.memo.push(value);
            }
            BINPUT => {
                let index = u64::from(machine.cursor.byte()?);
                machine.put(index, code)?;
            }
            LONG_BINPUT => {
                let index = u64::from(u32::from_le_bytes(machine.cursor.array()?));
                machine.put(index, code)?;
            }
            BININT1 => {
                let value = i32::from(machine.cursor.byte()?);
                machine.stack.push(Value::int32(value));
            }
            BININT2 => {
                let value = i32::from(u16::from_le_bytes(machine.cursor.array()?));
                machine.stack.push(Value::int32(value));
            }
            BININT => {
                let value = i32::from_le_bytes(machine.cursor.array()?);
                machine.stack.push(Value::int32(value));
            }
            LONG1 => {
                let value = machine.long1()?;
                machine.stack.push(value);
            }
            SHORT_BINUNICODE | SHORT_BINSTRING => {
                let length = u64::from(machine.cursor.byte()?);
                machine.push_text(length)?;
            }
            MARK => machine.open_mark(),
            EMPTY_DICT => self.template.begin_dict(machine)?,
            SETITEMS => machine.set_items(code)?,
            EMPTY_LIST => {
                let list = machine.objects.new_list();
                machine.stack.push(list);
            }
            APPEND => machine.append(code)?,
            APPENDS => machine.appends(code)?,
            NONE => machine.stack.push(Value::NONE),
            NEWTRUE => machine.stack.push(Value::boolean(true)),
            NEWFALSE => machine.stack.push(Value::boolean(false)),
            STOP => return Ok(Step::Done(machine.pop(code)?)),
            _ => machine.rare_step(code)?,
        }
        Ok(Step::GoOn)
    }
}

/// Handles the opcodes that are rare in a large file: all except the two dozen in the loop.
impl Machine<'_> {
    /// Executes an opcode that the loop does not handle.
    #[inline(never)]
    fn rare_step(&mut self, code: u8) -> Outcome {
        match code {
            PROTO => {
                let version = self.cursor.byte()?;
                if version > 5 {
                    return Err(PickleProblem::Protocol { version });
                }
                self.protocol = version;
            }
            FRAME => {
                // A frame states only that this many bytes follow. CPython checks nothing more either.
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

    /// Handles the less common literals and the text forms of protocols 0 and 1.
    fn literal_step(&mut self, code: u8) -> Outcome {
        let value = match code {
            BINFLOAT => {
                let number = f64::from_be_bytes(self.cursor.array()?);
                self.objects.float(number)
            }
            LONG4 => {
                let length = self.cursor.signed_length()?;
                integer_from_bytes(self.cursor.bytes(length)?, &mut self.objects)
            }
            INT | LONG => integer_from_line(self.cursor.line()?, &mut self.objects)?,
            FLOAT => float_from_line(self.cursor.line()?, &mut self.objects)?,
            STRING => {
                let text = quoted(self.cursor.line()?)?;
                self.texts.keep(&text)
            }
            UNICODE => {
                let text = raw_unicode_escape(self.cursor.line()?)?;
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
                let index = memo_index(self.cursor.line()?)?;
                return self.get(index);
            }
            PUT => {
                let index = memo_index(self.cursor.line()?)?;
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

    /// Handles GLOBAL and REDUCE in their only accepted use: very old C++ dumps wrap containers in
    /// `torch.jit._pickle.restore_type_tag(container, "type")`, which represents the container itself (spec 7.6). The reader
    /// calls nothing.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pickle::Dict;

    /// Returns the only key and value of each dict in a list that begins with two strings, `a` in slot 0 and `b` in slot 1.
    fn read(items: &[&[u8]]) -> Vec<(Vec<u8>, i64)> {
        let mut bytes = b"\x80\x02](\x8c\x01aq\x00\x8c\x01bq\x01".to_vec();
        bytes.extend(items.concat());
        bytes.extend(b"e.");
        read_pickle(&bytes)
    }

    /// Returns the only key and value of each dict in a list.
    fn read_pickle(bytes: &[u8]) -> Vec<(Vec<u8>, i64)> {
        let mut bytes = bytes.to_vec();
        // There are bytes after the end so that the shortcut can read ahead.
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

    /// While the first dict is read, slot 1 is beyond a gap. Overwriting slot 1 closes the gap and changes its key.
    #[test]
    fn a_slot_beyond_a_gap_that_is_overwritten_is_another_key() {
        let bytes = b"\x80\x02](\x8c\x01aq\x01}(h\x01K\x01u\x8c\x01xq\x00\x8c\x01bq\x01}(h\x01K\x02u}(h\x01K\x03ue.";
        assert_eq!(read_pickle(bytes), pairs(&[("a", 1), ("b", 2), ("b", 3)]));
    }

    /// A string is memoised only once, even if the dict is read a second time: the next slots are 2 and 3.
    #[test]
    fn a_text_read_before_a_dict_turns_out_different_is_memoised_once() {
        let texts: [&[u8]; 3] = [b"}(h\x00\x8c\x01x\x94u", b"}(h\x00\x8c\x01y\x94u", b"}(h\x00\x8c\x01z\x94h\x01K\x00u"];
        let use_slot: &[u8] = b"}(h\x04K\x09u";
        let read = read(&[texts[0], texts[1], texts[2], use_slot]);
        assert_eq!(read.last(), Some(&(b"z".to_vec(), 9)));
    }
}
