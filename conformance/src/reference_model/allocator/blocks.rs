//! Segments and their blocks, by address: split, put back, listed in the order in which free blocks are used (spec 2.3, 3.2, 3.4).

use std::collections::BTreeSet;

use parkade::units::{PoolClass, PoolId};

use super::Reference;
use crate::reference_model::table::Table;

/// The state of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Free,
    Allocated,
    /// Given back, and still used by other streams.
    Pending,
    /// Addresses without memory.
    Unmapped,
    /// On its way from one state to another.
    Taken,
}

/// A block. Blocks go by their addresses.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) state: State,
    /// Orders blocks of one size, before their addresses do: the age of the segment or of the block, the oldest lowest.
    pub(super) rank: u64,
    pub(super) stamp: u64,
    /// Streams that use it and have no event for it yet.
    pub(super) uses: Table<u64>,
    /// Those recorded during a capture.
    pub(super) captured: BTreeSet<u64>,
}

impl Block {
    pub(super) fn new(address: u64, size: u64, state: State, rank: u64) -> Block {
        Block { address, size, requested: 0, state, rank, stamp: 0, uses: Table::default(), captured: BTreeSet::new() }
    }
}

/// A segment, or the reserved range of an expandable one.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) base: u64,
    pub(super) size: u64,
    /// Bytes of a page; 0 if it is not expandable.
    pub(super) page: u64,
    pub(super) stream: u64,
    pub(super) pool: PoolId,
    pub(super) class: PoolClass,
    /// Its number among the reserved ranges.
    pub(super) number: u64,
    pub(super) blocks: Vec<Block>,
}

impl Segment {
    pub(super) fn is_expandable(&self) -> bool {
        self.page > 0
    }

    pub(super) fn place(&self, address: u64) -> usize {
        self.blocks.iter().position(|block| block.address == address).expect("blocks go by addresses that exist")
    }
}

/// A free block, as searches see it.
#[derive(Clone, Copy, Debug)]
pub struct FreeBlock {
    /// First byte.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
    /// The stream of its segment.
    pub stream: u64,
    /// The age of its segment or its own, the oldest lowest; 0 where age does not count.
    pub rank: u64,
    /// How many searches there had been when it became free.
    pub stamp: u64,
    /// Whether it is only a part of its segment.
    pub is_split: bool,
    /// Whether its segment is expandable.
    pub is_expandable: bool,
    /// Addresses without memory directly behind it.
    pub room_behind: u64,
}

/// What a block absorbed when it was put back.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Absorbed {
    pub(super) blocks: i64,
    pub(super) bytes: i64,
}

impl Reference {
    /// The segment of the block at an address.
    pub(super) fn segment_at(&self, address: u64) -> &Segment {
        let holds = |segment: &&Segment| (segment.base..segment.base + segment.size).contains(&address);
        self.segments.iter().find(holds).expect("blocks go by addresses that exist")
    }

    pub(super) fn segment_at_mut(&mut self, address: u64) -> &mut Segment {
        let holds = |segment: &&mut Segment| (segment.base..segment.base + segment.size).contains(&address);
        self.segments.iter_mut().find(holds).expect("blocks go by addresses that exist")
    }

    pub(super) fn block(&self, address: u64) -> &Block {
        let segment = self.segment_at(address);
        &segment.blocks[segment.place(address)]
    }

    pub(super) fn block_mut(&mut self, address: u64) -> &mut Block {
        let segment = self.segment_at_mut(address);
        let place = segment.place(address);
        &mut segment.blocks[place]
    }

    /// A collection's free blocks in PyTorch's order: by stream handle, size, age where it counts, address.
    pub(super) fn free_blocks(&self, pool: PoolId, class: PoolClass) -> Vec<FreeBlock> {
        let mut free = Vec::new();
        for segment in self.segments.iter().filter(|segment| segment.pool == pool && segment.class == class) {
            for (place, block) in segment.blocks.iter().enumerate().filter(|(_, block)| block.state == State::Free) {
                let behind = segment.blocks.get(place + 1).filter(|next| next.state == State::Unmapped);
                free.push(FreeBlock {
                    address: block.address,
                    size: block.size,
                    stream: segment.stream,
                    rank: block.rank,
                    stamp: block.stamp,
                    is_split: segment.blocks.len() > 1,
                    is_expandable: segment.is_expandable(),
                    room_behind: behind.map_or(0, |next| next.size),
                });
            }
        }
        free.sort_by_key(|block| (block.stream, block.size, block.rank, block.address));
        free
    }

    /// Splits a block: its first `size` bytes are a new block, and the rest is free from now on.
    pub(super) fn split(&mut self, address: u64, size: u64, stamp: u64) {
        let rank = self.next_rank_beside(self.block(address).rank);
        let segment = self.segment_at_mut(address);
        let place = segment.place(address);
        let whole = &mut segment.blocks[place];
        let rest = Block { address: address + size, size: whole.size - size, state: State::Free, stamp, ..whole.clone() };
        (whole.size, whole.requested, whole.rank) = (size, 0, rank);
        segment.blocks.insert(place + 1, rest);
    }

    /// Makes a block free, together with the free blocks beside it. Returns its address then, and what it absorbed.
    pub(super) fn put_back(&mut self, address: u64) -> (u64, Absorbed) {
        let segment = self.segment_at(address);
        let stamp = self.stamp(segment.pool, segment.class);
        let segment = self.segment_at_mut(address);
        let mut place = segment.place(address);
        let mut absorbed = Absorbed::default();
        if segment.blocks.get(place + 1).is_some_and(|next| next.state == State::Free) {
            let next = segment.blocks.remove(place + 1);
            segment.blocks[place].size += next.size;
            absorbed = Absorbed { blocks: 1, bytes: next.size as i64 };
        }
        if place > 0 && segment.blocks[place - 1].state == State::Free {
            let before = segment.blocks.remove(place - 1);
            place -= 1;
            segment.blocks[place].address = before.address;
            segment.blocks[place].size += before.size;
            absorbed = Absorbed { blocks: absorbed.blocks + 1, bytes: absorbed.bytes + before.size as i64 };
        }
        let block = &mut segment.blocks[place];
        (block.state, block.stamp) = (State::Free, stamp);
        (block.address, absorbed)
    }

    /// Bytes taken from the device by all pools.
    pub(super) fn reserved(&self) -> u64 {
        self.segments.iter().map(Segment::mapped).sum()
    }

    /// Bytes taken from the device by one pool.
    pub(super) fn reserved_by(&self, pool: PoolId) -> u64 {
        self.segments.iter().filter(|segment| segment.pool == pool).map(Segment::mapped).sum()
    }
}

impl Segment {
    /// Bytes that have memory.
    pub(super) fn mapped(&self) -> u64 {
        self.blocks.iter().filter(|block| block.state != State::Unmapped).map(|block| block.size).sum()
    }
}
