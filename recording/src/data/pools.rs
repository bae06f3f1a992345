//! The memory pools that trace entries name, each id stored once.

use std::collections::BTreeMap;

/// A memory pool's index in the [`PoolTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(u32);

impl PoolId {
    /// The file does not name the pool.
    pub const NONE: PoolId = PoolId(u32::MAX);
}

/// The ids of memory pools, each stored once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolTable {
    ids: Vec<(u64, u64)>,
    indices: BTreeMap<(u64, u64), u32>,
}

impl PoolTable {
    /// The index of a pool id, which is added if it is new.
    pub fn intern(&mut self, id: (u64, u64)) -> PoolId {
        let next = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        let index = *self.indices.entry(id).or_insert(next);
        if index == next {
            self.ids.push(id);
        }
        PoolId(index)
    }

    /// Whether no entry names its pool.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The pool id at an index; `None` for [`PoolId::NONE`].
    pub fn get(&self, pool: PoolId) -> Option<(u64, u64)> {
        self.ids.get(pool.0 as usize).copied()
    }
}
