//! Answers the five questions of the documents' out-of-memory workflow from figures, and infers the memory limit that the
//! answers depend on.
//!
//! The problem is one of capacity if the live bytes and the request together exceed the memory. If they do not, the request
//! failed because the free bytes were in the wrong places.
//!
//! A recording does not contain the memory limit, but it shows which requests were served and which were refused
//! ([`LimitEvidence`]). Here, a limit is the most that the process could reserve: its memory limit
//! (`set_per_process_memory_fraction`) or the device's memory.

use super::breakdown::{Breakdown, Cause};

/// Why the request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The live bytes and the request exceed the memory, so no arrangement helps.
    Capacity,
    /// The live bytes and the request would have fitted, but the free bytes were in the wrong places.
    Fragmentation,
    /// The live bytes and the request would have fitted, but most free bytes belonged to other streams or waited for events.
    Streams,
    /// The live bytes and the request would have fitted, but most free bytes were in private pools.
    PrivatePools,
    /// The verdict depends on the limit, which is not known precisely enough.
    Undecided,
    /// No request failed.
    NoFailure,
}

parkade_recording::names! {
    Verdict {
        Verdict::Capacity => "capacity",
        Verdict::Fragmentation => "fragmentation",
        Verdict::Streams => "streams",
        Verdict::PrivatePools => "private_pools",
        Verdict::Undecided => "undecided",
        Verdict::NoFailure => "no_failure",
    }
}

/// Whether a step of the workflow applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applies {
    /// It does.
    Yes,
    /// The step does not apply.
    No,
    /// The figures do not show it.
    Unknown,
}

parkade_recording::names! {
    Applies {
        Applies::Yes => "yes",
        Applies::No => "no",
        Applies::Unknown => "unknown",
    }
}

impl From<bool> for Applies {
    fn from(applies: bool) -> Applies {
        if applies { Applies::Yes } else { Applies::No }
    }
}

/// The workflow's answers. The workflow's fifth step, to look at the snapshot, is the rest of the diagnosis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steps {
    /// Step 1: is it a real capacity problem?
    pub capacity: Applies,
    /// Step 2: is it fragmentation?
    pub fragmentation: Applies,
    /// Step 3: may other settings help? The answer is unknown if no more bytes are missing than are lost to rounding, because
    /// settings can change the rounding. If most free bytes are in private pools, which no setting releases, the answer is
    /// no, or unknown if the request would have fitted in addition to the pools.
    pub settings: Applies,
    /// Step 4: would `empty_cache` release anything?
    pub empty_cache: Applies,
    /// The sum of the live bytes and the request.
    pub needed_bytes: u64,
    /// The number of missing bytes, if known and not 0.
    pub short_bytes: Option<u64>,
    /// The bytes that could still be reserved, if known.
    pub unreserved_bytes: Option<u64>,
}

/// Judges why a request of `asked_bytes` failed in this heap; `None` if no request failed.
pub(super) fn judge(heap: &Breakdown, asked_bytes: Option<u64>, limit: Limit) -> (Verdict, Steps) {
    let empty_cache = Applies::from(heap.releasable_bytes() > 0);
    let allocated_bytes = heap.allocated_bytes();
    let Some(asked_bytes) = asked_bytes else {
        let steps = Steps {
            capacity: Applies::No,
            fragmentation: Applies::No,
            settings: Applies::No,
            empty_cache,
            needed_bytes: allocated_bytes,
            short_bytes: None,
            unreserved_bytes: None,
        };
        return (Verdict::NoFailure, steps);
    };
    let needed_bytes = allocated_bytes.saturating_add(asked_bytes);
    let most_bytes = match limit {
        Limit::Given { bytes } | Limit::DeviceFull { bytes } => Some(bytes),
        _ => None,
    };
    let fits = match limit {
        // Enough reserved bytes are free, regardless of the limit.
        _ if heap.stranded_bytes() >= asked_bytes => Some(true),
        Limit::Given { bytes } | Limit::DeviceFull { bytes } => Some(needed_bytes <= bytes),
        Limit::Between { at_least_bytes, .. } if needed_bytes <= at_least_bytes => Some(true),
        Limit::Between { below_bytes, .. } if needed_bytes >= below_bytes => Some(false),
        _ => None,
    };
    let verdict = match fits {
        None => Verdict::Undecided,
        Some(false) => Verdict::Capacity,
        Some(true) => match main_group(heap) {
            Some(Cause::PendingEvent | Cause::OtherStream) => Verdict::Streams,
            Some(Cause::PrivatePool) => Verdict::PrivatePools,
            _ => Verdict::Fragmentation,
        },
    };
    let short_bytes = most_bytes.map(|most| needed_bytes.saturating_sub(most)).filter(|&short| short > 0);
    let rounding_decides = short_bytes.is_some_and(|short| heap.rounding_bytes >= short);
    // Whether the request would have fitted if the private pools kept their memory.
    let private_bytes = heap.of(Cause::PrivatePool).bytes;
    let fits_beside = heap.stranded_bytes().saturating_sub(private_bytes) >= asked_bytes
        || most_bytes.is_some_and(|most| needed_bytes.saturating_add(private_bytes) <= most);
    let of_fit = |fitting: bool| fits.map_or(Applies::Unknown, |fits| Applies::from(fits == fitting));
    let steps = Steps {
        capacity: of_fit(false),
        fragmentation: of_fit(true),
        settings: match verdict {
            Verdict::PrivatePools if fits_beside => Applies::Unknown,
            Verdict::PrivatePools => Applies::No,
            _ if rounding_decides => Applies::Unknown,
            _ => of_fit(true),
        },
        empty_cache,
        needed_bytes,
        short_bytes,
        unreserved_bytes: most_bytes.map(|most| most.saturating_sub(heap.reserved_bytes)),
    };
    (verdict, steps)
}

/// Returns a cause from the group of causes that strands the most bytes. The groups are streams and events, private pools,
/// and everything else. Of equal groups, everything else counts first, then streams and events, as in `advise`.
fn main_group(heap: &Breakdown) -> Option<Cause> {
    let bytes = |causes: &[Cause]| causes.iter().map(|&cause| heap.of(cause).bytes).fold(0, u64::saturating_add);
    let streams = bytes(&[Cause::PendingEvent, Cause::OtherStream]);
    let private = bytes(&[Cause::PrivatePool]);
    let rest = heap.stranded_bytes().saturating_sub(streams).saturating_sub(private);
    let groups = [(private, Cause::PrivatePool), (streams, Cause::OtherStream), (rest, Cause::TooSmall)];
    groups.into_iter().filter(|&(bytes, _)| bytes > 0).max_by_key(|&(bytes, _)| bytes).map(|(_, cause)| cause)
}

/// The limit, as far as a recording shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LimitEvidence {
    /// The largest number of bytes that were reserved, and the number of entries before that.
    pub served: Option<(u64, usize)>,
    /// The smallest number of reserved bytes that was refused, and the entry of the request that needed them.
    pub refused: Option<(u64, usize)>,
    /// The device's free memory at the out-of-memory error, if one occurred.
    pub device_free_bytes: Option<u64>,
    /// The bytes that the allocator tried to take from the device.
    pub tried_bytes: Option<u64>,
}

/// The facts known about the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The caller specified it.
    Given {
        /// The most that could be reserved.
        bytes: u64,
    },
    /// The device was full: it had less free memory than the allocator tried to take.
    DeviceFull {
        /// The reserved bytes plus the device's remaining free bytes.
        bytes: u64,
    },
    /// The limit lies between what was served and what was refused.
    Between {
        /// The limit is at least this many bytes, which were reserved.
        at_least_bytes: u64,
        /// The limit is less than this many bytes, which were refused.
        below_bytes: u64,
    },
    /// Fewer bytes were refused at one time than were reserved at another, so the limit was not fixed: other processes also
    /// used the device.
    NotFixed {
        /// The largest number of bytes reserved.
        reserved_bytes: u64,
        /// The smallest number of bytes refused.
        refused_bytes: u64,
    },
    /// Nothing was refused.
    NeverReached {
        /// The limit is at least this many bytes, the most that were reserved.
        at_least_bytes: u64,
    },
}

parkade_recording::names! {
    Limit {
        Limit::Given { .. } => "given",
        Limit::DeviceFull { .. } => "device_full",
        Limit::Between { .. } => "between",
        Limit::NotFixed { .. } => "not_fixed",
        Limit::NeverReached { .. } => "never_reached",
    }
}

/// Evidence in a file that contradicts a limit that the caller specified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contradiction {
    /// More than the limit was reserved.
    Reserved {
        /// The bytes reserved.
        bytes: u64,
        /// The number of entries after which they were reserved.
        entries: usize,
    },
    /// A request was refused although it would have stayed within the limit.
    Refused {
        /// The bytes that would have been reserved.
        bytes: u64,
        /// The request's entry.
        entry: usize,
    },
}

impl LimitEvidence {
    /// Records that this much was reserved after this many entries.
    pub(super) fn serve(&mut self, reserved_bytes: u64, entries: usize) {
        if self.served.is_none_or(|(most, _)| reserved_bytes > most) {
            self.served = Some((reserved_bytes, entries));
        }
    }

    /// Records that a request was refused that would have raised reserved memory to this much.
    pub(super) fn refuse(&mut self, wanted_bytes: u64, entry: usize) {
        if self.refused.is_none_or(|(least, _)| wanted_bytes < least) {
            self.refused = Some((wanted_bytes, entry));
        }
    }

    /// Returns evidence that contradicts a limit of `limit_bytes`, if any.
    #[must_use]
    pub fn contradiction(&self, limit_bytes: u64) -> Option<Contradiction> {
        let reserved = self.served.filter(|&(bytes, _)| bytes > limit_bytes);
        let refused = self.refused.filter(|&(bytes, _)| bytes <= limit_bytes);
        let reserved = reserved.map(|(bytes, entries)| Contradiction::Reserved { bytes, entries });
        reserved.or_else(|| refused.map(|(bytes, entry)| Contradiction::Refused { bytes, entry }))
    }

    /// Concludes from the evidence what is known about the limit. `given_bytes` is the limit that the caller specified, and
    /// `reserved_bytes` is the number of bytes reserved at the out-of-memory error.
    pub(super) fn conclude(&self, given_bytes: Option<u64>, reserved_bytes: u64) -> Limit {
        if let Some(bytes) = given_bytes {
            return Limit::Given { bytes };
        }
        if let (Some(free), Some(tried)) = (self.device_free_bytes, self.tried_bytes)
            && free < tried
        {
            return Limit::DeviceFull { bytes: reserved_bytes.saturating_add(free) };
        }
        let at_least_bytes = self.served.map_or(0, |(bytes, _)| bytes);
        match self.refused {
            None => Limit::NeverReached { at_least_bytes },
            Some((below_bytes, _)) if at_least_bytes < below_bytes => Limit::Between { at_least_bytes, below_bytes },
            Some((refused_bytes, _)) => Limit::NotFixed { reserved_bytes: at_least_bytes, refused_bytes },
        }
    }
}

#[cfg(test)]
mod tests {
    use parkade::snapshot::SegmentInfo;
    use parkade::units::{MIB, PoolId, StreamId};
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::diagnose::breakdown::sample_heaps::{Is, asked, segment_of, under};
    use crate::diagnose::breakdown::stranded;

    /// No setting releases a private pool. If the request would have fitted in addition to the pool, a setting may still
    /// help.
    #[test]
    fn settings_do_not_release_private_pools() {
        let private = SegmentInfo { pool: PoolId(0, 1), ..segment_of(0, &[(30 * MIB, Is::Free)]) };
        let judged = |free: u64, limit: u64| {
            let comb = segment_of(1 << 30, &[(free, Is::Free), (4 * MIB, Is::Live(4 * MIB)), (free, Is::Free)]);
            let heap = stranded(&[private.clone(), comb], Some(&asked(20 * MIB)), &under(""));
            assert_eq!((heap.kept_by_pools_bytes, heap.releasable_bytes()), (30 * MIB, 0));
            let (verdict, steps) = judge(&heap, Some(20 * MIB), Limit::Given { bytes: limit * MIB });
            (verdict, steps.fragmentation, steps.settings)
        };
        assert_eq!(judged(8 * MIB, 53), (Verdict::PrivatePools, Applies::Yes, Applies::No));
        assert_eq!(judged(8 * MIB, 54), (Verdict::PrivatePools, Applies::Yes, Applies::Unknown));
        assert_eq!(judged(10 * MIB, 53), (Verdict::PrivatePools, Applies::Yes, Applies::Unknown));
    }

    #[test]
    fn live_bytes_and_the_request_are_compared_with_the_limit() {
        let live = Is::Live(4 * MIB);
        let comb = segment_of(0, &[(4 * MIB, live), (6 * MIB, Is::Free), (4 * MIB, live), (6 * MIB, Is::Free)]);
        let verdict = |request: u64, limit| {
            let heap = stranded(std::slice::from_ref(&comb), Some(&asked(request)), &under(""));
            let (verdict, steps) = judge(&heap, Some(request), limit);
            (verdict, steps.capacity, steps.short_bytes)
        };
        let given = |mib: u64| Limit::Given { bytes: mib * MIB };
        let between = Limit::Between { at_least_bytes: 30 * MIB, below_bytes: 40 * MIB };
        assert_eq!(verdict(12 * MIB, given(20)), (Verdict::Fragmentation, Applies::No, None));
        assert_eq!(verdict(22 * MIB, given(30)), (Verdict::Fragmentation, Applies::No, None));
        assert_eq!(verdict(22 * MIB + 512, given(30)), (Verdict::Capacity, Applies::Yes, Some(512)));
        assert_eq!(verdict(22 * MIB, between), (Verdict::Fragmentation, Applies::No, None));
        assert_eq!(verdict(23 * MIB, between), (Verdict::Undecided, Applies::Unknown, None));
        assert_eq!(verdict(32 * MIB, between), (Verdict::Capacity, Applies::Yes, None));
        let other = SegmentInfo { stream: StreamId(8), ..segment_of(0, &[(30 * MIB, Is::Free)]) };
        let heap = stranded(&[other], Some(&asked(20 * MIB)), &under(""));
        assert_eq!(judge(&heap, Some(20 * MIB), given(30)).0, Verdict::Streams);
        assert_eq!(judge(&heap, None, given(30)).0, Verdict::NoFailure);
    }

    #[test]
    fn served_and_refused_bytes_give_an_interval() {
        let mut evidence = LimitEvidence::default();
        assert_eq!(evidence.conclude(None, 0), Limit::NeverReached { at_least_bytes: 0 });
        for (bytes, entries) in [(10, 1), (30, 2), (20, 3)] {
            evidence.serve(bytes, entries);
        }
        assert_eq!(evidence.conclude(None, 20), Limit::NeverReached { at_least_bytes: 30 });
        for (bytes, entry) in [(50, 7), (40, 8), (45, 9)] {
            evidence.refuse(bytes, entry);
        }
        assert_eq!((evidence.served, evidence.refused), (Some((30, 2)), Some((40, 8))));
        assert_eq!(evidence.conclude(None, 20), Limit::Between { at_least_bytes: 30, below_bytes: 40 });
        assert_eq!(evidence.conclude(Some(35), 20), Limit::Given { bytes: 35 });
        evidence.refuse(30, 11);
        assert_eq!(evidence.conclude(None, 20), Limit::NotFixed { reserved_bytes: 30, refused_bytes: 30 });
    }

    #[test]
    fn a_limit_below_what_was_served_or_above_what_was_refused_is_contradicted() {
        let evidence = LimitEvidence { served: Some((30, 2)), refused: Some((40, 8)), ..LimitEvidence::default() };
        assert_eq!(evidence.contradiction(29), Some(Contradiction::Reserved { bytes: 30, entries: 2 }));
        assert_eq!((evidence.contradiction(30), evidence.contradiction(39)), (None, None));
        assert_eq!(evidence.contradiction(40), Some(Contradiction::Refused { bytes: 40, entry: 8 }));
        assert_eq!(LimitEvidence::default().contradiction(0), None);
    }

    #[test]
    fn a_device_with_less_free_than_was_tried_is_full() {
        let full = LimitEvidence { device_free_bytes: Some(9), tried_bytes: Some(10), ..LimitEvidence::default() };
        assert_eq!(full.conclude(None, 100), Limit::DeviceFull { bytes: 109 });
        let limited = LimitEvidence { device_free_bytes: Some(10), ..full };
        assert_eq!(limited.conclude(None, 100), Limit::NeverReached { at_least_bytes: 0 });
    }

    /// Returns a heap of 5 live bytes, some of which are rounding, and stranded bytes: waiting for events, in private pools, of
    /// other streams, and in holes.
    fn heap([rounding_bytes, pending, private, other, holes]: [u64; 5]) -> Breakdown {
        let mut heap = stranded(&[], None, &under(""));
        (heap.requested_bytes, heap.rounding_bytes) = (5 - rounding_bytes, rounding_bytes);
        let stranded =
            [(Cause::PendingEvent, pending), (Cause::PrivatePool, private), (Cause::OtherStream, other), (Cause::Pinned, holes)];
        for (cause, bytes) in stranded {
            heap.strands[cause as usize].bytes = bytes;
        }
        heap.reserved_bytes = 5 + heap.stranded_bytes();
        heap
    }

    /// Returns all limits that are possible; none if nothing is known.
    fn possible(limit: Limit) -> Vec<u64> {
        match limit {
            Limit::Given { bytes } | Limit::DeviceFull { bytes } => vec![bytes],
            Limit::Between { at_least_bytes, below_bytes } => (at_least_bytes..below_bytes).collect(),
            Limit::NotFixed { .. } | Limit::NeverReached { .. } => Vec::new(),
        }
    }

    /// Compares with asking of each possible limit whether the live bytes and the request fit, for small heaps and limits.
    #[test]
    fn a_verdict_holds_under_every_possible_limit() {
        let mut limits = vec![Limit::NotFixed { reserved_bytes: 9, refused_bytes: 8 }, Limit::NeverReached { at_least_bytes: 9 }];
        limits.extend((4..12).flat_map(|bytes| [Limit::Given { bytes }, Limit::DeviceFull { bytes }]));
        limits
            .extend((4..11).flat_map(|least| {
                (least + 1..12).map(move |below| Limit::Between { at_least_bytes: least, below_bytes: below })
            }));
        let numbers = |most: u64| 0..=most;
        let heaps = numbers(2).flat_map(|rounding| {
            numbers(1).flat_map(move |pending| {
                numbers(2).flat_map(move |private| {
                    numbers(2).flat_map(move |other| numbers(2).map(move |holes| [rounding, pending, private, other, holes]))
                })
            })
        });
        for (parts, asked, &limit) in heaps
            .flat_map(|parts| (1..6).flat_map(move |asked| [(parts, asked)]).collect::<Vec<_>>())
            .flat_map(|(parts, asked)| limits.iter().map(move |limit| (parts, asked, limit)))
        {
            let [rounding, pending, private, other, holes] = parts;
            let (heap, needed, possible) = (heap(parts), 5 + asked, possible(limit));
            let (verdict, steps) = judge(&heap, Some(asked), limit);
            let free = pending + private + other + holes;
            let is_enough = |bytes: &u64| needed <= *bytes;
            let (fits, fails) = match possible.as_slice() {
                _ if free >= asked => (true, false),
                [] => (false, false),
                all => (all.iter().all(is_enough), !all.iter().any(is_enough)),
            };
            let streams = pending + other;
            let expected = match (fits, fails) {
                (_, true) => Verdict::Capacity,
                (false, false) => Verdict::Undecided,
                _ if streams > holes && streams >= private => Verdict::Streams,
                _ if private > holes && private > streams => Verdict::PrivatePools,
                _ => Verdict::Fragmentation,
            };
            let applies = |is: bool| if fits || fails { Applies::from(is) } else { Applies::Unknown };
            let known = if matches!(limit, Limit::Between { .. }) { None } else { possible.first().copied() };
            let short = known.map_or(0, |known| needed.saturating_sub(known));
            let fits_beside = free - private >= asked || known.is_some_and(|known| needed + private <= known);
            let settings = match expected {
                Verdict::PrivatePools if fits_beside => Applies::Unknown,
                Verdict::PrivatePools => Applies::No,
                _ if short > 0 && short <= rounding => Applies::Unknown,
                _ => applies(fits),
            };
            let expected_steps = Steps {
                capacity: applies(fails),
                fragmentation: applies(fits),
                settings,
                empty_cache: Applies::No,
                needed_bytes: needed,
                short_bytes: (short > 0).then_some(short),
                unreserved_bytes: known.map(|known| known.saturating_sub(5 + free)),
            };
            assert_eq!((verdict, steps), (expected, expected_steps), "{parts:?} {asked} {limit:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        /// Compares with looking at everything that was served or refused.
        #[test]
        fn evidence_is_the_first_extreme_of_what_was_served_and_refused(
            seen in vec((any::<bool>(), 0..8_u64), 0..10),
            free in option::of((0..4_u64, 0..4_u64)),
            limit in 0..9_u64,
        ) {
            let mut evidence = LimitEvidence {
                device_free_bytes: free.map(|(free, _)| free),
                tried_bytes: free.map(|(_, tried)| tried),
                ..LimitEvidence::default()
            };
            for (at, &(is_served, bytes)) in seen.iter().enumerate() {
                if is_served { evidence.serve(bytes, at) } else { evidence.refuse(bytes, at) }
            }
            let of = |served: bool| seen.iter().enumerate().filter(move |(_, (is_served, _))| *is_served == served);
            let most = of(true).map(|(_, (_, bytes))| *bytes).max();
            let least = of(false).map(|(_, (_, bytes))| *bytes).min();
            let first = |served, bytes| {
                of(served).find(|(_, (_, other))| *other == bytes).map(|(at, _)| (bytes, at)).expect("it is there")
            };
            prop_assert_eq!(evidence.served, most.map(|bytes| first(true, bytes)));
            prop_assert_eq!(evidence.refused, least.map(|bytes| first(false, bytes)));
            let at_least_bytes = most.unwrap_or(0);
            let expected = match (free, least) {
                (Some((free, tried)), _) if free < tried => Limit::DeviceFull { bytes: 100 + free },
                (_, None) => Limit::NeverReached { at_least_bytes },
                (_, Some(below_bytes)) if (at_least_bytes..below_bytes).is_empty() => {
                    Limit::NotFixed { reserved_bytes: at_least_bytes, refused_bytes: below_bytes }
                }
                (_, Some(below_bytes)) => Limit::Between { at_least_bytes, below_bytes },
            };
            prop_assert_eq!(evidence.conclude(None, 100), expected);
            prop_assert_eq!(evidence.conclude(Some(limit), 100), Limit::Given { bytes: limit });
            // A limit is contradicted if more was served, or if a request within it was refused.
            let contradicts =
                |&(_, &(is_served, bytes)): &(usize, &(bool, u64))| if is_served { bytes > limit } else { bytes <= limit };
            let all: Vec<(usize, &(bool, u64))> = seen.iter().enumerate().filter(contradicts).collect();
            let found = evidence.contradiction(limit);
            prop_assert_eq!(found.is_none(), all.is_empty());
            match found {
                Some(Contradiction::Reserved { bytes, entries }) => prop_assert_eq!(Some((bytes, entries)), evidence.served),
                Some(Contradiction::Refused { bytes, entry }) => {
                    prop_assert_eq!(Some((bytes, entry)), evidence.refused);
                    prop_assert!(all.iter().all(|(_, (is_served, _))| !is_served));
                }
                None => {}
            }
        }
    }
}
