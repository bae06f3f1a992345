//! The bytes of texts, one after the other. The file itself is forgotten as it is read.

use super::value::{Tag, Value};

/// The bytes of every text value of one pickle.
#[derive(Default)]
pub(crate) struct Texts {
    bytes: Vec<u8>,
    /// How many of them are in the file as they are.
    copied: usize,
    /// Offset and length of the texts that do not fit in a value.
    long: Vec<(usize, usize)>,
}

impl Texts {
    /// Stores a text that is in the file as it is, and returns its value.
    #[inline]
    pub(crate) fn copy(&mut self, text: &[u8]) -> Value {
        self.copied += text.len();
        self.keep(text)
    }

    /// Stores a decoded text and returns its value.
    #[inline]
    pub(crate) fn keep(&mut self, text: &[u8]) -> Value {
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(text);
        Value::text(offset as u64, text.len() as u64).unwrap_or_else(|| self.long_text(offset, text.len()))
    }

    /// Forgets the texts that were copied since there were `length` bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.copied -= self.bytes.len() - length;
        self.bytes.truncate(length);
    }

    /// How many bytes there are.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.bytes.len()
    }

    #[cold]
    fn long_text(&mut self, offset: usize, length: usize) -> Value {
        let index = self.long.len() as u32; // Fits: each long text takes 16 MiB.
        self.long.push((offset, length));
        Value::with_index(Tag::LongText, index)
    }

    /// The bytes of a text; `None` if the value is not a text. They are UTF-8 except in hostile or very odd files.
    #[inline]
    pub(crate) fn get(&self, value: Value) -> Option<&[u8]> {
        let (offset, length) = match value.tag() {
            Tag::Text => value.text_place(),
            Tag::LongText => *self.long.get(value.index())?,
            _ => return None,
        };
        self.bytes.get(offset..offset + length)
    }

    /// Bytes of memory in use, without those that the file has too.
    pub(crate) fn held(&self) -> usize {
        self.bytes.len() - self.copied + self.long.len() * size_of::<(usize, usize)>()
    }
}
