//! Walking a trace backwards: from the heap at the end of a recording to the heap before its first entry.
//!
//! The heap before the first entry follows from the heap at the end and from what the entries did: they are
//! undone, last first. The walk also finds contradictions (a block freed twice, memory outside any segment) and
//! the entry at which each freed block becomes free for reuse.

use parkade::units::PoolId;
use parkade_recording::{Action, BlockState, DeviceRecording, Entry};
use rustc_hash::FxHashMap;

use super::early::{EarlyBlock, EarlySegment, Rewound};
use super::expandable_runs::Runs;
use crate::entries::{gives_memory, takes_memory};
use crate::error::VerifyError;
use crate::pools::pool_of;

/// Every segment is at least this large (spec 1.6), and so is every page that is mapped (spec 4.1).
const SMALLEST_SEGMENT: u64 = 2 << 20;
/// Far more than any GPU has: a larger segment means that the file is damaged.
const LARGEST_SEGMENT: u64 = 1 << 50;

/// A block as seen from the entry that the walk has reached.
#[derive(Clone, Copy)]
struct Live {
    requested: u64,
    size: Option<u64>,
    is_pending: bool,
    freed_at: Option<u32>,
    completed_at: Option<u32>,
}

struct Walk {
    places: FxHashMap<u64, usize>,
    /// By place; `None` once the walk has passed the block's allocation.
    blocks: Vec<Option<(u64, Live)>>,
    vacant: Vec<usize>,
    segments: FxHashMap<u64, EarlySegment>,
    runs: Runs,
    made: FxHashMap<u32, PoolId>,
    large_page: u64,
    deferred: FxHashMap<u32, Option<u32>>,
    /// Whether the recording lists any segments.
    has_segments: bool,
}

/// Walks the whole trace backwards.
pub(crate) fn rewind(recording: &DeviceRecording, large_page: u64) -> Result<Rewound, VerifyError> {
    if u32::try_from(recording.trace.len()).is_err() {
        return Err(VerifyError::TooLong(recording.trace.len()));
    }
    let mut walk = Walk::from_final_state(recording, large_page.max(1));
    for (at, entry) in recording.trace.iter().enumerate().rev() {
        walk.undo(at, entry)?;
    }
    Ok(walk.finish())
}

impl Walk {
    fn from_final_state(recording: &DeviceRecording, large_page: u64) -> Walk {
        let mut walk = Walk {
            places: FxHashMap::default(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            segments: FxHashMap::default(),
            runs: Runs::default(),
            made: FxHashMap::default(),
            large_page,
            deferred: FxHashMap::default(),
            has_segments: !recording.segments.is_empty(),
        };
        for segment in &recording.segments {
            let (address, total) = (segment.address, segment.total_bytes);
            let (stream, large, expandable) = (segment.stream, segment.large, segment.expandable);
            let early = EarlySegment { address, total, stream, large, expandable, pool: pool_of(segment), is_listed: true };
            if expandable {
                // The reader has seen that segments do not overlap.
                walk.runs.insert(early);
            } else {
                walk.segments.insert(address, early);
            }
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
                let is_pending = block.state == BlockState::ActivePendingFree;
                let requested = block.requested.unwrap_or(block.size);
                let live = Live { requested, size: Some(block.size), is_pending, freed_at: None, completed_at: None };
                walk.insert(block.address, live);
            }
        }
        walk
    }

    /// Returns false if there is a block at this address already.
    fn insert(&mut self, address: u64, live: Live) -> bool {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() - 1
        });
        self.blocks[place] = Some((address, live));
        self.places.insert(address, place).is_none()
    }

    fn live(&mut self, address: u64) -> Option<&mut Live> {
        let place = *self.places.get(&address)?;
        self.blocks[place].as_mut().map(|(_, live)| live)
    }

    fn remove(&mut self, address: u64) -> Option<Live> {
        let place = self.places.remove(&address)?;
        self.vacant.push(place);
        self.blocks[place].take().map(|(_, live)| live)
    }

    fn undo(&mut self, at: usize, entry: &Entry) -> Result<(), VerifyError> {
        let contradiction = |problem| Err(VerifyError::contradiction(at, entry.action, entry.address, problem));
        let is_memory = takes_memory(entry) || gives_memory(entry);
        if is_memory && !(SMALLEST_SEGMENT..=LARGEST_SEGMENT).contains(&entry.size) {
            return contradiction("of a size that no segment can have");
        }
        match entry.action {
            Action::Alloc => match self.remove(entry.address) {
                Some(live) if live.is_pending => contradiction("but the block there is still waiting to become free"),
                Some(_) => Ok(()),
                None if !self.has_segments => contradiction(
                    "which is never freed, but the file lists no segments: a snapshot has all that are reserved at its end in `segments`",
                ),
                None => contradiction("but nothing is in use there afterwards: an entry is missing, double or out of order"),
            },
            Action::FreeCompleted => {
                let completed_at = Some(at as u32);
                let live = Live { requested: entry.size, size: None, is_pending: true, freed_at: None, completed_at };
                if self.insert(entry.address, live) {
                    Ok(())
                } else {
                    contradiction("but a block there is still in use afterwards: it is freed twice, or an alloc is missing")
                }
            }
            Action::FreeRequested => self.undo_free_request(at, entry),
            Action::SegmentAlloc => match self.segments.remove(&entry.address) {
                Some(segment) if segment.total == entry.size => {
                    if segment.pool != PoolId::DEFAULT {
                        self.made.insert(at as u32, segment.pool);
                    }
                    Ok(())
                }
                Some(_) => contradiction("but the segment there has a different size afterwards"),
                None => contradiction("but there is no segment afterwards"),
            },
            Action::SegmentFree => {
                // A small segment is 2 MiB; every segment of the large pool is at least 10 MiB (spec 1.6).
                let large = entry.size > 2 << 20;
                let segment = EarlySegment {
                    address: entry.address,
                    total: entry.size,
                    stream: entry.stream,
                    large,
                    expandable: false,
                    pool: PoolId::DEFAULT,
                    is_listed: false,
                };
                match self.segments.insert(entry.address, segment) {
                    None => Ok(()),
                    Some(_) => contradiction("but a segment is still there afterwards"),
                }
            }
            Action::SegmentMap => {
                if self.runs.remove(entry.address, entry.size) {
                    Ok(())
                } else {
                    contradiction("but there is no memory afterwards")
                }
            }
            Action::SegmentUnmap => {
                // The pages of the large pool are 20 MiB, unless settings change that; those
                // of the small pool 2 MiB (spec 4.1).
                let large = entry.size.is_multiple_of(self.large_page);
                let run = EarlySegment {
                    address: entry.address,
                    total: entry.size,
                    stream: entry.stream,
                    large,
                    expandable: true,
                    pool: PoolId::DEFAULT,
                    is_listed: false,
                };
                if self.runs.insert(run) { Ok(()) } else { contradiction("but there is still memory afterwards") }
            }
            Action::Oom | Action::Snapshot => Ok(()),
        }
    }

    fn undo_free_request(&mut self, at: usize, entry: &Entry) -> Result<(), VerifyError> {
        let Some(live) = self.live(entry.address) else {
            return Err(VerifyError::contradiction(
                at,
                entry.action,
                entry.address,
                "but no block there becomes free, or is waiting to, afterwards",
            ));
        };
        if !live.is_pending {
            return Err(VerifyError::contradiction(
                at,
                entry.action,
                entry.address,
                "but the block there is still in use afterwards: it is freed twice, or an alloc is missing",
            ));
        }
        live.is_pending = false;
        live.freed_at = Some(at as u32);
        let completed_at = live.completed_at;
        if completed_at != Some(at as u32 + 1) {
            self.deferred.insert(at as u32, completed_at);
        }
        Ok(())
    }

    fn finish(mut self) -> Rewound {
        let blocks = self.blocks.iter().flatten().map(|&(address, live)| EarlyBlock {
            address,
            requested: live.requested,
            size: live.size,
            is_pending: live.is_pending,
            freed_at: live.freed_at,
            completed_at: live.completed_at,
        });
        let blocks = blocks.collect();
        let segments = self.segments.drain().map(|(_, segment)| segment).chain(self.runs.into_iter()).collect();
        Rewound { blocks, segments, made: self.made, deferred: self.deferred }
    }
}
