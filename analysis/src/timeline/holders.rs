//! Who holds the memory at a moment: stacks where the file has them, sizes where it has none.

use std::collections::BTreeMap;

use super::log::HeapLog;
use parkade_recording::StackId;

/// What blocks have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HolderKey {
    /// They were asked for at this place of the program.
    Stack(StackId),
    /// Each has this many bytes.
    Size(u64),
}

/// Blocks handed out that have something in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// What it is.
    pub key: HolderKey,
    /// Their bytes.
    pub bytes: u64,
    /// How many they are.
    pub blocks: u64,
}

/// Who holds the blocks that are handed out at a moment, those with the most bytes first. By stack if any block of the run has one.
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
