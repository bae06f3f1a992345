//! Writes pickles of plain data, using only the opcodes that every snapshot reader knows (spec 7.6).

use std::collections::HashMap;

use super::opcode::*;

/// The kind of pickles to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Pickles like the ones that Python's `_dump_snapshot` writes: protocol 4, MEMOIZE, integers as short as possible.
    Python,
    /// Pickles like the ones that C++'s `_memory_snapshot_pickled` writes: protocol 2, BINPUT, integers of more than 32 bits
    /// in 8 bytes.
    Cpp,
}

/// The number of items that one APPENDS adds, as in CPython.
const BATCH: usize = 1000;

/// The pickle so far.
pub(crate) struct Pickler {
    bytes: Vec<u8>,
    style: Style,
    memoised: u32,
    texts: HashMap<String, u32>,
}

impl Pickler {
    pub(crate) fn new(style: Style) -> Self {
        let bytes = match style {
            // The length of the only frame is filled in at the end.
            Style::Python => vec![PROTO, 4, FRAME, 0, 0, 0, 0, 0, 0, 0, 0],
            Style::Cpp => vec![PROTO, 2],
        };
        Pickler { bytes, style, memoised: 0, texts: HashMap::new() }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(STOP);
        if self.style == Style::Python {
            let length = (self.bytes.len() - 11) as u64;
            self.bytes[3..11].copy_from_slice(&length.to_le_bytes());
        }
        self.bytes
    }

    /// Memoises the value just written and returns its slot.
    fn memoise(&mut self) -> u32 {
        let slot = self.memoised;
        self.memoised += 1;
        match (self.style, u8::try_from(slot)) {
            (Style::Python, _) => self.bytes.push(MEMOIZE),
            (Style::Cpp, Ok(short)) => self.bytes.extend([BINPUT, short]),
            (Style::Cpp, Err(_)) => {
                self.bytes.push(LONG_BINPUT);
                self.bytes.extend(slot.to_le_bytes());
            }
        }
        slot
    }

    /// Refers to a memoised value.
    pub(crate) fn again(&mut self, slot: u32) {
        match u8::try_from(slot) {
            Ok(short) => self.bytes.extend([BINGET, short]),
            Err(_) => {
                self.bytes.push(LONG_BINGET);
                self.bytes.extend(slot.to_le_bytes());
            }
        }
    }

    /// Writes a string the first time, and a reference to it after that.
    pub(crate) fn text(&mut self, text: &str) {
        if let Some(&slot) = self.texts.get(text) {
            return self.again(slot);
        }
        match (self.style, u8::try_from(text.len())) {
            (Style::Python, Ok(short)) => self.bytes.extend([SHORT_BINUNICODE, short]),
            _ => {
                self.bytes.push(BINUNICODE);
                self.bytes.extend((text.len() as u32).to_le_bytes());
            }
        }
        self.bytes.extend(text.as_bytes());
        let slot = self.memoise();
        self.texts.insert(text.to_owned(), slot);
    }

    pub(crate) fn boolean(&mut self, value: bool) {
        self.bytes.push(if value { NEWTRUE } else { NEWFALSE });
    }

    pub(crate) fn float(&mut self, value: f64) {
        self.bytes.push(BINFLOAT);
        self.bytes.extend(value.to_be_bytes());
    }

    /// Writes an integer of up to 72 bits; addresses and handles need 65.
    pub(crate) fn integer(&mut self, value: impl Into<i128>) {
        let value = value.into();
        if let Ok(byte) = u8::try_from(value) {
            self.bytes.extend([BININT1, byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.bytes.push(BININT2);
            self.bytes.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(value) {
            self.bytes.push(BININT);
            self.bytes.extend(int.to_le_bytes());
        } else {
            let bits = 129 - (if value < 0 { !value } else { value }).leading_zeros();
            let shortest = bits.div_ceil(8) as usize;
            let length = if self.style == Style::Cpp { shortest.max(8) } else { shortest };
            self.bytes.extend([LONG1, length as u8]);
            self.bytes.extend(&value.to_le_bytes()[..length]);
        }
    }

    /// Writes a tuple of two integers and returns its slot.
    pub(crate) fn pair(&mut self, pair: (u64, u64)) -> u32 {
        self.integer(pair.0);
        self.integer(pair.1);
        self.bytes.push(TUPLE2);
        self.memoise()
    }

    /// Begins a list and returns its slot. Call [`Pickler::before_item`] and
    /// [`Pickler::after_item`] around each item.
    pub(crate) fn begin_list(&mut self) -> u32 {
        self.bytes.push(EMPTY_LIST);
        self.memoise()
    }

    /// Call this before item number `index`.
    pub(crate) fn before_item(&mut self, index: usize) {
        if index.is_multiple_of(BATCH) {
            self.bytes.push(MARK);
        }
    }

    /// Call this after item number `index` of a list of `length`.
    pub(crate) fn after_item(&mut self, index: usize, length: usize) {
        if (index + 1).is_multiple_of(BATCH) || index + 1 == length {
            self.bytes.push(APPENDS);
        }
    }

    /// Begins a dict and returns its slot. At least one key and value must follow.
    pub(crate) fn begin_dict(&mut self) -> u32 {
        self.bytes.push(EMPTY_DICT);
        let slot = self.memoise();
        self.bytes.push(MARK);
        slot
    }

    /// Ends a dict.
    pub(crate) fn end_dict(&mut self) {
        self.bytes.push(SETITEMS);
    }
}
