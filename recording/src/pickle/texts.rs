//! Where the bytes of texts are: in the file itself, or, for the escaped texts of protocol 0, decoded beside it.

use super::value::{Tag, Value};

/// The bytes behind every text value of one pickle.
pub(crate) struct Texts<'a> {
    input: &'a [u8],
    /// Decoded texts; offset `input.len() + n` of a text value means byte `n` here.
    decoded: Vec<u8>,
    /// Places of the texts that do not fit a value.
    long: Vec<(usize, usize)>,
}

impl<'a> Texts<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Texts { input, decoded: Vec::new(), long: Vec::new() }
    }

    /// The value for the text at a place of the input (which must lie within it).
    #[inline]
    pub(crate) fn at(&mut self, offset: usize, length: usize) -> Value {
        match Value::text(offset as u64, length as u64) {
            Some(value) => value,
            None => self.long_text(offset, length),
        }
    }

    #[cold]
    fn long_text(&mut self, offset: usize, length: usize) -> Value {
        let index = self.long.len() as u32; // A long text takes 16 MiB of input: the count fits.
        self.long.push((offset, length));
        Value::with_index(Tag::LongText, index)
    }

    /// Keeps a decoded text and gives its value.
    pub(crate) fn keep(&mut self, text: &[u8]) -> Value {
        let offset = self.input.len() + self.decoded.len();
        self.decoded.extend_from_slice(text);
        self.at(offset, text.len())
    }

    /// The bytes of a text, or `None` if the value is no text. UTF-8 in all but hostile or very odd files.
    #[inline]
    pub(crate) fn get(&self, value: Value) -> Option<&[u8]> {
        let (offset, length) = match value.tag() {
            Tag::Text => value.text_place(),
            Tag::LongText => *self.long.get(value.index())?,
            _ => return None,
        };
        match offset.checked_sub(self.input.len()) {
            // An empty decoded text may sit at the very end of the input; both tables then give "".
            Some(beyond) => self.decoded.get(beyond..beyond + length),
            None => self.input.get(offset..offset + length),
        }
    }

    /// Length of the input, in bytes.
    pub(crate) fn input_length(&self) -> usize {
        self.input.len()
    }

    /// Bytes held beside the input.
    pub(crate) fn held(&self) -> usize {
        self.decoded.len() + self.long.len() * size_of::<(usize, usize)>()
    }
}
