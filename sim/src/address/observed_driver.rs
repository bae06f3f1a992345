//! The address model that places ranges as NVIDIA's driver has been observed to do, optionally with what a recording
//! shows about its process.
//!
//! The model has three rules, derived from the `segment_alloc` and `segment_free` entries of the recordings (H200,
//! driver 580.159.04):
//! 1. Ranges are placed in *chunks*: parts of the address space that start and end at multiples of 32 MiB. A range is
//!    placed in the newest chunk that has a hole for it, in the lowest hole that is long enough.
//! 2. If no chunk has room, the driver makes a new one. The chunk's size is the range's size, rounded up to 32 MiB. The
//!    chunk is placed at the top of the highest gap in the address space that is at least 32 MiB longer than that size.
//!    The range is placed at the start of the chunk.
//! 3. A chunk that is empty again is returned to the address space.
//!
//! The rules alone ([`ObservedDriver::new`]) ignore all other code in the process: libraries, the program's own host
//! memory (weights on the host leave gaps when they are freed one by one), and the driver itself, which also loads
//! CUDA's modules into chunks. In five programs, one such chunk of about 416 MiB was nearly full at first and later
//! became available for other uses. The behaviour of other code depends more on the program than on the allocator's
//! settings. [`LearnedAddressSpace`] therefore learns it from one run, and [`ObservedDriver::learned`] uses it to
//! predict other runs of the same program.
//!
//! The table shows how well the rules predict placements: it counts those that needed no new assumption, given
//! everything before them. The remaining 523 of 4,191 placements are each explained by an action of other code, so the
//! model reproduces every placement.
//!
//! | recording | explained | recording | explained |
//! |---|---|---|---|
//! | gpt2_varlen default | 220 of 247 | llama_train default | 160 of 190 |
//! | gpt2_varlen limit12_oom | 203 of 226 | llama_train limit9 | 164 of 200 |
//! | gpt2_varlen limit16, limit16_gc | 211 of 231 | llama_train pow2 | 155 of 191 |
//! | gpt2_varlen limit16_split128_gc | 527 of 623 | llama_train split512 | 199 of 213 |
//! | gpt2_varlen pow2 | 279 of 292 | llm_serving default | 72 of 92 |
//! | gpt2_varlen split512 | 266 of 286 | resnet50_sweep default, frames | 289, 286 of 332 |
//! | deep_mlp default | 92 of 106 | resnet50_sweep limit5_oom | 263 of 309 |
//! | prefetch_streams default | 21 of 30 | prefetch_streams limit6 | 50 of 60 |
//!
//! These rules explain 3,668 of the 4,191 placements. Other rules explain fewer: the oldest chunk first explains 2,474,
//! the best fit among all chunks 3,257, no slack 3,641, and a slack of 64 MiB 3,476.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::observed_layout::{GRANULE_BYTES, Layout, SLACK_BYTES, Spot};
use super::{AddressModel, DESCENDING_END};
use crate::memory::PAGE_BYTES;

/// Places ranges by the rules observed in NVIDIA's driver: in the newest chunk with a hole, or in a new chunk at the
/// highest address that fits. The module documentation describes the rules and compares them with recordings.
#[derive(Clone, Debug)]
pub struct ObservedDriver {
    layout: Layout,
    moment: u64,
    /// The changes that have not happened yet, by moment.
    events: VecDeque<Event>,
    /// Whether only learned addresses are free so far. A run that needs more memory than the recorded run can also use
    /// all other addresses.
    is_narrow: bool,
}

impl ObservedDriver {
    /// Creates an address space that contains no other code and is free below [`DESCENDING_END`].
    #[must_use]
    pub fn new() -> Self {
        let mut layout = Layout::default();
        layout.add_space(GRANULE_BYTES, DESCENDING_END - GRANULE_BYTES);
        ObservedDriver { layout, moment: 0, events: VecDeque::new(), is_narrow: false }
    }

    /// Creates the address space of a recorded process. Its changes happen when [`AddressModel::set_moment`] passes
    /// their moments. If nothing was learned, the result equals that of [`ObservedDriver::new`].
    #[must_use]
    pub fn learned(learned: &LearnedAddressSpace) -> Self {
        if learned.events.is_empty() {
            return ObservedDriver::new();
        }
        let events = learned.events.iter().copied().collect();
        ObservedDriver { layout: Layout::default(), moment: 0, events, is_narrow: true }
    }
}

impl Default for ObservedDriver {
    fn default() -> Self {
        ObservedDriver::new()
    }
}

impl AddressModel for ObservedDriver {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        while let Some(event) = self.events.pop_front_if(|event| event.moment <= self.moment) {
            event.apply(&mut self.layout);
        }
        let mut spot = self.layout.choose(bytes_reserved);
        if self.is_narrow && spot.is_none() {
            self.is_narrow = false;
            self.layout.add_space(GRANULE_BYTES, DESCENDING_END - GRANULE_BYTES);
            spot = self.layout.choose(bytes_reserved);
        }
        let spot = spot?;
        self.layout.take(spot, bytes_reserved);
        Some(spot.address())
    }

    fn release(&mut self, address: u64, bytes_reserved: u64) {
        self.layout.release(address, bytes_reserved);
    }

    fn set_moment(&mut self, moment: u64) {
        self.moment = moment;
    }

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

/// The number of pieces of address space that learning may visit before it gives up, which takes a few hundredths of a
/// second. The recordings need up to 801 thousand pieces. Thousands of segments in random order, from which nothing
/// can be learned, would need more.
const MOST_EFFORT: usize = 1 << 24;

/// An address higher than all addresses of GPUs.
const HIGHEST_ADDRESS: u64 = 1 << 56;

/// One cudaMalloc or cudaFree in a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacementStep {
    /// The program's position: the number of the trace entry of the request that the step served. It never decreases.
    pub moment: u64,
    /// Whether the step is a cudaMalloc; if not, it is a cudaFree.
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

/// The actions of other code in a process's address space, as learned from a recording, and how well the rules
/// explain the rest.
///
/// The rules predict the recorded placements one by one. If a prediction fails, the smallest assumption that explains
/// the real address is made: addresses became free, a chunk made by other code has room, or other code occupies the
/// addresses that the rules would choose. If a later placement shows that a region is longer or is a chunk, this was
/// true from the region's first moment. Learning then starts over with this fact, unless it changes no earlier
/// placement.
#[derive(Clone, Default, Debug)]
pub struct LearnedAddressSpace {
    events: Vec<Event>,
    /// The number of ranges that the recording places.
    pub placements: usize,
    /// The number of ranges that are where the rules place them, without a new assumption at that moment.
    pub explained: usize,
    /// The number of ranges that no assumption explains. The model does not reproduce these.
    pub unexplained: usize,
}

impl LearnedAddressSpace {
    /// Learns from a recording's steps. Learns nothing if it would take too long.
    #[must_use]
    pub fn from_steps(steps: &[PlacementStep]) -> LearnedAddressSpace {
        LearnedAddressSpace::within(MOST_EFFORT, steps)
    }

    /// Like [`LearnedAddressSpace::from_steps`], but with a given bound on the effort: the number of pieces of address
    /// space visited.
    fn within(most_effort: usize, steps: &[PlacementStep]) -> LearnedAddressSpace {
        LearnedAddressSpace::attempt(most_effort, steps, Attempt::default)
    }

    /// Learns, and starts over whenever something new is learned.
    #[cfg(test)]
    fn starting_over(most_effort: usize, steps: &[PlacementStep]) -> LearnedAddressSpace {
        LearnedAddressSpace::attempt(most_effort, steps, || Attempt { always_starts_over: true, ..Attempt::default() })
    }

    fn attempt(most_effort: usize, steps: &[PlacementStep], fresh: fn() -> Attempt) -> LearnedAddressSpace {
        let mut regions: Vec<Region> = Vec::new();
        let mut ignored: BTreeSet<usize> = (0..steps.len()).filter(|&at| !steps[at].is_sane()).collect();
        let mut effort_left = most_effort;
        // Each attempt extends a region, turns it into a chunk, or ignores one more step. Learning needs only a few
        // attempts; the bound is for unusual traces.
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

/// Addresses that are free from a given moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Region {
    moment: u64,
    start: u64,
    end: u64,
    is_chunk: bool,
}

#[derive(Default)]
struct Attempt {
    /// The changes, by moment.
    regions: Vec<Region>,
    /// The number of regions that have started.
    begun: usize,
    layout: Layout,
    events: Vec<Event>,
    explained: usize,
    unexplained: usize,
    /// The number of pieces of address space that this attempt and the later ones may still visit.
    effort_left: usize,
    /// The moments at which the program's own chunks were made, by the chunks' start.
    births: BTreeMap<u64, u64>,
    live: BTreeSet<u64>,
    /// The indices of the events with which the regions began.
    beginnings: Vec<usize>,
    /// The moment when the last range was taken.
    last_taken: Option<u64>,
    /// The last moment with a step that a longer chunk could have changed, that is, a step that did more than place a
    /// range in the lowest hole of a chunk or free one.
    disturbed: Option<u64>,
    /// The facts learned in the current step, if learning does not have to start over.
    learned: Option<Learned>,
    /// Whether learning must start over even in that case.
    #[cfg(test)]
    always_starts_over: bool,
}

/// A fact that changes nothing before the step that shows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Learned {
    /// A region begins with this step, or with an earlier step that has the same moment.
    Beginning,
    /// The last region is a chunk whose end is farther away than assumed, but this would not have changed any earlier
    /// step.
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

    /// Replays one step. Returns false if something was learned that requires another attempt.
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

    /// Returns the rules' choice if it is the recorded address.
    fn chooses(&mut self, step: &PlacementStep) -> Option<Spot> {
        self.layout.choose(step.bytes).filter(|spot| spot.address() == step.address)
    }

    fn assume(&mut self, moment: u64, change: Change, start: u64, end: u64) {
        self.spend(self.layout.pieces());
        let event = Event { moment, change, start, bytes: end.saturating_sub(start) };
        event.apply(&mut self.layout);
        self.events.push(event);
    }

    /// Makes the recorded address free, so that the rules can choose it. Returns false if this required a change to a
    /// region. `begins_none` means that no region begins with this step.
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
            // Learning assumed that it was a new chunk, but it is an old one that was never
            // returned.
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

    /// Returns whether every earlier step would have been the same if the region, which is a chunk, had ended at `end`
    /// instead of `known_end` from its beginning. The region is the oldest chunk, so ranges in other chunks would have
    /// been placed there in any case. The added part is above the region's holes, so ranges in one of these holes
    /// would also have been placed there. However, ranges that found no hole could have been placed at the region's
    /// end.
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

    /// Extends a gap down to a chunk that is outside all known gaps, or adds a gap for it.
    fn widen_gap(&mut self, moment: u64, address: u64, end: u64) {
        let lowest = address - SLACK_BYTES;
        match self.regions.iter_mut().find(|region| !region.is_chunk && (lowest..=end).contains(&region.start)) {
            Some(region) if region.start > lowest => region.start = lowest,
            // There is no room for the slack, so this is not a gap.
            Some(region) => *region = Region { start: address, is_chunk: true, ..*region },
            None => self.begin(moment, lowest, end, false),
        }
    }

    /// Extends a chunk made by other code if a range starts in it or right after it. The chunk may have been mistaken
    /// for a gap. Returns the index of its region and the previously assumed end.
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
        // It is not known what effect the region had as a chunk.
        Some((place, end))
    }

    /// Assumes that other code occupies every place that the rules would choose instead of the recorded address.
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
    /// Returns whether this is the gap that reaches down to the lowest address.
    fn is_bottom(&self) -> bool {
        !self.is_chunk && self.start == GRANULE_BYTES
    }
}

/// The kinds of changes that other code makes to the address space, in addition to the program's own cudaMallocs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// Addresses become free for chunks.
    Space,
    /// A chunk made by other code has room.
    Chunk,
    /// Other code takes free addresses.
    Hide,
    /// Other code returns addresses.
    Unhide,
}

/// A change to a range of addresses at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Event {
    moment: u64,
    change: Change,
    start: u64,
    bytes: u64,
}

impl Event {
    fn apply(&self, layout: &mut Layout) {
        match self.change {
            Change::Space => layout.add_space(self.start, self.bytes),
            Change::Chunk => layout.add_chunk(self.start, self.bytes),
            Change::Hide => layout.hide(self.start, self.bytes),
            Change::Unhide => layout.unhide(self.start, self.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;
    use crate::address::{AddressModel, Ascending, DESCENDING_END, Descending, Reuse};

    const MIB: u64 = 1 << 20;

    fn replay(learned: &LearnedAddressSpace, steps: &[PlacementStep]) -> usize {
        let mut model = ObservedDriver::learned(learned);
        let mut reproduced = 0;
        for step in steps {
            model.set_moment(step.moment);
            if step.taken {
                reproduced += usize::from(model.place(step.bytes, step.bytes) == Some(step.address));
            } else {
                model.release(step.address, step.bytes);
            }
        }
        reproduced
    }

    /// The beginning of gpt2_varlen.default: each 36 MiB segment leaves 28 MiB, which later segments fill, starting
    /// with the newest chunk.
    #[test]
    fn holes_in_chunks_are_filled_newest_first() {
        let mut model = ObservedDriver::new();
        let offset = |address: Option<u64>| (DESCENDING_END - address.unwrap()) / MIB;
        let placed: Vec<u64> = [36, 36, 20, 28, 2, 36, 2].map(|size| offset(model.place(size * MIB, 0))).to_vec();
        assert_eq!(placed, [64, 128, 92, 28, 72, 192, 156]);
    }

    #[test]
    fn an_empty_chunk_is_returned_and_needs_slack_to_be_taken_again() {
        let mut model = ObservedDriver::new();
        let top = model.place(64 * MIB, 0).unwrap();
        let middle = model.place(64 * MIB, 0).unwrap();
        let low = model.place(64 * MIB, 0).unwrap();
        assert_eq!((top - middle, middle - low), (64 * MIB, 64 * MIB));
        model.release(middle, 64 * MIB);
        assert_eq!(model.place(64 * MIB, 0), Some(low - 64 * MIB), "the 64 MiB gap is too short for a 64 MiB chunk");
        assert_eq!(model.place(32 * MIB, 0), Some(middle + 32 * MIB), "but not for a 32 MiB chunk, which is placed at its top");
    }

    #[test]
    fn the_address_space_runs_out() {
        let mut model = ObservedDriver::new();
        assert_eq!(model.place(DESCENDING_END, 0), None);
        assert_eq!(model.place(u64::MAX - 5, 0), None);
        assert_eq!(model.place(DESCENDING_END - 3 * GRANULE_BYTES, 0), Some(3 * GRANULE_BYTES));
        assert_eq!(model.place(GRANULE_BYTES, 0), Some(2 * GRANULE_BYTES));
        assert_eq!(model.place(GRANULE_BYTES, 0), None);
        model.release(1 << 50, MIB);
    }

    /// The first 27 segments of llm_serving.default: moment, address in MiB above 0x7f3500000000, MiB.
    const LLM_SERVING: [(u64, u64, u64); 27] = [
        (1, 5792, 64),
        (3, 6344, 20),
        (5, 6270, 2),
        (11, 6912, 20),
        (17, 6932, 2),
        (22, 6880, 20),
        (32, 6848, 20),
        (38, 6868, 2),
        (42, 6816, 20),
        (50, 6752, 64),
        (55, 6720, 20),
        (61, 6688, 20),
        (67, 6656, 20),
        (107, 5920, 32),
        (158, 6708, 2),
        (239, 5952, 20),
        (656, 5972, 54),
        (937, 6026, 20),
        (1358, 6046, 66),
        (2155, 6112, 40),
        (2551, 6718, 2),
        (2554, 6740, 2),
        (2679, 6742, 2),
        (3211, 6152, 20),
        (4204, 6172, 20),
        (5310, 6192, 20),
        (5606, 3296, 68),
    ];

    fn llm_serving() -> Vec<PlacementStep> {
        let step = |&(moment, at, size): &(u64, u64, u64)| PlacementStep {
            moment,
            taken: true,
            address: 0x7f35_0000_0000 + at * MIB,
            bytes: size * MIB,
        };
        LLM_SERVING.iter().map(step).collect()
    }

    #[test]
    fn learning_reproduces_a_real_process() {
        let steps = llm_serving();
        let learned = LearnedAddressSpace::from_steps(&steps);
        assert_eq!((learned.placements, learned.unexplained), (27, 0));
        assert!(learned.explained >= 17, "{learned:?}");
        assert_eq!(replay(&learned, &steps), 27);
    }

    /// Returns the steps of a model under random requests and frees.
    fn made_by(mut model: impl AddressModel, seed: u64) -> Vec<PlacementStep> {
        let (mut steps, mut live, mut state) = (Vec::new(), Vec::new(), seed);
        for moment in 0..200 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = state >> 33;
            if draw.is_multiple_of(3) && !live.is_empty() {
                let (address, bytes) = live.swap_remove(draw as usize / 3 % live.len());
                model.release(address, bytes);
                steps.push(PlacementStep { moment, taken: false, address, bytes });
            } else {
                let bytes = [1, 10, 10, 14, 18, 32, 36, 74][draw as usize / 3 % 8] * PAGE_BYTES;
                let Some(address) = model.place(bytes, bytes) else { continue };
                live.push((address, bytes));
                steps.push(PlacementStep { moment, taken: true, address, bytes });
            }
        }
        steps
    }

    #[test]
    fn steps_of_the_rules_need_no_assumption_but_the_first() {
        for seed in 0..50 {
            let steps = made_by(ObservedDriver::new(), seed);
            let learned = LearnedAddressSpace::from_steps(&steps);
            assert_eq!((learned.explained, learned.unexplained), (learned.placements - 1, 0), "seed {seed}");
            assert_eq!(replay(&learned, &steps), learned.placements, "seed {seed}");
        }
    }

    /// Checks, for every model that places ranges, that if all of them are explained, all are reproduced.
    #[test]
    fn learning_is_consistent_on_any_steps() {
        for seed in 0..30 {
            for steps in [made_by(Ascending::new(), seed), made_by(Descending::new(), seed), made_by(Reuse::new(), seed)] {
                let learned = LearnedAddressSpace::from_steps(&steps);
                if learned.unexplained == 0 {
                    assert_eq!(replay(&learned, &steps), learned.placements, "seed {seed}");
                }
            }
        }
    }

    /// Returns steps that take ranges at consecutive addresses, some of them farther away, and free some of them.
    fn rising(seed: u64) -> Vec<PlacementStep> {
        let (mut steps, mut live, mut state, mut next) = (Vec::new(), Vec::new(), seed, 1 << 46);
        for number in 0..150_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let draw = state >> 33;
            // One request may take several ranges.
            let moment = number / (1 + seed % 3);
            if draw.is_multiple_of(2 + seed % 7) && !live.is_empty() {
                let (address, bytes) = live.swap_remove(draw as usize / 3 % live.len());
                steps.push(PlacementStep { moment, taken: false, address, bytes });
                continue;
            }
            let bytes = [1, 1, 1, 10, 8, 32, 36, 74][(draw / 7 % (1 + seed % 8)) as usize] * PAGE_BYTES;
            next += if (draw / 91).is_multiple_of(1 + seed % 13) { 0 } else { draw / 5 % 4 * (16 << 20) };
            live.push((next, bytes));
            steps.push(PlacementStep { moment, taken: true, address: next, bytes });
            next += bytes;
        }
        steps
    }

    #[test]
    fn going_on_learns_what_starting_over_does() {
        let both = |steps: &[PlacementStep]| {
            let learned = format!("{:?}", LearnedAddressSpace::from_steps(steps));
            assert_eq!(learned, format!("{:?}", LearnedAddressSpace::starting_over(1 << 28, steps)));
        };
        both(&llm_serving());
        for seed in 0..60 {
            both(&rising(seed));
            both(&made_by(Ascending::new(), seed));
            both(&made_by(Descending::new(), seed));
        }
    }

    /// Learning need not start over for each chunk.
    #[test]
    fn ranges_one_behind_the_other_are_learned_in_passing() {
        let rising = |count: u64, pages: u64| -> Vec<PlacementStep> {
            let step = |n| PlacementStep {
                moment: n,
                taken: true,
                address: (1 << 46) + n * pages * PAGE_BYTES,
                bytes: pages.min(16) * PAGE_BYTES,
            };
            (0..count).map(step).collect()
        };
        // Ranges are side by side, in one chunk, or each in its own chunk, so far apart that no two chunks are
        // adjacent. The cost of each step is proportional to the number of existing pieces.
        for (pages, effort) in [(1, 1 << 15), (16, 1 << 15), (512, 1 << 24)] {
            let steps = rising(1_000, pages);
            assert_eq!(LearnedAddressSpace::within(effort, &steps).placements, 1_000, "{pages} pages");
            assert_eq!(LearnedAddressSpace::starting_over(effort, &steps).placements, 0, "{pages} pages");
        }
    }

    #[test]
    fn invalid_steps_do_no_harm() {
        let step = |moment, taken, address, bytes| PlacementStep { moment, taken, address, bytes };
        let mut steps = vec![
            step(0, true, 0, 0),
            step(1, true, u64::MAX, u64::MAX),
            step(2, true, 5, 1),
            step(3, false, 77, 12),
            step(4, true, 1 << 40, 3),
            step(5, true, 1 << 40, 3),
            step(6, true, (1 << 40) + 1, 1 << 30),
            step(7, false, 1 << 40, u64::MAX),
            step(8, true, (1 << 55) + 512, (1 << 55) + 1),
        ];
        steps.extend(llm_serving());
        let learned = LearnedAddressSpace::from_steps(&steps);
        assert_eq!(learned.placements, 34);
        let _ = replay(&learned, &steps);
        assert_eq!(LearnedAddressSpace::from_steps(&[]).placements, 0);
    }

    /// With segments in random order, each segment needs assumptions, which in turn need all earlier ones.
    #[test]
    fn learning_gives_up_where_there_is_nothing_to_learn() {
        let place = |n: u64| (1 << 46) + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (1 << 14) * (1 << 30);
        let steps: Vec<PlacementStep> =
            (0..3_000).map(|n| PlacementStep { moment: n, taken: true, address: place(n), bytes: 20 * MIB }).collect();
        let learned = LearnedAddressSpace::within(1 << 20, &steps);
        assert_eq!(learned.placements, 0, "the result is the same as without steps");
        // A thousandth of the steps stays below the bound.
        assert_eq!(LearnedAddressSpace::within(1 << 20, &steps[..3]).placements, 3);
    }
}
