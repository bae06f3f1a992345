//! One pickled value in eight bytes (a tag in the low four bits and a payload in the other sixty), and the bytes of texts.
//!
//! Integers of more than 60 bits and floats do not fit: they are stored in a table in [`objects`](super::objects), and the
//! payload is their index. Texts are stored one after another, because the file itself is not kept; the payload is a text's
//! position, or the index of a very long text. Values are plain copies, so a tree of any depth is dropped without recursion.

/// A value, or the index of one that is stored elsewhere. Equal bits mean the same object, not just an equal one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Value(u64);

/// The tag of a [`Value`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Tag {
    /// No value: an empty memo slot, or a key that a dict does not have.
    Absent = 0,
    None = 1,
    Bool = 2,
    /// An integer of at most 60 bits, in the payload.
    Int = 3,
    /// An integer of at most 128 bits; an index.
    WideInt = 4,
    /// An integer of more than 128 bits. Its value is not kept, because nothing in a snapshot is that large.
    HugeInt = 5,
    Float = 6,
    /// A text: 36 bits of offset and 24 bits of length.
    Text = 7,
    /// A text that is too long for [`Tag::Text`], or too far into the file; an index.
    LongText = 8,
    /// Bytes. Only the type is kept, because nothing in a snapshot is bytes.
    Bytes = 9,
    /// A list, dict or tuple; an index.
    Container = 10,
    /// The function `torch.jit._pickle.restore_type_tag` (spec 7.6), which is never called.
    TypeTagFunction = 11,
}

const TAG_BITS: u32 = 4;
const TEXT_LENGTH_BITS: u32 = 24;
/// The first offset that is too large for a [`Tag::Text`].
const TEXT_OFFSET_LIMIT: u64 = 1 << (64 - TAG_BITS - TEXT_LENGTH_BITS);
const INT_LIMIT: i64 = 1 << (63 - TAG_BITS);

const TAGS: [Tag; 16] = [
    Tag::Absent,
    Tag::None,
    Tag::Bool,
    Tag::Int,
    Tag::WideInt,
    Tag::HugeInt,
    Tag::Float,
    Tag::Text,
    Tag::LongText,
    Tag::Bytes,
    Tag::Container,
    Tag::TypeTagFunction,
    Tag::Absent,
    Tag::Absent,
    Tag::Absent,
    Tag::Absent,
];

impl Value {
    pub(crate) const ABSENT: Value = Value(Tag::Absent as u64);
    pub(crate) const NONE: Value = Value(Tag::None as u64);
    pub(crate) const BYTES: Value = Value(Tag::Bytes as u64);
    pub(crate) const HUGE_INT: Value = Value(Tag::HugeInt as u64);
    pub(crate) const RESTORE_TYPE_TAG: Value = Value(Tag::TypeTagFunction as u64);

    #[inline]
    pub(crate) fn tag(self) -> Tag {
        TAGS[(self.0 & 15) as usize]
    }

    /// A value whose payload is an index (or a boolean).
    #[inline]
    pub(crate) fn with_index(tag: Tag, index: u32) -> Value {
        Value((u64::from(index) << TAG_BITS) | tag as u64)
    }

    pub(crate) fn boolean(value: bool) -> Value {
        Value::with_index(Tag::Bool, u32::from(value))
    }

    /// An integer, if it fits in the payload.
    #[inline]
    pub(crate) fn small_int(value: i64) -> Option<Value> {
        if (-INT_LIMIT..INT_LIMIT).contains(&value) { Some(Value(((value << TAG_BITS) as u64) | Tag::Int as u64)) } else { None }
    }

    /// An integer that always fits.
    #[inline]
    pub(crate) fn int32(value: i32) -> Value {
        Value(((i64::from(value) << TAG_BITS) as u64) | Tag::Int as u64)
    }

    /// A text by offset and length, if they fit in the payload.
    #[inline]
    fn text(offset: u64, length: u64) -> Option<Value> {
        if offset < TEXT_OFFSET_LIMIT && length < 1 << TEXT_LENGTH_BITS {
            Some(Value((((offset << TEXT_LENGTH_BITS) | length) << TAG_BITS) | Tag::Text as u64))
        } else {
            None
        }
    }

    /// The payload of an index tag; meaningless for others.
    #[inline]
    pub(crate) fn index(self) -> usize {
        (self.0 >> TAG_BITS) as usize
    }

    /// The payload of [`Tag::Int`]; meaningless for others.
    #[inline]
    pub(crate) fn as_small_int(self) -> i64 {
        (self.0 as i64) >> TAG_BITS
    }

    /// Offset and length of a [`Tag::Text`]; meaningless for others.
    #[inline]
    fn text_place(self) -> (usize, usize) {
        let payload = self.0 >> TAG_BITS;
        ((payload >> TEXT_LENGTH_BITS) as usize, (payload & ((1 << TEXT_LENGTH_BITS) - 1)) as usize)
    }

    /// Python's name of the type, for messages; "container" for a list, dict or tuple, which `Objects` tells apart.
    pub(crate) fn type_name(self) -> &'static str {
        match self.tag() {
            Tag::Absent => "missing value",
            Tag::None => "None",
            Tag::Bool => "bool",
            Tag::Int | Tag::WideInt | Tag::HugeInt => "int",
            Tag::Float => "float",
            Tag::Text | Tag::LongText => "str",
            Tag::Bytes => "bytes",
            Tag::Container => "container",
            Tag::TypeTagFunction => "function",
        }
    }
}

/// The bytes of every text value of one pickle.
#[derive(Default)]
pub(crate) struct Texts {
    bytes: Vec<u8>,
    /// The number of these bytes that are also in the file, unchanged.
    copied: usize,
    /// Offset and length of the texts that do not fit in a value.
    long: Vec<(usize, usize)>,
}

impl Texts {
    /// Stores a text that is in the file unchanged, and returns its value.
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

    /// Forgets the texts that have been copied since there were `length` bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.copied -= self.bytes.len() - length;
        self.bytes.truncate(length);
    }

    /// The number of bytes.
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

    /// The bytes of a text; `None` if the value is not a text. They are UTF-8 except in malicious or very unusual
    /// files.
    #[inline]
    pub(crate) fn get(&self, value: Value) -> Option<&[u8]> {
        let (offset, length) = match value.tag() {
            Tag::Text => value.text_place(),
            Tag::LongText => *self.long.get(value.index())?,
            _ => return None,
        };
        self.bytes.get(offset..offset + length)
    }

    /// The bytes of memory in use, except those that are also in the file.
    pub(crate) fn held(&self) -> usize {
        self.bytes.len() - self.copied + self.long.len() * size_of::<(usize, usize)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_keep_their_value_up_to_the_limit() {
        for value in [0, 1, -1, 42, INT_LIMIT - 1, -INT_LIMIT] {
            let packed = Value::small_int(value).expect("fits");
            assert_eq!((packed.tag(), packed.as_small_int()), (Tag::Int, value));
        }
        assert!(Value::small_int(INT_LIMIT).is_none());
        assert!(Value::small_int(-INT_LIMIT - 1).is_none());
        assert_eq!(Value::int32(i32::MIN).as_small_int(), i64::from(i32::MIN));
    }

    #[test]
    fn texts_keep_their_place_up_to_the_limit() {
        let packed = Value::text(TEXT_OFFSET_LIMIT - 1, (1 << 24) - 1).expect("fits");
        assert_eq!(packed.tag(), Tag::Text);
        assert_eq!(packed.text_place(), ((TEXT_OFFSET_LIMIT - 1) as usize, (1 << 24) - 1));
        assert!(Value::text(TEXT_OFFSET_LIMIT, 0).is_none());
        assert!(Value::text(0, 1 << 24).is_none());
    }
}
