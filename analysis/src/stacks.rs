//! Which stacks hold how much memory.

use std::cmp::Reverse;

use parkade_recording::StackId;

/// The live blocks that were allocated at one place of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackUse {
    /// The place; [`StackId::NONE`] collects all blocks for which the file has no stack.
    pub stack: StackId,
    /// How many blocks.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Sums blocks, given as stack and size in bytes, by stack; the stack that holds the most comes first.
pub(crate) fn by_stack(mut blocks: Vec<(StackId, u64)>) -> Vec<StackUse> {
    blocks.sort_unstable();
    let sum = |blocks: &[(StackId, u64)]| blocks.iter().fold(0, |sum: u64, block| sum.saturating_add(block.1));
    let uses = blocks.chunk_by(|one, other| one.0 == other.0);
    let mut uses: Vec<StackUse> =
        uses.map(|blocks| StackUse { stack: blocks[0].0, blocks: blocks.len(), bytes: sum(blocks) }).collect();
    uses.sort_by_key(|held| (Reverse(held.bytes), held.stack));
    uses
}
