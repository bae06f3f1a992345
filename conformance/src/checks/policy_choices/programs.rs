//! Programs whose sizes are on a grid: multiples of a unit, and a few bytes more or less. The device has only a few dozen units,
//! so it is often full, and requests often fit exactly.

use parkade::units::MIB;
use proptest::prelude::*;

use crate::backend::{AnyBackend, EventTiming, Places, STREAMS};
use crate::checks::campaign::Subject;
use crate::drawn::one_of;
use crate::program::search::Stopped;
use crate::program::step::{CALLBACKS, Order, POOLS, Setup, Step};

/// The number of programs in an entry here for each program in other entries of a policy.
pub(super) const TIMES: u32 = 4;
/// The salt of the drawn programs.
pub(super) const SALT: u64 = 0xc401;

/// The units of the grid, around the size of a page and far from it.
const UNITS: [u64; 12] = [512, MIB / 2, MIB, MIB, 3 * MIB / 2, 2 * MIB, 2 * MIB, 4 * MIB, 6 * MIB, 16 * MIB, 64 * MIB, 256 * MIB];
/// Sizes at which a policy's rule changes.
const THRESHOLDS: [u64; 12] =
    [512, MIB, 2 * MIB, 8 * MIB, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 256 * MIB, 384 * MIB, 512 * MIB];
/// The bytes that are added to a size on the grid.
const OFFSETS: [i64; 10] = [0, 0, 0, 0, 0, 0, -256, 1, -1, 256];
/// The minimum memory of a device.
const LEAST: u64 = 24 * MIB;
/// The maximum memory of a device. With more, the programs would only be slower.
const MOST: u64 = 4 << 30;

/// A number of bytes before the grid is known.
#[derive(Clone, Copy, Debug)]
enum Amount {
    /// This many units, and a few bytes.
    Units(u64, i64),
    /// A threshold, and a few bytes.
    Fixed(u64, i64),
}

impl Amount {
    fn bytes(self, grid: Grid) -> u64 {
        let unit = grid.unit;
        let (bytes, offset) = match self {
            Amount::Units(units, _) if grid.is_exact => (units * unit, 0),
            Amount::Fixed(bytes, _) if grid.is_exact => (bytes.next_multiple_of(unit), 0),
            Amount::Units(units, offset) => (units * unit, offset),
            Amount::Fixed(bytes, offset) => (bytes, offset),
        };
        bytes.saturating_add_signed(offset).max(1)
    }
}

/// The grid of a program.
#[derive(Clone, Copy, Debug)]
struct Grid {
    unit: u64,
    /// Whether all sizes are multiples of the unit, so that sums of sizes are often equal.
    is_exact: bool,
    /// The number of streams.
    streams: usize,
}

/// A step before the grid is known.
#[derive(Clone, Copy, Debug)]
enum Sketch {
    Allocate(Amount, usize),
    Limit(Amount),
    OthersHold(Amount),
    Step(Step),
}

impl Sketch {
    fn step(self, grid: Grid) -> Step {
        match self {
            Sketch::Allocate(amount, stream) => Step::Allocate(amount.bytes(grid), stream % grid.streams),
            Sketch::Limit(amount) => Step::Limit(Some(amount.bytes(grid))),
            Sketch::OthersHold(amount) => Step::OthersHold(amount.bytes(grid)),
            Sketch::Step(step) => step,
        }
    }
}

fn offset() -> impl Strategy<Value = i64> {
    prop::sample::select(OFFSETS.to_vec())
}

fn amount(units: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = Amount> {
    one_of![
        5 => (units, offset()).prop_map(|(units, offset)| Amount::Units(units, offset)),
        1 => (prop::sample::select(THRESHOLDS.to_vec()), offset()).prop_map(|(bytes, offset)| Amount::Fixed(bytes, offset)),
    ]
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let which = || any::<u8>().prop_map(usize::from);
    let stream = || one_of![2 => Just(0_usize), 1 => 0..STREAMS.len()];
    let size = || one_of![4 => amount(1..=6), 1 => amount(1..=24)];
    one_of![
        40 => (size(), stream()).prop_map(|(amount, stream)| Sketch::Allocate(amount, stream)),
        1 => (0..4096_u64, stream()).prop_map(|(less, stream)| Sketch::Step(Step::AllocateRaw(u64::MAX - less, stream))),
        30 => which().prop_map(|which| Sketch::Step(Step::Free(which))),
        4 => which().prop_map(|which| Sketch::Step(Step::Replace(which))),
        3 => (which(), stream()).prop_map(|(which, stream)| Sketch::Step(Step::Record(which, stream))),
        3 => (stream(), 1..10_000_u64).prop_map(|(stream, time)| Sketch::Step(Step::Launch(stream, time))),
        1 => stream().prop_map(|stream| Sketch::Step(Step::Complete(stream))),
        1 => Just(Sketch::Step(Step::CompleteAll)),
        1 => Just(Sketch::Step(Step::ProcessEvents)),
        1 => Just(Sketch::Step(Step::ReleaseCached)),
        2 => amount(1..=40).prop_map(Sketch::Limit),
        1 => Just(Sketch::Step(Step::Limit(None))),
        2 => amount(1..=40).prop_map(Sketch::OthersHold),
        2 => Just(Sketch::Step(Step::OthersHold(0))),
        3 => (which(), 0..CALLBACKS).prop_map(|(which, callback)| Sketch::Step(Step::Stock(which, callback))),
    ]
}

/// Returns an action for a callback during a request. For example, it ends a routing, so the rest of the request may wait.
fn order() -> impl Strategy<Value = Order> {
    let pool = || one_of![2 => Just(0), 1 => 0..POOLS.len()];
    one_of![
        6 => pool().prop_map(Order::End),
        2 => pool().prop_map(Order::Release),
        1 => pool().prop_map(Order::Create),
        1 => Just(Order::ReleaseCached),
        1 => pool().prop_map(Order::ReleaseCachedPool),
    ]
}

fn pool_sketch() -> impl Strategy<Value = Sketch> {
    let pool = || one_of![2 => Just(0), 1 => 0..POOLS.len()];
    let step = one_of![
        2 => pool().prop_map(Step::CreatePool),
        6 => (pool(), prop::option::of(0..STREAMS.len())).prop_map(|(pool, stream)| Step::BeginPool(pool, stream)),
        7 => pool().prop_map(Step::EndPool),
        3 => pool().prop_map(Step::ReleasePool),
        1 => (pool(), prop::bool::weighted(0.8)).prop_map(|(pool, serves)| Step::UseOnOom(pool, serves)),
        1 => pool().prop_map(Step::ReleaseCachedPool),
        2 => prop::bool::weighted(0.3).prop_map(Step::Capturing),
        1 => pool().prop_map(Step::Save),
        1 => any::<u8>().prop_map(|which| Step::Restore(usize::from(which))),
        10 => (0..CALLBACKS, order(), any::<bool>()).prop_map(|(callback, order, says)| Step::Command(callback, order, says)),
    ];
    step.prop_map(Sketch::Step)
}

/// Returns any event timing.
pub(super) fn timing() -> impl Strategy<Value = EventTiming> {
    one_of![
        Just(EventTiming::Clock),
        Just(EventTiming::Eager),
        Just(EventTiming::Lazy),
        any::<u64>().prop_map(EventTiming::Seeded),
    ]
}

/// Returns a setup with the grid of its program.
fn setup() -> impl Strategy<Value = (Setup, Grid)> {
    let units = prop::sample::select(UNITS.to_vec());
    let capacity = prop::sample::select(vec![9, 12, 16, 24, 33, 48]);
    let more = prop::sample::select(vec![0, 0, 0, MIB, 3]);
    let places = prop::sample::select(vec![Places::Ascending, Places::Descending, Places::Reuse]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (units, capacity, more, timing(), places, flags, any::<u64>(), 1..=STREAMS.len()).prop_map(
        |(unit, units, more, timing, places, (free_waits, has_callbacks, is_exact), policy_seed, streams)| {
            let capacity = (unit * units).clamp(LEAST, MOST) + if is_exact { 0 } else { more };
            let plain = Setup { is_finished: false, ..Setup::PLAIN };
            let setup = Setup { capacity, timing, places, free_waits, has_callbacks, policy_seed, ..plain };
            (setup, Grid { unit, is_exact, streams })
        },
    )
}

/// Returns programs with hundreds of sizes, many of which recur.
fn many_sizes() -> impl Strategy<Value = (Setup, Vec<Step>)> {
    (setup(), prop::collection::vec((1..6_000_u64, any::<prop::sample::Index>()), 200..400)).prop_map(|((setup, ..), sizes)| {
        let again = sizes.iter().map(|(_, index)| sizes[index.index(sizes.len())].0);
        let all = sizes.iter().map(|&(size, _)| size).chain(again);
        (setup, all.flat_map(|size| [Step::Allocate(size * 512, 0), Step::Free(0)]).collect())
    })
}

/// Returns programs whose streams need exactly as much as others, twice as much, and so on up to 64 times as much, now and then
/// a few bytes more or less, on a device with room for all of it.
fn multiples() -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let less = prop::sample::select(vec![0, 0, 0, 0, 512, 1024]);
    let request = (0..=6_u32, less, any::<bool>(), 0..3_usize);
    let steps = prop::collection::vec((request, prop::option::weighted(0.2, any::<u8>())), 2..16);
    let unit = prop::sample::select(vec![MIB, 2 * MIB, 2 * MIB, 4 * MIB]);
    (setup(), unit, steps).prop_map(|((setup, _), unit, steps)| {
        let step = |((power, less, is_less, stream), freed): ((u32, u64, bool, usize), Option<u8>)| {
            let size = unit << power;
            let size = if is_less { size - less } else { size + less };
            [Some(Step::Allocate(size, stream)), freed.map(|which| Step::Free(usize::from(which)))]
        };
        (Setup { capacity: MOST, ..setup }, steps.into_iter().flat_map(step).flatten().collect())
    })
}

/// Returns programs that take a few segments within a small limit, free most or all of them, and then request up to all that the
/// limit allows, so that releasing one, two or all segments is often exactly enough.
fn refills() -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let round = (prop::collection::vec((1..=4_u64, any::<usize>()), 1..5), any::<bool>(), 1..=16_u64, any::<usize>());
    let limit = prop::sample::select(vec![4_u64, 6, 8, 8, 12, 12, 16]);
    (setup(), limit, prop::collection::vec(round, 1..4)).prop_map(|((setup, grid), limit, rounds)| {
        let request = |units: u64, stream: usize| Step::Allocate(units.min(limit) * grid.unit, stream % grid.streams);
        let round = |(taken, keeps_one, units, stream): (Vec<(u64, usize)>, bool, u64, usize)| {
            let freed = taken.len() - usize::from(keeps_one);
            let taken = taken.into_iter().map(move |(units, stream)| request(units, stream));
            let freed = std::iter::repeat_n(Step::Free(0), freed);
            taken.chain(freed).chain([request(units, stream), Step::Free(0)]).collect::<Vec<_>>()
        };
        let begin = Step::Limit(Some(limit * grid.unit));
        (Setup { capacity: MOST, ..setup }, std::iter::once(begin).chain(rounds.into_iter().flat_map(round)).collect())
    })
}

/// Returns programs, nearly all of which have at most this many steps. Many of them have private pools.
pub(super) fn deciding(longest: usize) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    one_of![60 => on_a_grid(longest), 8 => multiples(), 8 => refills(), 1 => many_sizes()]
}

fn on_a_grid(longest: usize) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let with_pools = one_of![6 => sketch(), 1 => pool_sketch()];
    let steps = one_of![prop::collection::vec(sketch(), 1..longest), prop::collection::vec(with_pools, 1..longest)];
    (setup(), steps).prop_map(|((setup, grid), sketches)| (setup, sketches.into_iter().map(|sketch| sketch.step(grid)).collect()))
}

/// Plays a wild program, and drops the allocator.
pub(super) fn play(subject: &Subject, backend: &AnyBackend, setup: &Setup, steps: &[Step]) -> Result<u64, Stopped> {
    let mut player = subject.begin_as(backend, setup, false)?;
    player.play(steps)?;
    let script = player.script();
    player.abandon(None).map_err(|broken| Stopped::Broken(broken.during("dropped"), script))?;
    Ok(steps.len() as u64)
}
