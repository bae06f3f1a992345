//! The bytes of texts: in the file itself, or, for the escaped texts of protocol 0, decoded in memory.

use super::value::{Tag, Value};

/// The bytes of every text value of one pickle.
pub(crate) struct Texts<'a> {
    input: &'a [u8],
    /// Decoded texts. Offset `input.len() + n` of a text value is byte `n` here.
    decoded: Vec<u8>,
    /// Offset and length of the texts that do not fit in a value.
    long: Vec<(usize, usize)>,
}

impl<'a> Texts<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Texts { input, decoded: Vec::new(), long: Vec::new() }
    }

    /// The value of the text at a place in the input, which must be within it.
    #[inline]
    pub(crate) fn at(&mut self, offset: usize, length: usize) -> Value {
        match Value::text(offset as u64, length as u64) {
            Some(value) => value,
            None => self.long_text(offset, length),
        }
    }

    #[cold]
    fn long_text(&mut self, offset: usize, length: usize) -> Value {
        let index = self.long.len() as u32; // Fits: each long text takes 16 MiB of input.
        self.long.push((offset, length));
        Value::with_index(Tag::LongText, index)
    }

    /// Stores a decoded text and returns its value.
    pub(crate) fn keep(&mut self, text: &[u8]) -> Value {
        let offset = self.input.len() + self.decoded.len();
        self.decoded.extend_from_slice(text);
        self.at(offset, text.len())
    }

    /// The bytes of a text; `None` if the value is not a text. They are UTF-8 except in hostile or very odd files.
    #[inline]
    pub(crate) fn get(&self, value: Value) -> Option<&[u8]> {
        let (offset, length) = match value.tag() {
            Tag::Text => value.text_place(),
            Tag::LongText => *self.long.get(value.index())?,
            _ => return None,
        };
        match offset.checked_sub(self.input.len()) {
            // An empty text at the very end of the input may be either kind; both give "".
            Some(beyond) => self.decoded.get(beyond..beyond + length),
            None => self.input.get(offset..offset + length),
        }
    }

    /// The length of the input, in bytes.
    pub(crate) fn input_length(&self) -> usize {
        self.input.len()
    }

    /// Bytes of memory in use, without the input.
    pub(crate) fn held(&self) -> usize {
        self.decoded.len() + self.long.len() * size_of::<(usize, usize)>()
    }
}
