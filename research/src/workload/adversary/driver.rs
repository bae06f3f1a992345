//! A program that looks where its buffers are while it runs, and writes down what it asked for.

use std::collections::BTreeMap;

use parkade::policy::Policy;
use parkade::stats::Family;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, Allocator};

use super::{Attack, AttackError};
use crate::workload::{Event, Workload};
use parkade_sim::{SimDevice, SimOptions};

/// A device that no attack fills.
const PLENTY: Bytes = Bytes(1 << 50);

/// An allocator under attack.
pub(super) struct Driver {
    core: Allocator<SimDevice, Box<dyn Policy + Send>, Vec<TraceEntry>>,
    events: Vec<Event>,
    buffers: u32,
    /// What is allocated, by its number.
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

impl Driver {
    pub(super) fn new(policy: Box<dyn Policy + Send>) -> Driver {
        Driver {
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

    /// Asks for memory on the default stream.
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

    /// Gives back every buffer of which `keep` does not hold, which is told its position and its bytes.
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

    /// Position and bytes of each buffer.
    pub(super) fn live(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.live.values().map(|live| (live.position, live.bytes))
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    pub(super) fn finish(self, name: String, says: String) -> Attack {
        Attack {
            workload: Workload { name, says, events: self.events },
            load_bytes: self.load_bytes,
            reserved_bytes: u64::try_from(self.core.stats().family(Family::ReservedBytes).all.peak).unwrap_or(0),
            address_bytes: self.addresses.end,
            gave_back: self.gave_back,
        }
    }

    /// Learns of new memory, and of memory that went back.
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

/// All addresses that ever had memory, one range behind the other in the order in which they got it: no block spans two segments, so a
/// placing in segments is a placing in this one region, to which the theorems apply.
#[derive(Default)]
struct Addresses {
    /// First address of a range -> its length and its position in the region.
    ranges: BTreeMap<u64, (u64, u64)>,
    end: u64,
}

impl Addresses {
    fn add(&mut self, address: u64, bytes: u64) {
        // What had memory before keeps its position.
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
