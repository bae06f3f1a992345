//! The memo: the numbered slots in which a pickle keeps the objects that it refers to again.
//!
//! Picklers number from zero without gaps, so the slots are a vector. A file that numbers with gaps gets a map for those
//! beyond the gap: a single `LONG_BINPUT 0xffffffff` must not cost 32 GiB.

use std::collections::BTreeMap;

use super::value::Value;

/// Memo slots.
pub(crate) struct Memo {
    dense: Vec<Value>,
    sparse: BTreeMap<u64, Value>,
}

impl Memo {
    pub(crate) fn new() -> Self {
        Memo { dense: Vec::new(), sparse: BTreeMap::new() }
    }

    /// MEMOIZE: the next slot, whose number is how many there are.
    #[inline]
    pub(crate) fn push(&mut self, value: Value) {
        if self.sparse.is_empty() {
            self.dense.push(value);
        } else {
            self.put((self.dense.len() + self.sparse.len()) as u64, value);
        }
    }

    /// PUT and its kin: a slot by number.
    #[inline]
    pub(crate) fn put(&mut self, index: u64, value: Value) {
        let next = self.dense.len() as u64;
        match self.dense.get_mut(index as usize) {
            Some(slot) => *slot = value,
            None if index == next => {
                if !self.sparse.is_empty() {
                    self.sparse.remove(&index);
                }
                self.dense.push(value);
            }
            None => {
                self.sparse.insert(index, value);
            }
        }
    }

    /// The value of a slot, if it was ever written.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<Value> {
        match self.dense.get(index as usize) {
            Some(&value) => Some(value),
            None => self.sparse.get(&index).copied(),
        }
    }

    /// Bytes in use.
    pub(crate) fn held(&self) -> usize {
        self.dense.len() * size_of::<Value>() + self.sparse.len() * 4 * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_with_gaps_cost_what_they_hold() {
        let mut memo = Memo::new();
        memo.put(u64::from(u32::MAX), Value::NONE);
        memo.put(1, Value::int32(1));
        memo.put(0, Value::int32(0));
        memo.put(1, Value::int32(2));
        assert_eq!(memo.get(u64::from(u32::MAX)), Some(Value::NONE));
        assert_eq!(memo.get(0), Some(Value::int32(0)));
        assert_eq!(memo.get(1), Some(Value::int32(2)));
        assert_eq!(memo.get(2), None);
        assert!(memo.held() < 200);
    }
}
