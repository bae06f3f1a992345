//! The memo: numbered slots for the objects that a pickle refers to more than once.
//!
//! Picklers number from zero without gaps, so the slots are a vector. In a file with gaps, the slots beyond the
//! first gap are in a map: a single `LONG_BINPUT 0xffffffff` must not cost 32 GiB.

use std::collections::BTreeMap;

use super::value::Value;

/// Memo slots.
pub(crate) struct Memo {
    dense: Vec<Value>,
    sparse: BTreeMap<u64, Value>,
    /// How often a slot was overwritten, or written beyond a gap.
    changes: u64,
}

impl Memo {
    /// No slots, with the capacity that a recording of `length` bytes needs.
    pub(crate) fn for_input(length: usize) -> Self {
        Memo { dense: Vec::with_capacity(length / 30), sparse: BTreeMap::new(), changes: 0 }
    }

    /// MEMOIZE: writes the next slot, whose number is the number of slots.
    #[inline]
    pub(crate) fn push(&mut self, value: Value) {
        if self.sparse.is_empty() {
            self.dense.push(value);
        } else {
            self.put((self.dense.len() + self.sparse.len()) as u64, value);
        }
    }

    /// PUT, BINPUT and LONG_BINPUT: writes a slot by number.
    #[inline]
    pub(crate) fn put(&mut self, index: u64, value: Value) {
        let next = self.dense.len() as u64;
        match self.dense.get_mut(index as usize) {
            Some(slot) => {
                *slot = value;
                self.changes += 1;
            }
            None if index == next => {
                // If the slot was beyond a gap, it is overwritten.
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

    /// The value of a slot; `None` if it was never written.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<Value> {
        match self.dense.get(index as usize) {
            Some(&value) => Some(value),
            None => self.sparse.get(&index).copied(),
        }
    }

    /// A count that stays the same as long as no slot changes its value. It may grow although none does.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether there are slots beyond a gap.
    #[inline]
    pub(crate) fn has_gaps(&self) -> bool {
        !self.sparse.is_empty()
    }

    /// The number of slots before the first gap.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.dense.len()
    }

    /// Undoes what was memoised since there were `length` slots. There must not be gaps.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.dense.truncate(length);
    }

    /// Bytes of memory in use.
    pub(crate) fn held(&self) -> usize {
        self.dense.len() * size_of::<Value>() + self.sparse.len() * 4 * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_beyond_a_gap_cost_little() {
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
