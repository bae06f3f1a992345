//! The naive model: flat lists of intervals, scanned from end to end.
//!
//! It knows who holds which bytes and which bytes may still be used by running work, and derives from the list of
//! blocks where a request must be placed. It decides nothing for the core; it only checks afterwards whether the core
//! was right.

use std::collections::BTreeSet;

use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::PoolClass;

use crate::backend::Witness;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::Rules;

/// A live allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Live {
    /// The address of the first byte.
    pub address: u64,
    /// The requested size in bytes.
    pub requested: u64,
    /// The handle of its stream.
    pub stream: u64,
    /// Other streams that use it.
    pub uses: Vec<u64>,
    /// Those of these streams whose use was recorded while requests were routed to a private pool; see
    /// [`Model::give_back`].
    pub captured: Vec<u64>,
}

/// A freed allocation that may still be used by other streams' work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leaving {
    /// The address of the first byte.
    pub address: u64,
    /// The requested size in bytes.
    pub requested: u64,
    /// For each of these streams: the number of events that had been recorded on it when the allocation was freed.
    pub waits: Vec<(u64, u64)>,
    /// Whether it was freed while events were not recorded: its events are recorded later, possibly after those of
    /// other allocations.
    pub deferred: bool,
}

impl Leaving {
    /// Whether the allocator knows that all of the other streams' work is done.
    #[must_use]
    pub fn is_known_done(&self, witness: &Witness) -> bool {
        self.waits.iter().all(|&(stream, recorded)| witness.is_known_done(stream, recorded))
    }

    /// Returns whether its events were known to be complete when a request searched for a block; `None` if the device's
    /// reports leave this open. The event on a stream is the first one after the free or, if it was deferred, one of
    /// those after the free.
    fn was_known_at_search(&self, witness: &Witness) -> Option<bool> {
        let mut all = Some(true);
        for &(stream, recorded) in &self.waits {
            let last = if self.deferred { witness.recorded(stream) } else { recorded + 1 };
            let known = (recorded + 1..=last).filter(|&number| witness.was_known_at_search(stream, number)).count() as u64;
            if known == 0 {
                return Some(false);
            }
            if known < last - recorded {
                all = None;
            }
        }
        all
    }
}

/// A run of free bytes in one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeRun {
    /// The address of the first byte.
    pub address: u64,
    /// Its length.
    pub size: u64,
    /// The segment's stream.
    pub stream: u64,
    /// Whether the segment belongs to the large pool.
    pub large: bool,
}

/// A record of who holds which memory.
#[derive(Clone, Default, Debug)]
pub struct Model {
    /// Live allocations, in the order in which the trial holds them.
    pub live: Vec<Live>,
    /// Freed allocations that may still be in use.
    pub leaving: Vec<Leaving>,
}

fn overlap(a: u64, a_size: u64, b: u64, b_size: u64) -> bool {
    a < b + b_size && b < a + a_size
}

impl Model {
    /// Adds a new allocation whose block has at least `rounded` bytes.
    ///
    /// # Errors
    /// If it is misaligned, or overlaps memory that is in use.
    pub fn add(&mut self, address: u64, requested: u64, rounded: u64, stream: u64, witness: &Witness) -> Result<(), Broken> {
        ensure(Law::Alignment, address.is_multiple_of(512), || format!("{address:#x} is not a multiple of 512"))?;
        for other in &self.live {
            ensure(Law::NoOverlap, !overlap(address, rounded, other.address, other.requested), || {
                format!("the allocation at {address:#x} of {requested} bytes overlaps a live one: {other:?}")
            })?;
        }
        for other in self.leaving.iter().filter(|other| !other.is_known_done(witness)) {
            ensure(Law::NoEarlyReuse, !overlap(address, rounded, other.address, other.requested), || {
                format!(
                    "the allocation at {address:#x} of {requested} bytes reuses memory before the memory's events are \
                         done: {other:?}"
                )
            })?;
        }
        self.live.push(Live { address, requested, stream, uses: Vec::new(), captured: Vec::new() });
        Ok(())
    }

    /// Records that a stream uses a live allocation; `captured` means that requests are routed to a private pool.
    pub fn record(&mut self, which: usize, stream: u64, captured: bool) {
        let live = &mut self.live[which];
        if live.stream == stream {
            return;
        }
        if !live.uses.contains(&stream) {
            live.uses.push(stream);
        }
        if captured && !live.captured.contains(&stream) {
            live.captured.push(stream);
        }
    }

    /// Frees a live allocation. This must be called before the core frees the allocation.
    ///
    /// An allocation that is freed while requests are routed to a private pool (`deferred`) does not wait for a stream
    /// whose use was recorded during a routing, even if the use was also recorded before or after it: 2.4 to 2.15
    /// behave in this way (spec 3.8). An allocation freed at any other time waits for all of its streams.
    pub fn give_back(&mut self, which: usize, deferred: bool, witness: &Witness) {
        let Live { address, requested, mut uses, captured, .. } = self.live.swap_remove(which);
        uses.retain(|stream| !(deferred && captured.contains(stream)));
        if !uses.is_empty() {
            let waits = uses.iter().map(|&stream| (stream, witness.recorded(stream))).collect();
            self.leaving.push(Leaving { address, requested, waits, deferred });
        }
    }

    /// Checks the heap's segments against the model: exactly the live allocations are handed out, each in a large
    /// enough block, and memory which may still be in use is pending.
    ///
    /// With `is_virtual`, there are private pools, and a block may be pending only because it was freed while requests
    /// were routed to one.
    ///
    /// # Errors
    /// If they disagree.
    pub fn check(&mut self, segments: &[SegmentInfo], witness: &Witness, is_virtual: bool) -> Result<(), Broken> {
        let mut live: Vec<&Live> = self.live.iter().collect();
        live.sort_unstable_by_key(|live| live.address);
        let mut expected = live.into_iter();
        for segment in segments {
            for block in segment.blocks.iter().filter(|block| block.state == BlockActivity::Allocated) {
                let live = expected.next();
                let agrees = live.is_some_and(|live| {
                    let same = (live.address, live.requested, live.stream);
                    same == (block.address.get(), block.requested.get(), segment.stream.get())
                        && block.size.get() >= live.requested
                });
                ensure(Law::Accounting, agrees, || format!("the heap has handed out {block:?}, but the model has {live:?}"))?;
            }
        }
        let missing = expected.next();
        ensure(Law::Accounting, missing.is_none(), || format!("{missing:?} is missing from the heap"))?;
        let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
        for leaving in self.leaving.iter().filter(|leaving| !leaving.is_known_done(witness)) {
            let pending =
                blocks().any(|block| block.address.get() == leaving.address && block.state == BlockActivity::PendingFree);
            ensure(Law::NoEarlyReuse, pending, || format!("{leaving:?} should be pending, but is not"))?;
        }
        for block in blocks().filter(|block| block.state == BlockActivity::PendingFree) {
            let known = self.leaving.iter().any(|leaving| leaving.address == block.address.get());
            ensure(Law::Accounting, known || is_virtual, || format!("{block:?} is pending, but no stream uses it"))?;
        }
        // A block may stay pending longer than necessary: if its event could not be recorded, it waits for a later one.
        self.leaving.retain(|leaving| {
            blocks().any(|block| block.address.get() == leaving.address && block.state == BlockActivity::PendingFree)
        });
        Ok(())
    }

    /// Returns the number of streams with events that the allocator does not know to be complete.
    #[must_use]
    pub fn waiting_streams(&self, witness: &Witness) -> usize {
        let waits = self.leaving.iter().flat_map(|leaving| &leaving.waits);
        let waiting = waits.filter(|&&(stream, recorded)| !witness.is_known_done(stream, recorded));
        waiting.map(|&(stream, _)| stream).collect::<BTreeSet<u64>>().len()
    }

    /// Returns whether a pending block's events were known to be complete when a request searched for a block.
    #[must_use]
    pub fn was_known_done(&self, address: u64, witness: &Witness) -> bool {
        let leaving = self.leaving.iter().find(|leaving| leaving.address == address);
        leaving.and_then(|leaving| leaving.was_known_at_search(witness)) == Some(true)
    }

    /// Returns whether the device's reports leave open if [`Model::was_known_done`] is true for
    /// this block.
    #[must_use]
    pub fn was_uncertain(&self, address: u64, witness: &Witness) -> bool {
        self.leaving.iter().any(|leaving| leaving.address == address && leaving.was_known_at_search(witness).is_none())
    }

    /// Returns the memory that was free when a request searched for a block. `segments` is the state of the heap before
    /// the request; blocks whose events were known to be complete by then count as free. Adjacent free blocks are
    /// joined.
    #[must_use]
    pub fn free_at_search(&self, segments: &[SegmentInfo], witness: &Witness) -> Vec<FreeRun> {
        let mut runs: Vec<FreeRun> = Vec::new();
        for segment in segments {
            let mut end_of_run = None;
            for block in &segment.blocks {
                let (address, size) = (block.address.get(), block.size.get());
                let is_free = match block.state {
                    BlockActivity::Inactive => true,
                    BlockActivity::Allocated => false,
                    BlockActivity::PendingFree => self.was_known_done(address, witness),
                };
                if !is_free {
                    continue;
                }
                match runs.last_mut() {
                    Some(run) if end_of_run == Some(address) => run.size += size,
                    _ => {
                        let (stream, large) = (segment.stream.get(), segment.class == PoolClass::Large);
                        runs.push(FreeRun { address, size, stream, large });
                    }
                }
                end_of_run = Some(address + size);
            }
        }
        runs
    }
}

/// Returns the place for a request of `size` rounded bytes: in the smallest run that may serve it, or the lowest
/// of several equal ones; `None` if no run may serve it.
#[must_use]
pub fn best(runs: &[FreeRun], rules: &Rules, size: u64, stream: u64) -> Option<FreeRun> {
    let right = |run: &&FreeRun| run.stream == stream && run.large == Rules::is_large(size) && rules.may_serve(run.size, size);
    runs.iter().filter(right).min_by_key(|run| (run.size, run.address)).copied()
}
