//! Determines which features a program uses besides the plain allocator, as far as a recording shows them, and how certain
//! that is.
//!
//! A recording covers one process's allocator. Its final segments and requests show private pools, its handles show streams,
//! blocks that became free late show use by other streams, and memory released without a request that needs it shows
//! `empty_cache`. A recording cannot show what other libraries or processes do with the memory: sharing between processes,
//! registrations by NCCL or network cards, and pools with their own allocator are unknown in every recording.

use std::collections::BTreeSet;

use parkade::units::PoolId;
use parkade_recording::{DeviceRecording, Segment};
use parkade_replay::{Completion, Operation, Requests};

/// A feature that a program may use and that does not work with every setting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Feature {
    /// Private pools of any kind.
    PrivatePools,
    /// Pools of CUDA graph captures.
    GraphPools,
    /// No captured CUDA graphs.
    NoGraphPools,
    /// Pools that the program created itself, with `torch.cuda.MemPool`.
    UserPools,
    /// Private pools that released memory, because nothing uses them any more or their cache was emptied.
    PoolsGivenBack,
    /// Requests on more than one stream.
    SeveralStreams,
    /// Blocks used by streams other than their own (`record_stream`).
    OtherStreams,
    /// Calls to `empty_cache` that released memory.
    EmptyCache,
    /// More than one device in the process.
    SeveralDevices,
    /// No memory limit (`set_per_process_memory_fraction`).
    NoLimit,
    /// Pools with their own allocator (`MemPool(allocator)`, sleep modes).
    PoolAllocators,
    /// Memory that other processes open through CUDA IPC handles.
    OtherProcesses,
    /// NCCL collectives inside captured CUDA graphs.
    CapturedCollectives,
    /// Memory that is registered with NCCL or a network card.
    Registrations,
    /// Settings that change while the program runs.
    ChangedSettings,
    /// A device that shares its memory with the host.
    HostMemoryDevice,
    /// A platform or build on which PyTorch cannot map memory.
    NoMapping,
}

impl Feature {
    /// Every feature.
    pub const ALL: [Feature; FEATURES] = [
        Feature::PrivatePools,
        Feature::GraphPools,
        Feature::NoGraphPools,
        Feature::UserPools,
        Feature::PoolsGivenBack,
        Feature::SeveralStreams,
        Feature::OtherStreams,
        Feature::EmptyCache,
        Feature::SeveralDevices,
        Feature::NoLimit,
        Feature::PoolAllocators,
        Feature::OtherProcesses,
        Feature::CapturedCollectives,
        Feature::Registrations,
        Feature::ChangedSettings,
        Feature::HostMemoryDevice,
        Feature::NoMapping,
    ];
}

/// The number of features.
const FEATURES: usize = Feature::NoMapping as usize + 1;

/// The features that a program uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InUse {
    evidence: [Evidence; FEATURES],
}

impl InUse {
    /// Returns a program about which nothing is known.
    #[must_use]
    pub fn unknown() -> InUse {
        InUse { evidence: [Evidence::Unknown; FEATURES] }
    }

    /// Returns the features that one device's recording shows. `requests` are those of the recording, if it has a
    /// trace.
    ///
    /// If a recording's oldest entries are missing, whatever it does not show is unknown; in a file that does not name pools
    /// (before 1.13, spec 7.8), everything about pools is unknown.
    #[must_use]
    pub fn of(device: &DeviceRecording, requests: Option<&Requests>) -> InUse {
        let mut in_use = InUse::unknown();
        let is_complete = requests.is_some_and(|requests| requests.lost_beginning.is_none());
        in_use.set_pools(device, requests, is_complete);
        let mut streams: BTreeSet<u64> = device.segments.iter().map(|segment| segment.stream).collect();
        streams.extend(requests.into_iter().flat_map(streams_of));
        in_use.set(Feature::SeveralStreams, seen(streams.len() > 1, is_complete));
        if let Some(requests) = requests {
            let has = |wanted: fn(&Operation) -> bool| requests.operations.iter().any(|(_, operation)| wanted(operation));
            in_use.set(Feature::OtherStreams, seen(has(is_late), is_complete));
            in_use.set(Feature::EmptyCache, seen(has(|operation| *operation == Operation::EmptyCache), is_complete));
            let gives_back = |operation: &Operation| matches!(operation, Operation::AbandonPool(_) | Operation::ReleasePool(_));
            in_use.set(Feature::PoolsGivenBack, seen(has(gives_back), is_complete));
        }
        in_use
    }

    /// Returns the same program on this many devices.
    #[must_use]
    pub fn on_devices(mut self, devices: usize) -> InUse {
        // A file lists every device on which memory was allocated.
        self.set(Feature::SeveralDevices, seen(devices > 1, true));
        self
    }

    /// Returns the same program, in a process that sees this many devices: a snapshot lists each of them. With one device,
    /// the process shares no memory with another through NCCL or a network card.
    #[must_use]
    pub fn seeing(mut self, devices: usize) -> InUse {
        if devices == 1 {
            self.set(Feature::CapturedCollectives, Evidence::NotShown);
            self.set(Feature::Registrations, Evidence::NotShown);
        }
        self
    }

    /// Returns the same program, but known to run with or without a memory limit.
    #[must_use]
    pub fn limited(mut self, is_limited: bool) -> InUse {
        self.set(Feature::NoLimit, seen(!is_limited, true));
        self
    }

    /// Returns the same program, but with what the caller knows about one feature.
    #[must_use]
    pub fn with(mut self, feature: Feature, evidence: Evidence) -> InUse {
        self.set(feature, evidence);
        self
    }

    /// Returns the evidence on whether the program uses a feature.
    #[must_use]
    pub fn evidence(&self, feature: Feature) -> Evidence {
        self.evidence[feature as usize]
    }

    fn set(&mut self, feature: Feature, evidence: Evidence) {
        self.evidence[feature as usize] = evidence;
    }

    fn set_pools(&mut self, device: &DeviceRecording, requests: Option<&Requests>, is_complete: bool) {
        let named: BTreeSet<(u64, u64)> = device.segments.iter().filter_map(private_pool).collect();
        let is_said = device.segments.iter().all(|segment| segment.pool.is_some());
        let asked: &[PoolId] = requests.map_or(&[], |requests| &requests.pools);
        // The replay infers pools that no longer existed at the end, but not their kind.
        let are_named = asked.iter().all(|pool| named.contains(&(pool.0, pool.1)));
        let is_sure = is_complete && is_said;
        let is_graph = |&(first, _): &(u64, u64)| first != 0;
        let has_graphs = named.iter().any(is_graph);
        let has_others = !named.iter().all(is_graph);
        self.set(Feature::PrivatePools, seen(!named.is_empty() || !asked.is_empty(), is_sure));
        // A pool with an id of the form (0, k) may be shared by captures (`graph_pool_handle`), or be a MemPool (spec 5.1).
        self.set(Feature::GraphPools, seen(has_graphs, is_sure && are_named && !has_others));
        self.set(Feature::UserPools, if has_others { Evidence::Unknown } else { seen(false, is_sure && are_named) });
        let without = match self.evidence(Feature::GraphPools) {
            Evidence::Shown => Evidence::NotShown,
            Evidence::Unknown => Evidence::Unknown,
            Evidence::NotShown => Evidence::Shown,
        };
        self.set(Feature::NoGraphPools, without);
        if self.evidence(Feature::GraphPools) == Evidence::NotShown {
            self.set(Feature::CapturedCollectives, Evidence::NotShown);
        }
    }
}

/// Returns whether a block became free later than the program freed it. At entry 0 this may also be the second half of a free
/// whose first half is missing from the recording.
fn is_late(operation: &Operation) -> bool {
    let late = |completion| !matches!(completion, Completion::AtOnce | Completion::AtEntry(0));
    matches!(operation, Operation::Free { completion, .. } if late(*completion))
}

/// Returns the evidence for a feature that a recording shows or does not show. Only if `is_sure` does the feature's absence
/// mean that it is not in use.
fn seen(is_seen: bool, is_sure: bool) -> Evidence {
    match (is_seen, is_sure) {
        (true, _) => Evidence::Shown,
        (false, true) => Evidence::NotShown,
        (false, false) => Evidence::Unknown,
    }
}

fn private_pool(segment: &Segment) -> Option<(u64, u64)> {
    segment.pool.filter(|&pool| pool != (0, 0))
}

fn streams_of(requests: &Requests) -> impl Iterator<Item = u64> {
    requests.operations.iter().filter_map(|(_, operation)| match *operation {
        Operation::Allocate { stream, .. } => Some(stream),
        _ => None,
    })
}

/// The certainty that a program uses a feature.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Evidence {
    /// The program does not use it: the recording would show it.
    NotShown,
    /// The recording cannot show it, or the part that would show it is missing.
    Unknown,
    /// The recording shows it.
    Shown,
}

parkade_recording::names! {
    Evidence {
        Evidence::NotShown => "not shown",
        Evidence::Unknown => "unknown",
        Evidence::Shown => "shown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(stream: u64, pool: Option<(u64, u64)>) -> Segment {
        Segment { address: 1 << 40, total_bytes: 2 << 20, stream, pool, ..Segment::new(Vec::new()) }
    }

    fn allocate(id: usize, stream: u64) -> (usize, Operation) {
        (id, Operation::Allocate { id, bytes: 512, stream, pool: PoolId::DEFAULT, failed: false })
    }

    fn device(pools: &[Option<(u64, u64)>]) -> DeviceRecording {
        DeviceRecording { segments: pools.iter().map(|&pool| segment(0, pool)).collect(), ..DeviceRecording::default() }
    }

    fn pools_of(in_use: &InUse) -> [Evidence; 4] {
        [Feature::PrivatePools, Feature::GraphPools, Feature::NoGraphPools, Feature::UserPools]
            .map(|feature| in_use.evidence(feature))
    }

    #[test]
    fn pool_ids_tell_kinds_of_pools_apart_as_far_as_possible() {
        use Evidence::{NotShown, Shown, Unknown};
        let requests = Requests::default();
        let of = |pools: &[_]| pools_of(&InUse::of(&device(pools), Some(&requests)));
        assert_eq!(of(&[Some((0, 0))]), [NotShown, NotShown, Shown, NotShown]);
        assert_eq!(of(&[Some((0, 0)), Some((3, 0))]), [Shown, Shown, NotShown, NotShown]);
        // An id of this form belongs to a MemPool or to a pool that captures share.
        assert_eq!(of(&[Some((0, 2))]), [Shown, Unknown, Unknown, Unknown]);
        assert_eq!(of(&[Some((0, 2)), Some((1, 0))]), [Shown, Shown, NotShown, Unknown]);
        assert_eq!(of(&[None]), [Unknown; 4], "an old file does not name pools");
        let gone = Requests { pools: vec![PoolId(0, 1)], ..Requests::default() };
        assert_eq!(pools_of(&InUse::of(&device(&[Some((0, 0))]), Some(&gone))), [Shown, Unknown, Unknown, Unknown]);
    }

    #[test]
    fn what_a_file_without_a_trace_or_its_beginning_does_not_show_is_unknown() {
        let lists_only = InUse::of(&device(&[Some((0, 0)), Some((1, 0))]), None);
        assert_eq!(lists_only.evidence(Feature::GraphPools), Evidence::Shown);
        for feature in [Feature::SeveralStreams, Feature::OtherStreams, Feature::EmptyCache, Feature::PoolsGivenBack] {
            assert_eq!(lists_only.evidence(feature), Evidence::Unknown, "{feature:?}");
        }
        let cut = Requests { lost_beginning: Some(Default::default()), ..Requests::default() };
        assert_eq!(pools_of(&InUse::of(&device(&[Some((0, 0))]), Some(&cut))), [Evidence::Unknown; 4]);
    }

    #[test]
    fn streams_and_calls_show_in_the_requests() {
        let free = |completion| (9, Operation::Free { id: 0, completion });
        let of = |operations: Vec<_>| InUse::of(&device(&[]), Some(&Requests { operations, ..Requests::default() }));
        let shown = |in_use: &InUse| {
            [Feature::SeveralStreams, Feature::OtherStreams, Feature::EmptyCache, Feature::PoolsGivenBack]
                .map(|feature| in_use.evidence(feature) == Evidence::Shown)
        };
        assert_eq!(shown(&of(vec![allocate(0, 0), allocate(1, 0), free(Completion::AtOnce)])), [false; 4]);
        assert_eq!(shown(&of(vec![allocate(0, 0), allocate(1, 7)])), [true, false, false, false]);
        assert_eq!(shown(&of(vec![allocate(0, 0), free(Completion::Never)])), [false, true, false, false]);
        assert_eq!(shown(&of(vec![allocate(0, 0), free(Completion::AtEntry(0))])), [false; 4], "its request may be lost");
        assert_eq!(shown(&of(vec![(0, Operation::EmptyCache)])), [false, false, true, false]);
        assert_eq!(shown(&of(vec![(0, Operation::AbandonPool(PoolId(1, 0)))])), [false, false, false, true]);
    }

    #[test]
    fn the_caller_tells_how_many_devices_there_are_and_whether_there_is_a_limit() {
        let in_use = InUse::unknown().on_devices(2).limited(true);
        let known = |feature| in_use.evidence(feature);
        assert_eq!((known(Feature::SeveralDevices), known(Feature::NoLimit)), (Evidence::Shown, Evidence::NotShown));
        let collectives = |in_use: InUse| in_use.evidence(Feature::CapturedCollectives);
        let seeing = |devices| collectives(InUse::unknown().seeing(devices));
        assert_eq!((seeing(1), seeing(8)), (Evidence::NotShown, Evidence::Unknown));
        let without_graphs = InUse::of(&device(&[Some((0, 0))]), Some(&Requests::default()));
        assert_eq!(collectives(without_graphs), Evidence::NotShown, "nothing is captured");
        let in_use = InUse::unknown().on_devices(1).limited(false);
        let known = |feature| in_use.evidence(feature);
        assert_eq!((known(Feature::SeveralDevices), known(Feature::NoLimit)), (Evidence::NotShown, Evidence::Shown));
    }
}
