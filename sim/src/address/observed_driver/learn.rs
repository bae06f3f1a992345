//! Learning from a recording what others did in the address space.
//!
//! The rules predict the recorded placements one by one. Where they fail, the smallest assumption is made
//! that explains the real address: addresses became free, somebody else's chunk has room, or somebody else is
//! where the rules would go. If a later placement shows that a region is longer, or is a chunk, it was so
//! from its first moment: then learning starts over with that, unless it changes nothing that came before.

use std::collections::{BTreeMap, BTreeSet};

use super::change::{Change, Event};
use super::layout::{GRANULE_BYTES, Layout, SLACK_BYTES, Spot};
use crate::memory::PAGE_BYTES;

/// How many pieces of address space learning may visit before it gives up; some hundredths of a second. The
/// recordings need up to 801 thousand. Thousands of segments in random order, from which nothing can be learned,
/// would need more.
const MOST_EFFORT: usize = 1 << 24;

/// Above all addresses of GPUs.
const HIGHEST_ADDRESS: u64 = 1 << 56;

/// One cudaMalloc or cudaFree of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacementStep {
    /// How far the program was: the number of the trace entry of the request that it served. Never decreases.
    pub moment: u64,
    /// Whether it is a cudaMalloc; otherwise a cudaFree.
    pub taken: bool,
    /// The first byte of the range.
    pub address: u64,
    /// The length of the range in bytes.
    pub bytes: u64,
}

impl PlacementStep {
    fn is_sane(&self) -> bool {
        self.bytes > 0 && self.bytes < HIGHEST_ADDRESS && (2 * SLACK_BYTES..HIGHEST_ADDRESS).contains(&self.address)
    }
}

/// What others did in a process's address space, as learned from a recording; and how well the rules explain
/// the rest.
#[derive(Clone, Default, Debug)]
pub struct LearnedAddressSpace {
    pub(super) events: Vec<Event>,
    /// How many ranges the recording places.
    pub placements: usize,
    /// How many of them lie where the rules put them, without a new assumption at that moment.
    pub explained: usize,
    /// How many no assumption explains. They are not reproduced.
    pub unexplained: usize,
}

impl LearnedAddressSpace {
    /// Learns from a recording's steps. Learns nothing if that would take too long.
    #[must_use]
    pub fn from_steps(steps: &[PlacementStep]) -> LearnedAddressSpace {
        LearnedAddressSpace::within(MOST_EFFORT, steps)
    }

    /// The same with another bound on the effort: the pieces of address space visited.
    pub(super) fn within(most_effort: usize, steps: &[PlacementStep]) -> LearnedAddressSpace {
        LearnedAddressSpace::attempt(most_effort, steps, Attempt::default)
    }

    /// The same, starting over wherever something is learned.
    #[cfg(test)]
    pub(super) fn starting_over(most_effort: usize, steps: &[PlacementStep]) -> LearnedAddressSpace {
        LearnedAddressSpace::attempt(most_effort, steps, || Attempt { always_starts_over: true, ..Attempt::default() })
    }

    fn attempt(most_effort: usize, steps: &[PlacementStep], fresh: fn() -> Attempt) -> LearnedAddressSpace {
        let mut regions: Vec<Region> = Vec::new();
        let mut ignored: BTreeSet<usize> = (0..steps.len()).filter(|&at| !steps[at].is_sane()).collect();
        let mut effort_left = most_effort;
        // Each attempt extends a region, makes it a chunk, or ignores one more step. Few are needed; the
        // bound is for odd traces.
        for _ in 0..=steps.len() * 2 {
            let mut attempt = Attempt { regions: regions.clone(), ..fresh() };
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

/// Addresses that are free from a moment on.
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
    /// How many of them have started.
    begun: usize,
    layout: Layout,
    events: Vec<Event>,
    explained: usize,
    unexplained: usize,
    /// Pieces of address space that may still be visited, in this attempt and those after it.
    effort_left: usize,
    /// When the program's own chunks were made, by their start.
    births: BTreeMap<u64, u64>,
    live: BTreeSet<u64>,
    /// Where the events are by which the regions began.
    beginnings: Vec<usize>,
    /// The moment of the last range that was taken.
    last_taken: Option<u64>,
    /// The last moment with a step that the longer end of a chunk could have changed: not only did a range go into the lowest hole of a
    /// chunk, or leave one.
    disturbed: Option<u64>,
    /// What the present step has learned, if it need not start over.
    learned: Option<Learned>,
    /// Whether to start over even then.
    #[cfg(test)]
    always_starts_over: bool,
}

/// What changes nothing before the step that shows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Learned {
    /// A region begins with the step. If an earlier step has the same moment, it begins with that one.
    Beginning,
    /// The last region is a chunk whose end is farther away than was known, and that was not needed so far.
    End,
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

    /// Replays one step. False if something was learned that requires another attempt.
    fn step(&mut self, step: &PlacementStep) -> bool {
        let is_first = step.taken && self.last_taken.replace(step.moment) != Some(step.moment);
        self.try_step(step) || (self.goes_on(is_first) && self.try_step(step))
    }

    fn goes_on(&self, is_first: bool) -> bool {
        #[cfg(test)]
        if self.always_starts_over {
            return false;
        }
        self.learned.is_some_and(|learned| is_first || learned == Learned::End)
    }

    fn try_step(&mut self, step: &PlacementStep) -> bool {
        self.learned = None;
        self.spend(self.layout.pieces() + self.regions.len());
        if self.effort_left == 0 {
            return false;
        }
        if !step.taken {
            if self.live.remove(&step.address) && self.layout.release(step.address, step.bytes) {
                self.disturbed = Some(step.moment);
            }
            return true;
        }
        let begun = self.begun;
        while let Some(&Region { moment, start, end, is_chunk }) = self.regions.get(self.begun)
            && moment <= step.moment
        {
            self.beginnings.push(self.events.len());
            self.assume(moment, if is_chunk { Change::Chunk } else { Change::Space }, start, end);
            self.begun += 1;
        }
        if let Some(spot) = self.chooses(step) {
            self.explained += usize::from(begun == self.begun);
            if matches!(spot, Spot::New { .. }) {
                self.disturbed = Some(step.moment);
            }
        } else {
            if !self.make_free(step, begun == self.begun) {
                return false;
            }
            self.block_others(step);
            self.disturbed = Some(step.moment);
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

    /// The rules' choice, if it is the recorded address.
    fn chooses(&mut self, step: &PlacementStep) -> Option<Spot> {
        self.layout.choose(step.bytes).filter(|spot| spot.address() == step.address)
    }

    fn assume(&mut self, moment: u64, change: Change, start: u64, end: u64) {
        self.spend(self.layout.pieces());
        let event = Event { moment, change, start, bytes: end.saturating_sub(start) };
        event.apply(&mut self.layout);
        self.events.push(event);
    }

    /// Makes the recorded address free, so that the rules could choose it. False if a region had to be
    /// changed for that. `begins_none`: no region begins with this step.
    fn make_free(&mut self, step: &PlacementStep, begins_none: bool) -> bool {
        let &PlacementStep { moment, address, bytes, .. } = step;
        let hidden = self.layout.hidden_in(address, bytes);
        for &(start, length) in &hidden {
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
        if let Some((place, known_end)) = self.lengthen_chunk(address, end) {
            if hidden.is_empty() && begins_none && self.was_not_needed(place, known_end, end) {
                self.layout.add_chunk(known_end, end - known_end);
                self.events[self.beginnings[place]].bytes += end - known_end;
                self.learned = Some(Learned::End);
            }
            return false;
        }
        if let Some((start, known_end)) = self.layout.chunk_around(address) {
            // It was taken for a new chunk, but is an old one that was never returned.
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
        self.learned = self.learned.filter(|_| hidden.is_empty());
        false
    }

    /// Whether all went as it would have if the region, which is a chunk, had ended at `end` from its beginning on, and not at `known_end`.
    /// It is the oldest chunk, so ranges that went into other chunks would have done so too; and what is added lies above its holes, so
    /// ranges that went into one of them would have gone there. Ranges that found no hole at all might have gone to its end.
    fn was_not_needed(&self, place: usize, known_end: u64, end: u64) -> bool {
        let region = &self.regions[place];
        let is_last = region.is_chunk && place + 1 == self.begun;
        let is_undisturbed = self.disturbed.is_none_or(|disturbed| disturbed < region.moment);
        is_last && is_undisturbed && known_end < end && self.layout.has_no_chunk(known_end, end)
    }

    fn begin(&mut self, moment: u64, start: u64, end: u64, is_chunk: bool) {
        let at = self.regions.partition_point(|region| region.moment <= moment);
        self.regions.insert(at, Region { moment, start, end, is_chunk });
        let is_next = at == self.begun && self.last_taken == Some(moment);
        self.learned = is_next.then_some(Learned::Beginning);
    }

    /// Extends a gap down to a chunk that lies outside all known gaps, or adds a gap for it.
    fn widen_gap(&mut self, moment: u64, address: u64, end: u64) {
        let lowest = address - SLACK_BYTES;
        match self.regions.iter_mut().find(|region| !region.is_chunk && (lowest..=end).contains(&region.start)) {
            Some(region) if region.start > lowest => region.start = lowest,
            // There is no room for the slack, so this is not a gap.
            Some(region) => *region = Region { start: address, is_chunk: true, ..*region },
            None => self.begin(moment, lowest, end, false),
        }
    }

    /// Extends somebody else's chunk that a range starts in, or right after. It may have been taken for a gap. Returns the place of its region
    /// and the end that was known.
    fn lengthen_chunk(&mut self, address: u64, end: u64) -> Option<(usize, u64)> {
        let known_end = self.layout.chunk_around(address).map(|(_, end)| end);
        let is_in = |region: &Region| Some(region.end) == known_end && region.end < end;
        let is_it = |region: &Region| region.is_chunk && (is_in(region) || region.end == address);
        if let Some(place) = self.regions.iter().position(is_it) {
            return Some((place, std::mem::replace(&mut self.regions[place].end, end)));
        }
        let is_it = |region: &Region| !region.is_chunk && !region.is_bottom() && is_in(region);
        let place = self.regions.iter().position(is_it)?;
        let region = self.regions[place];
        self.regions[place] = Region { start: region.start + SLACK_BYTES, end, is_chunk: true, ..region };
        // What it would have been as a chunk is not known.
        Some((place, end))
    }

    /// Assumes somebody else wherever the rules would go instead of the recorded address.
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
    /// Whether this is the gap that reaches down to the lowest address.
    fn is_bottom(&self) -> bool {
        !self.is_chunk && self.start == GRANULE_BYTES
    }
}
