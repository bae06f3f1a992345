//! Adversaries: workloads designed to need much more memory than is live at once.
//!
//! [`robson`] reacts to where a policy places buffers. It plays against a real allocator and returns the resulting
//! [`Workload`], which can then be run under other policies. The other adversaries do not depend on the policy: they are
//! three patterns that were reported against PyTorch ([`fence`], [`comb`], [`stream_per_buffer`]). docs/bounds.md states what
//! each of them forces, and on which policies.
//!
//! Robson's adversary: a policy that never moves memory ends with at least `live (1 + log2(largest) / 2) - largest + 1`
//! units, even though at most `live` units are live at once.
//!
//! Memory is filled with buffers of the smallest size. The size is then doubled, step by step. The adversary marks one unit
//! in every stretch that is as long as the new size and frees every buffer that covers no marked unit; a block of the new
//! size then fits only in a stretch that is entirely free. It requests the freed bytes again in blocks of the new size. Two
//! choices of the marked unit follow from the previous step; the adversary takes the one that occupies more space with fewer
//! live bytes.
//!
//! As a generator, Robson's adversary is played against a named policy; the others are the same for every policy.

use std::collections::BTreeMap;

use parkade::policy::Policy;
use parkade::stats::Family;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, Allocator};
use parkade_policies::{CATALOGUE, Named, Unknown};
use parkade_sim::{SimDevice, SimOptions};

use super::options::{self, Done, Generator, Key, MAX_BYTES, WorkloadError, within};
use crate::policies::policies;
use crate::workload::{Event, Workload};

pub use super::options::AttackError;

/// The outcome of an attack on a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attack {
    /// The requests that were made.
    pub workload: Workload,
    /// The load: the most bytes that were live at once, in requested sizes.
    pub load_bytes: u64,
    /// The most bytes reserved at once.
    pub reserved_bytes: u64,
    /// The bytes of all addresses that ever had memory.
    pub address_bytes: u64,
    /// Whether memory was released to the device before the end.
    pub gave_back: bool,
}

impl Attack {
    /// Returns whether all memory that the policy ever took stayed at its address. Only then does Robson's theorem apply to
    /// the reserved bytes.
    #[must_use]
    pub fn never_moved(&self) -> bool {
        !self.gave_back && self.address_bytes == self.reserved_bytes
    }
}

const MIB: u64 = 1 << 20;

/// Returns the fence of pytorch#193400. 64 MiB are live from the start; each cycle allocates 91 MiB and 45.5 MiB, then 2 MiB
/// that are kept, and frees the first two. With `max_split_size_mb:128` and `expandable_segments:True`, reserved memory grows
/// by 138 MiB per cycle: the free block is too large to be split, and the 2 MiB that are kept separate it from the end of the
/// segment.
///
/// # Errors
/// Returns [`AttackError::Shape`] for no cycles, or more than a million.
pub fn fence(cycles: u32) -> Result<Workload, AttackError> {
    if !(1..=1_000_000).contains(&cycles) {
        return Err(AttackError::Shape("there must be between 1 and 1,000,000 cycles"));
    }
    let allocate = |buffer, bytes| Event::Allocate { buffer, bytes, stream: 0 };
    let mut events = vec![allocate(0, 64 * MIB)];
    for cycle in 0..cycles {
        let first = 1 + 3 * cycle;
        events.extend([allocate(first, 91 * MIB), allocate(first + 1, 91 * MIB / 2), allocate(first + 2, 2 * MIB)]);
        events.extend([Event::Free { buffer: first }, Event::Free { buffer: first + 1 }]);
    }
    let says =
        format!("91 MiB and 45.5 MiB are allocated and freed {cycles} times, and 2 MiB are kept each time (pytorch#193400)");
    Ok(Workload { name: format!("fence-{cycles}"), says, events, ..Workload::default() })
}

/// Returns the comb of torchrec#4584 ("hard" fragmentation): `teeth` pairs of buffers of `tooth_bytes`, of which every other
/// one is freed, and then one request as large as all gaps together. A policy that does not move memory needs one and a half
/// times as much.
///
/// # Errors
/// Returns [`AttackError::Shape`] for no teeth, no bytes, or more than 2^60 bytes.
pub fn comb(teeth: u32, tooth_bytes: u64) -> Result<Workload, AttackError> {
    let all = u64::from(teeth).checked_mul(tooth_bytes).filter(|&all| all > 0 && all < 1 << 60);
    let Some(gaps_bytes) = all.filter(|_| teeth <= 1 << 20) else {
        return Err(AttackError::Shape(
            "there must be between 1 and 2^20 teeth, with fewer than 2^60 bytes in total and at least 1 byte each",
        ));
    };
    let mut events: Vec<Event> = (0..2 * teeth).map(|buffer| Event::Allocate { buffer, bytes: tooth_bytes, stream: 0 }).collect();
    events.extend((0..teeth).map(|tooth| Event::Free { buffer: 2 * tooth }));
    events.push(Event::Allocate { buffer: 2 * teeth, bytes: gaps_bytes, stream: 0 });
    let says = format!(
        "every other one of {} buffers of {tooth_bytes} bytes is freed; then one request is as large as all gaps together",
        2 * teeth
    );
    Ok(Workload { name: format!("comb-{teeth}"), says, events, ..Workload::default() })
}

/// Uses new streams for each call (vllm#52951). Each call allocates two buffers of `bytes`, each on the next of `streams`
/// streams, which are used in rotation like PyTorch's 32; it waits for the work and frees the buffers. A free block serves
/// only its own stream, so every stream keeps one.
///
/// # Errors
/// Returns [`AttackError::Shape`] for no calls, no streams, no bytes, or more than 2^60 bytes.
pub fn stream_per_buffer(calls: u32, streams: u16, bytes: u64) -> Result<Workload, AttackError> {
    if !(1..=1_000_000).contains(&calls) || streams == 0 || bytes == 0 || bytes > 1 << 59 {
        return Err(AttackError::Shape(
            "there must be between 1 and 1,000,000 calls, at least 1 stream, and buffers of 1 to 2^59 bytes",
        ));
    }
    let mut events = Vec::new();
    for call in 0..calls {
        let buffers = [2 * call, 2 * call + 1];
        // Stream 0 is the default stream, which is never new.
        let of = buffers.map(|buffer| (buffer, 1 + (buffer % u32::from(streams)) as u16));
        events.extend(of.map(|(buffer, stream)| Event::Allocate { buffer, bytes, stream }));
        events.extend(of.map(|(_, stream)| Event::Launch { stream, us: 100 }));
        events.extend(of.map(|(_, stream)| Event::Synchronize { stream }));
        events.extend(of.map(|(buffer, _)| Event::Free { buffer }));
    }
    let says = format!("{calls} calls allocate two buffers of {bytes} bytes each, on {streams} streams in turn (vllm#52951)");
    Ok(Workload { name: format!("stream-per-buffer-{calls}-{streams}"), says, events, ..Workload::default() })
}

/// The sizes and the load of Robson's adversary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Robson {
    /// The smallest size. The theorem is exact if the policy does not round the unit or its multiples by powers of two.
    pub unit_bytes: u64,
    /// The largest size, in units; a power of two.
    pub largest_units: u64,
    /// The most units live at once; a multiple of `largest_units`.
    pub live_units: u64,
}

/// An attack with more units than this would take too long.
const MOST_UNITS: u64 = 1 << 20;

/// Plays Robson's adversary against a policy, with more memory than it needs.
///
/// # Errors
/// Returns [`AttackError`] if the numbers are not allowed, or if the policy refuses a request.
pub fn robson(policy: Box<dyn Policy + Send>, numbers: Robson) -> Result<Attack, AttackError> {
    let Robson { unit_bytes, largest_units, live_units } = numbers;
    if !largest_units.is_power_of_two() {
        return Err(AttackError::Shape("the largest size must be a power of two"));
    }
    if live_units == 0 || !live_units.is_multiple_of(largest_units) || live_units > MOST_UNITS {
        return Err(AttackError::Shape("the load must be a multiple of the largest size, and at most 2^20 units"));
    }
    if unit_bytes == 0 || unit_bytes > 1 << 30 {
        return Err(AttackError::Shape("the smallest size must be between 1 byte and 1 GiB"));
    }
    let mut probe = Probe::new(policy);
    for _ in 0..live_units {
        probe.allocate(unit_bytes)?;
    }
    let mut marked = 0;
    for step in 1..=largest_units.ilog2() {
        let size = 1 << step;
        // Units that are occupied but not live, over all stretches with a block on their marked unit.
        let wasted = |mark: u64| -> u64 {
            let kept = probe.live().filter(|&(position, bytes)| covers(position, bytes, unit_bytes, size, mark));
            kept.map(|(_, bytes)| size - bytes / unit_bytes).sum()
        };
        let other = marked + size / 2;
        if wasted(other) > wasted(marked) {
            marked = other;
        }
        probe.free_unless(|position, bytes| covers(position, bytes, unit_bytes, size, marked))?;
        let free_units = live_units - probe.live_bytes() / unit_bytes;
        for _ in 0..free_units / size {
            probe.allocate(size * unit_bytes)?;
        }
    }
    let name = format!("robson-{live_units}-{largest_units}");
    let says =
        format!("Robson's adversary: sizes double from 1 to {largest_units} units of {unit_bytes} bytes, {live_units} live");
    Ok(probe.finish(name, says))
}

/// Returns whether a buffer covers a unit whose number is `mark` modulo `size`. Units start at multiples of their size; a
/// buffer that starts between two units still covers as many units as it is long.
fn covers(position: u64, bytes: u64, unit_bytes: u64, size: u64, mark: u64) -> bool {
    let (first, units) = (position.div_ceil(unit_bytes), bytes / unit_bytes);
    // The distance from its first unit to the next marked one.
    let distance = (mark + size - first % size) % size;
    distance < units
}

/// More memory than any attack uses.
const PLENTY: Bytes = Bytes(1 << 50);

/// An allocator under attack.
struct Probe {
    core: Allocator<SimDevice, Box<dyn Policy + Send>, Vec<TraceEntry>>,
    events: Vec<Event>,
    buffers: u32,
    /// The live buffers by number.
    live: BTreeMap<u32, Live>,
    addresses: Addresses,
    gave_back: bool,
    live_bytes: u64,
    load_bytes: u64,
}

struct Live {
    allocation: Allocation,
    bytes: u64,
    position: u64,
}

impl Probe {
    /// Plays against this policy, on a device that has enough memory.
    fn new(policy: Box<dyn Policy + Send>) -> Probe {
        Probe {
            core: Allocator::new(SimDevice::new(SimOptions::new(PLENTY)), policy, Vec::new()),
            events: Vec::new(),
            buffers: 0,
            live: BTreeMap::new(),
            addresses: Addresses::default(),
            gave_back: false,
            live_bytes: 0,
            load_bytes: 0,
        }
    }

    /// Requests memory on the default stream.
    fn allocate(&mut self, bytes: u64) -> Result<(), AttackError> {
        let buffer = self.buffers;
        let allocation =
            self.core.allocate(Bytes(bytes), StreamId::DEFAULT).map_err(|error| AttackError::Refused(error.to_string()))?;
        self.events.push(Event::Allocate { buffer, bytes, stream: 0 });
        self.look();
        let position = self.addresses.position(allocation.address().get());
        self.buffers += 1;
        self.live.insert(buffer, Live { allocation, bytes, position });
        self.live_bytes += bytes;
        self.load_bytes = self.load_bytes.max(self.live_bytes);
        Ok(())
    }

    /// Frees every buffer for which `keep` is false. `keep` is called with the buffer's position and size.
    fn free_unless(&mut self, keep: impl Fn(u64, u64) -> bool) -> Result<(), AttackError> {
        let (kept, freed): (BTreeMap<u32, Live>, BTreeMap<u32, Live>) =
            std::mem::take(&mut self.live).into_iter().partition(|(_, live)| keep(live.position, live.bytes));
        self.live = kept;
        for (buffer, live) in freed {
            self.core.free(live.allocation).map_err(|error| AttackError::Refused(error.to_string()))?;
            self.live_bytes -= live.bytes;
            self.events.push(Event::Free { buffer });
        }
        self.look();
        Ok(())
    }

    /// Returns the position and the bytes of each live buffer.
    fn live(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.live.values().map(|live| (live.position, live.bytes))
    }

    /// Returns the requested bytes that are currently live.
    fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns the outcome of the attack.
    fn finish(self, name: String, says: String) -> Attack {
        Attack {
            workload: Workload { name, says, events: self.events, ..Workload::default() },
            load_bytes: self.load_bytes,
            reserved_bytes: u64::try_from(self.core.stats().family(Family::ReservedBytes).all.peak).unwrap_or(0),
            address_bytes: self.addresses.end,
            gave_back: self.gave_back,
        }
    }

    /// Records memory that was taken from the device or released to it.
    fn look(&mut self) {
        for entry in self.core.observer_mut().drain(..) {
            match entry.action {
                TraceAction::SegmentAlloc | TraceAction::SegmentMap => self.addresses.add(entry.address, entry.size),
                TraceAction::SegmentFree | TraceAction::SegmentUnmap => self.gave_back = true,
                _ => {}
            }
        }
    }
}

/// All addresses that ever had memory, concatenated in the order in which they received it. No block spans two segments, so a
/// placement in segments is also a placement in this one region, to which the theorems apply.
#[derive(Default)]
struct Addresses {
    /// The ranges by first address, each with its length and its position in the region.
    ranges: BTreeMap<u64, (u64, u64)>,
    end: u64,
}

impl Addresses {
    fn add(&mut self, address: u64, bytes: u64) {
        // An address that had memory before keeps its position.
        if self.ranges.range(..=address).next_back().is_some_and(|(&first, &(length, _))| address - first < length) {
            return;
        }
        self.ranges.insert(address, (bytes, self.end));
        self.end += bytes;
    }

    /// Returns the position of an address that has memory.
    fn position(&self, address: u64) -> u64 {
        self.ranges.range(..=address).next_back().map_or(0, |(&first, &(_, position))| position + (address - first))
    }
}

/// Robson's adversary, played against a policy. The default unit is a multiple of every policy's page, so that few policies
/// round it.
pub(super) struct RobsonAgainst {
    numbers: Robson,
    against: Named,
}

impl RobsonAgainst {
    /// Creates an adversary with the sizes given in docs/bounds.md. It plays against the policy named `against`, or against
    /// the first policy in the catalogue if no policy has that name.
    pub(super) fn new(against: &str) -> RobsonAgainst {
        let numbers = Robson { unit_bytes: 160 * MIB, largest_units: 16, live_units: 256 };
        RobsonAgainst { numbers, against: policies().named(against).unwrap_or_else(|_| CATALOGUE[0].clone()) }
    }
}

impl Generator for RobsonAgainst {
    fn keys(&self) -> Vec<Key> {
        vec!["against", "unit_bytes", "largest_units", "live_units", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "against" => {
                let instead = |why| match why {
                    Unknown::Name => CATALOGUE.iter().map(|policy| &*policy.name).collect::<Vec<_>>().join(", "),
                    why => format!("a policy ({why})"),
                };
                self.against = policies().named(value).or_else(|why| options::refused(key, value, instead(why)))?;
            }
            "unit_bytes" => self.numbers.unit_bytes = options::bytes(key, value)?,
            "largest_units" => self.numbers.largest_units = options::number(key, value)?,
            "live_units" => self.numbers.live_units = options::number(key, value)?,
            _ => options::unused_seed(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        let attack = robson(self.against.make(), self.numbers)?;
        let says = format!("{}; played against {}", attack.workload.says, self.against.name);
        bounded(Workload { says, ..attack.workload })
    }
}

/// A pattern that is described by up to three numbers.
pub(super) struct Pattern {
    keys: [Key; 3],
    values: [u64; 3],
    make: fn([u64; 3]) -> Result<Workload, WorkloadError>,
}

/// Used in place of the missing keys of a pattern with fewer numbers.
const NONE: Key = "";

impl Pattern {
    pub(super) fn comb() -> Pattern {
        Pattern {
            keys: ["teeth", "tooth_bytes", NONE],
            values: [64, 20 * MIB, 0],
            make: |[teeth, bytes, _]| Ok(comb(count("teeth", teeth, 1 << 20)?, bytes)?),
        }
    }

    pub(super) fn fence() -> Pattern {
        Pattern {
            keys: ["cycles", NONE, NONE],
            values: [100, 0, 0],
            make: |[cycles, ..]| Ok(fence(count("cycles", cycles, 1_000_000)?)?),
        }
    }

    pub(super) fn stream_per_buffer() -> Pattern {
        Pattern {
            keys: ["calls", "streams", "bytes"],
            values: [100, 32, 1024 * MIB],
            make: |[calls, streams, bytes]| {
                let streams = count("streams", streams, u16::MAX.into())? as u16;
                Ok(stream_per_buffer(count("calls", calls, 1_000_000)?, streams, bytes)?)
            },
        }
    }
}

impl Generator for Pattern {
    fn keys(&self) -> Vec<Key> {
        self.keys.into_iter().filter(|key| *key != NONE).chain(["seed"]).collect()
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match self.keys.iter().position(|known| *known == key) {
            None => options::unused_seed(key, value),
            Some(place) => {
                self.values[place] =
                    if key.ends_with("bytes") { options::bytes(key, value)? } else { options::number(key, value)? };
                Ok(())
            }
        }
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        (self.make)(self.values).and_then(bounded)
    }
}

fn count(option: Key, value: u64, most: u64) -> Result<u32, WorkloadError> {
    within(option, value, 1, most)?;
    u32::try_from(value).map_err(|_| WorkloadError::TooManyEvents)
}

fn bounded(workload: Workload) -> Result<Workload, WorkloadError> {
    if workload.load_bytes(1) > MAX_BYTES {
        return Err(WorkloadError::TooLarge { what: "the live buffers" });
    }
    Ok(workload)
}

/// Tests the theory of the adversaries for every policy in the catalogue to which it applies.
#[cfg(test)]
mod tests {
    use parkade::PoolSlot;
    use parkade::policy::PyTorch;
    use parkade::settings::Settings;
    use parkade::units::PoolClass;
    use parkade_policies::named;
    use parkade_sim::PAGE_BYTES;

    use super::*;
    use crate::bounds::robson::powers_of_two;
    use crate::study::{Ending, RunOptions, run};
    use crate::workload::parse;

    fn large() -> PoolSlot {
        PoolSlot::default_pool(PoolClass::Large)
    }

    fn of_catalogue(name: &str) -> Named {
        named(name).unwrap()
    }

    /// Returns the memory that a policy reserves for a workload on a device with plenty of memory.
    fn reserved(workload: &Workload, policy: Box<dyn Policy + Send>) -> u64 {
        let outcome = run(workload, policy, &RunOptions::plenty());
        assert_eq!(outcome.ending, Ending::Fits, "{}", workload.name);
        outcome.peak_reserved_bytes
    }

    #[test]
    fn robsons_adversary_forces_its_bound_upon_every_policy_that_moves_nothing() {
        let mut bound_ones = Vec::new();
        for policy in CATALOGUE {
            for (live_units, largest_units) in [(64, 8), (256, 16), (192, 64)] {
                let numbers = Robson { unit_bytes: 4 * MIB, largest_units, live_units };
                let attack = robson(policy.make(), numbers).unwrap();
                assert_eq!(attack.load_bytes, live_units * numbers.unit_bytes);
                assert!(attack.reserved_bytes >= attack.load_bytes, "{}", policy.name);
                if attack.never_moved() {
                    let forced = powers_of_two(live_units, largest_units).unwrap() * numbers.unit_bytes;
                    let got = attack.reserved_bytes;
                    assert!(got >= forced, "{}: {got} bytes for {forced}, {numbers:?}", policy.name);
                    bound_ones.push(policy.name.clone());
                }
            }
        }
        for name in ["pytorch", "pytorch-expandable"] {
            assert_eq!(bound_ones.iter().filter(|one| *one == name).count(), 3, "{name} moves nothing while there is memory");
        }
    }

    /// Returns the policies to which the bounds for any fit apply, each with its page as the unit: they use one region that
    /// grows by the missing amount, coalesce all free neighbours, do not round, and use a free block whenever one is large
    /// enough.
    fn any_fits() -> Vec<(Named, u64)> {
        let names = [
            "best-fit-remap:fit=first",
            "best-fit-remap:fit=next",
            "best-fit-remap",
            "best-fit-remap:fit=worst",
            "pytorch-expandable",
            "pytorch:release=2.15;settings=[expandable_segments:True]",
        ];
        names.into_iter().map(of_catalogue).map(|policy| (policy.clone(), policy.make().page(large()).get())).collect()
    }

    /// Returns the memory, in units, that is enough for first fit in one region, with any sizes up to `largest`: `live H / ln 2`,
    /// where H is the harmonic number of `largest`, rounded up. Knuth, The Art of Computer Programming 1, 2.5 exercise 43
    /// (Robson 1977).
    fn first_fit(live: u64, largest: u64) -> u64 {
        let harmonic: f64 = (1..=largest).map(|size| 1.0 / size as f64).sum();
        (live as f64 * harmonic / std::f64::consts::LN_2).ceil() as u64
    }

    /// Returns the memory, in units, that is enough for every allocator that uses one region, coalesces free neighbours
    /// immediately, and grows the region only if no gap is large enough, and only by the amount that is missing at its end
    /// (docs/bounds.md proves it).
    fn any_fit(live: u64, largest: u64) -> u64 {
        (1..=largest).map(|size| live + (live - size) * (size - 1)).max().unwrap_or(live)
    }

    #[test]
    fn one_growing_region_keeps_to_its_bounds_under_robsons_adversary() {
        assert_eq!(
            (any_fit(5, 1), any_fit(10, 3), any_fit(11, 11)),
            (5, 24, 36),
            "a single size leaves no gaps; 24 is 10 units and 7 gaps of 2"
        );
        assert_eq!(first_fit(10, 1), 15);
        let (live, largest) = (256, 16);
        for (policy, page) in any_fits() {
            assert!(policy.make().is_expandable(large()), "{}", policy.name);
            let numbers = Robson { unit_bytes: page, largest_units: largest, live_units: live };
            let attack = robson(policy.make(), numbers).unwrap();
            let units = attack.reserved_bytes / page;
            assert!(attack.never_moved() && units >= powers_of_two(live, largest).unwrap(), "{}", policy.name);
            assert!(units <= any_fit(live, largest), "{}", policy.name);
            if policy.name == "best-fit-remap:fit=first" {
                assert!(units <= first_fit(live, largest), "{units}");
            }
        }
    }

    #[test]
    fn segments_of_their_own_keep_to_their_bound() {
        let (live_units, largest_units) = (64, 8);
        let mut compared = Vec::new();
        for policy in CATALOGUE {
            let numbers = Robson { unit_bytes: 32 * MIB, largest_units, live_units };
            let takes_just_so_much = |units: u64| {
                let event = Event::Allocate { buffer: 0, bytes: units * numbers.unit_bytes, stream: 0 };
                let one = Workload { name: "one".into(), says: "one buffer".into(), events: vec![event], ..Workload::default() };
                reserved(&one, policy.make()) == units * numbers.unit_bytes
            };
            if policy.make().is_expandable(large()) || ![1, 2, 4, 8].into_iter().all(takes_just_so_much) {
                continue;
            }
            compared.push(&*policy.name);
            let attack = robson(policy.make(), numbers).unwrap();
            // A segment is taken only if no gap is large enough, so each segment of that size has a live block, and each size has
            // at most `live` of them.
            let bound = live_units * (2 * largest_units - 1) * numbers.unit_bytes;
            assert!(attack.reserved_bytes <= bound, "{}: {} of {bound}", policy.name, attack.reserved_bytes);
        }
        assert!(compared.contains(&"pytorch") && compared.contains(&"pytorch:release=2.15"), "{compared:?}");
    }

    #[test]
    fn what_robsons_adversary_did_can_be_played_again() {
        let numbers = Robson { unit_bytes: 32 * MIB, largest_units: 16, live_units: 64 };
        let attack = robson(of_catalogue("pytorch").make(), numbers).unwrap();
        assert_eq!(attack.workload.load_bytes(1), attack.load_bytes);
        for policy in CATALOGUE {
            let again = reserved(&attack.workload, policy.make());
            assert!(again >= attack.load_bytes, "{}", policy.name);
            if policy.name == "pytorch" {
                assert_eq!(again, attack.reserved_bytes);
            }
        }
    }

    #[test]
    fn pages_that_are_mapped_elsewhere_escape_robsons_adversary() {
        // Every size is a multiple of a page, so no page is pinned by a small block: the load is enough.
        let policy = of_catalogue("pytorch-expandable");
        let unit_bytes = policy.make().page(large()).get();
        let attack = robson(policy.make(), Robson { unit_bytes, largest_units: 16, live_units: 128 }).unwrap();
        let load = RunOptions::new(attack.load_bytes);
        let outcome = run(&attack.workload, policy.make(), &load);
        assert_eq!((outcome.ending, outcome.peak_reserved_bytes), (Ending::Fits, attack.load_bytes));
    }

    #[test]
    fn segments_that_several_blocks_share_do_not_escape_it() {
        // Ten 2 MiB units share a 20 MiB segment, which is released only when all of them are free.
        let policy = of_catalogue("pytorch");
        let attack = robson(policy.make(), Robson { unit_bytes: 2 * MIB, largest_units: 16, live_units: 160 }).unwrap();
        let outcome = run(&attack.workload, policy.make(), &RunOptions::new(attack.load_bytes));
        assert_eq!(outcome.ending, Ending::OutOfMemory);
    }

    #[test]
    fn the_fence_makes_reserved_memory_grow_as_it_was_reported() {
        let settings = Settings { expandable_segments: true, max_split_bytes: 128 * MIB, ..Settings::default() };
        let whole = fence(101).unwrap();
        let at_cycle = |cycle: usize| {
            // Each cycle has five events.
            let workload = Workload { events: whole.events[..1 + 5 * (cycle + 1)].to_vec(), ..whole.clone() };
            reserved(&workload, Box::new(PyTorch::new(settings.clone()))) / MIB
        };
        // pytorch#193400: reserved at cycles 0, 20, 40 and so on.
        assert_eq!([0, 20, 40, 60, 80, 100].map(at_cycle), [220, 2980, 5760, 8520, 11300, 14060]);
        let alone = [
            Settings { max_split_bytes: Settings::default().max_split_bytes, ..settings.clone() },
            Settings { expandable_segments: false, ..settings },
        ];
        for settings in alone {
            assert!(reserved(&whole, Box::new(PyTorch::new(settings))) < 500 * MIB);
        }
    }

    #[test]
    fn the_comb_needs_half_as_much_again_unless_pages_move() {
        let workload = comb(16, 20 * MIB).unwrap();
        let load = workload.load_bytes(1);
        assert_eq!(load, 32 * 20 * MIB);
        for policy in CATALOGUE {
            assert!(reserved(&workload, policy.make()) >= load, "{}", policy.name);
        }
        let mut grows = 0;
        for policy in CATALOGUE.iter().filter(|policy| policy.name.starts_with("pytorch")) {
            assert_eq!(reserved(&workload, policy.make()), load / 2 * 3, "{}", policy.name);
            let tight = run(&workload, policy.make(), &RunOptions::new(load));
            // Each tooth has its own segment, which is released as a whole; pages of an expandable segment are mapped
            // elsewhere.
            assert!(tight.fits(), "{}", policy.name);
            grows += u32::from(policy.make().is_expandable(large()));
        }
        assert!(grows >= 2);
        // Teeth share segments: no segment can be released.
        let shared = comb(16, 5 * MIB).unwrap();
        let tight = RunOptions::new(shared.load_bytes(1));
        assert_eq!(run(&shared, of_catalogue("pytorch").make(), &tight).ending, Ending::OutOfMemory);
    }

    #[test]
    fn every_stream_keeps_a_buffer_of_its_own() {
        let gib = 1 << 30;
        for (calls, streams, expected) in [(1, 32, 2), (8, 32, 16), (100, 32, 32), (100, 2, 2)] {
            let workload = stream_per_buffer(calls, streams, gib).unwrap();
            assert_eq!(workload.load_bytes(1), 2 * gib);
            // vllm#52951: from 2 to 16 GB in eight calls, at most 32, and 2 if the streams are created only once.
            assert_eq!(reserved(&workload, of_catalogue("pytorch").make()), expected * gib, "{calls} calls, {streams} streams");
        }
    }

    #[test]
    fn numbers_that_make_no_adversary_are_refused() {
        let refused = |result: Result<Workload, AttackError>| matches!(result, Err(AttackError::Shape(_)));
        assert!(refused(comb(0, 5)) && refused(comb(5, 0)) && refused(comb(u32::MAX, u64::MAX)) && refused(comb(u32::MAX, 1)));
        assert!(refused(fence(0)) && refused(fence(u32::MAX)));
        assert!(
            refused(stream_per_buffer(0, 1, 1))
                && refused(stream_per_buffer(1, 0, 1))
                && refused(stream_per_buffer(1, 1, u64::MAX))
        );
        let play = |unit_bytes, largest_units, live_units| {
            robson(of_catalogue("pytorch").make(), Robson { unit_bytes, largest_units, live_units })
                .map(|attack| attack.load_bytes)
        };
        for (unit, largest, live) in
            [(0, 2, 4), (u64::MAX, 2, 4), (1, 3, 6), (1, 0, 4), (1, 4, 6), (1, 4, 0), (1, 4, u64::MAX - 3)]
        {
            assert!(matches!(play(unit, largest, live), Err(AttackError::Shape(_))), "{unit} {largest} {live}");
        }
        assert_eq!(play(PAGE_BYTES, 1, 3), Ok(3 * PAGE_BYTES));
    }

    #[test]
    fn numbers_of_buffers_are_in_order() {
        let attack =
            robson(of_catalogue("pytorch").make(), Robson { unit_bytes: 512, largest_units: 8, live_units: 64 }).unwrap();
        for workload in [comb(4, 1).unwrap(), fence(3).unwrap(), attack.workload] {
            let numbers = workload.events.iter().filter_map(|event| match event {
                Event::Allocate { buffer, .. } => Some(*buffer),
                _ => None,
            });
            assert!(numbers.eq(0..workload.buffers() as u32), "{}", workload.name);
        }
    }

    #[test]
    fn robsons_adversary_is_made_against_the_policy_that_is_named() {
        let numbers = Robson { unit_bytes: 32 * MIB, largest_units: 8, live_units: 64 };
        for name in ["best-fit-remap:fit=first", "pytorch", "bfc"] {
            let policy = named(name).unwrap();
            let described = parse(&format!("robson:against={name},unit_bytes=32MiB,live_units=64,largest_units=8")).unwrap();
            let attack = robson(policy.make(), numbers).unwrap();
            assert!(described.events == attack.workload.events, "{name}");
            assert!(described.says.ends_with(&format!("; played against {name}")), "{}", described.says);
            let outcome = run(&described, policy.make(), &RunOptions::plenty());
            assert_eq!(outcome.peak_reserved_bytes, attack.reserved_bytes, "{name}: the same as in the attack");
        }
        let against = |unit: &str, name: &str| {
            parse(&format!("robson:unit_bytes={unit},live_units=64,largest_units=8,against={name}")).unwrap()
        };
        // No gap is large enough for the next size under any policy, so policies differ only when small buffers share a
        // segment.
        let own = against("32MiB", "best-fit-remap:fit=first");
        assert!(CATALOGUE.iter().all(|policy| against("32MiB", &policy.name).events == own.events));
        assert!(against("3MiB", "pytorch").events != against("3MiB", "best-fit-remap:fit=first").events);
        let default = parse("robson:unit_bytes=32MiB,live_units=64,largest_units=8").unwrap();
        assert!(default.events == own.events && default.says == own.says);
        let outcome = run(&own, named("best-fit-remap:fit=first").unwrap().make(), &RunOptions::plenty());
        let forced = powers_of_two(64, 8).unwrap() * numbers.unit_bytes;
        assert!(outcome.peak_reserved_bytes >= forced, "{} of {forced}", outcome.peak_reserved_bytes);
    }

    #[test]
    fn the_other_adversaries_are_made_of_their_numbers() {
        for (text, workload) in [
            ("comb:teeth=5,tooth_bytes=3MiB", comb(5, 3 * MIB)),
            ("fence:cycles=7", fence(7)),
            ("stream-per-buffer:calls=5,streams=3,bytes=1GiB", stream_per_buffer(5, 3, 1024 * MIB)),
        ] {
            let (described, made) = (parse(text).unwrap(), workload.unwrap());
            assert_eq!((described.events, described.says), (made.events, made.says), "{text}");
        }
        assert_eq!(parse("comb:seed=1").unwrap().events, parse("comb:seed=2").unwrap().events);
    }

    #[test]
    fn numbers_that_make_none_are_named() {
        let said = |text: &str| parse(text).unwrap_err().to_string();
        assert!(said("robson:against=worst").starts_with("against is worst; allowed: pytorch, "));
        assert_eq!(said("robson:largest_units=3"), "there is no such adversary: the largest size must be a power of two");
        assert_eq!(said("comb:teeth=0"), "teeth is 0; allowed: 1 to 1048576");
        assert_eq!(said("stream-per-buffer:streams=70000"), "streams is 70000; allowed: 1 to 65535");
        assert!(said("comb:teeth=1000000,tooth_bytes=9GiB").starts_with("the live buffers would take more than"));
        assert!(said("fence:gaps=3").starts_with("fence has no option gaps; its options: cycles, seed, prealloc"));
    }
}
