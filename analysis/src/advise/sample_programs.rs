//! Small programs for tests, and tests of what is read off a program.

use parkade::units::PoolId;
use parkade_recording::{DeviceRecording, StackId};
use parkade_replay::{Completion, Operation, Requests};
use parkade_sim::address::LearnedAddressSpace;

use super::program::Program;
use crate::stacks::StackUse;

pub(super) const MIB: u64 = 1 << 20;

pub(super) fn allocate(id: usize, mib: u64) -> Operation {
    Operation::Allocate { id, bytes: mib * MIB, stream: 0, pool: PoolId::DEFAULT, failed: false }
}

pub(super) fn free(id: usize) -> Operation {
    Operation::Free { id, completion: Completion::AtOnce }
}

pub(super) fn program(operations: &[Operation]) -> Program {
    let requests = Requests { operations: operations.iter().copied().enumerate().collect(), ..Requests::default() };
    Program::of_requests(requests, LearnedAddressSpace::default(), &DeviceRecording::default())
}

/// A segment of 100 MiB is split for 60 MiB, so the next 60 MiB need a segment of their own.
pub(super) fn cut() -> Program {
    program(&[allocate(0, 100), free(0), allocate(1, 60), allocate(2, 60), allocate(3, 60), free(3), allocate(4, 20)])
}

#[test]
fn the_live_peak_is_found() {
    let program = program(&[allocate(0, 30), allocate(1, 50), free(0), allocate(2, 20), free(1), free(2)]);
    assert_eq!((program.live.bytes >> 20, program.live.entry), (80, 1));
    assert_eq!(program.live.holders, [StackUse { stack: StackId::NONE, blocks: 2, bytes: 80 << 20 }]);
}

#[test]
fn a_workspace_is_freed_at_once() {
    let program = program(&[allocate(0, 30), allocate(1, 50), free(1), free(0)]);
    assert_eq!([0, 1, 2, 3, 4].map(|operation| program.is_workspace(operation)), [false, true, false, false, false]);
}
