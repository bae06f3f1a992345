//! The answer to a step: what a caller gets from the allocator under test, or should get according to the reference; and a live
//! allocation, as the program knows it.

use parkade::checkpoint::PoolCheckpoint;
use parkade::device::ProcessMemory;
use parkade::profile::Profile;
use parkade::snapshot::SegmentInfo;
use parkade::units::{DeviceAddress, PoolId, StreamId};
use parkade::{AllocError, Allocation, CheckpointError, FreeError, InvalidFraction, PoolError, Restored};

use crate::law::{Broken, Law, ensure};
use crate::reference_model::allocator::{Made, Restoration, Saved};
use crate::reference_model::texts;

/// The answer to a step.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The step returns no answer.
    Nothing,
    /// A block from the allocator, at the address that the reference allocator determines.
    Allocated(Allocation),
    AllocatedAt(u64),
    Refused(AllocError),
    /// No free block has room at the address.
    NotThere,
    /// Whether the stream is captured, or accepts the wait.
    Captured(bool),
    /// The freed address, and the error.
    Freed(u64, Option<FreeError>),
    Recorded(u64),
    Stocked(usize, u64),
    Done(Result<(), AllocError>),
    /// Whether the memory fraction was accepted.
    Limited(Result<(), InvalidFraction>),
    Asked(Result<bool, CheckpointError>),
    Pool(Result<(), PoolError>),
    Saved(Result<PoolCheckpoint, CheckpointError>),
    SavedAs(Saved),
    Restored(Vec<u64>, Vec<Allocation>),
    RestoredAs(Restoration),
    NotRestored(CheckpointError),
    Seen(Vec<SegmentInfo>),
}

impl Answer {
    pub(crate) fn allocated(answer: Result<Allocation, AllocError>) -> Answer {
        answer.map_or_else(Answer::Refused, Answer::Allocated)
    }

    pub(crate) fn expected(answer: Result<u64, AllocError>) -> Answer {
        answer.map_or_else(Answer::Refused, Answer::AllocatedAt)
    }

    pub(crate) fn allocated_at(answer: Result<Option<Allocation>, AllocError>) -> Answer {
        answer.map_or_else(Answer::Refused, |allocation| allocation.map_or(Answer::NotThere, Answer::Allocated))
    }

    pub(crate) fn expected_at(answer: Result<Option<u64>, AllocError>) -> Answer {
        answer.map_or_else(Answer::Refused, |address| address.map_or(Answer::NotThere, Answer::AllocatedAt))
    }

    pub(crate) fn done(answer: Result<(), AllocError>) -> Answer {
        Answer::Done(answer)
    }

    pub(crate) fn restored(answer: Result<Restored, CheckpointError>) -> Answer {
        match answer {
            Ok(Restored { freed, allocations }) => {
                Answer::Restored(freed.into_iter().map(DeviceAddress::get).collect(), allocations)
            }
            Err(error) => Answer::NotRestored(error),
        }
    }

    /// Returns whether this answer from the allocator is the expected one.
    pub(crate) fn same_as(&self, expected: &Answer) -> bool {
        match (self, expected) {
            (Answer::Nothing, Answer::Nothing) | (Answer::NotThere, Answer::NotThere) => true,
            (Answer::Allocated(allocation), Answer::AllocatedAt(address)) => allocation.address().get() == *address,
            (Answer::Refused(seen), Answer::Refused(expected)) => same_error(seen, expected),
            (Answer::Done(Err(seen)), Answer::Done(Err(expected))) => same_error(seen, expected),
            (Answer::Done(seen), Answer::Done(expected)) => seen == expected,
            (Answer::Freed(a, seen), Answer::Freed(b, expected)) => (a, seen) == (b, expected),
            (Answer::Recorded(a), Answer::Recorded(b)) => a == b,
            (Answer::Stocked(..), Answer::Stocked(..)) => true,
            (Answer::Captured(a), Answer::Captured(b)) => a == b,
            (Answer::Limited(a), Answer::Limited(b)) => a == b,
            (Answer::Asked(a), Answer::Asked(b)) => a == b,
            (Answer::Pool(a), Answer::Pool(b)) => a == b,
            (Answer::Saved(Err(a)), Answer::Saved(Err(b))) | (Answer::NotRestored(a), Answer::NotRestored(b)) => a == b,
            (Answer::Saved(Ok(seen)), Answer::SavedAs(expected)) => as_saved(seen) == *expected,
            (Answer::Restored(freed, allocations), Answer::RestoredAs(expected)) => {
                let handed_out = allocations.iter().map(|allocation| allocation.address().get());
                *freed == expected.freed && handed_out.eq(expected.allocations.iter().copied())
            }
            (Answer::Seen(a), Answer::Seen(b)) => a == b,
            _ => false,
        }
    }

    /// Checks the processes in an error, and the error's text.
    pub(crate) fn check_texts(&self, profile: &Profile, processes: &[ProcessMemory]) -> Result<(), Broken> {
        match self {
            Answer::Refused(error) => {
                if let AllocError::OutOfMemory(report) = error {
                    ensure(Law::Reference, report.processes == processes, || {
                        format!("the error names {:?}, but the device named {processes:?}", report.processes)
                    })?;
                }
                texts::check(&error.message(profile), texts::of_request(error, profile))
            }
            Answer::Saved(Err(error)) | Answer::NotRestored(error) => {
                texts::check(&error.to_string(), texts::of_checkpoint(error))
            }
            Answer::Pool(Err(error)) => texts::check(&error.message(profile), texts::of_pool(*error, profile)),
            Answer::Limited(Err(error)) => {
                texts::check(&error.message(profile), Some(texts::of_fraction(&error.0.to_string(), profile)))
            }
            _ => Ok(()),
        }
    }
}

/// Compares everything except the processes, which the reference allocator does not know.
fn same_error(seen: &AllocError, expected: &AllocError) -> bool {
    match (seen, expected) {
        (AllocError::OutOfMemory(seen), AllocError::OutOfMemory(expected)) => {
            let mut seen = seen.clone();
            seen.processes.clear();
            // The messages are compared as text.
            seen.words = expected.words;
            seen == *expected
        }
        (seen, expected) => seen == expected,
    }
}

/// Returns the checkpoint as the reference allocator keeps it.
pub(super) fn as_saved(checkpoint: &PoolCheckpoint) -> Saved {
    let segments = checkpoint.segments.iter().map(|segment| {
        let blocks = segment.blocks.iter().map(|block| (block.size, block.state)).collect();
        (segment.address, segment.stream, blocks)
    });
    Saved { pool: checkpoint.pool, segments: segments.collect() }
}

/// Returns the expected answer to a callback's action.
pub(crate) fn made(made: Made) -> Answer {
    match made {
        Made::Freed(address, error) => Answer::Freed(address, error.map(FreeError::Device)),
        Made::Allocated(answer) => Answer::expected(answer),
        Made::Done(answer) => Answer::Done(answer),
        Made::Pool(answer) => Answer::Pool(answer),
    }
}

/// Returns the expected answer to a save.
pub(crate) fn saved(answer: Result<Saved, CheckpointError>) -> Answer {
    answer.map_or_else(|error| Answer::Saved(Err(error)), Answer::SavedAs)
}

/// Returns the expected answer to a restore.
pub(crate) fn restored(answer: Result<Restoration, CheckpointError>) -> Answer {
    answer.map_or_else(Answer::NotRestored, Answer::RestoredAs)
}

/// A live allocation.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) allocation: Allocation,
    /// Its name in scripts.
    pub(super) name: u64,
    /// Whether it came from `raw_allocate`.
    pub(super) is_raw: bool,
    /// The requested size in bytes.
    pub(crate) requested: u64,
    /// The stream it was requested on.
    pub(crate) home: StreamId,
    /// The pool that handed it out.
    pub(super) pool: PoolId,
    /// The stream that used it last. Every user waits for the previous one, so all uses are ordered.
    pub(super) last: StreamId,
    /// Its contents, as runs of one repeated word: the end offset and the word of each run.
    pub(super) holds: Vec<(u64, u32)>,
    /// Other streams whose use was recorded.
    pub(super) told: Vec<u64>,
    /// Whether one of these uses was recorded while a graph was captured. The allocator forgets that use if the block is freed
    /// during a capture (spec 3.8).
    pub(super) is_captured: bool,
}

impl Held {
    pub(super) fn address(&self) -> DeviceAddress {
        self.allocation.address()
    }

    /// Returns the number of bytes that are filled, in whole words; 0 if the address is not word-aligned, which only an
    /// invalid policy can cause.
    pub(super) fn whole_words(&self) -> u64 {
        if self.address().get().is_multiple_of(4) { self.requested / 4 * 4 } else { 0 }
    }
}

impl Clone for Held {
    /// Returns a second handle to the allocation.
    fn clone(&self) -> Held {
        let Held { allocation, name, is_raw, requested, home, pool, last, holds, told, is_captured } = self;
        let (allocation, holds, told) = (allocation.in_a_clone(), holds.clone(), told.clone());
        let (name, is_raw, requested, home) = (*name, *is_raw, *requested, *home);
        Held { allocation, name, is_raw, requested, home, pool: *pool, last: *last, holds, told, is_captured: *is_captured }
    }
}
