//! Where a policy first needs more memory than the best packing, and the blocks that are in the way there.
//!
//! The packer knows every lifetime in advance and moves nothing. The policy runs on a device with the memory of the packing;
//! the first request that it cannot serve shows why it needs more.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use parkade::units::PoolId;
use parkade_analysis::StackNames;
use parkade_policies::Named;
use parkade_recording::{Recording, StackId};
use parkade_research::bounds::{BLOCK_BYTES, buffers};
use parkade_research::packing::{self, Effort, Found, Instance, pack_watched};
use parkade_research::study::{Excess, FreeList, InTheWay, Pinned, Room, RunOptions, SameSize, first_excess};
use parkade_research::workload::lifetimes::Spread;

use super::program::Program;
use crate::terminal::json_struct::{all, view};
use crate::terminal::markup::grouped;
use crate::terminal::size::show_bytes;
use crate::terminal::table::Table;
use crate::terminal::{output, progress};

/// The blocks in the way that are shown; JSON has more.
const SHOWN: usize = 8;
/// The kinds of pinned segments that are shown.
const PINNED_SHOWN: usize = 4;
/// The blocks in the way that JSON contains.
const LISTED: usize = 1000;

/// A policy compared with the best packing of a program.
pub(crate) struct AgainstPacking {
    /// The most bytes live at once, rounded to blocks of 512 bytes.
    load_bytes: u64,
    found: Found,
    /// The steps that the packer was given.
    budget: u64,
    excess: Option<Excess>,
    /// What is counted (entries or events), and the number at which the excess is.
    place: Option<(&'static str, usize)>,
    /// The blocks in the way, the largest first.
    in_the_way: Vec<Blocker>,
    /// The number of blocks in the way, and their bytes.
    all_in_the_way: (usize, u64),
    /// The free lists of the request and of each pinned segment, in words.
    lists: (String, Vec<String>),
}

/// A block in the way, in the program's terms.
struct Blocker {
    block: InTheWay,
    /// The number of the event that allocated it.
    allocated_at: Option<usize>,
    /// The number of the event that frees it.
    freed_at: Option<usize>,
    /// The events since its allocation.
    age: Option<usize>,
    /// The size of its segment.
    segment_bytes: Option<u64>,
    /// Where it was requested, if that is known.
    requested_in: Option<String>,
}

impl AgainstPacking {
    /// Packs a program, and finds where the policy first needs more. Returns `None` if the packer may take no steps, or if the
    /// program requests nothing.
    ///
    /// # Errors
    /// The sizes of the requests cannot be packed.
    pub(crate) fn of(
        (program, source): (&Program, &Recording),
        policy: &Named,
        options: &RunOptions,
        (budget, is_hidden): (u64, bool),
    ) -> Result<Option<AgainstPacking>> {
        let rounded = buffers(&program.workload, BLOCK_BYTES);
        if budget == 0 || rounded.is_empty() {
            return Ok(None);
        }
        let instance = Instance::new(rounded)?;
        let bar = progress::of("steps at most", is_hidden);
        bar.set_length(budget);
        let effort = Effort { steps: budget, ..Effort::default() };
        let found = pack_watched(&instance, &effort, &mut |steps| bar.set_position(steps));
        bar.finish_and_clear();
        packing::check(&instance, &found.packing)
            .map_err(|fault| anyhow!("the packing found is invalid, which is a bug in parkade: {fault:?}"))?;
        let excess = first_excess(&program.workload, policy, options, found.packing.height);
        let names = StackNames::of(&source.stacks);
        let blocks = excess.as_ref().map_or(&[][..], |excess| &excess.in_the_way);
        let all_in_the_way = (blocks.len(), blocks.iter().map(|block| block.bytes).sum());
        let mut in_the_way: Vec<Blocker> =
            blocks.iter().map(|block| Blocker::of(*block, excess.as_ref(), program, source, &names)).collect();
        in_the_way.sort_by_key(|blocker| (Reverse(blocker.block.bytes), blocker.block.address));
        in_the_way.truncate(LISTED);
        let place = excess.as_ref().map(|excess| (program.places(), program.place(excess.event)));
        let lists = excess.as_ref().map_or_else(Default::default, |excess| {
            let pinned = excess.pinned.iter().map(|segment| list_words(segment.free_list, program)).collect();
            (list_words(excess.free_list, program), pinned)
        });
        let load_bytes = instance.load();
        Ok(Some(AgainstPacking { load_bytes, found, budget, excess, place, in_the_way, all_in_the_way, lists }))
    }

    /// Returns whether it is proven that no packing needs less memory.
    fn is_best(&self) -> bool {
        self.found.packing.height <= self.found.bound
    }

    /// Returns what was found, one sentence or two each. `entry_of` returns the entry of the run shown that an event led to, if a
    /// run is shown by its entries.
    pub(crate) fn words(&self, policy: &Named, entry_of: impl Fn(usize) -> Option<usize>) -> Vec<String> {
        let (height, load) = (show_bytes(self.found.packing.height), show_bytes(self.load_bytes));
        let state =
            if self.is_best() { "no packing needs less".to_owned() } else { not_converged(&self.found, self.budget, "--bounds") };
        let mut words = vec![format!("Packed offline, the program needs {height} for a load of {load}; {state}.")];
        let Some((excess, (places, place))) = self.excess.as_ref().zip(self.place) else {
            words.push(format!("The policy {} serves the program in the memory of this packing.", policy.name));
            return words;
        };
        let Excess { requested_bytes, device_bytes, reserved_bytes, here, elsewhere, .. } = excess;
        let of = if places == "entry" { " of the recording" } else { "" };
        let entry = entry_of(excess.event);
        let entry = entry.map_or_else(String::new, |entry| format!(" (entry {} of the run shown)", grouped(entry as u64)));
        words.push(format!(
            "The policy {} first needs more at {places} {}{of}{entry}: on a device of {} it cannot serve a request for {}, with {} \
             reserved. Free memory that does not help: {} in {}, which serves this request, and {} elsewhere.",
            policy.name,
            grouped(place as u64),
            show_bytes(*device_bytes),
            show_bytes(*requested_bytes),
            show_bytes(*reserved_bytes),
            room(here),
            self.lists.0,
            room(elsewhere)
        ));
        let (count, bytes) = self.all_in_the_way;
        let (blocks, bytes) = (output::count(count as u64, "block"), show_bytes(bytes));
        words.push(match (count, excess.is_one_stretch) {
            (0, _) => "No block is in the way: the policy leaves the free memory unused.".to_owned(),
            (1, true) => format!("1 block of {bytes} is in its way: without it, one segment would have enough room."),
            (_, true) => format!("{blocks}, {bytes} in total, are in its way: without them, one segment would have enough room."),
            (1, false) => format!("No segment has enough room, and 1 block of {bytes} keeps the memory from being released."),
            (_, false) => {
                format!("No segment has enough room, and {blocks}, {bytes} in total, keep the memory from being released.")
            }
        });
        words.extend(self.pinned_words(excess));
        words
    }

    /// Names the segments that the blocks in the way keep in use; `None` if no block is in the way.
    fn pinned_words(&self, excess: &Excess) -> Option<String> {
        let mut alike: BTreeMap<(Reverse<u64>, &str), usize> = BTreeMap::new();
        for (segment, list) in excess.pinned.iter().zip(&self.lists.1) {
            *alike.entry((Reverse(segment.bytes), list.as_str())).or_default() += 1;
        }
        let all_bytes: u64 = excess.pinned.iter().map(|segment| segment.bytes).sum();
        let free = show_bytes(excess.pinned.iter().map(|segment| segment.free_bytes).sum());
        let pins = if self.all_in_the_way.0 == 1 { "It pins" } else { "They pin" };
        match excess.pinned.len() {
            0 => None,
            1 => Some(format!(
                "{pins} a segment of {} in {}, in which {free} is free.",
                show_bytes(all_bytes),
                self.lists.1.first()?
            )),
            segments => {
                let kinds = alike.iter().take(PINNED_SHOWN).map(|((Reverse(bytes), list), count)| {
                    format!("{} of {} in {list}", grouped(*count as u64), show_bytes(*bytes))
                });
                let mut kinds: Vec<String> = kinds.collect();
                let others = segments - alike.values().take(PINNED_SHOWN).sum::<usize>();
                kinds.extend((others > 0).then(|| output::count(others as u64, "smaller one")));
                let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
                Some(format!(
                    "{pins} {} segments, {} in total, in which {free} is free: {}.",
                    grouped(segments as u64),
                    show_bytes(all_bytes),
                    output::enumerated(&kinds)
                ))
            }
        }
    }

    /// Returns the largest blocks in the way; `None` if there are none.
    pub(crate) fn table(&self) -> Option<Table> {
        if self.in_the_way.is_empty() {
            return None;
        }
        let places = self.place.map_or("event", |(places, _)| places);
        let has_stacks = self.in_the_way.iter().any(|blocker| blocker.requested_in.is_some());
        let names = ["age in requests", "others live", "others freed", "their lifetime"].map(str::to_owned);
        let heads = ["block".to_owned(), "segment".to_owned(), format!("allocated at {places}"), format!("freed at {places}")];
        let heads = heads.into_iter().chain(names).chain(has_stacks.then(|| "requested in".to_owned()));
        let mut table = Table::plain(2, heads).with_left(has_stacks.then_some(8));
        for blocker in self.in_the_way.iter().take(SHOWN) {
            let number = |number: Option<usize>, none: &str| number.map_or_else(|| none.to_owned(), |at| grouped(at as u64));
            let freed = if blocker.block.buffer.is_none() { "pending" } else { "never" };
            let same = blocker.block.same_size;
            let of_same = |count: fn(SameSize) -> u64| same.map_or_else(|| "-".to_owned(), |same| grouped(count(same)));
            let cells = [
                show_bytes(blocker.block.bytes),
                blocker.segment_bytes.map_or_else(|| "-".to_owned(), show_bytes),
                number(blocker.allocated_at, "-"),
                number(blocker.freed_at, freed),
                number(blocker.block.age_requests.map(|age| age as usize), "-"),
                of_same(|same| same.live),
                of_same(|same| same.freed),
                same.and_then(|same| same.lifetimes).map_or_else(|| "-".to_owned(), spread),
            ];
            let stack = has_stacks.then(|| blocker.requested_in.clone().unwrap_or_else(|| "-".to_owned()));
            table.row(cells.into_iter().chain(stack));
        }
        Some(table)
    }

    /// Returns notes on the table: its columns, and the blocks that it leaves out.
    pub(crate) fn table_notes(&self) -> Vec<String> {
        let left_out = self.all_in_the_way.0.saturating_sub(SHOWN);
        let left_out =
            (left_out > 0).then(|| format!("{} left out (--json lists them)", output::count(left_out as u64, "smaller block")));
        let about = "others: the buffers of the same requested size until this request; lifetime: the requests until it is freed, \
                     median (least–greatest)";
        (!self.in_the_way.is_empty()).then(|| about.to_owned()).into_iter().chain(left_out).collect()
    }
}

/// A free list in words, with the recording's own pool and stream.
fn list_words(list: FreeList, program: &Program) -> String {
    let recorded = program.recorded.as_ref();
    let pool = match usize::try_from(list.pool).unwrap_or(usize::MAX).checked_sub(1) {
        None => "the default pool".to_owned(),
        Some(place) => match recorded.and_then(|recorded| recorded.pools.get(place)) {
            Some(PoolId(first, second)) => format!("the pool ({first}, {second})"),
            None => format!("the pool {}", list.pool),
        },
    };
    let handle = recorded.and_then(|recorded| recorded.streams.get(usize::from(list.stream)));
    let stream = handle.map_or_else(|| list.stream.to_string(), |handle| format!("{handle:#x}"));
    format!("the {} collection of {pool} on stream {stream}", list.collection.name())
}

/// Lifetimes as the median and, if they differ, the range.
pub(crate) fn spread(lifetimes: Spread) -> String {
    let [least, median, greatest] = [lifetimes.least, lifetimes.median, lifetimes.greatest].map(grouped);
    if least == greatest { median } else { format!("{median} ({least}–{greatest})") }
}

/// States that a packing may not be the best. `option` gives the packer more steps.
pub(crate) fn not_converged(found: &Found, budget: u64, option: &str) -> String {
    let bound = show_bytes(found.bound);
    if found.steps < budget {
        format!("not converged: no packing needs less than {bound}, and the search ended early")
    } else {
        format!(
            "not converged: no packing needs less than {bound}, and the search ended after {} steps ({option})",
            grouped(budget)
        )
    }
}

fn room(room: &Room) -> String {
    match room.holes {
        0 => "none".to_owned(),
        1 => format!("{} in one hole", show_bytes(room.free_bytes)),
        holes => {
            format!(
                "{} in {} holes of at most {}",
                show_bytes(room.free_bytes),
                grouped(holes),
                show_bytes(room.largest_hole_bytes)
            )
        }
    }
}

impl Blocker {
    fn of(block: InTheWay, excess: Option<&Excess>, program: &Program, source: &Recording, names: &StackNames) -> Blocker {
        let requested_in = block.allocated_at.and_then(|event| {
            let trace = &source.devices.iter().find(|device| device.device == program.device)?.trace;
            let recorded = program.recorded.as_ref()?;
            let is_early = block.buffer.is_some_and(|buffer| (buffer as usize) < recorded.early);
            let stack = if is_early {
                recorded.early_stacks.get(&block.buffer?).copied()?
            } else {
                trace.get(program.place(event))?.stack
            };
            if stack == StackId::NONE {
                return None;
            }
            let name = names.name(&source.stacks, stack);
            let line = name.line.map(|frame| format!("{}:{} {}", frame.filename, frame.line, frame.name));
            line.or(name.operator)
        });
        Blocker {
            allocated_at: block.allocated_at.map(|event| program.place(event)),
            freed_at: block.freed_at.map(|event| program.place(event)),
            age: excess.zip(block.allocated_at).map(|(excess, event)| excess.event.saturating_sub(event)),
            segment_bytes: excess.and_then(|excess| Some(excess.pinned_by(&block)?.bytes)),
            requested_in: requested_in.map(|name| output::shorten(&name, 80)),
            block,
        }
    }
}

view! {
    /// A policy compared with the best packing that was found offline.
    pub(crate) struct Compared<'a>(against: &'a AgainstPacking) {
        /// The most bytes live at once, with requests rounded up to 512 bytes.
        load_bytes: u64 = against.load_bytes,
        /// The memory of the best packing that was found, with every lifetime known in advance.
        packing_bytes: u64 = against.found.packing.height,
        /// The lower bound for every packing.
        bound_bytes: u64 = against.found.bound,
        /// Whether it is proven that no packing needs less memory. If not, the search ended first.
        packing_converged: bool = against.is_best(),
        /// The steps that the packer took.
        steps: u64 = against.found.steps,
        /// The first request that the policy cannot serve in the memory of the packing; null if it serves all.
        first_excess: Option<FirstExcess<'a>> = against.excess.as_ref().map(|excess| FirstExcess::of(against, excess)),
    }
}

view! {
    /// The first request that a policy cannot serve in the memory of the packing.
    struct FirstExcess<'a>(against: &'a AgainstPacking, excess: &'a Excess) {
        /// The event; for a recording, the entry.
        at: usize = against.place.map_or(excess.event, |(_, place)| place),
        /// The number of the event in any case, counted from 0.
        event: usize = excess.event,
        /// The requested bytes.
        requested_bytes: u64 = excess.requested_bytes,
        /// The size of the block that the policy needs.
        block_bytes: u64 = excess.block_bytes,
        /// The memory of the device: the packing, rounded up to 2 MiB.
        device_bytes: u64 = excess.device_bytes,
        /// The bytes that the policy has reserved then.
        reserved_bytes: u64 = excess.reserved_bytes,
        /// The pool that serves it; 0 is the default pool.
        pool: u64 = excess.free_list.pool,
        /// The collection that serves it: `small` or `large`.
        collection: &'static str = excess.free_list.collection.name(),
        /// The number of its stream; 0 is the default stream.
        stream: u32 = excess.free_list.stream.into(),
        /// The free memory in the segments of its pool, collection and stream.
        free_here: FreeMemory = FreeMemory::of(excess.here),
        /// The free memory in all other segments.
        free_elsewhere: FreeMemory = FreeMemory::of(excess.elsewhere),
        /// Whether the blocks in the way lie side by side in a segment that may serve the request. If not, they keep the segments
        /// that would have to be released for a new one.
        in_one_segment: bool = excess.is_one_stretch,
        /// The number of blocks in the way: those with the fewest bytes whose absence would make enough room. 0 if there is room
        /// that the policy does not use.
        blocks_in_the_way: usize = against.all_in_the_way.0,
        /// The bytes of these blocks.
        bytes_in_the_way: u64 = against.all_in_the_way.1,
        /// The segments that these blocks keep in use, by address.
        pinned_segments: Vec<PinnedSegment> = all(&excess.pinned, |segment| PinnedSegment::of(*segment)),
        /// Up to 1,000 of these blocks, the largest first.
        in_the_way: Vec<BlockInTheWay<'a>> = all(&against.in_the_way, BlockInTheWay::of),
    }
}

view! {
    /// Free memory.
    struct FreeMemory(room: Room) {
        /// The bytes of free blocks.
        free_bytes: u64 = room.free_bytes,
        /// The largest free block.
        largest_hole_bytes: u64 = room.largest_hole_bytes,
        /// The number of free blocks.
        holes: u64 = room.holes,
    }
}

view! {
    /// A segment that blocks in the way keep in use.
    struct PinnedSegment(segment: Pinned) {
        /// The first byte.
        address: u64 = segment.address,
        /// The size of the segment.
        bytes: u64 = segment.bytes,
        /// The free bytes in it.
        free_bytes: u64 = segment.free_bytes,
        /// The number of blocks in the way that are in it.
        blocks_in_the_way: usize = segment.in_the_way,
        /// Its pool; 0 is the default pool.
        pool: u64 = segment.free_list.pool,
        /// Its collection: `small` or `large`.
        collection: &'static str = segment.free_list.collection.name(),
        /// The number of its stream; 0 is the default stream.
        stream: u32 = segment.free_list.stream.into(),
    }
}

view! {
    /// The other buffers of the size of a block in the way, until the request that the policy cannot serve.
    struct OthersOfSize(same: SameSize) {
        /// The size of each, as requested.
        each_bytes: u64 = same.each_bytes,
        /// The number of those that are live.
        live: u64 = same.live,
        /// The number of those that were freed.
        freed: u64 = same.freed,
        /// The least lifetime of those that were freed, in requests; null if none was.
        least_requests: Option<u64> = same.lifetimes.map(|lifetimes| lifetimes.least),
        /// The median.
        median_requests: Option<u64> = same.lifetimes.map(|lifetimes| lifetimes.median),
        /// The greatest.
        greatest_requests: Option<u64> = same.lifetimes.map(|lifetimes| lifetimes.greatest),
    }
}

view! {
    /// A block in the way.
    struct BlockInTheWay<'a>(blocker: &'a Blocker) {
        /// The first byte.
        address: u64 = blocker.block.address,
        /// The size of the block.
        bytes: u64 = blocker.block.bytes,
        /// The buffer in it, by the number of its request; null if the program has freed it and other streams still use it.
        buffer: Option<u32> = blocker.block.buffer,
        /// The event that allocated it; for a recording, the entry.
        allocated_at: Option<usize> = blocker.allocated_at,
        /// The event that frees it; for a recording, the entry. Null if the program keeps it.
        freed_at: Option<usize> = blocker.freed_at,
        /// The number of events since its allocation.
        age_events: Option<usize> = blocker.age,
        /// The number of requests that follow its own until the one that the policy cannot serve.
        age_requests: Option<u64> = blocker.block.age_requests,
        /// The other buffers of its requested size; null if the program has freed it.
        same_size: Option<OthersOfSize> = blocker.block.same_size.map(OthersOfSize::of),
        /// The call that requested it; null if the file has no stack.
        requested_in: Option<&'a str> = blocker.requested_in.as_deref(),
    }
}
