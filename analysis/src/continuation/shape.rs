//! The shape of a program: what it does, without sizes.
//!
//! Training steps of different lengths request different sizes, but they request and free in the same order. So an allocation is
//! described by its stream, pool and stack, and a free by how many requests ago its block was allocated.

use std::hash::BuildHasher;

use parkade_recording::{DeviceRecording, StackId};
use parkade_replay::Operation;
use rustc_hash::FxBuildHasher;

/// A free of a block allocated at least this many requests ago is described as that of an old block: in between, steps vary.
const LONG_AGO: u64 = 128;

/// Operations described so that equal descriptions mean: the program did the same.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// One description for each operation.
    pub(crate) words: Vec<u64>,
}

impl Shape {
    /// Describes operations of this recording.
    pub(crate) fn of(operations: &[(usize, Operation)], recording: &DeviceRecording) -> Shape {
        let mut next = 0_u64;
        let word = |&(entry, operation): &(usize, Operation)| match operation {
            Operation::Allocate { id, stream, pool, .. } => {
                next = id as u64 + 1;
                let stack = recording.trace.get(entry).map_or(StackId::NONE, |entry| entry.stack);
                FxBuildHasher.hash_one((1, stream, pool, stack))
            }
            Operation::Free { id, .. } => FxBuildHasher.hash_one((2, next.saturating_sub(id as u64).min(LONG_AGO))),
            Operation::EmptyCache => FxBuildHasher.hash_one(3),
            Operation::AbandonPool(_) => FxBuildHasher.hash_one(4),
            Operation::ReleasePool(_) => FxBuildHasher.hash_one(5),
        };
        Shape { words: operations.iter().map(word).collect() }
    }
}
