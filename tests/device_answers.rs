//! Tests a device that returns impossible ranges: the request fails with an error that names the range, and nothing else
//! changes.

use crate::device::PlainDevice;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{AllocError, Allocator, AnswerProblem, WrongAnswer};

const FIRST: u64 = 1 << 44;
const MIB: u64 = 1 << 20;

fn core(expandable_segments: bool) -> Allocator<PlainDevice, PyTorch> {
    let settings = Settings { expandable_segments, ..Settings::default() };
    Allocator::new(PlainDevice::new(Bytes(1 << 62), FIRST), PyTorch::new(settings), ())
}

/// Asks for 30 MiB while the device answers so, with 40 MiB held at [`FIRST`].
fn answer_to(expandable: bool, answer: u64) -> WrongAnswer {
    let mut core = core(expandable);
    let held = core.allocate(Bytes::mib(40), StreamId(7)).expect("room");
    let before = (core.segments(), core.stats().clone());
    core.device_mut().next_answer = Some(answer);
    let refused = core.allocate(Bytes::mib(30), StreamId::DEFAULT);
    let Err(AllocError::Answer(wrong)) = refused else { panic!("{answer:#x}: {refused:?}") };
    assert_eq!((core.segments(), core.stats().clone()), before, "nothing has changed");
    core.check().expect("a sound heap");
    let text = wrong.to_string();
    assert!(text.contains(wrong.call) && text.contains(&format!("{answer:#x}")), "{text}");
    let next = core.allocate(Bytes::mib(30), StreamId::DEFAULT).expect("an answer that can be used");
    core.free(next).expect("ours");
    core.free(held).expect("ours");
    core.release_cached().expect("a device");
    assert_eq!(core.heap().reserved(), Bytes::ZERO);
    // What went back may be handed out again.
    core.device_mut().next_answer = Some(FIRST);
    let again = core.allocate(Bytes::mib(40), StreamId::DEFAULT).expect("nothing is held there");
    assert_eq!(again.address(), DeviceAddress(FIRST));
    wrong
}

#[test]
fn ranges_that_cannot_be_are_refused() {
    let at_first = |size| AnswerProblem::Overlaps(DeviceAddress(FIRST), Bytes(size));
    // Nine eighths of the device's memory, in whole pages.
    let reserve = (9_u64 << 59).next_multiple_of(20 * MIB);
    for (expandable, call, bytes, held) in [(false, "malloc", 30 * MIB, 40 * MIB), (true, "reserve", reserve, reserve)] {
        let cases = [
            (0, AnswerProblem::Null),
            (FIRST + held + 1, AnswerProblem::Unaligned),
            (FIRST + held + 511, AnswerProblem::Unaligned),
            (u64::MAX - 511, AnswerProblem::TooLong),
            (FIRST, at_first(held)),
            (FIRST + held - 512, at_first(held)),
            (FIRST + 2 * MIB, at_first(held)),
            (FIRST - 2 * MIB, at_first(held)),
        ];
        for (answer, problem) in cases {
            let expected = WrongAnswer { call, address: DeviceAddress(answer), bytes: Bytes(bytes), problem };
            assert_eq!(answer_to(expandable, answer), expected);
        }
    }
}

/// The statistics are signed.
#[test]
fn more_than_63_bits_of_bytes_are_refused() {
    let mut core = core(false);
    core.device_mut().capacity = u64::MAX;
    let first = core.raw_allocate(Bytes(1 << 62), StreamId::DEFAULT).expect("room");
    let refused = core.raw_allocate(Bytes(1 << 62), StreamId::DEFAULT);
    let Err(AllocError::Answer(WrongAnswer { problem, .. })) = refused else { panic!("{refused:?}") };
    assert_eq!(problem, AnswerProblem::TooMuch);
    core.check().expect("a sound heap");
    core.free(first).expect("ours");
}
