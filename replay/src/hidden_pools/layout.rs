//! The blocks of all segments at each point of a trace, from the trace alone.
//!
//! The pools affect which block serves a request, but not what then happens to the block: the entry states where the block
//! begins, the rules determine how much is split off, and free neighbours in one segment coalesce. The blocks of every
//! segment are therefore known even if its pool is not.

use std::collections::{BTreeMap, BTreeSet};

use parkade::policy::{Policy, PyTorch, Request};
use parkade::units::{Bytes, PoolClass, PoolId, StreamId};
use parkade::{AdoptedContent, AdoptedSegment, PoolSlot};
use parkade_recording::Entry;

/// The number of a life.
pub(super) type LifeId = usize;

/// A segment from its allocation to its release, or an expandable segment from mapping its first page to unmapping
/// its last.
///
/// This is not the same as an address range: several lives can use an address, one after another.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) base: u64,
    pub(super) stream: u64,
    pub(super) class: PoolClass,
    pub(super) expandable: bool,
    /// The entry that allocated it; `None` if it existed before the first entry.
    pub(super) made_at: Option<usize>,
    /// The entry that freed its last memory; `None` if it existed at the end.
    pub(super) gone_at: Option<usize>,
    /// The first entry that freed any of its memory.
    pub(super) first_given_at: Option<usize>,
    /// Its pool, if the recording lists the segment at the end.
    pub(super) known: Option<PoolId>,
    /// The number of requests it served.
    pub(super) requests: u64,
    /// The entry of the last request that it served, or the entry that allocated it.
    pub(super) last_used_at: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) size: u64,
    pub(super) life: LifeId,
    /// The number of entries that had been replayed when the block became free at its current size; `None` while it is in use.
    pub(super) free_since: Option<usize>,
}

/// The order in which best fit examines free blocks: stream, large or small, size, address.
type FreeKey = (u64, bool, u64, u64);

/// The blocks at one point of the trace.
pub(super) struct Layout<'a> {
    policy: &'a PyTorch,
    pub(super) lives: Vec<Life>,
    /// The segments that exist: address, end and life. For an expandable segment, the end is the highest end of the memory
    /// that was ever mapped in it.
    places: BTreeMap<u64, (u64, LifeId)>,
    blocks: BTreeMap<u64, Block>,
    free: BTreeSet<FreeKey>,
}

impl<'a> Layout<'a> {
    pub(super) fn new(policy: &'a PyTorch, before: &[AdoptedSegment]) -> Layout<'a> {
        let (places, blocks) = (BTreeMap::new(), BTreeMap::new());
        let mut layout = Layout { policy, lives: Vec::new(), places, blocks, free: BTreeSet::new() };
        for segment in before {
            layout.adopt(segment);
        }
        layout
    }

    fn adopt(&mut self, segment: &AdoptedSegment) {
        let base = segment.address.get();
        let expandable = segment.page.is_some();
        let life = self.begin(base, segment.stream.get(), segment.class, expandable, None);
        let mut at = base;
        for block in &segment.blocks {
            let size = block.size.get();
            if block.content != AdoptedContent::Unmapped {
                let free_since = (block.content == AdoptedContent::Free).then_some(0);
                self.put(at, Block { size, life, free_since });
                self.reach(base, at + size);
            }
            at += size;
        }
    }

    fn begin(&mut self, base: u64, stream: u64, class: PoolClass, expandable: bool, made_at: Option<usize>) -> LifeId {
        let life = Life {
            base,
            stream,
            class,
            expandable,
            made_at,
            gone_at: None,
            first_given_at: None,
            known: None,
            requests: 0,
            last_used_at: made_at.unwrap_or(0),
        };
        self.lives.push(life);
        self.places.insert(base, (base, self.lives.len() - 1));
        self.lives.len() - 1
    }

    fn reach(&mut self, base: u64, end: u64) {
        if let Some((reached, _)) = self.places.get_mut(&base) {
            *reached = end.max(*reached);
        }
    }

    fn key(&self, address: u64, block: &Block) -> FreeKey {
        let life = &self.lives[block.life];
        (life.stream, life.class == PoolClass::Large, block.size, address)
    }

    fn put(&mut self, address: u64, block: Block) {
        if block.free_since.is_some() {
            self.free.insert(self.key(address, &block));
        }
        self.blocks.insert(address, block);
    }

    fn take(&mut self, address: u64) -> Option<Block> {
        let block = self.blocks.remove(&address)?;
        self.free.remove(&self.key(address, &block));
        Some(block)
    }

    /// Adds a free block, coalesced with free neighbours in the same segment.
    fn merge(&mut self, mut address: u64, mut block: Block) {
        if let Some((&before, neighbour)) = self.blocks.range(..address).next_back()
            && (before + neighbour.size == address && neighbour.life == block.life && neighbour.free_since.is_some())
        {
            block.size += neighbour.size;
            self.take(before);
            address = before;
        }
        if let Some(neighbour) = self.blocks.get(&(address + block.size))
            && (neighbour.life == block.life && neighbour.free_since.is_some())
        {
            let behind = address + block.size;
            block.size += neighbour.size;
            self.take(behind);
        }
        self.put(address, block);
    }

    /// The life at an address.
    pub(super) fn life_at(&self, address: u64) -> Option<LifeId> {
        let (_, &(end, life)) = self.places.range(..=address).next_back()?;
        (address < end || (self.lives[life].expandable && address == end)).then_some(life)
    }

    /// The free block that begins at an address.
    pub(super) fn free_at(&self, address: u64) -> Option<Block> {
        self.blocks.get(&address).copied().filter(|block| block.free_since.is_some())
    }

    /// The free blocks of a stream and class with at least `size` bytes, in best-fit order, up to `until` if given.
    pub(super) fn fitting(
        &self,
        stream: u64,
        class: PoolClass,
        size: u64,
        until: Option<FreeKey>,
    ) -> impl Iterator<Item = (u64, Block)> {
        let large = class == PoolClass::Large;
        let end = until.unwrap_or((stream, large, u64::MAX, u64::MAX));
        let first = (stream, large, size, 0).min(end);
        self.free.range(first..end).filter_map(|key| Some((key.3, *self.blocks.get(&key.3)?)))
    }

    /// The number of segments that exist.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// The lives that could free memory: a segment that is one free block, or an expandable segment with an entirely free
    /// page.
    pub(super) fn releasable(&self) -> Vec<LifeId> {
        let mut lives: Vec<LifeId> = self
            .free
            .iter()
            .filter_map(|key| {
                let block = self.blocks.get(&key.3)?;
                self.is_releasable(key.3, block).then_some(block.life)
            })
            .collect();
        lives.sort_unstable();
        lives.dedup();
        lives
    }

    fn is_releasable(&self, address: u64, block: &Block) -> bool {
        let life = &self.lives[block.life];
        if !life.expandable {
            return self.places.get(&address).is_some_and(|&(end, _)| address + block.size == end);
        }
        let page = self.policy.page(PoolSlot::default_pool(life.class)).get().max(1);
        let first = (address - life.base).next_multiple_of(page);
        first.saturating_add(page) <= address - life.base + block.size
    }

    /// Adds a segment.
    pub(super) fn make(&mut self, at: usize, entry: &Entry) {
        // A small segment is 2 MiB; every segment of the large pool is at least 10 MiB (spec 1.6).
        let class = if entry.size > 2 << 20 { PoolClass::Large } else { PoolClass::Small };
        let life = self.begin(entry.address, entry.stream, class, false, Some(at));
        self.reach(entry.address, entry.address + entry.size);
        self.put(entry.address, Block { size: entry.size, life, free_since: Some(at + 1) });
    }

    /// Maps pages for a request of this class. If no range grows into them, they begin a new range (spec 4.2).
    /// Returns its life.
    pub(super) fn map(&mut self, at: usize, entry: &Entry, class: PoolClass) -> Option<LifeId> {
        let range = self.life_at(entry.address).filter(|&life| self.lives[life].expandable);
        let life = range.unwrap_or_else(|| self.begin(entry.address, entry.stream, class, true, Some(at)));
        let base = self.lives[life].base;
        self.reach(base, entry.address + entry.size);
        self.merge(entry.address, Block { size: entry.size, life, free_since: Some(at + 1) });
        range.is_none().then_some(life)
    }

    /// Frees memory: a segment, or pages of an expandable segment. Returns its life, or `None` if some of the memory is not
    /// free.
    pub(super) fn give(&mut self, at: usize, entry: &Entry) -> Option<LifeId> {
        let (&address, block) = self.blocks.range(..=entry.address).next_back()?;
        let (life, end) = (block.life, address + block.size);
        let (from, to) = (entry.address, entry.address + entry.size);
        if block.free_since.is_none() || end < to {
            return None;
        }
        let block = self.take(address)?;
        if address < from {
            self.put(address, Block { size: from - address, ..block });
        }
        if to < end {
            self.put(to, Block { size: end - to, ..block });
        }
        let base = self.lives[life].base;
        let reached = self.places.get(&base).map_or(to, |&(reached, _)| reached);
        let lives_on = self.blocks.range(base..reached).next().is_some();
        self.lives[life].first_given_at.get_or_insert(at);
        if !lives_on {
            self.lives[life].gone_at = Some(at);
            self.places.remove(&base);
        }
        Some(life)
    }

    /// Serves a request from the free block at its address. Returns `None` if no free block there is large enough.
    pub(super) fn serve(&mut self, at: usize, entry: &Entry, size: u64) -> Option<LifeId> {
        let block = self.free_at(entry.address).filter(|block| block.size >= size)?;
        let request = Request {
            requested: Bytes(entry.size),
            size: Bytes(size),
            pool: PoolSlot::default_pool(self.lives[block.life].class),
            stream: StreamId(entry.stream),
            is_expandable: self.policy.settings.expandable_segments,
        };
        let own = if self.policy.splits(Bytes(block.size), &request) { size } else { block.size };
        self.take(entry.address);
        if own < block.size {
            self.put(entry.address + own, Block { size: block.size - own, free_since: Some(at + 1), ..block });
        }
        self.put(entry.address, Block { size: own, free_since: None, ..block });
        let life = &mut self.lives[block.life];
        life.requests += 1;
        life.last_used_at = at;
        Some(block.life)
    }

    /// Makes a block free.
    pub(super) fn free(&mut self, at: usize, entry: &Entry) {
        if let Some(block) = self.take(entry.address) {
            self.merge(entry.address, Block { free_since: Some(at + 1), ..block });
        }
    }

    /// The existing expandable segments of a stream and class.
    pub(super) fn ranges(&self, stream: u64, class: PoolClass) -> impl Iterator<Item = LifeId> {
        let is_it = move |&life: &LifeId| {
            let life = &self.lives[life];
            life.expandable && life.stream == stream && life.class == class
        };
        self.places.values().map(|&(_, life)| life).filter(is_it)
    }
}
