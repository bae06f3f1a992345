//! The objects of a pickle: flat tables in which lists, dicts and tuples refer to each other by number.
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

use super::value::{Tag, Texts, Value};

/// Where a container's contents are stored.
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

impl Objects {
    /// Empty tables, with the capacity that a recording of `length` bytes needs. Memory is used only as the tables fill.
    pub(crate) fn for_input(length: usize) -> Self {
        Objects {
            slots: Vec::with_capacity(length / 7),
            containers: Vec::with_capacity(length / 60),
            loose_lists: Vec::new(),
            loose_dicts: Vec::new(),
            loose_values: 0,
            shapes: Shapes::new(),
            wide_ints: Vec::new(),
            floats: Vec::new(),
        }
    }

    /// Bytes of memory in use.
    pub(crate) fn held(&self) -> usize {
        (self.slots.len() + self.loose_values + self.floats.len()) * size_of::<Value>()
            + self.containers.len() * size_of::<Container>()
            + self.wide_ints.len() * size_of::<i128>()
            + (self.loose_lists.len() + self.loose_dicts.len()) * 4 * size_of::<Vec<Value>>()
    }

    /// Whether the next 65,536 steps, each with at most 64 keys, could overflow a `u32` index.
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

    /// The value of an integer of at most 128 bits; `None` for anything else.
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

    /// The items of a list, or of a tuple.
    pub(crate) fn as_items(&self, value: Value) -> Option<&[Value]> {
        match self.container(value)? {
            Container::List { start, length } | Container::Tuple { start, length } => Some(self.range(start, length as usize)),
            Container::LooseList { index } => self.loose_lists.get(index as usize).map(Vec::as_slice),
            Container::Dict { .. } | Container::LooseDict { .. } => None,
        }
    }

    /// The contents of a dict.
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

    /// Python's name of the type.
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

    /// The number of keys of a shape.
    #[inline]
    fn length(&self, shape: u32) -> usize {
        self.nodes.get(shape as usize).map_or(0, |node| node.length as usize)
    }

    /// The shape with one more key. `None` if there is no such shape, because the key is not a short text or there are too
    /// many shapes; the dict must then be loose.
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

    /// The keys of a shape, in the order in which they were added. A key may occur twice; the later one counts.
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
