//! One of the two allocators: its steps, what can be seen of it, and its end.

use std::collections::{BTreeMap, BTreeSet};

use crate::law::{Broken, Law, ensure};
use parkade::checkpoint::PoolCheckpoint;
use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB, StreamId};
use parkade::{Allocation, Allocator, PoolFilter, Restored};
use parkade_sim::{Call, CallName, CallSubject, EventTiming, FaultError, FaultPlan, SimOptions, When};

use super::{POOLS, STREAMS, Step, TEXTS};
use crate::core_laws::kept::{Kept, KeptCore};

/// An allocator, what it holds, and its device.
pub(super) struct Side {
    core: KeptCore,
    device: Kept,
    held: Vec<(Allocation, BTreeSet<StreamId>)>,
    saved: Vec<PoolCheckpoint>,
    /// The events that were recorded and are not known to be complete, with their streams.
    events: BTreeMap<u64, u64>,
    /// The streams that used what was given back.
    former: BTreeSet<u64>,
    calls: Vec<Call>,
}

impl Side {
    pub(super) fn new((is_newer, text, seed): &(bool, usize, u64)) -> Result<Side, Broken> {
        let profile = if *is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let settings = Settings::from_environment_as(&profile.dialect, TEXTS[*text]);
        let settings = settings.map_err(|error| Broken::new(Law::Settings, error))?;
        let timing = if seed % 3 == 0 { EventTiming::Lazy } else { EventTiming::Seeded(*seed) };
        let device = Kept::new(SimOptions::new(Bytes(140 * MIB)).event_timing(timing));
        let core = Allocator::new(device.share(), PyTorch::of(profile, settings), Vec::new());
        Ok(Side {
            core,
            device,
            held: Vec::new(),
            saved: Vec::new(),
            events: BTreeMap::new(),
            former: BTreeSet::new(),
            calls: Vec::new(),
        })
    }

    /// A clone of it all.
    pub(super) fn copy(&self) -> Result<Side, Broken> {
        let core = self.core.clone();
        let device = core.device().share();
        let held = self.held.iter().map(|(allocation, uses)| (allocation.in_a_clone(), uses.clone())).collect();
        let (saved, events, former, calls) = (self.saved.clone(), self.events.clone(), self.former.clone(), Vec::new());
        let copy = Side { core, device, held, saved, events, former, calls };
        let same = copy.seen() == self.seen();
        ensure(Law::Determinism, same, || format!("a clone is {}, its original {}", copy.seen(), self.seen()))?;
        Ok(copy)
    }

    /// Everything that can be seen.
    pub(super) fn seen(&self) -> String {
        let (core, heap) = (&self.core, self.core.heap());
        let free: Vec<_> = heap.pool_slots().map(|slot| heap.free_blocks(slot).collect::<Vec<_>>()).collect();
        let sums = (heap.limit(), heap.reserved(), heap.largest_free(), heap.is_deferring(), core.memory_fraction());
        let pools = (
            POOLS.map(|pool| core.pool_use_count(pool)),
            heap.device_total(),
            heap.pool_slots().map(|slot| heap.reserved_in(slot)).collect::<Vec<_>>(),
        );
        let ranges = (core.expandable_segments(), self.device.held(), self.device.look().used_bytes());
        format!("{sums:?} {pools:?} {ranges:?} {:?} {free:?} {:?} {:?}", core.stats(), core.segments(), core.policy().settings)
    }

    pub(super) fn same_as(&self, copy: &Side) -> Result<(), Broken> {
        let [seen, expected] = [copy.seen(), self.seen()];
        ensure(Law::Determinism, seen == expected, || format!("a clone is {seen}, its original {expected}"))?;
        ensure(Law::Determinism, copy.core.observer() == self.core.observer(), || "a clone tells another trace".to_owned())?;
        let plain = |calls: &[Call]| calls.iter().map(|call| (call.name, call.result, call.subject)).collect::<Vec<_>>();
        ensure(Law::Determinism, plain(&copy.calls) == plain(&self.calls), || {
            format!("a clone calls {:?}, its original {:?}", copy.calls, self.calls)
        })
    }

    /// Performs a step. Returns what is answered, in words.
    pub(super) fn act(&mut self, step: &Step) -> Result<String, Broken> {
        let answer = self.answer(step);
        self.device.steer().set_fault_plan(match step {
            Step::Fail(n) => FaultPlan::none().and(When::Nth(*n), FaultError::Code(999)),
            // A failure that is planned happens to the next step, or not at all.
            _ => FaultPlan::none(),
        });
        self.calls = self.device.steer().take_log();
        for call in self.calls.clone() {
            self.note(&call);
        }
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        Ok(answer)
    }

    /// Notes an event that is recorded, or known to be complete.
    fn note(&mut self, call: &Call) {
        match (call.name, call.subject) {
            (CallName::EventRecord, CallSubject::Event { ordinal, argument: Some(stream) }) if call.result == 0 => {
                self.events.insert(ordinal, stream);
            }
            (CallName::EventQuery | CallName::EventSynchronize, CallSubject::Event { ordinal, .. }) if call.result == 0 => {
                self.events.remove(&ordinal);
            }
            _ => {}
        }
    }

    fn answer(&mut self, step: &Step) -> String {
        let (pool, stream) = (|place: usize| POOLS[place % POOLS.len()], |place: usize| StreamId(STREAMS[place % STREAMS.len()]));
        let core = &mut self.core;
        match *step {
            Step::Allocate(size, place) => match core.allocate(Bytes(size), stream(place)) {
                Ok(allocation) => {
                    let text = format!("{allocation:?} {:?}", core.segment_of(&allocation));
                    self.held.push((allocation, BTreeSet::new()));
                    text
                }
                Err(error) => error.to_string(),
            },
            Step::Free(which) if !self.held.is_empty() => {
                let (allocation, uses) = self.held.swap_remove(which % self.held.len());
                self.former.extend(uses.iter().map(|stream| stream.get()));
                format!("{:?}", core.free(allocation))
            }
            Step::Record(which, place) if !self.held.is_empty() => {
                let place_held = which % self.held.len();
                let (allocation, uses) = &mut self.held[place_held];
                core.record_stream(allocation, stream(place));
                uses.insert(stream(place));
                String::new()
            }
            Step::Complete(place) => {
                self.device.steer().complete(stream(place));
                String::new()
            }
            Step::CompleteAll => {
                self.device.steer().complete_all();
                String::new()
            }
            Step::ProcessEvents => format!("{:?}", core.process_events()),
            Step::ReleaseCached => format!("{:?}", core.release_cached()),
            Step::Begin(place, all) => {
                let filter = if all { PoolFilter::All } else { PoolFilter::Stream(stream(place / 2)) };
                format!("{:?}", core.begin_pool(pool(place), filter))
            }
            Step::End(place) => format!("{:?}", core.end_pool(pool(place))),
            Step::Release(place) => format!("{:?}", core.release_pool(pool(place))),
            Step::ReleaseCachedPool(place) => format!("{:?}", core.release_cached_pool(pool(place))),
            _ => self.turn(step),
        }
    }

    /// Steps that reach no device, checkpoints, and views.
    fn turn(&mut self, step: &Step) -> String {
        let pool = |place: usize| POOLS[place % POOLS.len()];
        let core = &mut self.core;
        match *step {
            Step::Serve(place, serves) => core.set_pool_use_on_oom(pool(place), serves),
            Step::KeepWhole(place) => core.set_pool_no_split(pool(place)),
            Step::Capturing(is_capturing) => core.set_capturing(is_capturing),
            Step::Save(place) => {
                let answer = core.checkpoint_pool(pool(place));
                let text = format!("{answer:?}");
                self.saved.extend(answer);
                return text;
            }
            Step::Restore(which) if !self.saved.is_empty() => return self.restore(which % self.saved.len()),
            Step::Limit(bytes) => core.set_limit(bytes.map(Bytes)),
            Step::Apply(text) => {
                let dialect = &core.policy().profile().dialect;
                return format!("{:?}", core.policy_mut().settings.apply_as(dialect, TEXTS[text % TEXTS.len()]));
            }
            Step::Reset(true) => core.reset_peak_stats(),
            Step::Reset(false) => core.reset_accumulated_stats(),
            Step::Snapshot => return format!("{:?} {:?}", core.snapshot(), POOLS.map(|pool| core.snapshot_pool(pool))),
            _ => {}
        }
        String::new()
    }

    /// Restores a checkpoint. What the restore took back is no longer held, also after an error.
    fn restore(&mut self, which: usize) -> String {
        let checkpoint = &self.saved[which];
        let answer = self.core.restore_pool(checkpoint);
        let core = &self.core;
        let former = &mut self.former;
        self.held.retain(|(allocation, uses)| {
            let is_known = core.segment_of(allocation).is_some();
            former.extend(uses.iter().filter(|_| !is_known).map(|stream| stream.get()));
            is_known
        });
        match answer {
            Ok(Restored { freed, allocations }) => {
                let text = format!("{freed:?} {allocations:?}");
                self.held.extend(allocations.into_iter().map(|allocation| (allocation, BTreeSet::new())));
                text
            }
            Err(error) => error.to_string(),
        }
    }

    /// Drops the allocator, with or without a call that fails meanwhile: nothing may be left.
    pub(super) fn drop(self, end: u64) -> Result<(), Broken> {
        let Side { core, device, held, events, former, .. } = self;
        let ranges: BTreeSet<u64> = core.expandable_segments().iter().map(|(stream, ..)| stream.get()).collect();
        let uses = held.iter().flat_map(|(allocation, uses)| {
            // The stream that an allocation was made for does not use it from elsewhere.
            let own = own_stream(&core, allocation);
            uses.iter().map(|stream| stream.get()).filter(move |stream| Some(*stream) != own).collect::<Vec<_>>()
        });
        let users: BTreeSet<u64> = ranges.iter().copied().chain(uses).chain(events.values().copied()).collect();
        let expected = if ranges.is_empty() { BTreeSet::new() } else { users };
        let kinds = [CallName::Free, CallName::StreamSynchronize, CallName::MemRelease];
        let plan = kinds.get(end as usize % 6).map(|&kind| When::NthOf(kind, 1 + end / 6 % 3));
        let plan = plan.map_or(FaultPlan::none(), |when| FaultPlan::none().and(when, FaultError::Code(999)));
        let _ = device.steer().take_log();
        device.steer().set_fault_plan(plan);
        drop(core);
        let fired = device.look().fault_plan().fired();
        let calls = device.steer().take_log();
        let failed = calls.iter().filter(|call| call.result != 0).count() as u64;
        ensure(Law::Endings, failed == fired, || format!("{failed} calls of a drop failed, {fired} were to: {calls:?}"))?;
        // A range that the device does not take back stays; there is nobody to ask again.
        let kept = calls.iter().filter(|call| call.name == CallName::Free && call.result != 0).count();
        let left = device.held();
        ensure(Law::Endings, left == [kept, 0, 0, 0], || format!("{left:?} is left of ranges, reservations, memory and events"))?;
        let unmaps = calls.iter().position(|call| call.name == CallName::MemUnmap).unwrap_or(calls.len());
        let waits = |calls: &[Call]| -> Vec<u64> {
            let streams = calls.iter().filter(|call| call.name == CallName::StreamSynchronize).map(|call| match call.subject {
                CallSubject::Stream(stream) => stream,
                _ => u64::MAX - 1,
            });
            streams.collect()
        };
        let seen = waits(&calls[..unmaps]);
        let once: BTreeSet<u64> = seen.iter().copied().collect();
        // What was given back may wait for its former users still, or not any more.
        let may_wait = |stream: &u64| expected.contains(stream) || (!ranges.is_empty() && former.contains(stream));
        let is_right = once.len() == seen.len()
            && once.is_superset(&expected)
            && once.iter().all(may_wait)
            && waits(&calls[unmaps..]).is_empty();
        ensure(Law::NoEarlyReuse, is_right, || format!("a drop waits for streams {seen:x?}, expected {expected:x?}: {calls:?}"))
    }
}

/// The stream of the segment that an allocation is a part of.
fn own_stream(core: &KeptCore, allocation: &Allocation) -> Option<u64> {
    let (base, _) = core.segment_of(allocation)?;
    core.segments().iter().find(|segment| segment.address == base).map(|segment| segment.stream.get())
}
