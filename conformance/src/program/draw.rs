//! Draws programs at random: which steps they have, and how often. Sizes cluster around the thresholds of PyTorch's rules, and
//! devices are so small that every rung of the ladder is reached.
//!
//! There are two kinds of programs. A *wild* program makes calls in any order, with values that no device can serve, and never
//! touches its memory. A *careful* program fills and reads its memory and waits wherever it must, so that a race or a lost word
//! is the allocator's fault.

use std::ops::Range;

use parkade::units::MIB;
use proptest::prelude::*;

use super::step::{CALLBACKS, DEFAULT_POOL, OUT_OF_MEMORY, Order, POOLS, Setup, Spot, Step, TEXTS, profiles, texts};
use crate::backend::{EventTiming, Hidden, Places, STREAMS};
use crate::drawn::one_of;

/// Sizes at which a rule changes, and sizes that differ by one of those sizes.
pub(crate) const THRESHOLDS: [u64; 14] =
    [512, 1024, MIB / 2, MIB, 2 * MIB, 9 * MIB, 10 * MIB, 18 * MIB, 19 * MIB, 20 * MIB, 21 * MIB, 32 * MIB, 52 * MIB, 64 * MIB];

/// Returns request sizes: at and around every threshold, and any size up to 48 MiB, small ones more often.
pub(crate) fn sizes() -> impl Strategy<Value = u64> {
    let offsets = vec![-513_i64, -512, -511, -1, 0, 0, 1, 511, 512, 513];
    let at_thresholds = (prop::sample::select(THRESHOLDS.to_vec()), prop::sample::select(offsets))
        .prop_map(|(size, offset)| size.saturating_add_signed(offset).max(1));
    let any =
        (0_u32..=25, any::<u64>()).prop_map(|(bits, low)| (1 << bits) + low % (1 << bits)).prop_map(|size: u64| size * 3 / 4 + 1);
    one_of![2 => at_thresholds, 3 => any]
}

/// Returns the timing, with any seed in place of a given one.
fn any_seed(timing: EventTiming) -> BoxedStrategy<EventTiming> {
    match timing {
        EventTiming::Seeded(_) => any::<u64>().prop_map(EventTiming::Seeded).boxed(),
        other => Just(other).boxed(),
    }
}

/// Returns a setup with this event timing, of any release, with settings, callbacks and adopted segments.
pub(crate) fn setup(timing: EventTiming) -> impl Strategy<Value = Setup> {
    let timing = any_seed(timing);
    let capacity = prop::sample::select(vec![64 * MIB, 130 * MIB, 200 * MIB, 300 * MIB + 2 * MIB]);
    let places = prop::sample::select(vec![Places::Ascending, Places::Descending, Places::Reuse]);
    let flags = (any::<bool>(), prop::bool::weighted(0.3), prop::bool::weighted(0.7));
    let adopted = prop::option::weighted(0.15, any::<u64>());
    let release = prop::sample::select(profiles().map(|profile| profile.name).collect::<Vec<_>>());
    (release, capacity, timing, places, 0..TEXTS.len(), flags, adopted).prop_map(
        |(release, capacity, timing, places, settings, (free_waits, has_callbacks, is_finished), adopted)| Setup {
            release,
            capacity,
            timing,
            places,
            free_waits,
            settings,
            has_callbacks,
            adopted,
            is_finished,
            policy_seed: 0,
        },
    )
}

fn stream() -> impl Strategy<Value = usize> {
    one_of![4 => Just(0_usize), 1 => 0..STREAMS.len()]
}

/// Sizes that no device can serve.
fn absurd() -> impl Strategy<Value = u64> {
    let exa = 1_u64 << 60;
    prop::sample::select(vec![0, exa - 1, exa, exa + 1, u64::MAX - 511, u64::MAX - 510, u64::MAX, 400 * MIB, 1 << 40])
}

/// Whole MiB, so that different sums of sizes coincide.
fn round_sizes() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1, 2, 10, 12, 16, 20, 22, 24, 26, 30, 32, 34, 40, 44, 48, 56, 64]).prop_map(|mib: u64| mib * MIB)
}

fn order() -> impl Strategy<Value = Order> {
    let pool = || 0..POOLS.len();
    one_of![
        4 => (one_of![sizes(), round_sizes()], stream()).prop_map(|(size, stream)| Order::Allocate(size, stream)),
        3 => Just(Order::ReleaseCached),
        1 => pool().prop_map(Order::Create),
        1 => (pool(), prop::option::of(0..STREAMS.len())).prop_map(|(pool, stream)| Order::Begin(pool, stream)),
        2 => pool().prop_map(Order::End),
        4 => pool().prop_map(Order::Release),
        2 => pool().prop_map(Order::ReleaseCachedPool),
        2 => Just(Order::Register),
    ]
}

/// Places in free blocks, most of them at a border.
fn spot() -> impl Strategy<Value = Spot> {
    let steps = || prop::sample::select(vec![0, 0, 0, 512, -512, 256, 1024]);
    one_of![2 => steps().prop_map(Spot::Start), 3 => steps().prop_map(Spot::End), 2 => Just(Spot::Middle)]
}

fn allocate_at() -> impl Strategy<Value = Step> {
    (one_of![sizes(), round_sizes()], stream(), any::<usize>(), spot())
        .prop_map(|(size, stream, which, spot)| Step::AllocateAt(size, stream, which, spot))
}

fn graph_step() -> impl Strategy<Value = Step> {
    let stream = || 0..STREAMS.len();
    one_of![
        2 => stream().prop_map(Step::BeginGraph),
        1 => stream().prop_map(Step::EndGraph),
        3 => stream().prop_map(Step::GraphWork),
        4 => (stream(), stream()).prop_map(|(stream, other)| Step::GraphWait(stream, other)),
    ]
}

fn memory_step() -> impl Strategy<Value = Step> {
    one_of![
        3 => allocate_at(),
        15 => (round_sizes(), stream()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        50 => (sizes(), stream()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        5 => (sizes(), stream()).prop_map(|(size, stream)| Step::AllocateRaw(size, stream)),
        1 => (absurd(), stream()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        1 => (absurd(), stream()).prop_map(|(size, stream)| Step::AllocateRaw(size, stream)),
        46 => any::<usize>().prop_map(Step::Free),
        14 => (any::<usize>(), 0..STREAMS.len()).prop_map(|(which, stream)| Step::Record(which, stream)),
        4 => (any::<usize>(), 0..CALLBACKS).prop_map(|(which, callback)| Step::Stock(which, callback)),
        2 => (0..CALLBACKS, order(), any::<bool>()).prop_map(|(callback, order, says)| Step::Command(callback, order, says)),
        3 => Just(Step::ProcessEvents),
        3 => Just(Step::ReleaseCached),
        3 => any::<usize>().prop_map(Step::FreeAgain),
        2 => Just(Step::Snapshot),
    ]
}

fn other_step() -> impl Strategy<Value = Step> {
    let fractions = vec![0, 100, 333, 400, 501, 600, 750, 900, 999, 1000, 1000, 1000, 1001];
    one_of![
        4 => (0..STREAMS.len(), 1..10_000_u64).prop_map(|(stream, time)| Step::Launch(stream, time)),
        2 => (1..20_000_u64).prop_map(Step::Pause),
        2 => (0..STREAMS.len()).prop_map(Step::Complete),
        3 => (0..STREAMS.len()).prop_map(Step::CompleteOne),
        2 => Just(Step::CompleteAll),
        3 => prop::sample::select(fractions).prop_map(Step::Fraction),
        1 => prop::sample::select(vec![None, Some(0), Some(22 * MIB), Some(40 * MIB), Some(60 * MIB), Some(100 * MIB - 1), Some(120 * MIB)])
            .prop_map(Step::Limit),
        3 => any::<usize>().prop_map(Step::Apply),
        2 => prop::sample::select(vec![0, 0, 20 * MIB, 70 * MIB + 1, 400 * MIB]).prop_map(Step::OthersHold),
        1 => Just(Step::ResetPeaks),
        1 => Just(Step::ResetSums),
    ]
}

fn pool_step() -> impl Strategy<Value = Step> {
    let pool = || 0..POOLS.len();
    one_of![
        2 => pool().prop_map(Step::CreatePool),
        6 => (pool(), prop::option::of(0..STREAMS.len())).prop_map(|(pool, stream)| Step::BeginPool(pool, stream)),
        1 => pool().prop_map(Step::BeginChosen),
        2 => prop::option::of(pool()).prop_map(Step::Choose),
        2 => graph_step(),
        7 => pool().prop_map(Step::EndPool),
        6 => pool().prop_map(Step::ReleasePool),
        4 => pool().prop_map(Step::ReleaseCachedPool),
        3 => (pool(), prop::bool::weighted(0.8)).prop_map(|(pool, serves)| Step::UseOnOom(pool, serves)),
        // At most one private pool, because with several hardly anything would be split; or the default pool, on which
        // the step has no effect.
        1 => (2..=DEFAULT_POOL).prop_map(Step::NoSplit),
        3 => prop::bool::weighted(0.4).prop_map(Step::Capturing),
        6 => pool().prop_map(Step::Save),
        4 => any::<usize>().prop_map(Step::Restore),
        2 => restore_changed(),
        2 => (pool(), any::<bool>()).prop_map(|(pool, all)| Step::LiveAre(pool, all)),
        2 => any::<usize>().prop_map(Step::FreeAgain),
        1 => pool().prop_map(Step::SnapshotPool),
    ]
}

fn restore_changed() -> impl Strategy<Value = Step> {
    (any::<usize>(), any::<u64>()).prop_map(|(which, how)| Step::RestoreChanged(which, how))
}

/// One of the next few driver calls fails, mostly the next one.
fn fail_next() -> impl Strategy<Value = Step> {
    let error = prop::sample::select(vec![700, 700, OUT_OF_MEMORY]);
    (one_of![2 => Just(1), 1 => 1..6_u64], error).prop_map(|(n, error)| Step::FailNext(n, error))
}

/// Returns programs with hundreds of blocks in a few sizes. Freeing blocks that are not adjacent creates large numbers
/// of free blocks, which then shrink and grow.
pub(crate) fn crowd() -> impl Strategy<Value = Vec<Step>> {
    let sizes = prop::sample::select(vec![
        vec![512],
        vec![512, 1024],
        vec![512, 1536, 2048, 4096],
        vec![512, 512, 512, 70_000],
        vec![600 * 512],
        vec![MIB],
    ]);
    let taken = prop::collection::vec((any::<usize>(), prop::bool::weighted(0.97)), 100..600);
    let turns = prop::collection::vec((any::<usize>(), 0..4_u8), 40..160);
    (sizes, taken, any::<u8>(), turns).prop_map(|(sizes, taken, order, turns)| {
        let mut steps: Vec<Step> = Vec::new();
        for &(which, is_plain) in &taken {
            steps.push(Step::Allocate(sizes[which % sizes.len()], usize::from(!is_plain)));
        }
        // Frees every second block, starting from the first, from the last, or anywhere. A freed block shortens the
        // list.
        for turn in 0..taken.len() / 2 {
            steps.push(Step::Free(match order % 3 {
                0 => turn,
                1 => taken.len() - 2 * turn - 1,
                _ => taken[turn].0,
            }));
        }
        for (which, kind) in turns {
            steps.push(if kind == 0 { Step::Free(which) } else { Step::Allocate(sizes[which % sizes.len()], 0) });
        }
        steps
    })
}

/// Returns a program with this many steps. Half of the programs use no private pools.
pub(crate) fn program(length: Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let plain = one_of![6 => memory_step(), 1 => other_step()];
    let pooled = one_of![12 => memory_step(), 2 => other_step(), 5 => pool_step()];
    one_of![prop::collection::vec(plain, length.clone()), prop::collection::vec(pooled, length)]
}

/// Returns a program with this many steps in a private pool that is often saved and restored.
pub(crate) fn pool_program(length: Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let step = one_of![
        16 => memory_step(),
        1 => other_step(),
        3 => pool_step(),
        3 => Just(Step::Save(0)),
        3 => any::<usize>().prop_map(Step::Restore),
        2 => restore_changed(),
    ];
    prop::collection::vec(step, length).prop_map(|steps| std::iter::once(Step::BeginPool(0, None)).chain(steps).collect())
}

/// Returns programs in which expandable segments reserve so little address space that they are soon full, and further ones follow:
/// about as much as a page of a large segment, or as a few.
pub(crate) fn short_ranges(timing: EventTiming) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let is_short = |text: &str| text.contains("expandable_segments_reserve:");
    let known = profiles().flat_map(|profile| texts(profile).iter().map(move |text| (profile.name, *text)));
    let known = known.filter(move |(_, text)| is_short(text)).collect::<Vec<_>>();
    // A quarter of these is less than a page, a page, or a little more.
    let capacity = prop::sample::select([24, 40, 64, 76, 80, 84, 88, 130, 200].map(|mib: u64| mib * MIB).to_vec());
    let setup = (setup(timing), prop::sample::select(known), capacity)
        .prop_map(|(setup, (release, text), capacity)| Setup { release, capacity, ..setup }.with_settings(text));
    // Whole pages of small segments, so that different blocks can grow to the same size.
    let pages = prop::sample::select(vec![2, 4, 6, 8, 12, 18, 20, 22, 30, 38, 40]).prop_map(|mib: u64| mib * MIB);
    let stream = one_of![9 => Just(0_usize), 1 => stream()];
    let step = one_of![
        24 => (one_of![3 => pages, 1 => sizes()], stream).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        18 => any::<usize>().prop_map(Step::Free),
        3 => Just(Step::ReleaseCached),
        2 => memory_step(),
        2 => other_step(),
    ];
    (setup, prop::collection::vec(step, 1..80))
}

/// Returns what happens to memory during captures, and between them.
fn capture_memory() -> impl Strategy<Value = Step> {
    let which = || prop::sample::select(vec![0_usize, 1, 2, 3]);
    let stream = || one_of![3 => Just(0_usize), 2 => Just(1_usize), 1 => 0..STREAMS.len()];
    let size = || prop::sample::select(vec![512, 1024, MIB, 3 * MIB, 12 * MIB]);
    one_of![
        10 => (size(), stream()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        2 => allocate_at(),
        8 => which().prop_map(Step::Free),
        6 => (which(), stream()).prop_map(|(which, stream)| Step::Record(which, stream)),
    ]
}

/// Returns what happens during captures: mostly a single step.
fn capture_steps() -> impl Strategy<Value = Vec<Step>> {
    let stream = || one_of![3 => Just(0_usize), 2 => Just(1_usize), 1 => 0..STREAMS.len()];
    let step = one_of![
        26 => capture_memory(),
        4 => stream().prop_map(Step::GraphWork),
        5 => (stream(), stream()).prop_map(|(stream, other)| Step::GraphWait(stream, other)),
        1 => stream().prop_map(Step::BeginGraph),
        1 => stream().prop_map(Step::EndGraph),
        1 => graph_step(),
        1 => pool_step(),
        1 => other_step(),
    ];
    // The blocks that wait for the end of the capture become free, and later ones take their places.
    let pause = Just(vec![Step::Capturing(false), Step::ProcessEvents, Step::Capturing(true)]);
    // During one step, the device does not answer a question about a capture.
    let fails = (stream(), hidden(), capture_memory())
        .prop_map(|(stream, hidden, step)| vec![Step::HideGraph(stream, hidden), step, Step::HideGraph(stream, Hidden::Nothing)]);
    one_of![40 => step.prop_map(|step| vec![step]), 2 => pause, 1 => fails, 1 => fail_next().prop_map(|step| vec![step])]
}

fn hidden() -> impl Strategy<Value = Hidden> {
    prop::sample::select(vec![Hidden::State, Hidden::Order])
}

/// Returns the setup of programs with captures: with the setting under which the graph shows what can be reused.
fn capturing_setup(timing: EventTiming) -> impl Strategy<Value = Setup> {
    let has_graphs = |setup: &Setup| texts(setup.profile()).iter().any(|text| text.contains("graph_capture"));
    (setup(timing), any::<bool>()).prop_filter_map("no captured graphs", move |(setup, expands)| {
        let text = if expands {
            "graph_capture_record_stream_reuse:True,expandable_segments:True"
        } else {
            "graph_capture_record_stream_reuse:True"
        };
        has_graphs(&setup).then(|| setup.with_settings(text))
    })
}

/// Returns how a capture ends, and what happens to its memory before the next one: the device may not answer whether a stream
/// is still captured, or may fail in a driver call.
fn end_of_capture() -> impl Strategy<Value = Vec<Step>> {
    let fails = one_of![
        4 => Just((Vec::new(), Vec::new())),
        1 => (0..2_usize).prop_map(|stream| {
            (vec![Step::HideGraph(stream, Hidden::State)], vec![Step::HideGraph(stream, Hidden::Nothing), Step::EndPool(0)])
        }),
        3 => fail_next().prop_map(|fails| (vec![fails], Vec::new())),
    ];
    // Blocks that other streams have used before the next capture may be freed in it.
    let used = (0..4_usize, 0..STREAMS.len()).prop_map(|(which, stream)| Step::Record(which, stream));
    (fails, prop::collection::vec(one_of![1 => capture_memory(), 1 => used], 0..6)).prop_map(|((before, after), between)| {
        let ends = [Step::EndGraph(0), Step::Capturing(false)].into_iter().chain(before).chain([Step::EndPool(0)]);
        ends.chain(after).chain([Step::ProcessEvents]).chain(between).collect()
    })
}

/// Returns a program during captures of graphs, in which streams use the memory of others and wait for each other. In two thirds
/// of the programs, captures follow each other.
fn captured(timing: EventTiming) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let capture = |longest| (prop::collection::vec(capture_steps(), 1..longest), end_of_capture());
    let one = prop::collection::vec(capture(80), 1);
    let several = prop::collection::vec(capture(30), 2..4);
    (capturing_setup(timing), any::<bool>(), one_of![1 => one, 2 => several]).prop_map(|(setup, is_pooled, captures)| {
        let route = Step::BeginPool(0, (!is_pooled).then_some(0));
        let begin = [route, Step::Capturing(true), Step::BeginGraph(0), Step::GraphWork(0), Step::GraphWait(1, 0)];
        let whole = |(steps, end): (Vec<Vec<Step>>, Vec<Step>)| begin.into_iter().chain(steps.into_iter().flatten()).chain(end);
        (setup, captures.into_iter().flat_map(whole).collect())
    })
}

/// Returns a program in which a pool serves the requests of the default pool on a full device, while waiting is postponed: blocks
/// of the pool that other streams use wait for the end of the next routing to it, which is that of such a request.
fn lending(timing: EventTiming) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let stream = || one_of![3 => Just(0_usize), 1 => 0..STREAMS.len()];
    let size = || prop::sample::select(vec![512, MIB, 2 * MIB, 5 * MIB, 12 * MIB]);
    let allocate = || (size(), stream()).prop_map(|(size, stream)| Step::Allocate(size, stream));
    let which = || 0..6_usize;
    let postpones = || prop::sample::select(vec![vec![Step::Capturing(true)], vec![Step::BeginPool(1, Some(3))], Vec::new()]);
    let step = one_of![
        6 => allocate(),
        4 => (which(), 0..STREAMS.len()).prop_map(|(which, stream)| Step::Record(which, stream)),
        4 => which().prop_map(Step::Free),
        2 => fail_next(),
        1 => any::<bool>().prop_map(Step::Capturing),
        1 => Just(Step::EndPool(1)),
        1 => Just(Step::ProcessEvents),
        1 => graph_step(),
        1 => pool_step(),
    ];
    let used = (which(), 0..STREAMS.len()).prop_map(|(which, stream)| vec![Step::Record(which, stream), Step::Free(which)]);
    let steps = prop::collection::vec(one_of![3 => step.prop_map(|step| vec![step]), 1 => used], 4..20);
    let parts = (prop::collection::vec(allocate(), 1..6), postpones(), steps);
    (capturing_setup(timing), parts).prop_map(|(setup, (own, postpones, steps))| {
        let lender = std::iter::once(Step::BeginPool(0, None)).chain(own).chain([Step::EndPool(0), Step::UseOnOom(0, true)]);
        (setup, lender.chain([Step::OthersHold(400 * MIB)]).chain(postpones).chain(steps.into_iter().flatten()).collect())
    })
}

/// Returns programs with captures, with the setting under which the graph shows what can be reused.
pub(crate) fn captures(timing: EventTiming) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    one_of![1 => captured(timing), 1 => lending(timing)]
}

/// Returns a program with a few allocations in a private pool that is then saved, further allocations that other
/// streams use, and finally restores.
pub(crate) fn restores() -> impl Strategy<Value = Vec<Step>> {
    let allocate = || (one_of![sizes(), round_sizes()], stream()).prop_map(|(size, stream)| Step::Allocate(size, stream));
    let used = one_of![
        3 => allocate(),
        4 => (any::<usize>(), 0..STREAMS.len()).prop_map(|(which, stream)| Step::Record(which, stream)),
        2 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Save(0)),
    ];
    let end = one_of![
        3 => any::<usize>().prop_map(Step::Restore),
        2 => restore_changed(),
        1 => fail_next(),
        1 => Just(Step::ProcessEvents),
        1 => allocate(),
        1 => Just(Step::CompleteAll),
        1 => Just(Step::ReleaseCached),
    ];
    let parts = (prop::collection::vec(allocate(), 0..6), prop::collection::vec(used, 1..12), prop::collection::vec(end, 1..6));
    parts.prop_map(|(first, used, end)| {
        let begin = std::iter::once(Step::BeginPool(0, None)).chain(first).chain([Step::Save(0)]);
        begin.chain(used).chain(end).collect()
    })
}

/// Returns a program with a private pool that nothing uses any more. Several of its allocations wait for other streams when the
/// pool's memory is released, or the device had no memory for any of them, so that the pool has only addresses.
pub(crate) fn released_pools() -> impl Strategy<Value = Vec<Step>> {
    let allocate = || (one_of![sizes(), round_sizes()], stream()).prop_map(|(size, stream)| Step::Allocate(size, stream));
    let refused = || allocate().prop_map(|step| vec![Step::OthersHold(400 * MIB), step, Step::OthersHold(0)]);
    let own = one_of![6 => allocate().prop_map(|step| vec![step]), 1 => refused()];
    let used = one_of![
        3 => (any::<usize>(), 1..STREAMS.len()).prop_map(|(which, stream)| Step::Record(which, stream)),
        3 => any::<usize>().prop_map(Step::Free),
    ];
    let end = || {
        one_of![
            4 => Just(Step::ReleaseCachedPool(0)),
            1 => Just(Step::SnapshotPool(0)),
            1 => Just(Step::ProcessEvents),
            1 => (0..STREAMS.len()).prop_map(Step::CompleteOne),
            1 => allocate(),
            1 => Just(Step::ReleaseCached),
            1 => fail_next(),
        ]
    };
    let waiting = (
        prop::collection::vec(own, 1..8),
        prop::collection::vec(allocate(), 0..4),
        prop::collection::vec(used, 4..24),
        prop::collection::vec(end(), 1..5),
    );
    let bare = (
        prop::collection::vec(refused(), 1..3),
        Just(Vec::new()),
        Just(Vec::new()),
        prop::collection::vec(one_of![1 => end(), 1 => allocate()], 2..8),
    );
    one_of![2 => waiting, 1 => bare].prop_map(|(own, other, used, end)| {
        let begin = std::iter::once(Step::BeginPool(0, None)).chain(own.into_iter().flatten()).chain([Step::EndPool(0)]);
        begin.chain(other).chain([Step::ReleasePool(0)]).chain(used).chain(end).collect()
    })
}

/// Returns the setup of a careful program with this event timing. If PyTorch's policy runs it, any release and settings apply.
fn careful_setup(timing: EventTiming) -> impl Strategy<Value = Setup> {
    let capacity = prop::sample::select(vec![64 * MIB, 130 * MIB, 200 * MIB, 300 * MIB, 1024 * MIB, 3072 * MIB]);
    let places = prop::sample::select(vec![Places::Ascending, Places::Descending, Places::Reuse]);
    let release = prop::sample::select(profiles().map(|profile| profile.name).collect::<Vec<_>>());
    (release, 0..TEXTS.len(), capacity, any_seed(timing), places, any::<u64>()).prop_map(
        |(release, settings, capacity, timing, places, policy_seed)| Setup {
            release,
            settings,
            capacity,
            timing,
            places,
            policy_seed,
            // A free waits for the device, as it does in the driver; otherwise the policy would have to wait.
            free_waits: true,
            ..Setup::PLAIN
        },
    )
}

fn careful_step() -> impl Strategy<Value = Step> {
    let which = || any::<u8>().prop_map(usize::from);
    // Two of every three requests are for the same stream, so that they find free blocks and other streams also have
    // blocks that can be taken.
    let stream = || one_of![2 => Just(0_usize), 1 => 0..STREAMS.len()];
    // Some sizes repeat, so that blocks are reused.
    let again = prop::sample::select(vec![512, 3 * MIB, 6 * MIB, 8 * MIB, 20 * MIB, 40 * MIB]);
    // Some rules apply from 128 or 512 MiB upwards.
    let huge = (150..350_u64).prop_map(|pages| 2 * MIB * pages);
    let size = one_of![16 => again, 23 => sizes(), 1 => huge];
    let limits = [6, 25, 40, 58, 98, 117, 150, 180, 225, 270, 410, 768, 1228, 2304].map(|mib: u64| Some(mib * MIB));
    let limits = limits.into_iter().chain([None; 6]).collect::<Vec<_>>();
    one_of![
        30 => (size, stream()).prop_map(|(bytes, stream)| Step::Allocate(bytes, stream)),
        2 => allocate_at(),
        20 => which().prop_map(Step::Free),
        6 => which().prop_map(Step::Replace),
        9 => (which(), 0..STREAMS.len()).prop_map(|(which, stream)| Step::Use(which, stream)),
        3 => (which(), which(), 0..STREAMS.len()).prop_map(|(from, to, stream)| Step::Copy(from, to, stream)),
        2 => which().prop_map(Step::Read),
        4 => (0..STREAMS.len(), 1..10_000_u64).prop_map(|(stream, time)| Step::Launch(stream, time)),
        2 => (1..20_000_u64).prop_map(Step::Pause),
        1 => (0..STREAMS.len()).prop_map(Step::Complete),
        2 => (0..STREAMS.len()).prop_map(Step::CompleteOne),
        1 => Just(Step::CompleteAll),
        1 => Just(Step::ProcessEvents),
        1 => Just(Step::ReleaseCached),
        1 => prop::sample::select(limits).prop_map(Step::Limit),
        1 => any::<u8>().prop_map(|text| Step::Apply(usize::from(text))),
        1 => prop::sample::select(vec![0, 0, 20 * MIB, 70 * MIB + 1, 400 * MIB]).prop_map(Step::OthersHold),
        1 => Just(Step::ResetPeaks),
        1 => Just(Step::ResetSums),
        1 => (0..STREAMS.len()).prop_map(Step::BeginGraph),
        4 => (0..STREAMS.len()).prop_map(Step::EndGraph),
        1 => (0..STREAMS.len(), prop::sample::select(vec![Hidden::State, Hidden::Nothing, Hidden::Nothing]))
            .prop_map(|(stream, hidden)| Step::HideGraph(stream, hidden)),
    ]
}

fn careful_pool_step() -> impl Strategy<Value = Step> {
    // Most steps use the same pool, so that they interact.
    let pool = || one_of![2 => Just(0), 1 => 0..POOLS.len()];
    one_of![
        2 => pool().prop_map(Step::CreatePool),
        6 => (pool(), one_of![2 => Just(None), 3 => (0..STREAMS.len()).prop_map(Some)])
            .prop_map(|(pool, stream)| Step::BeginPool(pool, stream)),
        // Most of the time nothing is routed, because nothing waits during a routing.
        8 => pool().prop_map(Step::EndPool),
        2 => pool().prop_map(Step::ReleasePool),
        1 => pool().prop_map(|pool| Step::UseOnOom(pool, true)),
        // At most one pool, because with several pools nothing would ever be split.
        1 => Just(Step::NoSplit(POOLS.len() - 1)),
        1 => pool().prop_map(Step::ReleaseCachedPool),
        3 => pool().prop_map(Step::Save),
        4 => any::<u8>().prop_map(|which| Step::Restore(usize::from(which))),
    ]
}

/// Returns careful programs of at most this many steps. Half of them have private pools; nothing waits while requests are
/// routed, so those programs exercise the other rules less.
pub(crate) fn careful(timing: EventTiming, longest: usize) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let with_pools = one_of![5 => careful_step(), 1 => careful_pool_step()];
    let steps = one_of![
        4 => prop::collection::vec(careful_step(), 1..longest),
        4 => prop::collection::vec(with_pools, 1..longest),
        1 => careful_restores(),
    ];
    (careful_setup(timing), steps)
}

/// Returns careful programs in which a private pool is restored beside other pools that have free blocks in segments in use.
fn careful_restores() -> impl Strategy<Value = Vec<Step>> {
    let step = || {
        let size = prop::sample::select(vec![512, 1024, 300 * 1024, MIB, 3 * MIB]);
        let stream = one_of![4 => Just(0_usize), 1 => 0..STREAMS.len()];
        one_of![
            3 => (size, stream).prop_map(|(bytes, stream)| Step::Allocate(bytes, stream)),
            2 => any::<u8>().prop_map(|which| Step::Free(usize::from(which))),
        ]
    };
    let steps = |most: usize| prop::collection::vec(step(), 1..most);
    let saved = (steps(8), steps(8)).prop_map(|(saved, later)| saved.into_iter().chain([Step::Save(0)]).chain(later).collect());
    (steps(20), saved, steps(8)).prop_map(|(outside, inside, after): (Vec<Step>, Vec<Step>, Vec<Step>)| {
        let begin = [Step::CreatePool(0), Step::BeginPool(0, None)];
        let end = [Step::CompleteAll, Step::ProcessEvents, Step::Restore(0)];
        outside.into_iter().chain(begin).chain(inside).chain([Step::EndPool(0)]).chain(after).chain(end).collect()
    })
}

/// Returns careful programs in which expandable segments are unmapped and mapped again beside live allocations.
pub(crate) fn remapping() -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let size = one_of![2 => 4..MIB, 4 => MIB..8 * MIB, 2 => 8 * MIB..24 * MIB];
    let step = one_of![
        5 => (size, one_of![3 => Just(0_usize), 1 => Just(1)]).prop_map(|(bytes, stream)| Step::Allocate(bytes, stream)),
        4 => (0..64_usize).prop_map(Step::Free),
        1 => Just(Step::ReleaseCached),
    ];
    let plain = Setup { capacity: 160 * MIB, timing: EventTiming::Clock, free_waits: true, ..Setup::PLAIN };
    (Just(plain.with_settings("expandable_segments:True")), prop::collection::vec(step, 1..40))
}

/// Returns careful programs whose streams share much memory.
pub(crate) fn sharing(timing: EventTiming, may_expand: bool) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    // Some sizes repeat, so that blocks are reused.
    let again = prop::sample::select(vec![512, MIB, 4 * MIB, 12 * MIB]);
    let size = one_of![3 => again, 2 => 4..MIB, 2 => MIB..12 * MIB, 1 => 12 * MIB..24 * MIB];
    let (which, stream) = (0..64_usize, 0..STREAMS.len());
    let step = one_of![
        6 => (size, stream.clone()).prop_map(|(bytes, stream)| Step::Allocate(bytes, stream)),
        5 => which.clone().prop_map(Step::Free),
        4 => which.clone().prop_map(Step::Replace),
        3 => (which.clone(), stream.clone()).prop_map(|(which, stream)| Step::Use(which, stream)),
        5 => (which.clone(), which.clone(), stream.clone()).prop_map(|(from, to, stream)| Step::Copy(from, to, stream)),
        3 => (stream, 1_000..200_000_u64).prop_map(|(stream, duration)| Step::Launch(stream, duration)),
        1 => which.prop_map(Step::Read),
        1 => Just(Step::ProcessEvents),
        1 => Just(Step::ReleaseCached),
    ];
    let setup = (any_seed(timing), any::<bool>()).prop_map(move |(timing, expands)| {
        let plain = Setup { capacity: 192 * MIB, timing, free_waits: true, ..Setup::PLAIN };
        plain.with_settings(if expands && may_expand { "expandable_segments:True" } else { "" })
    });
    (setup, prop::collection::vec(step, 1..120))
}

/// Returns the program with every stream replaced by the first one.
pub(crate) fn on_one_stream(steps: &[Step]) -> Vec<Step> {
    let on_first = |step: &Step| match *step {
        Step::Allocate(bytes, _) => Step::Allocate(bytes, 0),
        Step::Use(which, _) => Step::Use(which, 0),
        Step::Copy(from, to, _) => Step::Copy(from, to, 0),
        Step::Launch(_, duration) => Step::Launch(0, duration),
        step => step,
    };
    steps.iter().map(on_first).collect()
}
