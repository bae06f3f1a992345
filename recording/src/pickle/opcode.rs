//! The pickle opcodes, under their names in Python's `pickletools`: which of them the reader refuses, and the errors in a
//! pickle, with the byte offset of the opcode.
//!
//! Sources: CPython's `Lib/pickle.py` (protocols 0 to 5) and spec 7.6 (the opcodes that memory snapshots use).

macro_rules! opcodes {
    ($($name:ident = $code:literal),* $(,)?) => {
        $(pub(crate) const $name: u8 = $code;)*

        /// The name of an opcode, or `None` if no protocol up to 5 has it.
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

/// Whether an opcode would import a name, call something, or use data from outside the file.
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
    #[error("the file ends where {needed} more bytes are needed ({left} left); it was cut short: copy or dump it again")]
    Truncated {
        /// The number of bytes that the opcode needs.
        needed: u64,
        /// The number of bytes left in the file.
        left: u64,
    },
    /// A text argument has no end of line.
    #[error("the file ends within a line of text; it was cut short: copy or dump it again")]
    UnfinishedLine,
    /// The opcode would import or call Python code.
    #[error(
        "opcode {} (0x{code:02x}) would import or call code, which this reader never does; \
         dump the plain dict of torch.cuda.memory._snapshot() instead",
        name(*code).unwrap_or("?")
    )]
    Refused {
        /// The opcode's byte.
        code: u8,
    },
    /// The opcode is valid in a pickle, but no snapshot contains it (sets).
    #[error("opcode {} (0x{code:02x}) has no place in a memory snapshot", name(*code).unwrap_or("?"))]
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
    #[error("opcode {} has no MARK to go back to; the file is damaged", name(*code).unwrap_or("?"))]
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
    /// A text that should be a number but is not.
    #[error("the text is not a number; the file is damaged")]
    BadNumber,
    /// A quoted or escaped text that cannot be decoded.
    #[error("the text has a bad quote or escape; the file is damaged")]
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
