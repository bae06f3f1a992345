//! An allocator under attack: its adversary sees where each buffer is placed, and all requests are written down.

use std::collections::BTreeMap;

use parkade::policy::Policy;
use parkade::stats::Family;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, Allocator};
use parkade_sim::{SimDevice, SimOptions};

use super::attack::{Attack, AttackError};
use crate::workload::{Event, Workload};

/// More memory than any attack uses.
const PLENTY: Bytes = Bytes(1 << 50);

/// An allocator under attack.
pub(super) struct Probe {
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
    pub(super) fn new(policy: Box<dyn Policy + Send>) -> Probe {
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
    pub(super) fn allocate(&mut self, bytes: u64) -> Result<(), AttackError> {
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

    /// Frees every buffer for which `keep` is false. `keep` is called with the buffer's position and bytes.
    pub(super) fn free_unless(&mut self, keep: impl Fn(u64, u64) -> bool) -> Result<(), AttackError> {
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

    /// The position and the bytes of each live buffer.
    pub(super) fn live(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.live.values().map(|live| (live.position, live.bytes))
    }

    /// The bytes live now, as requested.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The outcome of the attack.
    pub(super) fn finish(self, name: String, says: String) -> Attack {
        Attack {
            workload: Workload { name, says, events: self.events, ..Workload::default() },
            load_bytes: self.load_bytes,
            reserved_bytes: u64::try_from(self.core.stats().family(Family::ReservedBytes).all.peak).unwrap_or(0),
            address_bytes: self.addresses.end,
            gave_back: self.gave_back,
        }
    }

    /// Notes memory that was taken from the device or released to it.
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

/// All addresses that ever had memory, put one after the other in the order in which they got it. No block spans
/// two segments, so a placement in segments is also a placement in this one region, to which the theorems apply.
#[derive(Default)]
struct Addresses {
    /// The ranges by first address: length, and position in the region.
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

    /// The position of an address that has memory.
    fn position(&self, address: u64) -> u64 {
        self.ranges.range(..=address).next_back().map_or(0, |(&first, &(_, position))| position + (address - first))
    }
}
