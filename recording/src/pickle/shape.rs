//! Shapes: the sequences of keys that dicts have, each stored once.
//!
//! A recording has a million dicts with the same seven keys. Shapes form a tree: each is its
//! parent plus one key. Every shape remembers the child found last, so one more dict of a known
//! shape costs seven comparisons of a word.

use std::collections::HashMap;

use super::texts::Texts;
use super::value::Value;

/// Dicts with more keys than this have no shape.
pub(crate) const MAX_KEYS: usize = 64;
/// Dicts with a key longer than this, in bytes, have no shape.
const MAX_KEY_LENGTH: usize = 128;
/// The most shapes that are kept. Real files have about twenty.
const MAX_SHAPES: usize = 4096;

/// The shape of the empty dict.
pub(crate) const EMPTY: u32 = 0;

struct Node {
    parent: u32,
    length: u32,
    /// The key that this shape adds to its parent, as first seen.
    key: Value,
    /// The key that was looked up last, and the child it leads to.
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
    pub(crate) fn new() -> Self {
        let root = Node { parent: EMPTY, length: 0, key: Value::ABSENT, last_key: Value::ABSENT, last_child: EMPTY };
        Shapes { nodes: vec![root], children: HashMap::new(), key_numbers: HashMap::new() }
    }

    /// The number of keys of a shape.
    #[inline]
    pub(crate) fn length(&self, shape: u32) -> usize {
        self.nodes.get(shape as usize).map_or(0, |node| node.length as usize)
    }

    /// The shape with one more key. `None` if there is no such shape, because the key is not a short text or
    /// there are too many; then the dict must be loose.
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
        self.nodes.push(Node { parent: shape, length, key, last_key: Value::ABSENT, last_child: EMPTY });
        self.children.insert((shape, number), child);
        Some(child)
    }

    /// The keys of a shape, in the order in which they were added. A key may occur twice; the later one counts.
    pub(crate) fn keys(&self, shape: u32) -> Vec<Value> {
        let mut keys = Vec::with_capacity(self.length(shape));
        let mut at = shape;
        while at != EMPTY {
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
        let first = shapes.step(EMPTY, size, &texts).and_then(|shape| shapes.step(shape, stream, &texts));
        let second = shapes.step(EMPTY, again, &texts).and_then(|shape| shapes.step(shape, stream, &texts));
        assert_eq!(first, second);
        assert_eq!(shapes.keys(first.expect("a shape")), [size, stream]);
        let other = shapes.step(EMPTY, stream, &texts).and_then(|shape| shapes.step(shape, size, &texts));
        assert_ne!(first, other);
        assert!(shapes.step(EMPTY, Value::int32(1), &texts).is_none());
    }
}
