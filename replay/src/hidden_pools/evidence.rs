//! What a trace shows about which segments cannot be in the same pool.
//!
//! Three allocator rules reveal pools without naming them:
//! - The best-fitting free block of its pool serves a request (spec 2.5). A better block that was passed over therefore
//!   belongs to a different pool, as does every block that would have fitted when a new segment was allocated.
//! - A pool that releases memory releases all that it can (spec 2.10). Memory that could have been released but was not
//!   therefore belongs to a different pool.
//! - A pool releases memory in a fixed order, by stream, size and address: the default pool begins with large segments, a
//!   private pool with small ones.
//!
//! [`Layout`] follows the blocks of all segments through the trace, using only the trace. The pools affect which block serves
//! a request, but not what then happens to the block: the entry states where the block begins, the rules determine how much
//! is split off, and free neighbours in one segment coalesce. The blocks of every segment are therefore known even if its
//! pool is not.

use std::collections::{BTreeMap, BTreeSet};

use parkade::policy::{Policy, PyTorch, Request};
use parkade::units::{Bytes, PoolClass, PoolId, StreamId};
use parkade::{AdoptedContent, AdoptedSegment, PoolSlot};
use parkade_recording::{Action, DeviceRecording, Entry};

use crate::entries::{is_inner, is_request, takes_memory};
use crate::initial_state::Start;
use crate::pools::pool_of;

/// If more segments than this are freed at once, the search for pools is skipped: its cost grows with the cube of their
/// number.
const MOST_AT_ONCE: usize = 300;
/// If more pairs of segments than this exclude each other, the search for pools is skipped: the number of pairs grows with
/// the square of the number of segments. The recordings in this repository have up to 1,018 pairs.
const MOST_PAIRS: usize = 1 << 17;
/// The maximum total number of segments to examine, for a trace of any length.
const MOST_LOOKED_AT: usize = 1 << 24;

/// The reason why the evidence is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unused {
    /// No division into pools explains the trace.
    Contradictory,
    /// Gathering the evidence, or choosing from it, would take too long.
    TooMuch,
}

/// The interpretation of releases before a request that takes no memory from the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Releases {
    /// They belong to the request, which may have been served by a pool that is used when the device is out of memory.
    OfRequests,
    /// They belong to calls before the request: a request that makes the allocator release memory also asks the device for
    /// more memory.
    OfCalls,
}

/// Two lives, the lower number first.
type Pair = (LifeId, LifeId);

/// The lives in a trace, and the pairs that exclude each other.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pub(super) lives: Vec<Life>,
    /// Pairs that cannot be in the same pool, whether default or private.
    pub(super) apart: BTreeSet<Pair>,
    /// Pairs that cannot both be in the default pool.
    pub(super) not_default: BTreeSet<Pair>,
    /// Pairs that cannot both be in one private pool.
    pub(super) not_private: BTreeSet<Pair>,
    /// The requests that a single pool would have served differently, with the two lives that show it.
    pub(super) contradictions: Vec<(usize, Pair)>,
    /// For each request that was served, the life that served it.
    pub(super) served: Vec<LifeId>,
    /// The lives that freed memory together, in order, each with the entry of its release.
    pub(super) releases: Vec<Vec<(usize, LifeId)>>,
}

impl Evidence {
    /// Extends the evidence within each run of releases. The releases from one pool are consecutive. If two lives exclude
    /// each other, every life freed before the first of them therefore excludes every life freed after the second.
    ///
    /// # Errors
    /// Returns [`Unused::TooMuch`] if there is too much evidence to process.
    fn spread(&mut self) -> Result<(), Unused> {
        for run in &self.releases {
            if self.is_too_much() {
                return Err(Unused::TooMuch);
            }
            let (mut of_default, mut of_private) = (0, 0);
            for (place, &(_, life)) in run.iter().enumerate() {
                let excludes = |set: &BTreeSet<Pair>, other: LifeId| {
                    set.contains(&pair(life, other)) || self.apart.contains(&pair(life, other))
                };
                let last = |set: &BTreeSet<Pair>| run[..place].iter().rposition(|&(_, other)| excludes(set, other));
                of_default = of_default.max(last(&self.not_default).map_or(0, |before| before + 1));
                of_private = of_private.max(last(&self.not_private).map_or(0, |before| before + 1));
                let pairs =
                    |end: usize| run[..end].iter().filter(|&&(_, other)| other != life).map(|&(_, other)| pair(life, other));
                self.not_default.extend(pairs(of_default));
                self.not_private.extend(pairs(of_private));
            }
        }
        Ok(())
    }

    fn is_too_much(&self) -> bool {
        self.apart.len() + self.not_default.len() + self.not_private.len() > MOST_PAIRS
    }

    /// Returns the stretches of a run of releases that the default pool may have freed at once.
    pub(super) fn default_stretches(&self, run: &[(usize, LifeId)]) -> Vec<Vec<LifeId>> {
        let mut stretches: Vec<Vec<LifeId>> = Vec::new();
        for &(_, life) in run {
            let may_follow = |last: &LifeId| !self.not_default.contains(&pair(*last, life));
            match stretches.last_mut() {
                Some(stretch) if stretch.iter().all(may_follow) => stretch.push(life),
                _ => stretches.push(vec![life]),
            }
        }
        stretches
    }
}

fn pair(a: LifeId, b: LifeId) -> Pair {
    (a.min(b), a.max(b))
}

struct Walk<'a> {
    policy: &'a PyTorch,
    layout: Layout<'a>,
    releases: Releases,
    found: Evidence,
    /// The number of segments and blocks examined so far.
    looked_at: usize,
}

/// Gathers the evidence in a trace.
///
/// # Errors
/// Returns [`Unused::Contradictory`] if no division into pools can explain it: a better block of the same segment was passed
/// over, or an entry does not fit the blocks. Returns [`Unused::TooMuch`] if there is too much evidence to process.
pub(super) fn gather(
    recording: &DeviceRecording,
    start: &Start,
    policy: &PyTorch,
    releases: Releases,
) -> Result<Evidence, Unused> {
    let layout = Layout::new(policy, &start.extents.segments);
    let mut walk = Walk { policy, layout, releases, found: Evidence::default(), looked_at: 0 };
    walk.tell_ranges_apart();
    let trace = &recording.trace;
    let mut at = 0;
    while at < trace.len() {
        // A block that became free immediately was free before the next operation.
        let is_plain_free = trace[at].action == Action::FreeRequested && !start.deferred.contains_key(&(at as u32));
        if is_plain_free && let Some(completed) = trace.get(at + 1) {
            walk.layout.free(at + 1, completed);
            at += 2;
            continue;
        }
        let end = at + trace[at..].iter().take_while(|entry| is_inner(entry)).count();
        walk.group(trace, at, end).ok_or(Unused::Contradictory)?;
        if trace.get(end).is_some_and(|entry| entry.action == Action::Alloc) {
            walk.serve(trace, at, end).ok_or(Unused::Contradictory)?;
        }
        if walk.looked_at > MOST_LOOKED_AT || walk.found.is_too_much() {
            return Err(Unused::TooMuch);
        }
        at = end + 1;
    }
    let Walk { layout, mut found, .. } = walk;
    found.lives = layout.lives;
    name_known(&mut found.lives, recording);
    // If no block was in use before the first entry, neither was any private pool: a segment from before it is one whose
    // entry is missing.
    if start.lost.is_none_or(|lost| lost.blocks == 0) {
        let early = found.lives.iter_mut().filter(|life| life.made_at.is_none());
        early.for_each(|life| life.known = life.known.or(Some(PoolId::DEFAULT)));
    }
    if found.releases.iter().any(|run| run.len() > MOST_AT_ONCE) {
        return Err(Unused::TooMuch);
    }
    found.spread()?;
    Ok(found)
}

/// Sets the pools of segments that exist at the end, as the recording names them.
fn name_known(lives: &mut [Life], recording: &DeviceRecording) {
    for life in lives.iter_mut().filter(|life| life.gone_at.is_none()) {
        let is_its = |segment: &&parkade_recording::Segment| {
            let is_there = if life.expandable { segment.address >= life.base } else { segment.address == life.base };
            segment.expandable == life.expandable && is_there
        };
        // Reserved ranges are larger than any device's memory, so the nearest run above the base of a range belongs
        // to it.
        life.known = recording.segments.iter().filter(is_its).min_by_key(|segment| segment.address).map(pool_of);
    }
}

impl Walk<'_> {
    /// Adds the evidence of expandable segments: a pool has one for each stream and class (spec 4.1), so those with the same
    /// stream and class that exist at the start belong to different pools.
    fn tell_ranges_apart(&mut self) {
        let mut alike: BTreeMap<(u64, bool), Vec<LifeId>> = BTreeMap::new();
        for (id, life) in self.layout.lives.iter().enumerate().filter(|(_, life)| life.expandable) {
            let others = alike.entry((life.stream, life.class == PoolClass::Large)).or_default();
            self.found.apart.extend(others.iter().map(|&other| pair(other, id)));
            others.push(id);
        }
    }

    /// Returns the entries that belong together, up to the request that they serve.
    fn group(&mut self, trace: &[Entry], at: usize, end: usize) -> Option<()> {
        let request = trace.get(end).filter(|entry| is_request(entry));
        let class = request.and_then(|entry| self.class_and_size(entry)).map_or(PoolClass::Large, |(class, _)| class);
        let mut could_go = Vec::new();
        let mut runs: Vec<Vec<(usize, LifeId)>> = Vec::new();
        let mut is_new_run = true;
        for (place, entry) in trace[at..end].iter().enumerate().map(|(n, entry)| (at + n, entry)) {
            match entry.action {
                Action::SegmentAlloc => self.layout.make(place, entry),
                Action::SegmentMap => {
                    let others: Vec<LifeId> = self.layout.ranges(entry.stream, class).collect();
                    if let Some(range) = self.layout.map(place, entry, class) {
                        // A pool has one range for each stream and class (spec 4.1), which is much larger than the
                        // memory that it ever maps.
                        if let Some(&first) = others.first() {
                            self.found.contradictions.push((end, pair(first, range)));
                        }
                        self.found.apart.extend(others.into_iter().map(|other| pair(other, range)));
                    }
                }
                Action::SegmentFree | Action::SegmentUnmap => {
                    if runs.is_empty() {
                        could_go = self.layout.releasable();
                        self.looked_at += self.layout.places();
                    }
                    let released = (place, self.layout.give(place, entry)?);
                    match runs.last_mut().filter(|_| !is_new_run) {
                        Some(run) => run.push(released),
                        None => runs.push(vec![released]),
                    }
                    is_new_run = false;
                }
                _ => {
                    self.layout.free(place, entry);
                    // If a block becomes free between the releases, a second call may have released it.
                    is_new_run = true;
                }
            }
        }
        if !runs.is_empty() {
            // Garbage collection, and requests for oversize blocks, release only part of the memory that could be freed.
            let settings = &self.policy.settings;
            let is_partial = settings.garbage_collection_threshold > 0.0 || settings.max_split_bytes != u64::MAX;
            let takes = trace[at..end].iter().any(takes_memory);
            let is_call =
                self.releases == Releases::OfCalls && !takes && request.is_some_and(|entry| entry.action == Action::Alloc);
            let is_whole = request.is_none() || !is_partial || is_call;
            let all: Vec<LifeId> = runs.iter().flatten().map(|&(_, life)| life).collect();
            // These release only large segments and come last, unless everything is released after them.
            let is_small = |&life: &LifeId| self.layout.lives[life].class == PoolClass::Small;
            let certain = if is_whole { all.len() } else { all.iter().rposition(is_small).map_or(0, |last| last + 1) };
            for &stayed in could_go.iter().filter(|life| !all.contains(life)) {
                self.found.apart.extend(all[..certain].iter().map(|&life| pair(life, stayed)));
            }
            for run in runs.iter().filter(|_| is_whole) {
                self.compare_order(trace, run);
            }
            self.found.releases.extend(runs);
        }
        Some(())
    }

    fn compare_order(&mut self, trace: &[Entry], run: &[(usize, LifeId)]) {
        for pair_of in run.windows(2).filter(|pair_of| pair_of[0].1 != pair_of[1].1) {
            let set = match self.may_follow(trace, pair_of[0], pair_of[1]) {
                (true, true) => continue,
                (false, true) => &mut self.found.not_default,
                (true, false) => &mut self.found.not_private,
                (false, false) => &mut self.found.apart,
            };
            set.insert(pair(pair_of[0].1, pair_of[1].1));
        }
    }

    /// Returns whether the default pool, and whether a private pool, can free `other` directly after `one`.
    fn may_follow(
        &self,
        trace: &[Entry],
        (first_at, first): (usize, LifeId),
        (second_at, second): (usize, LifeId),
    ) -> (bool, bool) {
        let (one, other) = (&self.layout.lives[first], &self.layout.lives[second]);
        match (one.class, other.class) {
            (PoolClass::Large, PoolClass::Small) => (true, false),
            (PoolClass::Small, PoolClass::Large) => (false, true),
            // Expandable blocks are ordered by their own sizes, which differ from the sizes of the unmapped pages.
            _ if one.expandable || other.expandable => (true, true),
            _ => {
                let key = |life: &Life, at: usize| (life.stream, trace[at].size, trace[at].address);
                let is_ordered = key(one, first_at) < key(other, second_at);
                (is_ordered, is_ordered)
            }
        }
    }

    fn class_and_size(&self, entry: &Entry) -> Option<(PoolClass, u64)> {
        // An out-of-memory entry contains the rounded size; rounding it again changes nothing.
        let size = self.policy.round(Bytes(entry.size.max(1)))?;
        Some((self.policy.classify(size), size.get()))
    }

    /// Serves the request at `at`, whose entries begin at `group`.
    fn serve(&mut self, trace: &[Entry], group: usize, at: usize) -> Option<()> {
        let entry = &trace[at];
        let (class, size) = self.class_and_size(entry)?;
        let chosen = self.layout.free_at(entry.address)?;
        if !self.layout.lives[chosen.life].expandable {
            let is_new = trace[group..at].iter().any(|entry| entry.action == Action::SegmentAlloc);
            let until = (entry.stream, class == PoolClass::Large, chosen.size, entry.address);
            // A block that became free after the search began may have done so because the allocator waited for it.
            let was_there = |since: Option<usize>| since.is_some_and(|since| !is_new || since <= group);
            let passed_over: Vec<LifeId> = self
                .layout
                .fitting(entry.stream, class, size, (!is_new).then_some(until))
                .filter(|(_, block)| was_there(block.free_since) && !self.layout.lives[block.life].expandable)
                .filter(|(_, block)| !is_new || !self.is_refused(size, block.size))
                .map(|(_, block)| block.life)
                .collect();
            self.looked_at += passed_over.len();
            if passed_over.contains(&chosen.life) {
                return None;
            }
            if let Some(&first) = passed_over.first() {
                self.found.contradictions.push((at, pair(first, chosen.life)));
            }
            self.found.apart.extend(passed_over.into_iter().map(|life| pair(life, chosen.life)));
        }
        let life = self.layout.serve(at, entry, size)?;
        self.found.served.push(life);
        Some(())
    }

    /// Returns whether a block may not serve a request because it is oversize and the request is not (spec 2.5, rules 4 and
    /// 5).
    fn is_refused(&self, size: u64, whole: u64) -> bool {
        let settings = &self.policy.settings;
        let (most, slack) = (settings.max_split_bytes, settings.max_non_split_rounding_bytes);
        (size < most && whole >= most) || (size >= most && whole >= size.saturating_add(slack))
    }
}

/// The number of a life.
pub(super) type LifeId = usize;

/// A segment from its allocation to its release, or an expandable segment from mapping its first page to unmapping
/// its last.
///
/// This is not the same as an address range: several lives can use an address, one after another.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) base: u64,
    stream: u64,
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
struct Block {
    size: u64,
    life: LifeId,
    /// The number of entries that had been replayed when the block became free at its current size; `None` while it is in use.
    free_since: Option<usize>,
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

    /// Returns the life at an address.
    pub(super) fn life_at(&self, address: u64) -> Option<LifeId> {
        let (_, &(end, life)) = self.places.range(..=address).next_back()?;
        (address < end || (self.lives[life].expandable && address == end)).then_some(life)
    }

    /// Returns the free block that begins at an address.
    fn free_at(&self, address: u64) -> Option<Block> {
        self.blocks.get(&address).copied().filter(|block| block.free_since.is_some())
    }

    /// Returns the free blocks of a stream and class with at least `size` bytes, in best-fit order, up to `until` if given.
    fn fitting(&self, stream: u64, class: PoolClass, size: u64, until: Option<FreeKey>) -> impl Iterator<Item = (u64, Block)> {
        let large = class == PoolClass::Large;
        let end = until.unwrap_or((stream, large, u64::MAX, u64::MAX));
        let first = (stream, large, size, 0).min(end);
        self.free.range(first..end).filter_map(|key| Some((key.3, *self.blocks.get(&key.3)?)))
    }

    /// Returns the number of segments that exist.
    fn places(&self) -> usize {
        self.places.len()
    }

    /// Returns the lives that could free memory: a segment that is one free block, or an expandable segment with an entirely
    /// free page.
    fn releasable(&self) -> Vec<LifeId> {
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

    /// Returns the existing expandable segments of a stream and class.
    fn ranges(&self, stream: u64, class: PoolClass) -> impl Iterator<Item = LifeId> {
        let is_it = move |&life: &LifeId| {
            let life = &self.lives[life];
            life.expandable && life.stream == stream && life.class == class
        };
        self.places.values().map(|&(_, life)| life).filter(is_it)
    }
}
