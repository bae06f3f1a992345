//! Private pools that take the memory of the default pool, under compaction with handles of any size: which of several equal blocks
//! and gaps they take, what they take while streams are busy, and what happens when an allocator is dropped meanwhile. Segments
//! may reserve so few addresses that a stream has several ranges side by side.

use parkade::policy::{Policy, Wrapper};
use parkade::units::{Bytes, MIB};
use parkade_policies::Compaction;
use proptest::prelude::*;

use super::programs::{SALT, timing};
use crate::backend::{Places, STREAMS};
use crate::checks::campaign::{Share, Subject};
use crate::drawn::one_of;
use crate::program::search::{Draws, run_cases};
use crate::program::step::{Setup, Step};
use crate::reference_policies::reference;
use crate::suite::{Effort, Entry, Group};

/// The number of programs for each program in other entries of a policy.
const TIMES: u32 = 3;

/// Returns the entry about the memory that the default pool lends.
pub(super) fn entry(share: Share) -> Entry {
    let says = "private pools take the memory of the default pool that the rules name, also among equal blocks";
    Entry::new(Group::Law, "policy/compaction/lending", says, move |backend, effort| {
        let effort = share.of(effort);
        let effort = Effort { cases: effort.cases * TIMES, ..effort };
        run_cases(&effort, SALT + 1, programs(), |(setup, steps)| {
            subject().whole_run(backend, setup, steps).map(|_| steps.len() as u64)
        })
    })
}

/// A policy whose expandable segments reserve this many addresses, if not as many as the policy says.
struct Reserving {
    policy: Box<dyn Policy>,
    reserved: Option<u64>,
}

impl Wrapper for Reserving {
    type Inner = dyn Policy;

    fn inner(&self) -> &(dyn Policy + 'static) {
        &*self.policy
    }

    fn inner_mut(&mut self) -> &mut (dyn Policy + 'static) {
        &mut *self.policy
    }

    fn reservation(&self, total: Bytes) -> Bytes {
        self.reserved.map_or_else(|| self.inner().reservation(total), Bytes)
    }
}

/// Returns compaction with handles of any size, and ranges of a few pages.
fn subject() -> Subject {
    // In MiB: the sizes of the first and of the largest handles; and in pages: the addresses of a segment.
    let drawn = |seed: u64| {
        let mut draws = Draws::new(seed);
        let mut of = |sizes: &[u64]| sizes[draws.below(sizes.len() as u64) as usize];
        let (first, most) = (of(&[8, 8, 16, 384]), of(&[8, 512]));
        (first, most, Some(of(&[0, 0, 5, 6, 6, 8, 16]) * PAGE).filter(|&reserved| reserved > 0))
    };
    let tested = move |seed| {
        let (first, most, reserved) = drawn(seed);
        Reserving { policy: Box::new(Compaction::with_handles(Bytes::mib(first), Bytes::mib(most))), reserved }
    };
    Subject::new("compaction/lending", tested).beside(move |setup| {
        let (first, most, reserved) = drawn(setup.policy_seed);
        let policy = reference(&format!("compaction:first={first}MiB;most={most}MiB"))?;
        Some(Box::new(Reserving { policy, reserved }))
    })
}

const PAGE: u64 = 2 * MIB;
/// The pages of the smallest handle, and of nearly all of the largest requests. Every range has room for them.
const MOST_PAGES: u64 = 4;

/// Returns a first section in which pools find several places that are equally good, before more requests and frees.
fn first_section() -> impl Strategy<Value = Vec<Step>> {
    // Free blocks of the same size between others.
    let comb = (2..=4_usize, 2..=MOST_PAGES).prop_map(|(count, pages)| {
        let blocks = std::iter::repeat_n([Step::Allocate(pages * PAGE, 0), Step::Allocate(PAGE, 0)], count).flatten();
        let steps: Vec<Step> = blocks.chain((0..count).map(Step::Free)).collect();
        steps.into_iter().chain([Step::CompleteAll, Step::BeginPool(0, None)]).collect()
    });
    // The segments of two streams end in free blocks. A pool takes one of them, frees a part, and then needs more memory behind
    // that part or behind the other one, often as much at both places. A first request of a size takes the high end of a handle.
    let ends = (1..MOST_PAGES, prop::option::weighted(0.4, 1..MOST_PAGES), 1..=2_u64).prop_map(|(free, freed, more)| {
        let freed = freed.unwrap_or(free);
        let allocate = |pages: u64, stream| Step::Allocate(pages * PAGE, stream);
        let outside = [allocate(free, 1), allocate(MOST_PAGES - free, 1), Step::Free(0), allocate(MOST_PAGES, 0), Step::Free(1)];
        let begin = [Step::CompleteAll, Step::BeginPool(0, None)];
        let inside = [allocate(MOST_PAGES - freed, 1), allocate(freed, 1), Step::Free(2), allocate(freed + more, 1)];
        outside.into_iter().chain(begin).chain(inside).collect()
    });
    one_of![comb, ends, Just(Vec::new())]
}

/// Returns careful programs in which private pools take memory of the default pool that nothing uses, again and again. There are
/// few sizes, so that free blocks and gaps are often equal, or exactly as large as what a pool's segment lacks.
pub(super) fn programs() -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let allocate = |streams: usize| {
        let pages = prop::sample::select(vec![1, 1, 1, 2, 2, 2, 3, MOST_PAGES]);
        let less = prop::sample::select(vec![0, 0, 0, 0, 0, 0, 512, MIB]);
        (pages, less, 0..streams).prop_map(|(pages, less, stream)| Step::Allocate(pages * PAGE - less, stream))
    };
    let free = || any::<u8>().prop_map(|which| Step::Free(usize::from(which)));
    let launch = || (0..STREAMS.len(), 1..10_000_u64).prop_map(|(stream, time)| Step::Launch(stream, time));
    let outside = one_of![
        9 => allocate(2),
        7 => free(),
        2 => Just(Step::ReleaseCached),
        1 => launch(),
    ];
    let inside = one_of![8 => allocate(3), 4 => free(), 1 => launch()];
    let inside = prop::collection::vec(inside, 1..9);
    let pool = (0..2_usize, prop::option::of(0..3_usize), prop::bool::weighted(0.8), any::<bool>());
    let section = (prop::collection::vec(outside, 1..10), pool, inside.clone());
    let section = section.prop_map(|(outside, (pool, stream, is_idle, is_left), inside)| {
        let begin = [Step::CompleteAll, Step::BeginPool(pool, stream)];
        let end = [Step::EndPool(pool), Step::ReleasePool(pool)];
        let begin = begin.into_iter().skip(usize::from(!is_idle));
        let end = end.into_iter().take(1 + usize::from(is_left));
        outside.into_iter().chain(begin).chain(inside).chain(end).collect::<Vec<_>>()
    });
    let sections = (first_section(), inside, prop::collection::vec(section, 1..5)).prop_map(|(first, inside, sections)| {
        first.into_iter().chain(inside).chain([Step::EndPool(0)]).chain(sections.concat()).collect::<Vec<_>>()
    });
    let capacity = prop::sample::select(vec![32, 48, 64, 96, 160]).prop_map(|mib: u64| mib * MIB);
    let places = prop::sample::select(vec![Places::Ascending, Places::Reuse, Places::Reuse]);
    let setup = (capacity, timing(), places, prop::bool::weighted(0.7), any::<u64>());
    (setup, sections).prop_map(|((capacity, timing, places, is_finished, policy_seed), steps)| {
        let plain = Setup { free_waits: true, ..Setup::PLAIN };
        (Setup { capacity, timing, places, is_finished, policy_seed, ..plain }, steps)
    })
}
