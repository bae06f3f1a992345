//! The simulated device itself: its parts, their initial state, and the steps that all calls share.
//!
//! The calls are in the other files of this folder. This one knows none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::options::SimOptions;
use crate::address::AddressModel;
use crate::calls::{CallLog, CallName, CallSubject, NOT_READY};
use crate::costs::{Clock, CostModel};
use crate::faults::FaultPlan;
use crate::memory::{PageRun, PageRuns, PhysicalMemory};
use crate::race::Detector;
use crate::range_maps::Intervals;
use crate::ranges::{Ranges, SharedPages};
use crate::streams::{Captures, Streams};
use crate::virtual_memory::{AffectedMappings, VirtualMemory};

/// A GPU made of arithmetic.
///
/// The allocator drives it through [`DeviceBackend`](parkade::device::DeviceBackend). The methods below are
/// for tests and tools: they launch work, move the clock, change what others hold, inject faults, and read
/// the accounts, the log and the races. A clone is an independent device in the same state; events and memory
/// of the original are valid on it.
#[derive(Clone, Debug)]
pub struct SimDevice {
    pub(super) index: u32,
    pub(super) total_bytes: u64,
    /// Whether the reported total was set explicitly. Otherwise it follows the capacity.
    pub(super) total_is_fixed: bool,
    pub(super) shares_pages: bool,
    pub(super) free_waits: bool,
    pub(super) reports_processes: bool,
    pub(super) most_handles: u64,
    pub(super) memory: PhysicalMemory,
    /// The pages behind every range that the address model placed.
    pub(super) placed: Intervals<PageRuns>,
    pub(super) shared_pages: SharedPages,
    pub(super) ranges: Ranges,
    pub(super) address_model: Box<dyn AddressModel>,
    pub(super) reservation_model: Box<dyn AddressModel>,
    pub(super) virtual_memory: VirtualMemory,
    /// A buffer for calls about several mappings, empty between calls.
    pub(super) affected: AffectedMappings,
    /// Whether the next cuMemCreate tries the fabric handle type first.
    pub(super) fabric_probe_due: bool,
    pub(super) cost_model: Arc<dyn CostModel>,
    pub(super) streams: Streams,
    pub(super) captures: Captures,
    /// `None` until the first work that declares an access.
    pub(super) races: Option<Box<Detector>>,
    pub(super) clock: Clock,
    pub(super) live_events: BTreeSet<u64>,
    pub(super) next_event: u64,
    pub(super) fail_next: u64,
    pub(super) faults: FaultPlan,
    pub(super) log: CallLog,
    /// Bytes held by others that appear in no process list.
    pub(super) unlisted_bytes: u64,
    /// Bytes held by other processes, by process id.
    pub(super) other_processes: BTreeMap<u32, u64>,
}

impl SimDevice {
    /// An idle, empty device at time zero.
    #[must_use]
    pub fn new(options: SimOptions) -> Self {
        let mut memory = PhysicalMemory::new(options.capacity_bytes, options.base_bytes);
        memory.set_withheld(options.withheld_bytes);
        SimDevice {
            index: options.index,
            total_bytes: options.total_bytes.unwrap_or(options.capacity_bytes),
            total_is_fixed: options.total_bytes.is_some(),
            shares_pages: options.shares_pages,
            free_waits: options.free_waits,
            reports_processes: options.reports_processes,
            most_handles: options.most_handles,
            memory,
            placed: Intervals::default(),
            shared_pages: SharedPages::default(),
            ranges: Ranges::default(),
            address_model: options.address_model,
            reservation_model: options.reservation_model,
            virtual_memory: VirtualMemory::default(),
            affected: AffectedMappings::default(),
            fabric_probe_due: options.probes_fabric,
            cost_model: options.cost_model,
            streams: Streams::new(options.event_timing),
            captures: Captures::default(),
            races: None,
            clock: Clock::default(),
            live_events: BTreeSet::new(),
            next_event: 0,
            fail_next: 0,
            faults: FaultPlan::none(),
            log: CallLog::default(),
            unlisted_bytes: 0,
            other_processes: BTreeMap::new(),
        }
    }

    /// Counts a call and advances the clock by its price.
    pub(super) fn charge(&mut self, name: CallName, bytes: u64) {
        let cost_ns = self.cost_model.cost_ns(name, bytes);
        self.clock.charge(name, cost_ns);
    }

    /// Counts a call in the fault plan.
    ///
    /// # Errors
    /// The code that the call must fail with, if a fault is due.
    pub(super) fn planned_failure(&mut self, name: CallName) -> Result<(), u32> {
        self.faults.next(name).map_or(Ok(()), |error| Err(error.code()))
    }

    /// Logs how a call ended, and counts a failure.
    pub(super) fn note(&mut self, name: CallName, result: u32, subject: impl FnOnce() -> CallSubject) {
        if result != 0 && result != NOT_READY {
            self.clock.note_failure(name);
        }
        self.log.push(name, result, self.clock.now_ns(), subject);
    }

    /// Makes a call wait until every stream is idle. Everything is complete then, under every event timing.
    pub(super) fn wait_for_device(&mut self, name: CallName) {
        self.clock.wait_until(name, self.streams.idle_at_ns());
        self.streams.complete_all(self.clock.now_ns());
        if let Some(races) = &mut self.races {
            races.host_waits_for_all();
        }
    }

    /// Completes a stream that the host has waited for.
    pub(super) fn finish_stream(&mut self, stream: u64) {
        self.streams.complete(stream, self.clock.now_ns());
        if let Some(races) = &mut self.races {
            races.host_waits_for(stream);
        }
    }

    /// Returns pages, and drops their contents and the accesses to them.
    pub(super) fn give_back(&mut self, runs: &[PageRun]) {
        self.memory.give_back(runs);
        if let Some(races) = &mut self.races {
            races.given_back(runs);
        }
    }
}
