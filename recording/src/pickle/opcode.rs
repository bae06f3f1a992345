//! The pickle opcodes, under their names in Python's `pickletools`: which of them the reader refuses, their arguments in the
//! input, and the errors in a pickle, with the byte offset of the opcode.
//!
//! Arguments are fixed-width numbers, counted bytes and lines of text, and the literals in them (the little-endian integers of
//! protocol 2 and the text forms of protocols 0 and 1).
//!
//! Sources: CPython's `Lib/pickle.py` (protocols 0 to 5; `load_int`, `load_long`, `load_string`, `load_unicode`) and spec 7.6
//! (the opcodes that memory snapshots use).

use std::ops::Range;

use super::objects::{Objects, Value};

macro_rules! opcodes {
    ($($name:ident = $code:literal),* $(,)?) => {
        $(pub(crate) const $name: u8 = $code;)*

        /// Returns the name of an opcode, or `None` if no protocol up to 5 has it.
        fn name(code: u8) -> Option<&'static str> {
            match code {
                $($code => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

opcodes! {
    MARK = b'(', STOP = b'.', POP = b'0', POP_MARK = b'1', DUP = b'2', FLOAT = b'F', INT = b'I', BININT = b'J',
    BININT1 = b'K', LONG = b'L', BININT2 = b'M', NONE = b'N', PERSID = b'P', BINPERSID = b'Q', REDUCE = b'R',
    STRING = b'S', BINSTRING = b'T', SHORT_BINSTRING = b'U', UNICODE = b'V', BINUNICODE = b'X', APPEND = b'a',
    BUILD = b'b', GLOBAL = b'c', DICT = b'd', EMPTY_DICT = b'}', APPENDS = b'e', GET = b'g', BINGET = b'h',
    INST = b'i', LONG_BINGET = b'j', LIST = b'l', EMPTY_LIST = b']', OBJ = b'o', PUT = b'p', BINPUT = b'q',
    LONG_BINPUT = b'r', SETITEM = b's', TUPLE = b't', EMPTY_TUPLE = b')', SETITEMS = b'u', BINFLOAT = b'G',
    PROTO = 0x80, NEWOBJ = 0x81, EXT1 = 0x82, EXT2 = 0x83, EXT4 = 0x84, TUPLE1 = 0x85, TUPLE2 = 0x86,
    TUPLE3 = 0x87, NEWTRUE = 0x88, NEWFALSE = 0x89, LONG1 = 0x8a, LONG4 = 0x8b, BINBYTES = b'B',
    SHORT_BINBYTES = b'C', SHORT_BINUNICODE = 0x8c, BINUNICODE8 = 0x8d, BINBYTES8 = 0x8e, EMPTY_SET = 0x8f,
    ADDITEMS = 0x90, FROZENSET = 0x91, NEWOBJ_EX = 0x92, STACK_GLOBAL = 0x93, MEMOIZE = 0x94, FRAME = 0x95,
    BYTEARRAY8 = 0x96, NEXT_BUFFER = 0x97, READONLY_BUFFER = 0x98,
}

/// Returns whether an opcode would import a name, call something, or use data from outside the file.
///
/// `GLOBAL` and `REDUCE` are among them. The machine accepts one harmless use of them (`restore_type_tag`, spec 7.6)
/// before it calls this function.
pub(crate) fn reaches_outside(code: u8) -> bool {
    matches!(
        code,
        GLOBAL
            | STACK_GLOBAL
            | REDUCE
            | INST
            | OBJ
            | NEWOBJ
            | NEWOBJ_EX
            | BUILD
            | PERSID
            | BINPERSID
            | EXT1
            | EXT2
            | EXT4
            | NEXT_BUFFER
            | READONLY_BUFFER
    )
}

/// The error for a pickle that cannot be read. Displayed as one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pickle byte {offset}: {problem}")]
pub struct PickleError {
    /// Offset of the opcode in the decompressed file, in bytes.
    pub offset: u64,
    /// The problem there.
    pub problem: PickleProblem,
}

/// A problem in a pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PickleProblem {
    /// The file ends before the opcode or its argument is complete.
    #[error("{needed} more bytes are needed, but only {left} are left; the file was cut short: copy or dump it again")]
    Truncated {
        /// The number of bytes that the opcode needs.
        needed: u64,
        /// The number of bytes left in the file.
        left: u64,
    },
    /// A line argument has no line ending.
    #[error("the file ends within a line of text; it was cut short: copy or dump it again")]
    UnfinishedLine,
    /// The opcode would import or call Python code.
    #[error(
        "opcode {} (0x{code:02x}) would import or call code, which this reader never does; \
         dump the plain dict that torch.cuda.memory._snapshot() returns instead",
        name(*code).unwrap_or("?")
    )]
    Refused {
        /// The opcode's byte.
        code: u8,
    },
    /// The opcode is valid in a pickle, but builds a set, which no snapshot contains.
    #[error("opcode {} (0x{code:02x}) does not belong in a memory snapshot", name(*code).unwrap_or("?"))]
    Unsupported {
        /// The opcode's byte.
        code: u8,
    },
    /// The byte is not an opcode in any pickle protocol up to 5.
    #[error("0x{code:02x} is not a pickle opcode; this is not a pickle, or it is damaged")]
    UnknownOpcode {
        /// The byte that was found.
        code: u8,
    },
    /// A protocol newer than 5.
    #[error("pickle protocol {version} is unknown (0 to 5 are read); dump with protocol=4")]
    Protocol {
        /// The version that the file states.
        version: u8,
    },
    /// An opcode needs more values than the stack has.
    #[error("opcode {} needs a value, but the stack is empty; the file is damaged", name(*code).unwrap_or("?"))]
    StackUnderflow {
        /// The opcode's byte.
        code: u8,
    },
    /// An opcode needs all values since the last MARK, and there is no MARK.
    #[error("opcode {} needs a MARK, but there is none; the file is damaged", name(*code).unwrap_or("?"))]
    MissingMark {
        /// The opcode's byte.
        code: u8,
    },
    /// The file reads a memo slot that was never written.
    #[error("memo slot {index} is read but was never written; the file is damaged")]
    MissingMemo {
        /// The slot.
        index: u64,
    },
    /// A list or dict operation on a value of a different type.
    #[error("opcode {} needs a {expected}, not a {found}; the file is damaged", name(*code).unwrap_or("?"))]
    WrongTarget {
        /// The opcode's byte.
        code: u8,
        /// The type that it needs.
        expected: &'static str,
        /// The type of the value that it found.
        found: &'static str,
    },
    /// A key without a value.
    #[error("opcode {} got an odd number of keys and values; the file is damaged", name(*code).unwrap_or("?"))]
    OddItems {
        /// The opcode's byte.
        code: u8,
    },
    /// A list or a dict as the key of a dict.
    #[error("a {found} cannot be the key of a dict; the file is damaged")]
    UnhashableKey {
        /// The key's type.
        found: &'static str,
    },
    /// A string that should be a number but is not.
    #[error("the string is not a number; the file is damaged")]
    BadNumber,
    /// A quoted or escaped string that cannot be decoded.
    #[error("the string has an invalid quote or escape; the file is damaged")]
    BadText,
    /// A length below zero.
    #[error("the length {length} is negative; the file is damaged")]
    NegativeLength {
        /// The length.
        length: i32,
    },
    /// The values need far more memory than the file's length can justify.
    #[error("the values need more than {limit} bytes, far too much for a file of this length; no real snapshot does that")]
    TooMuchMemory {
        /// The limit, in bytes: see [`memory_bound`](super::load::memory_bound).
        limit: u64,
    },
}

/// Appends the next piece of the input to a vector; nothing at the end.
pub(crate) type NextPiece<'a> = &'a mut dyn FnMut(&mut Vec<u8>);

/// The number of bytes that are fetched ahead of every opcode, unless the input ends earlier: more than nearly any opcode
/// takes.
const AHEAD: usize = 1 << 12;

/// A position in the input, which arrives piece by piece. The part that has been read is forgotten.
pub(crate) struct Cursor<'a> {
    /// The bytes that are in memory.
    pub(crate) input: Vec<u8>,
    /// The position in these bytes.
    pub(crate) at: usize,
    /// The number of bytes before them.
    before: u64,
    next_piece: Option<NextPiece<'a>>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(next_piece: NextPiece<'a>) -> Self {
        let mut cursor = Cursor { input: Vec::new(), at: 0, before: 0, next_piece: Some(next_piece) };
        cursor.fetch();
        cursor
    }

    /// Returns the position in the entire input.
    pub(crate) fn offset(&self) -> u64 {
        self.before + self.at as u64
    }

    /// Returns the number of bytes of the entire input that have been fetched.
    pub(crate) fn fetched(&self) -> u64 {
        self.before + self.input.len() as u64
    }

    /// Forgets the part that has been read and fetches the next piece. Returns false at the end of the input.
    #[cold]
    fn fetch(&mut self) -> bool {
        let Some(next_piece) = &mut self.next_piece else { return false };
        self.before += self.at as u64;
        self.input.drain(..self.at);
        self.at = 0;
        let had = self.input.len();
        next_piece(&mut self.input);
        if self.input.len() == had {
            self.next_piece = None;
        }
        self.input.len() > had
    }

    /// Fetches pieces until there are enough bytes ahead for nearly every opcode.
    #[inline]
    pub(crate) fn look_ahead(&mut self) {
        while self.input.len() - self.at < AHEAD && self.next_piece.is_some() {
            self.fetch();
        }
    }

    /// Goes back to `offset` and doubles the bytes that have been fetched, for an opcode that was cut short there. Returns
    /// false at the end of the input.
    #[cold]
    pub(crate) fn retry_with_more(&mut self, offset: u64) -> bool {
        self.at = (offset - self.before) as usize;
        let enough = 2 * (self.input.len() - self.at);
        let has_more = self.fetch();
        while self.input.len() < enough && self.fetch() {}
        has_more
    }

    #[cold]
    fn truncated(&self, needed: u64) -> PickleProblem {
        PickleProblem::Truncated { needed, left: (self.input.len() - self.at) as u64 }
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, PickleProblem> {
        match self.input.get(self.at) {
            Some(&byte) => {
                self.at += 1;
                Ok(byte)
            }
            None => Err(self.truncated(1)),
        }
    }

    /// Returns all remaining bytes.
    #[inline]
    pub(crate) fn rest(&self) -> &[u8] {
        self.input.get(self.at..).unwrap_or(&[])
    }

    /// Returns the next byte, without consuming it; at the end, 0, which is not an opcode.
    #[inline]
    pub(crate) fn peek(&self) -> u8 {
        self.input.get(self.at).copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleProblem> {
        match self.rest().first_chunk::<N>().copied() {
            Some(bytes) => {
                self.at += N;
                Ok(bytes)
            }
            None => Err(self.truncated(N as u64)),
        }
    }

    /// Skips `length` bytes. Returns the positions of their beginning and end in `input`.
    #[inline]
    pub(crate) fn skip(&mut self, length: u64) -> Result<Range<usize>, PickleProblem> {
        let left = self.input.len() - self.at;
        if length > left as u64 {
            return Err(self.truncated(length));
        }
        let start = self.at;
        self.at += length as usize;
        Ok(start..self.at)
    }

    /// Returns the next `length` bytes.
    #[inline]
    pub(crate) fn bytes(&mut self, length: u64) -> Result<&[u8], PickleProblem> {
        let range = self.skip(length)?;
        Ok(self.input.get(range).unwrap_or(&[]))
    }

    /// Reads a line, without its line feed.
    pub(crate) fn line(&mut self) -> Result<&[u8], PickleProblem> {
        let start = self.at;
        match self.rest().iter().position(|&byte| byte == b'\n') {
            Some(length) => {
                self.at += length + 1;
                Ok(self.input.get(start..start + length).unwrap_or(&[]))
            }
            None => Err(PickleProblem::UnfinishedLine),
        }
    }

    /// Reads a four-byte length that Python writes as signed (BINSTRING, LONG4).
    pub(crate) fn signed_length(&mut self) -> Result<u64, PickleProblem> {
        let length = i32::from_le_bytes(self.array()?);
        u64::try_from(length).map_err(|_| PickleProblem::NegativeLength { length })
    }
}

/// Reads a little-endian two's complement integer of any length (LONG1, LONG4). A value over 128 bits is not kept.
pub(crate) fn integer_from_bytes(bytes: &[u8], objects: &mut Objects) -> Value {
    let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
    let fill: u8 = if negative { 0xff } else { 0 };
    let (low, high) = bytes.split_at(bytes.len().min(16));
    let mut wide = [fill; 16];
    wide[..low.len()].copy_from_slice(low);
    let value = i128::from_le_bytes(wide);
    if high.iter().all(|&byte| byte == fill) && (value < 0) == negative { objects.wide_int(value) } else { Value::HUGE_INT }
}

/// Returns the line of INT (`42`, and `00` / `01` for booleans) or LONG (`42L`).
pub(crate) fn integer_from_line(line: &[u8], objects: &mut Objects) -> Result<Value, PickleProblem> {
    match line {
        b"00" => return Ok(Value::boolean(false)),
        b"01" => return Ok(Value::boolean(true)),
        _ => {}
    }
    let text = std::str::from_utf8(line).map_err(|_| PickleProblem::BadNumber)?.trim();
    let text = text.strip_suffix('L').unwrap_or(text);
    if let Ok(value) = text.parse::<i128>() {
        return Ok(objects.wide_int(value));
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Value::HUGE_INT);
    }
    Err(PickleProblem::BadNumber)
}

/// Returns the line of FLOAT, in Python's notation.
pub(crate) fn float_from_line(line: &[u8], objects: &mut Objects) -> Result<Value, PickleProblem> {
    let text = std::str::from_utf8(line).map_err(|_| PickleProblem::BadNumber)?;
    text.trim().parse().map(|value| objects.float(value)).map_err(|_| PickleProblem::BadNumber)
}

/// Returns the line of GET or PUT.
pub(crate) fn memo_index(line: &[u8]) -> Result<u64, PickleProblem> {
    let text = std::str::from_utf8(line).map_err(|_| PickleProblem::BadNumber)?;
    text.trim().parse().map_err(|_| PickleProblem::BadNumber)
}

/// Returns the line of STRING: a quoted Python 2 string with backslash escapes.
pub(crate) fn quoted(line: &[u8]) -> Result<Vec<u8>, PickleProblem> {
    let line = line.trim_ascii();
    let inner = match line {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        _ => return Err(PickleProblem::BadText),
    };
    let mut text = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'\\' {
            text.push(*first);
            continue;
        }
        let [escape, tail @ ..] = rest else {
            return Err(PickleProblem::BadText);
        };
        rest = tail;
        match escape {
            b'n' => text.push(b'\n'),
            b't' => text.push(b'\t'),
            b'r' => text.push(b'\r'),
            b'\\' | b'\'' | b'"' => text.push(*escape),
            b'x' => text.push(hex(&mut rest, 2)? as u8),
            b'0'..=b'7' => text.push(octal(*escape, &mut rest)),
            other => text.extend_from_slice(&[b'\\', *other]),
        }
    }
    Ok(text)
}

/// Returns the line of UNICODE: Python's "raw-unicode-escape", Latin-1 with `\uXXXX` and `\UXXXXXXXX`.
pub(crate) fn raw_unicode_escape(line: &[u8]) -> Result<Vec<u8>, PickleProblem> {
    let mut text = Vec::with_capacity(line.len());
    let mut rest = line;
    let mut buffer = [0; 4];
    while let [first, tail @ ..] = rest {
        rest = tail;
        let digits = match (*first, rest.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                text.extend_from_slice(char::from(*first).encode_utf8(&mut buffer).as_bytes());
                continue;
            }
        };
        rest = rest.get(1..).unwrap_or(&[]);
        // A lone surrogate (part of an undecodable file name) has no UTF-8 form; it becomes the replacement character.
        let code = hex(&mut rest, digits)?;
        let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        text.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
    }
    Ok(text)
}

fn hex(rest: &mut &[u8], digits: usize) -> Result<u32, PickleProblem> {
    let (head, tail) = rest.split_at_checked(digits).ok_or(PickleProblem::BadText)?;
    *rest = tail;
    head.iter().try_fold(0, |code: u32, &byte| {
        let digit = char::from(byte).to_digit(16).ok_or(PickleProblem::BadText)?;
        Ok(code << 4 | digit)
    })
}

/// Reads an octal escape of up to three digits, the first of which has already been read.
fn octal(first: u8, rest: &mut &[u8]) -> u8 {
    let mut code = u32::from(first - b'0');
    for _ in 0..2 {
        match rest {
            [digit @ b'0'..=b'7', tail @ ..] => {
                code = code << 3 | u32::from(digit - b'0');
                *rest = tail;
            }
            _ => break,
        }
    }
    code as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width() {
        let mut objects = Objects::for_input(0);
        let mut decode = |bytes: &[u8]| {
            let value = integer_from_bytes(bytes, &mut objects);
            objects.as_int(value)
        };
        assert_eq!(decode(&[]), Some(0));
        assert_eq!(decode(&[0xff]), Some(-1));
        assert_eq!(decode(&[0xff, 0]), Some(255));
        assert_eq!(decode(&u64::MAX.to_le_bytes()), Some(-1));
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]), Some(i128::from(u64::MAX)));
        assert_eq!(decode(&i128::MIN.to_le_bytes()), Some(i128::MIN));
        assert_eq!(decode(&[0xff; 40]), Some(-1));
        assert_eq!(decode(&[1; 17]), None);
        let mut sixteen_ones_and_sign = [0xff; 17];
        sixteen_ones_and_sign[16] = 0;
        assert_eq!(decode(&sixteen_ones_and_sign), None);
    }

    #[test]
    fn text_forms() {
        let mut objects = Objects::for_input(0);
        let mut decode = |line: &[u8]| integer_from_line(line, &mut objects).map(|value| objects.as_int(value));
        assert_eq!(decode(b"-5"), Ok(Some(-5)));
        assert_eq!(decode(b"18446744073709551615L"), Ok(Some(i128::from(u64::MAX))));
        assert_eq!(decode(&[b'9'; 200]), Ok(None));
        assert_eq!(decode(b"5x"), Err(PickleProblem::BadNumber));
        assert_eq!(decode(b""), Err(PickleProblem::BadNumber));
        assert_eq!(quoted(br"'a\x41\n\'\101'"), Ok(b"aA\n'A".to_vec()));
        assert_eq!(quoted(b"'abc"), Err(PickleProblem::BadText));
        assert_eq!(quoted(b"'"), Err(PickleProblem::BadText));
        assert_eq!(quoted(br"'\x4'"), Err(PickleProblem::BadText));
        assert_eq!(raw_unicode_escape(b"a\\u20ac\xe9\\n"), Ok("a\u{20ac}\u{e9}\\n".into()));
        assert_eq!(raw_unicode_escape(b"\\u20"), Err(PickleProblem::BadText));
    }
}
