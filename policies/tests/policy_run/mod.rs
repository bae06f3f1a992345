//! A policy by name on a simulated device, driven by hand: blocks have letters, and positions are offsets in
//! segments.

#![allow(dead_code, reason = "not every test uses everything")]

use std::collections::BTreeMap;

use parkade::policy::Policy;
use parkade::snapshot::SegmentInfo;
use parkade::units::{Bytes, MIB, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use parkade_policies::named;
use parkade_sim::{CallName, SimDevice, SimOptions};

pub(crate) const KIB: u64 = 1024;

pub(crate) struct Run {
    pub(crate) core: Allocator<SimDevice, Box<dyn Policy + Send>>,
    out: BTreeMap<char, Allocation>,
}

impl Run {
    /// Creates a run on a device with this many MiB, all of them free.
    pub(crate) fn new(policy: &str, capacity_mib: u64) -> Run {
        Run::on(policy, SimOptions::new(Bytes::mib(capacity_mib)))
    }

    pub(crate) fn on(policy: &str, options: SimOptions) -> Run {
        let policy = named(policy).expect("a policy of the catalogue").make();
        Run::of(policy, options)
    }

    pub(crate) fn of(policy: Box<dyn Policy + Send>, options: SimOptions) -> Run {
        Run { core: Allocator::new(SimDevice::new(options), policy, ()), out: BTreeMap::new() }
    }

    /// Allocates `bytes` on a stream. Returns the block's offset in its segment.
    pub(crate) fn take_on(&mut self, stream: u64, name: char, bytes: u64) -> u64 {
        let allocation = self.core.allocate(Bytes(bytes), StreamId(stream)).expect("room");
        self.core.check().expect("a sound heap");
        let (start, _) = self.core.segment_of(&allocation).expect("ours");
        let offset = allocation.address().get() - start.get();
        assert!(self.out.insert(name, allocation).is_none(), "{name} is taken");
        offset
    }

    /// Allocates `bytes` on the default stream. Returns the block's offset in its segment.
    pub(crate) fn take(&mut self, name: char, bytes: u64) -> u64 {
        self.take_on(0, name, bytes)
    }

    /// Like [`Run::take`], in whole MiB.
    pub(crate) fn take_mib(&mut self, name: char, mib: u64) -> u64 {
        let offset = self.take(name, mib * MIB);
        assert!(offset.is_multiple_of(MIB), "{name} begins at {offset}");
        offset / MIB
    }

    /// Whether a request runs out of memory. If it succeeds, the allocation is freed again.
    pub(crate) fn is_out_on(&mut self, stream: u64, bytes: u64) -> bool {
        let outcome = self.core.allocate(Bytes(bytes), StreamId(stream));
        self.core.check().expect("a sound heap");
        match outcome {
            Ok(allocation) => {
                self.core.free(allocation).expect("ours");
                false
            }
            Err(AllocError::OutOfMemory(_)) => true,
            Err(other) => panic!("{other}"),
        }
    }

    pub(crate) fn is_out(&mut self, bytes: u64) -> bool {
        self.is_out_on(0, bytes)
    }

    pub(crate) fn give(&mut self, names: &str) {
        for name in names.chars() {
            let allocation = self.out.remove(&name).expect("taken before");
            self.core.free(allocation).expect("ours");
            self.core.check().expect("a sound heap");
        }
    }

    /// The index of a live block's segment among all segments, by address.
    pub(crate) fn segment_of(&self, name: char) -> usize {
        let (start, _) = self.core.segment_of(&self.out[&name]).expect("ours");
        let mut starts: Vec<u64> = self.core.segments().iter().map(|segment| segment.address.get()).collect();
        starts.sort_unstable();
        starts.iter().position(|&own| own == start.get()).expect("listed")
    }

    /// The sizes of all segments in bytes, by address.
    pub(crate) fn segments(&self) -> Vec<u64> {
        self.core.segments().iter().map(|segment: &SegmentInfo| segment.total.get()).collect()
    }

    /// The same in whole MiB.
    pub(crate) fn segments_mib(&self) -> Vec<u64> {
        self.segments().iter().map(|bytes| bytes / MIB).collect()
    }

    pub(crate) fn reserved_mib(&self) -> u64 {
        let reserved = self.core.heap().reserved().get();
        assert!(reserved.is_multiple_of(MIB), "{reserved} bytes are reserved");
        reserved / MIB
    }

    pub(crate) fn calls(&self, call: CallName) -> u64 {
        self.core.device().totals(call).calls
    }

    /// Whether work submitted to a stream now would begin immediately.
    pub(crate) fn is_idle(&mut self, stream: u64) -> bool {
        use parkade::device::DeviceBackend;
        let device = self.core.device_mut();
        let mut event = device.create_event().expect("an event");
        device.record_event(&mut event, StreamId(stream)).expect("a stream");
        let done = device.is_complete(&event).expect("an event");
        device.destroy_event(event);
        done
    }
}
