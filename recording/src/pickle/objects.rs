//! The objects of a pickle: values of eight bytes, and flat tables in which lists, dicts and tuples refer to each other by
//! number.
//!
//! A value has a tag in the low four bits and a payload in the other sixty. Integers of more than 60 bits and floats do not
//! fit: they are stored in a table, and the payload is their index. Strings are stored one after another, because the file
//! itself is not kept; the payload is a string's position, or the index of a very long string. Values are plain copies, so a
//! tree of any depth is dropped without recursion.
//!
//! Nearly all containers are filled in one go. These containers are ranges of one large vector (`slots`); a dict has only its
//! values there, and a [shape](Shapes) for its keys. If a container grows again after something else has been written, it
//! moves to a separate vector (it is "loose"). References are numbers. A container that is shared, or changed after it has
//! been memoised, therefore looks the same through every reference, and a container that contains itself is harmless.
//!
//! A shape is the sequence of keys that a dict has, stored once: a recording has a million dicts with the same seven keys.
//! Shapes form a tree: each is its parent plus one key. Every shape remembers the child that was found last, so another dict
//! of a known shape costs seven word comparisons.

use std::collections::HashMap;

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
    /// A string: 36 bits of offset and 24 bits of length.
    Text = 7,
    /// A string that is too long for [`Tag::Text`], or too far into the file; an index.
    LongText = 8,
    /// Bytes. Only the type is kept, because a snapshot contains no bytes objects.
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

    /// Returns a value whose payload is an index (or a boolean).
    #[inline]
    fn with_index(tag: Tag, index: u32) -> Value {
        Value((u64::from(index) << TAG_BITS) | tag as u64)
    }

    pub(crate) fn boolean(value: bool) -> Value {
        Value::with_index(Tag::Bool, u32::from(value))
    }

    /// Returns an integer, if it fits in the payload.
    #[inline]
    pub(crate) fn small_int(value: i64) -> Option<Value> {
        if (-INT_LIMIT..INT_LIMIT).contains(&value) { Some(Value(((value << TAG_BITS) as u64) | Tag::Int as u64)) } else { None }
    }

    /// Returns an integer that always fits.
    #[inline]
    pub(crate) fn int32(value: i32) -> Value {
        Value(((i64::from(value) << TAG_BITS) as u64) | Tag::Int as u64)
    }

    /// Returns a string by offset and length, if they fit in the payload.
    #[inline]
    fn text(offset: u64, length: u64) -> Option<Value> {
        if offset < TEXT_OFFSET_LIMIT && length < 1 << TEXT_LENGTH_BITS {
            Some(Value((((offset << TEXT_LENGTH_BITS) | length) << TAG_BITS) | Tag::Text as u64))
        } else {
            None
        }
    }

    /// Returns the payload of an index tag; meaningless for other tags.
    #[inline]
    fn index(self) -> usize {
        (self.0 >> TAG_BITS) as usize
    }

    /// Returns the payload of [`Tag::Int`]; meaningless for other tags.
    #[inline]
    pub(crate) fn as_small_int(self) -> i64 {
        (self.0 as i64) >> TAG_BITS
    }

    /// Returns the offset and length of a [`Tag::Text`]; meaningless for other tags.
    #[inline]
    fn text_place(self) -> (usize, usize) {
        let payload = self.0 >> TAG_BITS;
        ((payload >> TEXT_LENGTH_BITS) as usize, (payload & ((1 << TEXT_LENGTH_BITS) - 1)) as usize)
    }

    /// Returns Python's name for the type, for use in messages, or "container" for a list, dict or tuple, which `Objects`
    /// distinguishes.
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

/// The bytes of all strings in one pickle.
#[derive(Default)]
pub(crate) struct Texts {
    bytes: Vec<u8>,
    /// The number of these bytes that are also in the file, unchanged.
    copied: usize,
    /// The offset and length of each string that does not fit in a value.
    long: Vec<(usize, usize)>,
}

impl Texts {
    /// Stores a string that is in the file unchanged, and returns its value.
    #[inline]
    pub(crate) fn copy(&mut self, text: &[u8]) -> Value {
        self.copied += text.len();
        self.keep(text)
    }

    /// Stores a decoded string and returns its value.
    #[inline]
    pub(crate) fn keep(&mut self, text: &[u8]) -> Value {
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(text);
        Value::text(offset as u64, text.len() as u64).unwrap_or_else(|| self.long_text(offset, text.len()))
    }

    /// Forgets the strings that have been copied since there were `length` bytes.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.copied -= self.bytes.len() - length;
        self.bytes.truncate(length);
    }

    /// Returns the number of bytes.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.bytes.len()
    }

    #[cold]
    fn long_text(&mut self, offset: usize, length: usize) -> Value {
        let index = self.long.len() as u32; // Fits: each long string takes 16 MiB.
        self.long.push((offset, length));
        Value::with_index(Tag::LongText, index)
    }

    /// Returns the bytes of a string, or `None` if the value is not a string. They are UTF-8 except in malicious or very
    /// unusual files.
    #[inline]
    pub(crate) fn get(&self, value: Value) -> Option<&[u8]> {
        let (offset, length) = match value.tag() {
            Tag::Text => value.text_place(),
            Tag::LongText => *self.long.get(value.index())?,
            _ => return None,
        };
        self.bytes.get(offset..offset + length)
    }

    /// Returns the bytes of memory in use, except those that are also in the file.
    pub(crate) fn held(&self) -> usize {
        self.bytes.len() - self.copied + self.long.len() * size_of::<(usize, usize)>()
    }
}

/// The place where a container's contents are stored.
#[derive(Clone, Copy)]
pub(crate) enum Container {
    Tuple { start: u32, length: u32 },
    List { start: u32, length: u32 },
    LooseList { index: u32 },
    Dict { start: u32, shape: u32 },
    LooseDict { index: u32 },
}

/// The tables. All indices are `u32`: a normal file reaches [`memory_bound`](super::load::memory_bound) long before they
/// overflow; [`Objects::full`] protects against other files.
pub(crate) struct Objects {
    pub(crate) slots: Vec<Value>,
    containers: Vec<Container>,
    loose_lists: Vec<Vec<Value>>,
    loose_dicts: Vec<Vec<(Value, Value)>>,
    /// The number of values in loose containers.
    loose_values: usize,
    pub(crate) shapes: Shapes,
    wide_ints: Vec<i128>,
    floats: Vec<f64>,
}

/// The contents of a dict.
#[derive(Clone, Copy)]
pub(crate) enum Dict<'h> {
    Shaped { shape: u32, values: &'h [Value] },
    Loose(&'h [(Value, Value)]),
}

/// Returns an empty vector with this capacity, or with none if that much memory is not available: the vector may need less.
pub(crate) fn with_room<T>(capacity: usize) -> Vec<T> {
    let mut vector = Vec::new();
    let _ = vector.try_reserve_exact(capacity);
    vector
}

impl Objects {
    /// Creates empty tables, with the capacity that a recording of `length` bytes needs. Memory is used only as the tables
    /// fill.
    pub(crate) fn for_input(length: usize) -> Self {
        Objects {
            slots: with_room(length / 7),
            containers: with_room(length / 60),
            loose_lists: Vec::new(),
            loose_dicts: Vec::new(),
            loose_values: 0,
            shapes: Shapes::new(),
            wide_ints: Vec::new(),
            floats: Vec::new(),
        }
    }

    /// Returns the number of bytes of memory in use.
    pub(crate) fn held(&self) -> usize {
        (self.slots.len() + self.loose_values + self.floats.len()) * size_of::<Value>()
            + self.containers.len() * size_of::<Container>()
            + self.wide_ints.len() * size_of::<i128>()
            + (self.loose_lists.len() + self.loose_dicts.len()) * 4 * size_of::<Vec<Value>>()
    }

    /// Returns whether the next 65,536 steps, each with at most 64 keys, could overflow a `u32` index.
    pub(crate) fn full(&self) -> bool {
        const NEARLY: usize = u32::MAX as usize - (1 << 23);
        self.slots.len() > NEARLY || self.containers.len() > NEARLY || self.wide_ints.len() > NEARLY
    }

    #[inline]
    fn add(&mut self, container: Container) -> Value {
        let value = Value::with_index(Tag::Container, self.containers.len() as u32);
        self.containers.push(container);
        value
    }

    #[inline]
    pub(crate) fn new_list(&mut self) -> Value {
        self.add(Container::List { start: 0, length: 0 })
    }

    #[inline]
    pub(crate) fn new_dict(&mut self) -> Value {
        self.add(Container::Dict { start: 0, shape: EMPTY_SHAPE })
    }

    pub(crate) fn new_tuple(&mut self, items: &[Value]) -> Value {
        let start = self.slots.len() as u32;
        self.slots.extend_from_slice(items);
        self.add(Container::Tuple { start, length: items.len() as u32 })
    }

    pub(crate) fn wide_int(&mut self, value: i128) -> Value {
        if let Some(small) = i64::try_from(value).ok().and_then(Value::small_int) {
            return small;
        }
        self.wide_ints.push(value);
        Value::with_index(Tag::WideInt, self.wide_ints.len() as u32 - 1)
    }

    pub(crate) fn float(&mut self, value: f64) -> Value {
        self.floats.push(value);
        Value::with_index(Tag::Float, self.floats.len() as u32 - 1)
    }

    /// Returns the value of an integer of at most 128 bits, or `None` for anything else.
    #[inline]
    pub(crate) fn as_int(&self, value: Value) -> Option<i128> {
        match value.tag() {
            Tag::Int => Some(i128::from(value.as_small_int())),
            Tag::WideInt => self.wide_ints.get(value.index()).copied(),
            _ => None,
        }
    }

    pub(crate) fn as_float(&self, value: Value) -> Option<f64> {
        match value.tag() {
            Tag::Float => self.floats.get(value.index()).copied(),
            Tag::Int => Some(value.as_small_int() as f64),
            _ => None,
        }
    }

    #[inline]
    fn container(&self, value: Value) -> Option<Container> {
        if value.tag() == Tag::Container { self.containers.get(value.index()).copied() } else { None }
    }

    fn range(&self, start: u32, length: usize) -> &[Value] {
        self.slots.get(start as usize..start as usize + length).unwrap_or(&[])
    }

    /// Returns the items of a list, or of a tuple.
    pub(crate) fn as_items(&self, value: Value) -> Option<&[Value]> {
        match self.container(value)? {
            Container::List { start, length } | Container::Tuple { start, length } => Some(self.range(start, length as usize)),
            Container::LooseList { index } => self.loose_lists.get(index as usize).map(Vec::as_slice),
            Container::Dict { .. } | Container::LooseDict { .. } => None,
        }
    }

    /// Returns the contents of a dict.
    #[inline]
    pub(crate) fn as_dict(&self, value: Value) -> Option<Dict<'_>> {
        match self.container(value)? {
            Container::Dict { start, shape } => {
                Some(Dict::Shaped { shape, values: self.range(start, self.shapes.length(shape)) })
            }
            Container::LooseDict { index } => self.loose_dicts.get(index as usize).map(|pairs| Dict::Loose(pairs)),
            _ => None,
        }
    }

    /// Returns Python's name for the type.
    pub(crate) fn type_name(&self, value: Value) -> &'static str {
        match self.container(value) {
            Some(Container::List { .. } | Container::LooseList { .. }) => "list",
            Some(Container::Dict { .. } | Container::LooseDict { .. }) => "dict",
            Some(Container::Tuple { .. }) => "tuple",
            None => value.type_name(),
        }
    }

    /// Appends to a list. Returns `false` if the value is not a list.
    pub(crate) fn extend_list(&mut self, list: Value, items: &[Value]) -> bool {
        let end = self.slots.len();
        let Some(container) = self.containers.get_mut(list.index()).filter(|_| list.tag() == Tag::Container) else {
            return false;
        };
        match container {
            Container::List { length, .. } if *length == 0 => {
                *container = Container::List { start: end as u32, length: items.len() as u32 };
                self.slots.extend_from_slice(items);
            }
            Container::List { start, length } if *start as usize + *length as usize == end => {
                *length += items.len() as u32;
                self.slots.extend_from_slice(items);
            }
            Container::List { start, length } => {
                let mut own = Vec::with_capacity(*length as usize + items.len());
                own.extend_from_slice(&self.slots[*start as usize..*start as usize + *length as usize]);
                own.extend_from_slice(items);
                self.loose_values += own.len();
                *container = Container::LooseList { index: self.loose_lists.len() as u32 };
                self.loose_lists.push(own);
            }
            Container::LooseList { index } => {
                let Some(own) = self.loose_lists.get_mut(*index as usize) else {
                    return false;
                };
                own.extend_from_slice(items);
                self.loose_values += items.len();
            }
            _ => return false,
        }
        true
    }

    /// Adds `key, value, key, value ...` to a dict. Returns `false` if the target is not a dict. A key that the dict already
    /// has is added again; the last one counts.
    pub(crate) fn extend_dict(&mut self, dict: Value, items: &[Value], texts: &Texts) -> bool {
        let Some(mut container) = self.container(dict) else {
            return false;
        };
        let (pairs, _) = items.as_chunks::<2>();
        for (done, &[key, value]) in pairs.iter().enumerate() {
            let Container::Dict { start, shape } = container else {
                break;
            };
            let start = if shape == EMPTY_SHAPE { self.slots.len() as u32 } else { start };
            let at_end = start as usize + self.shapes.length(shape) == self.slots.len();
            match self.shapes.step(shape, key, texts).filter(|_| at_end) {
                Some(longer) => {
                    self.slots.push(value);
                    container = Container::Dict { start, shape: longer };
                }
                None => {
                    container = self.loosen(start, shape);
                    self.set_container(dict, container);
                    return self.extend_loose(container, pairs.get(done..).unwrap_or(&[]));
                }
            }
        }
        self.set_container(dict, container);
        match container {
            Container::Dict { .. } => true,
            _ => self.extend_loose(container, pairs),
        }
    }

    pub(crate) fn set_container(&mut self, value: Value, container: Container) {
        if let Some(place) = self.containers.get_mut(value.index()) {
            *place = container;
        }
    }

    /// Moves the contents of a shaped dict to a separate vector.
    #[cold]
    fn loosen(&mut self, start: u32, shape: u32) -> Container {
        let keys = self.shapes.keys(shape);
        let own: Vec<(Value, Value)> = keys.iter().copied().zip(self.range(start, keys.len()).iter().copied()).collect();
        self.loose_values += 2 * own.len();
        self.loose_dicts.push(own);
        Container::LooseDict { index: self.loose_dicts.len() as u32 - 1 }
    }

    fn extend_loose(&mut self, container: Container, pairs: &[[Value; 2]]) -> bool {
        let Container::LooseDict { index } = container else {
            return false;
        };
        let Some(own) = self.loose_dicts.get_mut(index as usize) else {
            return false;
        };
        own.extend(pairs.iter().map(|&[key, value]| (key, value)));
        self.loose_values += 2 * pairs.len();
        true
    }
}

/// Dicts with more keys than this do not get a shape.
const MAX_KEYS: usize = 64;
/// Dicts with a key longer than this, in bytes, do not get a shape.
const MAX_KEY_LENGTH: usize = 128;
/// The maximum number of shapes that are kept. Real files have about twenty.
const MAX_SHAPES: usize = 4096;

/// The shape of the empty dict.
pub(crate) const EMPTY_SHAPE: u32 = 0;

struct Node {
    parent: u32,
    length: u32,
    /// The key that this shape adds to its parent, as first seen.
    key: Value,
    /// The key that was looked up last, and the child that it leads to.
    last_key: Value,
    last_child: u32,
}

/// The tree of shapes.
pub(crate) struct Shapes {
    nodes: Vec<Node>,
    children: HashMap<(u32, u32), u32>,
    key_numbers: HashMap<Box<[u8]>, u32>,
}

impl Shapes {
    fn new() -> Self {
        let root = Node { parent: EMPTY_SHAPE, length: 0, key: Value::ABSENT, last_key: Value::ABSENT, last_child: EMPTY_SHAPE };
        Shapes { nodes: vec![root], children: HashMap::new(), key_numbers: HashMap::new() }
    }

    /// Returns the number of keys of a shape.
    #[inline]
    fn length(&self, shape: u32) -> usize {
        self.nodes.get(shape as usize).map_or(0, |node| node.length as usize)
    }

    /// Returns the shape with one more key. Returns `None` if there is no such shape, because the key is not a short string
    /// or there are too many shapes; the dict must then be loose.
    #[inline]
    pub(crate) fn step(&mut self, shape: u32, key: Value, texts: &Texts) -> Option<u32> {
        let node = self.nodes.get(shape as usize)?;
        if node.last_key == key {
            return Some(node.last_child);
        }
        self.step_by_text(shape, key, texts)
    }

    fn step_by_text(&mut self, shape: u32, key: Value, texts: &Texts) -> Option<u32> {
        let text = texts.get(key)?;
        let node = self.nodes.get_mut(shape as usize)?;
        if texts.get(node.last_key) == Some(text) {
            node.last_key = key;
            return Some(node.last_child);
        }
        if text.len() > MAX_KEY_LENGTH || node.length as usize >= MAX_KEYS {
            return None;
        }
        let child = self.find_or_add(shape, key, text)?;
        let node = self.nodes.get_mut(shape as usize)?;
        node.last_key = key;
        node.last_child = child;
        Some(child)
    }

    fn find_or_add(&mut self, shape: u32, key: Value, text: &[u8]) -> Option<u32> {
        let number = match self.key_numbers.get(text) {
            Some(&number) => number,
            None if self.nodes.len() >= MAX_SHAPES => return None,
            None => {
                let number = self.key_numbers.len() as u32;
                self.key_numbers.insert(text.into(), number);
                number
            }
        };
        if let Some(&child) = self.children.get(&(shape, number)) {
            return Some(child);
        }
        if self.nodes.len() >= MAX_SHAPES {
            return None;
        }
        let child = self.nodes.len() as u32;
        let length = self.nodes.get(shape as usize)?.length + 1;
        self.nodes.push(Node { parent: shape, length, key, last_key: Value::ABSENT, last_child: EMPTY_SHAPE });
        self.children.insert((shape, number), child);
        Some(child)
    }

    /// Returns the keys of a shape, in the order in which they were added. A key may occur twice; the later one counts.
    pub(crate) fn keys(&self, shape: u32) -> Vec<Value> {
        let mut keys = Vec::with_capacity(self.length(shape));
        let mut at = shape;
        while at != EMPTY_SHAPE {
            let Some(node) = self.nodes.get(at as usize) else {
                break;
            };
            keys.push(node.key);
            at = node.parent;
        }
        keys.reverse();
        keys
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

    #[test]
    fn equal_keys_lead_to_one_shape() {
        let mut texts = Texts::default();
        let (size, stream, again) = (texts.copy(b"size"), texts.copy(b"stream"), texts.copy(b"size"));
        let mut shapes = Shapes::new();
        let first = shapes.step(EMPTY_SHAPE, size, &texts).and_then(|shape| shapes.step(shape, stream, &texts));
        let second = shapes.step(EMPTY_SHAPE, again, &texts).and_then(|shape| shapes.step(shape, stream, &texts));
        assert_eq!(first, second);
        assert_eq!(shapes.keys(first.expect("a shape")), [size, stream]);
        let other = shapes.step(EMPTY_SHAPE, stream, &texts).and_then(|shape| shapes.step(shape, size, &texts));
        assert_ne!(first, other);
        assert!(shapes.step(EMPTY_SHAPE, Value::int32(1), &texts).is_none());
    }
}
