//! Programs that meet each rule in which releases differ, played under the rules of every release: random ones meet some of them
//! rarely.

use parkade::units::MIB;

use super::step::{Scene, Step, profiles, texts};
use super::{play, trouble};
use crate::backend::{Backend, Places};
use crate::suite::{Evidence, Verdict};

const EXPANDABLE: &str = "expandable_segments:True";
const OVERSIZE: &str = "expandable_segments:True,max_split_size_mb:32,garbage_collection_threshold:0.5";
const REUSE: &str = "graph_capture_record_stream_reuse:True";
const REUSE_EXPANDABLE: &str = "graph_capture_record_stream_reuse:True,expandable_segments:True";

/// A request on the default stream.
const fn allocate(mib: u64) -> Step {
    Step::Allocate(mib * MIB, 0)
}

/// Plays every program under the rules of every release that understands its settings.
pub(super) fn check<B: Backend>(backend: &B) -> Verdict {
    let mut done = 0;
    for profile in profiles() {
        for (settings, steps) in programs() {
            let Some(settings) = texts(profile).iter().position(|text| *text == settings) else { continue };
            for (places, capacity) in [(Places::Ascending, 64 * MIB), (Places::Descending, 200 * MIB)] {
                let scene = Scene { release: profile.name, settings, places, capacity, ..Scene::PLAIN };
                done += play(backend, &scene, &steps, None).map_err(trouble)?;
            }
        }
    }
    Ok(Evidence::operations(done))
}

/// Programs, each with its settings.
fn programs() -> Vec<(&'static str, Vec<Step>)> {
    let begin = Step::BeginPool(0, None);
    let end = [Step::EndPool(0), Step::Capturing(false), Step::CompleteAll, Step::ProcessEvents];
    let mut programs = vec![
        // Equal free blocks: parts of one segment, then whole segments.
        ("", vec![allocate(5), allocate(5), allocate(5), allocate(5), Step::Free(0), Step::Free(2), allocate(5), allocate(5)]),
        ("", vec![allocate(20), allocate(20), Step::Free(0), Step::Free(0), allocate(20), allocate(20)]),
        ("roundup_power2_divisions:1", vec![Step::Allocate(1_000_001, 0), Step::Allocate(3_000_001, 0)]),
        ("", vec![Step::Fraction(333), allocate(400), Step::Fraction(1000), allocate(400), Step::Fraction(1001)]),
        // Calls about pools that fail, and what does when one was released too often.
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
        // "Never split", and a later pool of the same id.
        ("", [&[begin, Step::NoSplit(0)], &held_and_released()[..], &[begin], &held_and_released()].concat()),
        // The message, with a limit and what a private pool has cached.
        ("", vec![Step::Fraction(600), begin, allocate(10), Step::EndPool(0), Step::Free(0), allocate(400)]),
        // Only some waits for other streams fail a request that would release part of a segment.
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
        // The cache during a routing and during a capture.
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
        // A request for a stream that is not captured.
        (
            REUSE,
            vec![begin, allocate(1), Step::Capturing(true), allocate(1), Step::EndPool(0), Step::Capturing(false), allocate(1)],
        ),
    ];
    for settings in ["", EXPANDABLE, REUSE, REUSE_EXPANDABLE] {
        // What is given back during a capture: used before it, during it, or both.
        for (before, during) in [(true, false), (false, true), (true, true)] {
            let used = [Step::Record(0, 1)].repeat(usize::from(before));
            let used_in_capture = [Step::Record(0, 2)].repeat(usize::from(during));
            let capture = [Step::Capturing(true), begin, allocate(2), Step::EndPool(0)];
            let given_back = [&used[..], &[begin], &used_in_capture, &[Step::Free(0), allocate(2)]].concat();
            for more in [Step::Save(0), Step::EndPool(0), Step::ProcessEvents] {
                programs.push((settings, [&capture[..], &given_back, &[more], &end].concat()));
            }
        }
        // A checkpoint, before and after the pool has grown.
        let saved = [Step::Capturing(true), begin, allocate(12), Step::Save(0)];
        programs
            .push((settings, [&saved[..], &[Step::Free(0), Step::Restore(0), allocate(30), Step::Restore(0)], &end].concat()));
        programs.push((settings, [&saved[..], &[allocate(3), Step::Free(0), allocate(20), Step::Restore(0)], &end].concat()));
        // A pool that serves when memory is out, where releasing the cache would help, and where nothing else does.
        let lender = [begin, allocate(30), Step::EndPool(0), Step::Free(0), Step::UseOnOom(0, true)];
        let cached = [Step::Allocate(20 * MIB, 1), Step::Free(0)];
        for room in [0, 140] {
            let others = [Step::OthersHold(room * MIB)];
            programs.push((settings, [&lender[..], &cached, &others, &[allocate(30)]].concat()));
            programs.push((settings, [&lender[..], &cached[..1], &others, &[allocate(28)]].concat()));
        }
    }
    programs
}

/// What a pool holds and gives back before it ends.
fn held_and_released() -> [Step; 8] {
    let small = Step::Allocate(700, 0);
    let ends = [Step::ReleasePool(0), Step::ReleasePool(0), Step::ReleaseCached];
    [small, small, Step::EndPool(0), Step::Free(0), Step::Free(0), ends[0], ends[1], ends[2]]
}
