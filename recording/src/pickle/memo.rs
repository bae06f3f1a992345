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
    /// How often a slot was written again, or beyond a gap.
    changes: u64,
}

impl Memo {
    /// No slots, with the addresses for as many as a recording of so many bytes needs.
    pub(crate) fn for_input(length: usize) -> Self {
        Memo { dense: Vec::with_capacity(length / 30), sparse: BTreeMap::new(), changes: 0 }
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
            Some(slot) => {
                *slot = value;
                self.changes += 1;
            }
            None if index == next => {
                // The slot was beyond a gap until now: it is written again.
                if !self.sparse.is_empty() && self.sparse.remove(&index).is_some() {
                    self.changes += 1;
                }
                self.dense.push(value);
            }
            None => {
                self.sparse.insert(index, value);
                self.changes += 1;
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

    /// A number that is the same as long as every slot that was ever written holds what it held, those beyond a gap included. It
    /// may grow where none changed.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether there are slots beyond a gap.
    #[inline]
    pub(crate) fn has_gaps(&self) -> bool {
        !self.sparse.is_empty()
    }

    /// How many slots there are before any gap.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.dense.len()
    }

    /// Takes back what was memoised since there were so many slots, if there are no gaps.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.dense.truncate(length);
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
        let mut memo = Memo::for_input(0);
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
