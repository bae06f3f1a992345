//! Learning from a recording what else was in the address space.
//!
//! The recording's placements are predicted one by one by the rules. Where that fails, the least is assumed that explains the real
//! place: addresses that became free, a chunk of somebody else's with room, or somebody else where the rules would go. What
//! shows late about a region (that it is longer, that it is a chunk) was so from its beginning: then all begins anew with that.

use std::collections::{BTreeMap, BTreeSet};

use super::change::{Change, Event};
use super::layout::{GRANULE_BYTES, Layout, SLACK_BYTES, Spot};
use crate::memory::PAGE_BYTES;

/// How many pieces of address space learning may look at before it gives up, a second or two. The recordings take up to 801 thousand;
/// it is for thousands of segments in no order, from which nothing is to be learned.
const MOST_EFFORT: usize = 1 << 28;

/// No address of a GPU is above this.
const HIGHEST_ADDRESS: u64 = 1 << 56;

/// One cudaMalloc or cudaFree of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacementStep {
    /// How far the program was: the number of the trace entry of the request that it served. Never falls.
    pub moment: u64,
    /// cudaMalloc, not cudaFree.
    pub taken: bool,
    /// First byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl PlacementStep {
    fn is_sane(&self) -> bool {
        self.bytes > 0 && self.bytes < HIGHEST_ADDRESS && (2 * SLACK_BYTES..HIGHEST_ADDRESS).contains(&self.address)
    }
}

/// What was learned of a process's address space.
#[derive(Clone, Default, Debug)]
pub struct LearnedAddressSpace {
    pub(super) events: Vec<Event>,
    /// How many ranges were placed.
    pub placements: usize,
    /// How many of them lie where the rules put them, given everything before: nothing had to be assumed at that moment.
    pub explained: usize,
    /// How many lie where no assumption explains it; they are not reproduced.
    pub unexplained: usize,
}

impl LearnedAddressSpace {
    /// Learns from a recording's steps. Nothing, where that would take too long.
    #[must_use]
    pub fn from_steps(steps: &[PlacementStep]) -> LearnedAddressSpace {
        LearnedAddressSpace::within(MOST_EFFORT, steps)
    }

    /// The same with a bound on the effort: pieces of address space that are looked at.
    pub(super) fn within(most_effort: usize, steps: &[PlacementStep]) -> LearnedAddressSpace {
        let mut regions: Vec<Region> = Vec::new();
        let mut ignored: BTreeSet<usize> = (0..steps.len()).filter(|&at| !steps[at].is_sane()).collect();
        let mut effort_left = most_effort;
        // Each attempt makes a region longer, or a chunk, or ignores one step more. There are not many; the bound is for odd traces.
        for _ in 0..=steps.len() * 2 {
            let mut attempt = Attempt { regions: regions.clone(), ..Attempt::default() };
            attempt.effort_left = effort_left;
            let failed = (0..steps.len()).find(|at| !ignored.contains(at) && !attempt.step(&steps[*at]));
            effort_left = attempt.effort_left;
            if effort_left == 0 {
                break;
            }
            let Some(failed) = failed else {
                return attempt.into_learned(steps, &ignored);
            };
            if attempt.regions == regions || attempt.regions.len() > steps.len() {
                ignored.insert(failed);
            } else {
                regions = attempt.regions;
            }
        }
        LearnedAddressSpace::default()
    }
}

/// Addresses that were free from a moment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Region {
    moment: u64,
    start: u64,
    end: u64,
    is_chunk: bool,
}

#[derive(Default)]
struct Attempt {
    /// By moment.
    regions: Vec<Region>,
    /// How many of them have begun.
    begun: usize,
    layout: Layout,
    events: Vec<Event>,
    explained: usize,
    unexplained: usize,
    /// Pieces of address space that may still be looked at, in this attempt and those after it.
    effort_left: usize,
    /// When the program's own chunks were made, by their first byte.
    births: BTreeMap<u64, u64>,
    live: BTreeSet<u64>,
}

impl Attempt {
    fn into_learned(self, steps: &[PlacementStep], ignored: &BTreeSet<usize>) -> LearnedAddressSpace {
        let placements = steps.iter().filter(|step| step.taken).count();
        let beyond = ignored.iter().filter(|&&at| steps[at].taken).count();
        let mut events = self.events;
        events.sort_by_key(|event| event.moment);
        LearnedAddressSpace { events, placements, explained: self.explained, unexplained: self.unexplained + beyond }
    }

    fn spend(&mut self, effort: usize) {
        self.effort_left = self.effort_left.saturating_sub(effort);
    }

    /// False if something was learned that makes another attempt necessary.
    fn step(&mut self, step: &PlacementStep) -> bool {
        self.spend(self.layout.pieces() + self.regions.len());
        if self.effort_left == 0 {
            return false;
        }
        if !step.taken {
            if self.live.remove(&step.address) {
                self.layout.release(step.address, step.bytes);
            }
            return true;
        }
        let begun = self.begun;
        while let Some(&Region { moment, start, end, is_chunk }) = self.regions.get(self.begun)
            && moment <= step.moment
        {
            self.assume(moment, if is_chunk { Change::Chunk } else { Change::Space }, start, end);
            self.begun += 1;
        }
        if self.chooses(step).is_some() {
            self.explained += usize::from(begun == self.begun);
        } else {
            if !self.make_free(step) {
                return false;
            }
            self.block_others(step);
        }
        let Some(spot) = self.chooses(step) else {
            self.unexplained += 1;
            return true;
        };
        self.layout.take(spot, step.bytes);
        self.live.insert(step.address);
        if let Spot::New { address, .. } = spot {
            self.births.insert(address, step.moment);
        }
        true
    }

    /// The rules' choice, if it is the real one.
    fn chooses(&self, step: &PlacementStep) -> Option<Spot> {
        self.layout.choose(step.bytes).filter(|spot| spot.address() == step.address)
    }

    fn assume(&mut self, moment: u64, change: Change, start: u64, end: u64) {
        self.spend(self.layout.pieces());
        let event = Event { moment, change, start, bytes: end.saturating_sub(start) };
        event.apply(&mut self.layout);
        self.events.push(event);
    }

    /// Sees to it that the rules could choose the place. False if a region had to be changed for it.
    fn make_free(&mut self, step: &PlacementStep) -> bool {
        let &PlacementStep { moment, address, bytes, .. } = step;
        for (start, length) in self.layout.hidden_in(address, bytes) {
            self.assume(moment, Change::Unhide, start, start + length);
        }
        let end = (address + bytes).next_multiple_of(GRANULE_BYTES);
        let is_aligned = address.is_multiple_of(GRANULE_BYTES);
        let lowest = if is_aligned { address - SLACK_BYTES } else { address };
        match self.layout.free_around(address, bytes) {
            Some((_, _, true)) => return true,
            Some((start, gap_end, false)) if is_aligned && start <= lowest && gap_end >= end => return true,
            _ => {}
        }
        if self.lengthen_chunk(address, end) {
            return false;
        }
        if let Some((start, known_end)) = self.layout.chunk_around(address) {
            // Taken for a new chunk, and in truth an old one that had never been given up.
            match self.births.get(&start) {
                Some(&birth) => self.begin(birth, start, end, true),
                None => self.begin(moment, known_end, end, true),
            }
        } else if !is_aligned {
            self.begin(moment, address, end, true);
        } else if self.layout.lowest().is_none_or(|known| end <= known) && !self.regions.iter().any(Region::is_bottom) {
            self.begin(moment, GRANULE_BYTES, end, false);
        } else {
            self.widen_gap(moment, address, end);
        }
        false
    }

    fn begin(&mut self, moment: u64, start: u64, end: u64, is_chunk: bool) {
        let at = self.regions.partition_point(|region| region.moment <= moment);
        self.regions.insert(at, Region { moment, start, end, is_chunk });
    }

    /// A chunk lies below, or outside of, all known gaps.
    fn widen_gap(&mut self, moment: u64, address: u64, end: u64) {
        let lowest = address - SLACK_BYTES;
        match self.regions.iter_mut().find(|region| !region.is_chunk && (lowest..=end).contains(&region.start)) {
            Some(region) if region.start > lowest => region.start = lowest,
            // There is no room for the slack, so it is no gap.
            Some(region) => *region = Region { start: address, is_chunk: true, ..*region },
            None => self.begin(moment, lowest, end, false),
        }
    }

    /// Makes the chunk of somebody else's longer that a range begins in, or right behind. It may have been taken for a gap.
    fn lengthen_chunk(&mut self, address: u64, end: u64) -> bool {
        let known_end = self.layout.chunk_around(address).map(|(_, end)| end);
        let is_in = |region: &Region| Some(region.end) == known_end && region.end < end;
        let is_it = |region: &Region| region.is_chunk && (is_in(region) || region.end == address);
        if let Some(region) = self.regions.iter_mut().find(|region| is_it(region)) {
            region.end = end;
            return true;
        }
        let is_it = |region: &Region| !region.is_chunk && !region.is_bottom() && is_in(region);
        let Some(region) = self.regions.iter_mut().find(|region| is_it(region)) else { return false };
        *region = Region { start: region.start + SLACK_BYTES, end, is_chunk: true, ..*region };
        true
    }

    /// Puts somebody else where the rules would go instead.
    fn block_others(&mut self, step: &PlacementStep) {
        let &PlacementStep { moment, address, bytes, .. } = step;
        let chunk_bytes = bytes.next_multiple_of(GRANULE_BYTES);
        let mut last = None;
        while let Some(spot) = self.layout.choose(bytes).filter(|spot| spot.address() != address && last != Some(*spot)) {
            last = Some(spot);
            self.spend(self.layout.pieces());
            if self.effort_left == 0 {
                return;
            }
            let own = self.layout.free_around(address, bytes);
            let (start, end) = match spot {
                Spot::Hole { address: hole, .. } if own.is_some_and(|(own, _, is_hole)| is_hole && own == hole) => {
                    (hole, address)
                }
                Spot::Hole { address: hole, hole_bytes } => (hole, hole + hole_bytes - bytes + PAGE_BYTES),
                Spot::New { gap_end, .. } if own.is_some_and(|(_, end, is_hole)| !is_hole && end == gap_end) => {
                    (address + chunk_bytes, gap_end)
                }
                Spot::New { gap_start, gap_end, .. } => (gap_start + chunk_bytes + SLACK_BYTES - GRANULE_BYTES, gap_end),
            };
            self.assume(moment, Change::Hide, start, end);
        }
    }
}

impl Region {
    /// The gap that reaches down to the lowest address.
    fn is_bottom(&self) -> bool {
        !self.is_chunk && self.start == GRANULE_BYTES
    }
}
