//! Who holds the memory at a moment: grouped by stack if the file has stacks, else by block size.

use std::collections::BTreeMap;

use parkade_recording::StackId;

use super::log::HeapLog;

/// What a group of blocks has in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HolderKey {
    /// They were allocated at this place of the program.
    Stack(StackId),
    /// Each has this size in bytes.
    Size(u64),
}

/// A group of live blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// What they have in common.
    pub key: HolderKey,
    /// Their bytes.
    pub bytes: u64,
    /// How many there are.
    pub blocks: u64,
}

/// Who holds the live blocks at a moment, the largest group first. Grouped by stack if any block of the run has one.
#[must_use]
pub fn holders(log: &HeapLog, moment: u32) -> Vec<Holder> {
    let has_stacks = log.blocks.iter().any(|block| block.stack != StackId::NONE);
    let mut sums: BTreeMap<HolderKey, (u64, u64)> = BTreeMap::new();
    for block in log.blocks.iter().filter(|block| block.born <= moment && moment < block.freed) {
        let key = if has_stacks { HolderKey::Stack(block.stack) } else { HolderKey::Size(block.size) };
        let (bytes, blocks) = sums.entry(key).or_default();
        *bytes = bytes.saturating_add(block.size);
        *blocks += 1;
    }
    let mut holders: Vec<Holder> = sums.into_iter().map(|(key, (bytes, blocks))| Holder { key, bytes, blocks }).collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.key));
    holders
}
