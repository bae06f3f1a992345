//! Programs that meet each rule in which releases differ, played under the rules of every release: random ones meet some of them
//! rarely.

use parkade::profile::Profile;
use parkade::units::MIB;

use super::step::{Scene, Step, profiles, texts};
use super::{play_as, trouble};
use crate::backend::{AnyBackend, Places};
use crate::checks::laws_pytorch::campaign::Stopped;
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
pub(super) fn check(backend: &AnyBackend) -> Verdict {
    let done = profiles().map(|profile| check_as(backend, profile)).sum::<Result<u64, Stopped>>();
    Ok(Evidence::operations(done.map_err(trouble)?))
}

/// Plays them where the allocator has these rules, which should be those of the release that they name. Returns the number of steps.
fn check_as(backend: &AnyBackend, profile: &'static Profile) -> Result<u64, Stopped> {
    let mut done = 0;
    for (settings, steps) in programs() {
        let Some(settings) = texts(profile).iter().position(|text| *text == settings) else { continue };
        for (places, capacity) in [(Places::Ascending, 64 * MIB), (Places::Descending, 200 * MIB)] {
            let scene = Scene { release: profile.name, settings, places, capacity, ..Scene::PLAIN };
            done += play_as(profile, backend, &scene, &steps, None)?;
        }
    }
    Ok(done)
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
        // Two pools that requests of stream 1 are routed to.
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
        // "Never split", and a later pool of the same id.
        ("", [&[begin, Step::NoSplit(0)], &held_and_released()[..], &[begin], &held_and_released()].concat()),
        // The message, with a limit and what a private pool has cached.
        ("", vec![Step::Fraction(600), begin, allocate(10), Step::EndPool(0), Step::Free(0), allocate(400)]),
        // Releasing oversize blocks meets one of an expandable segment.
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
fn held_and_released() -> [Step; 7] {
    let small = Step::Allocate(700, 0);
    [small, small, Step::EndPool(0), Step::Free(0), Step::Free(0), Step::ReleasePool(0), Step::ReleaseCached]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::AnyBackend;

    /// Takes one rule from another release.
    type Take = fn(&mut Profile, &Profile);

    macro_rules! rules {
        ($($field:ident)*) => { [$((stringify!($field), (|own, other| own.$field = other.$field) as Take)),*] };
    }

    /// The rules that the laws see. The dialect has laws of its own; the other fields say what is shown, or what a device is asked for.
    const RULES: [(&str, Take); 21] = rules![
        tie_break rounds_by_one_division limit_rounding limits_whole_memory asks_for_total deferral asks_after_refusal oom_words
        expandable_hint gives_short_ranges_back counts_private_pools restores_grown_segments expands_private_pools
        forgets_captured_uses settles_before_saving settles_at_pool_end borrows_last borrows_expandable oldest_routing_decides
        counts_failed_routings forgets_no_split
    ];
    const OTHERS: [(&str, Take); 5] = rules![name dialect handle_types counts_rejections shows];

    /// Whether the programs find that these are not the rules of the release that they name.
    fn is_found(rules: Profile) -> bool {
        match check_as(&AnyBackend::simulated(), Box::leak(Box::new(rules))) {
            Ok(_) => false,
            Err(Stopped::Broken(..)) => true,
            Err(Stopped::Unable(reason)) => panic!("{reason}"),
        }
    }

    /// Wherever a rule changes from one release to the next, either of them with the other's rule is found out.
    #[test]
    fn a_rule_of_a_neighbour_is_found() {
        let all: Vec<&Profile> = profiles().collect();
        let neighbours = all.windows(2).flat_map(|pair| [(pair[0], pair[1]), (pair[1], pair[0])]);
        let mut missed = Vec::new();
        for (own, other) in neighbours {
            for (name, take) in RULES {
                let mut rules = *own;
                take(&mut rules, other);
                if rules != *own && !is_found(rules) {
                    missed.push(format!("{} with {name} of {}", own.name, other.name));
                }
            }
            // What is left are the lines of its sources, and which asserts there are.
            let mut rules = *other;
            RULES.iter().chain(&OTHERS).for_each(|(_, take)| take(&mut rules, own));
            if !is_found(rules) {
                missed.push(format!("{} with the asserts of {}", own.name, other.name));
            }
        }
        assert!(missed.is_empty(), "not found: {missed:#?}");
    }

    #[test]
    fn every_release_has_its_own_rules() {
        assert!(profiles().all(|profile| !is_found(*profile)));
    }
}
