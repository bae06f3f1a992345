//! Fixed programs for PyTorch's rules, each with its settings. They exercise each rule in which releases differ and each rung of
//! the ladder, and driver calls are made to fail in some of them.

use parkade::units::MIB;

use crate::backend::EventTiming;
use crate::program::step::{Setup, Step};

const EXPANDABLE: &str = "expandable_segments:True";
const OVERSIZE: &str = "expandable_segments:True,max_split_size_mb:32,garbage_collection_threshold:0.5";
const REUSE: &str = "graph_capture_record_stream_reuse:True";
const REUSE_EXPANDABLE: &str = "graph_capture_record_stream_reuse:True,expandable_segments:True";

/// A request on the default stream.
const fn allocate(mib: u64) -> Step {
    Step::Allocate(mib * MIB, 0)
}

/// Returns programs, each with its settings.
pub(super) fn programs() -> Vec<(&'static str, Vec<Step>)> {
    let mut programs = programs_of_requests();
    programs.extend(programs_of_releasing());
    for settings in ["", EXPANDABLE, REUSE, REUSE_EXPANDABLE] {
        programs.extend(programs_of_captures(settings));
    }
    programs
}

/// Returns programs with requests, some of them routed to pools.
fn programs_of_requests() -> Vec<(&'static str, Vec<Step>)> {
    let begin = Step::BeginPool(0, None);
    vec![
        // Equal free blocks: first parts of one segment, then entire segments.
        ("", vec![allocate(5), allocate(5), allocate(5), allocate(5), Step::Free(0), Step::Free(2), allocate(5), allocate(5)]),
        ("", vec![allocate(20), allocate(20), Step::Free(0), Step::Free(0), allocate(20), allocate(20)]),
        ("roundup_power2_divisions:1", vec![Step::Allocate(1_000_001, 0), Step::Allocate(3_000_001, 0)]),
        ("", vec![Step::Fraction(333), allocate(400), Step::Fraction(1000), allocate(400), Step::Fraction(1001)]),
        // Calls on pools that fail, and other calls that fail after a pool has been released too
        // often.
        (
            "",
            vec![
                Step::ReleasePool(1),
                begin,
                begin,
                Step::EndPool(0),
                allocate(2),
                Step::Record(0, 1),
                Step::Free(0),
                allocate(2),
            ],
        ),
        (
            "",
            vec![
                Step::CreatePool(0),
                Step::ReleasePool(0),
                begin,
                Step::ReleasePool(0),
                Step::ReleaseCached,
                Step::ReleaseCachedPool(0),
            ],
        ),
        // Two pools to which requests of stream 1 are routed.
        (
            "",
            vec![
                begin,
                Step::BeginPool(1, Some(1)),
                Step::Allocate(700, 1),
                Step::Allocate(700, 0),
                Step::EndPool(0),
                Step::Allocate(700, 1),
                begin,
                Step::Allocate(700, 1),
            ],
        ),
    ]
}

/// Returns programs about which memory is kept and which is released.
fn programs_of_releasing() -> Vec<(&'static str, Vec<Step>)> {
    let begin = Step::BeginPool(0, None);
    vec![
        // "Never split", then a new pool with the same id.
        ("", [&[begin, Step::NoSplit(0)], &held_and_released()[..], &[begin], &held_and_released()].concat()),
        // The error message with a limit and with memory cached in a private pool.
        ("", vec![Step::Fraction(600), begin, allocate(10), Step::EndPool(0), Step::Free(0), allocate(400)]),
        // The release of oversize blocks reaches one in an expandable segment.
        (
            OVERSIZE,
            vec![
                allocate(34),
                Step::Free(0),
                Step::OthersHold(20 * MIB),
                allocate(60),
                Step::Allocate(33 * MIB, 1),
                allocate(190),
            ],
        ),
        (EXPANDABLE, vec![allocate(300), Step::Limit(Some(40 * MIB)), allocate(50)]),
        // Releasing the cache during a routing and during a capture.
        (
            "",
            vec![
                allocate(3),
                Step::Free(0),
                begin,
                Step::ReleaseCached,
                Step::EndPool(0),
                Step::Capturing(true),
                Step::ReleaseCached,
            ],
        ),
        // A request on a stream that is not captured.
        (
            REUSE,
            vec![begin, allocate(1), Step::Capturing(true), allocate(1), Step::EndPool(0), Step::Capturing(false), allocate(1)],
        ),
    ]
}

/// Returns programs with captures, checkpoints and pools that serve when memory runs out, under these settings.
fn programs_of_captures(settings: &'static str) -> Vec<(&'static str, Vec<Step>)> {
    let begin = Step::BeginPool(0, None);
    let end = [Step::EndPool(0), Step::Capturing(false), Step::CompleteAll, Step::ProcessEvents];
    let mut programs = Vec::new();
    // Blocks freed during a capture that other streams used before it, during it, or both.
    for (before, during) in [(true, false), (false, true), (true, true)] {
        let used = [Step::Record(0, 1)].repeat(usize::from(before));
        let used_in_capture = [Step::Record(0, 2)].repeat(usize::from(during));
        let capture = [Step::Capturing(true), begin, allocate(2), Step::EndPool(0)];
        let given_back = [&used[..], &[begin], &used_in_capture, &[Step::Free(0), allocate(2)]].concat();
        for more in [Step::Save(0), Step::EndPool(0), Step::ProcessEvents] {
            programs.push((settings, [&capture[..], &given_back, &[more], &end].concat()));
        }
    }
    // A checkpoint restored before and after the pool has grown.
    let saved = [Step::Capturing(true), begin, allocate(12), Step::Save(0)];
    programs.push((settings, [&saved[..], &[Step::Free(0), Step::Restore(0), allocate(30), Step::Restore(0)], &end].concat()));
    programs.push((settings, [&saved[..], &[allocate(3), Step::Free(0), allocate(20), Step::Restore(0)], &end].concat()));
    // A pool that serves when memory runs out: once when releasing the cache would help, and once when nothing else
    // helps.
    let lender = [begin, allocate(30), Step::EndPool(0), Step::Free(0), Step::UseOnOom(0, true)];
    let cached = [Step::Allocate(20 * MIB, 1), Step::Free(0)];
    for room in [0, 140] {
        let others = [Step::OthersHold(room * MIB)];
        programs.push((settings, [&lender[..], &cached, &others, &[allocate(30)]].concat()));
        programs.push((settings, [&lender[..], &cached[..1], &others, &[allocate(28)]].concat()));
    }
    programs
}

/// Allocations and frees in a pool before it ends.
fn held_and_released() -> [Step; 7] {
    let small = Step::Allocate(700, 0);
    [small, small, Step::EndPool(0), Step::Free(0), Step::Free(0), Step::ReleasePool(0), Step::ReleaseCached]
}

/// Allocates segments of these sizes in MiB, then frees all of them.
fn freed(sizes: &[u64]) -> Vec<Step> {
    let taken = sizes.iter().map(|&mib| allocate(mib));
    taken.chain(sizes.iter().map(|_| Step::Free(0))).collect()
}

/// Returns a program for each rung of the ladder, on a device of 200 MiB.
pub(super) fn of_rungs() -> Vec<Vec<Step>> {
    let others = |program: Vec<Step>, rest: &[Step]| [&program, rest].concat();
    let on = |mib: u64, stream: usize| Step::Allocate(mib * MIB, stream);
    vec![
        // Oversize segments: cases where one is enough, where several are enough and some may stay, and where even all
        // of them are not enough.
        others(freed(&[34, 36, 44, 50]), &[allocate(42), allocate(45)]),
        others(freed(&[34, 36, 44, 50, 20]), &[allocate(90)]),
        others(freed(&[34, 36, 44, 50]), &[allocate(180)]),
        others(freed(&[34, 36, 66, 60]), &[on(72, 1), allocate(110)]),
        // Garbage with different ages.
        others(freed(&[22, 30, 26]), &[Step::Fraction(900), on(24, 1), on(40, 2), Step::Free(0), on(50, 1), on(60, 2)]),
        // Waiting for two streams, and then still having too little memory.
        vec![
            allocate(80),
            Step::Allocate(700, 0),
            Step::Record(0, 1),
            Step::Record(0, 2),
            Step::Free(0),
            allocate(150),
            Step::CompleteAll,
            on(60, 3),
        ],
        // The limit, reached exactly and exceeded by one page; other processes take memory and
        // release it.
        vec![Step::Fraction(600), allocate(100), allocate(20), Step::Allocate(512, 0), Step::Free(0), on(102, 1)],
        vec![allocate(20), Step::OthersHold(170 * MIB), allocate(30), Step::OthersHold(0), allocate(30), Step::ReleaseCached],
    ]
}

/// Duration of work that the allocator has to wait for, in nanoseconds.
const WORK_NS: u64 = 4_000_000;

/// Returns programs in which driver calls are made to fail: every rung of the ladder, with events of two streams pending, under
/// several settings; and expandable segments that grow, have holes and whole pages unmapped, and are filled again from the
/// lowest address. Each is stored with whether it needs expandable segments.
pub(super) fn that_fail() -> Vec<(Setup, Vec<Step>, bool)> {
    use Step::{Allocate, CompleteOne, Fraction, Free, Launch, OthersHold, ProcessEvents, Record, ReleaseCached};
    let events = vec![
        allocate(30),
        Record(0, 1),
        Record(0, 2),
        Record(0, 3),
        Allocate(700, 0),
        Record(1, 1),
        Free(1),
        Free(0),
        Allocate(600, 0),
        CompleteOne(1),
        ProcessEvents,
        allocate(50),
        Allocate(50 * MIB, 1),
        Free(0),
        ReleaseCached,
        Allocate(512, 2),
    ];
    let ladder = vec![
        Fraction(900),
        allocate(40),
        allocate(45),
        Allocate(5 * MIB, 1),
        Record(1, 2),
        Free(0),
        Free(1),
        allocate(60),
        allocate(90),
        OthersHold(60 * MIB),
        Allocate(35 * MIB, 1),
        Free(0),
        Free(1),
        allocate(2),
        allocate(300),
        ReleaseCached,
    ];
    // Work takes time on a real device, so there is something to wait for.
    let waiting = vec![allocate(60), Launch(1, WORK_NS), Record(0, 1), Free(0), allocate(100), Allocate(700, 2)];
    let expandable = vec![
        allocate(3),
        allocate(30),
        allocate(45),
        Allocate(700, 1),
        Free(1),
        ReleaseCached,
        allocate(25),
        allocate(200),
        Free(0),
        Free(2),
        ReleaseCached,
        Allocate(12 * MIB, 2),
        Free(0),
        Free(1),
        Free(0),
        Free(0),
        ReleaseCached,
        allocate(5),
    ];
    let on = |mib: u64, text: &str| {
        let plain = Setup { capacity: mib * MIB, timing: EventTiming::Lazy, free_waits: true, ..Setup::PLAIN };
        plain.with_settings(text)
    };
    let settings =
        ["", "max_split_size_mb:32", "garbage_collection_threshold:0.6", "garbage_collection_threshold:0.3,max_split_size_mb:32"];
    let mut programs = Vec::new();
    for steps in [events, ladder, waiting] {
        programs.extend(settings.map(|text| (on(128, text), steps.clone(), false)));
    }
    programs.push((on(160, EXPANDABLE), expandable, true));
    programs
}
