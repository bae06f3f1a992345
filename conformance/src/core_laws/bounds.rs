//! Tests the largest and the smallest numbers: streams and private pools, which have 16-bit numbers; bytes, up to more
//! than the statistics can count; requests as large as their blocks; and fractions as limits.

use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{
    AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment, AllocError, Allocation, AnswerProblem, PoolError, PoolFilter,
    PoolSlot,
};
use proptest::prelude::*;

use crate::core_laws::devices::{Paper, PaperCore as Core};
use crate::drawn::one_of;
use crate::drawn::{Draws, Outcome, run_law};
use crate::law::{Broken, Law, ensure};
use crate::reference_model::{Reference, texts};

/// The maximum number of streams, including the default one.
const STREAMS: u64 = 1 << 16;

/// The maximum number of private pools.
const POOLS: u64 = (1 << 15) - 1;

fn core() -> Core {
    Core::new(Paper::new(1 << 40), PyTorch::of(&Profile::PYTORCH_2_11, Settings::default()), Vec::new())
}

fn allocate(core: &mut Core, bytes: u64, stream: u64) -> Result<Allocation, Broken> {
    let answer = core.allocate(Bytes(bytes), StreamId(stream));
    answer.map_err(|error| Broken::new(Law::Reference, format!("{bytes} bytes on stream {stream}: {error}")))
}

fn free(core: &mut Core, allocation: Allocation) -> Result<(), Broken> {
    core.free(allocation).map_err(|error| Broken::new(Law::Reference, error))
}

pub(crate) fn streams(_: &Draws) -> Outcome {
    let mut core = core();
    // Handles in ascending order, except every seventh.
    let handle = |number: u64| if number > 0 && number.is_multiple_of(7) { u64::MAX - number } else { number };
    let block = AdoptedBlock { size: Bytes(2 * MIB), content: AdoptedContent::Free };
    // A stream counts from its first use, even if the request fails. The requests are refused ones because those take
    // less time.
    let refused = |core: &mut Core, stream: StreamId| {
        let (pool, class, address) = (PoolId(9, 9), PoolClass::Small, DeviceAddress(1 << 50));
        let segment = AdoptedSegment { address, stream, pool, class, page: None, blocks: vec![block] };
        core.adopt(&segment, &mut |_, _| ((), 1)).err()
    };
    for number in 1..STREAMS {
        let answer = refused(&mut core, StreamId(handle(number)));
        ensure(Law::Reference, answer == Some(AdoptError::UnknownPool), || format!("stream {number} of {STREAMS}: {answer:?}"))?;
    }
    let next = StreamId(STREAMS);
    let answer = core.allocate(Bytes(512), next);
    ensure(Law::Reference, answer == Err(AllocError::TooManyStreams), || {
        format!(
            "a request on stream {STREAMS} returned \
                                                                                  {answer:?}"
        )
    })?;
    let answer = refused(&mut core, next);
    let is_full = answer == Some(AdoptError::TooManyStreams);
    ensure(Law::Reference, is_full, || format!("adopting a segment for stream {STREAMS} returned {answer:?}"))?;
    // The streams with the highest slots have their own blocks.
    let last: Vec<u64> = [0, 1, 2, STREAMS / 2, STREAMS - 3, STREAMS - 2, STREAMS - 1].map(handle).to_vec();
    for &stream in &last {
        let first = allocate(&mut core, 4 * MIB, stream)?;
        let (address, again) = (first.address(), core.segment_of(&first));
        free(&mut core, first)?;
        let second = allocate(&mut core, 4 * MIB, stream)?;
        let same = second.address() == address && core.segment_of(&second) == again;
        ensure(Law::Reference, same, || format!("stream {stream:#x} does not get its own block back"))?;
        free(&mut core, second)?;
        let largest = core.heap().largest_free().get();
        ensure(Law::Reference, largest == 20 * MIB, || format!("the largest free block has {largest} bytes after {stream:#x}"))?;
    }
    let mut seen: Vec<u64> = core.segments().iter().map(|segment| segment.stream.get()).collect();
    let mut expected = last;
    seen.sort_unstable();
    expected.sort_unstable();
    ensure(Law::Reference, seen == expected, || format!("segments belong to the streams {seen:?}, expected {expected:?}"))?;
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    Ok(STREAMS)
}

pub(crate) fn pools(_: &Draws) -> Outcome {
    let mut core = core();
    let failed = |error: PoolError| Broken::new(Law::Reference, format!("{error:?}"));
    let id = |number: u64| PoolId(number % 3, number);
    for number in 1..=POOLS {
        core.create_pool(id(number)).map_err(failed)?;
    }
    let (next, refused) = (PoolId(1, 0), Err(PoolError::TooMany));
    let answers = [core.create_pool(next), core.begin_pool(next, PoolFilter::All)];
    ensure(Law::Pools, answers == [refused; 2], || format!("for pool {}, the answers are {answers:?}", POOLS + 1))?;
    let uses = core.pool_use_count(next);
    ensure(Law::Pools, uses == Err(PoolError::Unknown(next)), || {
        format!("the pool whose creation was refused has {uses:?} uses")
    })?;
    // When every number is taken, operations on all pools still work.
    let cached = allocate(&mut core, 3 * MIB, 0)?;
    free(&mut core, cached)?;
    core.release_cached().map_err(|error| Broken::new(Law::Pools, error))?;
    let kept = core.segments().len();
    ensure(Law::Pools, kept == 0, || format!("{kept} segments remain after the cache is released"))?;
    // One more use of an existing pool needs no number.
    core.create_pool(id(POOLS)).map_err(failed)?;
    core.release_pool(id(POOLS)).map_err(failed)?;
    for number in [1, 2, POOLS / 2, POOLS - 1, POOLS] {
        let pool = id(number);
        core.begin_pool(pool, PoolFilter::All).map_err(failed)?;
        let held = allocate(&mut core, 3 * MIB, 0)?;
        core.end_pool(pool).map_err(failed)?;
        let of_pool: Vec<PoolId> = core.segments().iter().map(|segment| segment.pool).collect();
        ensure(Law::Pools, of_pool == [pool], || format!("a request routed to {pool:?} created segments in {of_pool:?}"))?;
        free(&mut core, held)?;
        // The number of the released pool is available again.
        core.release_pool(pool).and_then(|()| core.release_pool(pool)).map_err(failed)?;
        core.release_cached_pool(pool).map_err(|error| Broken::new(Law::Pools, error))?;
        ensure(Law::Pools, core.pool_use_count(pool).is_err() && core.segments().is_empty(), || {
            format!("{pool:?} still exists")
        })?;
        core.create_pool(next).map_err(failed)?;
        let full = core.create_pool(pool);
        ensure(Law::Pools, full == Err(PoolError::TooMany), || {
            format!(
                "replacing one pool and adding one more returned \
                                                                        {full:?}"
            )
        })?;
        core.release_pool(next).map_err(failed)?;
        core.release_cached().map_err(|error| Broken::new(Law::Pools, error))?;
        core.create_pool(pool).map_err(failed)?;
    }
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    Ok(POOLS)
}

/// A segment with one free block.
fn free_segment(address: u64, size: u64) -> AdoptedSegment {
    let blocks = vec![AdoptedBlock { size: Bytes(size), content: AdoptedContent::Free }];
    let (pool, class, stream) = (PoolId::DEFAULT, PoolClass::Large, StreamId::DEFAULT);
    AdoptedSegment { address: DeviceAddress(address), stream, pool, class, page: None, blocks }
}

/// The heap check rejects an adopted block for which more bytes were requested than it has, wherever it is, until it is freed.
/// Adoption is the one call that leads to such a heap.
pub(crate) fn requested(_: &Draws) -> Outcome {
    const SIZE: u64 = 2 * MIB;
    let (pools, classes) = ([PoolId::DEFAULT, PoolId(0, 1)], [PoolClass::Small, PoolClass::Large]);
    let beside = [AdoptedContent::Allocated(Bytes(SIZE)), AdoptedContent::Free, AdoptedContent::Unmapped];
    let mut checks = 0;
    for (page, pool, class) in [None, Some(Bytes(SIZE))]
        .into_iter()
        .flat_map(|page| pools.into_iter().flat_map(move |pool| classes.map(move |class| (page, pool, class))))
    {
        for (place, beside) in (0..3_usize).flat_map(|place| beside.map(|beside| (place, beside))) {
            if beside == AdoptedContent::Unmapped && page.is_none() {
                continue;
            }
            for requested in [0, 1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 3 * SIZE, 3 * SIZE + 1, 1 << 40] {
                let content = |other: usize| match place.abs_diff(other) {
                    0 => AdoptedContent::Allocated(Bytes(requested)),
                    1 => beside,
                    _ => AdoptedContent::Allocated(Bytes(SIZE)),
                };
                let blocks = (0..3).map(|other| AdoptedBlock { size: Bytes(SIZE), content: content(other) }).collect();
                let (address, stream) = (DeviceAddress(1 << 50), StreamId::DEFAULT);
                let segment = AdoptedSegment { address, stream, pool, class, page, blocks };
                check_requested(&segment, place, requested > SIZE)?;
                checks += 1;
            }
        }
    }
    Ok(checks)
}

/// Adopts the segment, whose block at this place may be too small for its request.
fn check_requested(segment: &AdoptedSegment, place: usize, is_wrong: bool) -> Result<(), Broken> {
    let mut core = core();
    if segment.pool != PoolId::DEFAULT {
        core.create_pool(segment.pool).map_err(|error| Broken::new(Law::Sweep, format!("{error:?}")))?;
    }
    let adopted = core.adopt(segment, &mut |_, _| ((), 1)).map_err(|error| Broken::new(Law::Sweep, error))?;
    let at = DeviceAddress(segment.address.get() + place as u64 * segment.blocks[place].size.get());
    let answer = core.check();
    let is_named = answer.as_ref().is_err_and(|violation| violation.to_string().contains(&format!("{:#x}", at.get())));
    ensure(Law::Sweep, if is_wrong { is_named } else { answer.is_ok() }, || {
        format!("block {place} of {segment:?} is too small: {is_wrong}; the check returned {answer:?}")
    })?;
    for allocation in adopted.into_iter().filter(|allocation| allocation.address() == at) {
        free(&mut core, allocation)?;
    }
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))
}

pub(crate) fn bytes(draws: &Draws) -> Outcome {
    const MOST: u64 = i64::MAX as u64;
    let adopt = |core: &mut Core, address: u64, size: u64| core.adopt(&free_segment(address, size), &mut |_, _| ((), 1)).err();
    // All bytes at once, and one byte more; and all remaining bytes next to another segment.
    for (first, left) in [(0, MOST), (30 * MIB, MOST - 30 * MIB), (1 << 62, MOST - (1 << 62))] {
        let mut core = core();
        if first > 0 {
            let answer = core.raw_allocate(Bytes(first), StreamId::DEFAULT);
            ensure(Law::Reference, answer.is_ok(), || format!("{first} bytes: {answer:?}"))?;
        }
        let answers = [left + 1, left, 1].map(|size| adopt(&mut core, 3 << 61, size));
        let expected = [Some(AdoptError::TooMuch), None, Some(AdoptError::TooMuch)];
        ensure(Law::Reference, answers == expected, || format!("with {first} bytes held: {answers:?}"))?;
        let reserved = core.heap().reserved().get();
        ensure(Law::Reference, reserved == MOST, || format!("{reserved} bytes are reserved, expected {MOST}"))?;
        core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    }
    // Does the same for what the device hands out, which is in multiples of 2 MiB.
    for (adopted, is_served) in [(MOST - 4 * MIB, true), (MOST - 4 * MIB + 1, false)] {
        let mut core = core();
        let answer = adopt(&mut core, 3 << 61, adopted);
        ensure(Law::Reference, answer.is_none(), || format!("{adopted} bytes: {answer:?}"))?;
        core.set_limit(None);
        let stream = StreamId(1);
        let answers = [core.allocate(Bytes(512), stream).is_ok(), core.allocate(Bytes(512), StreamId(2)).is_ok()];
        let error = core.allocate(Bytes(512), StreamId(3)).err();
        let is_too_much = matches!(&error, Some(AllocError::Answer(wrong)) if wrong.problem == AnswerProblem::TooMuch);
        ensure(Law::Reference, answers == [true, is_served] && is_too_much, || {
            format!("with {adopted} bytes adopted, the requests returned {answers:?}, and the last one {error:?}")
        })?;
    }
    let borders = [0, 1, 512, 1 << 62, MOST, MOST + 1, MOST + 2, u64::MAX - 1, u64::MAX];
    let number = one_of![2 => prop::sample::select(borders.to_vec()), 1 => any::<u64>()];
    run_law(draws, 362, prop::collection::vec(number, 1..6), |requested| any_requested(requested))
}

/// Adopts blocks for which these bytes were requested, more than they hold, and frees them one by one: segments add up to at most
/// 2^64 - 1 requested bytes, and statistics wrap around.
fn any_requested(requested: &[u64]) -> Result<u64, Broken> {
    let failed = |error: &dyn std::error::Error| Broken::new(Law::Reference, error);
    let mut core = core();
    let block = |bytes: &u64| AdoptedBlock { size: Bytes(512), content: AdoptedContent::Allocated(Bytes(*bytes)) };
    let segment = AdoptedSegment { blocks: requested.iter().map(block).collect(), ..free_segment(1 << 50, 512) };
    let mut held = core.adopt(&segment, &mut |_, _| ((), 1)).map_err(|error| failed(&error))?.into_iter();
    for place in 0..=requested.len() {
        let left = &requested[place..];
        let sum = u64::try_from(left.iter().map(|bytes| u128::from(*bytes)).sum::<u128>()).unwrap_or(u64::MAX);
        let wrapped = left.iter().fold(0_i64, |sum, bytes| sum.wrapping_add(*bytes as i64));
        let segments = core.segments();
        let counted = core.stats().entries().into_iter().find(|(key, _)| key == "requested_bytes.all.current");
        let seen = (segments.len(), segments[0].requested.get(), counted.map_or(0, |(_, bytes)| bytes));
        ensure(Law::Reference, seen == (1, sum, wrapped), || {
            format!(
                "{left:?} are requested: the segments, their bytes and the statistics are {seen:?}, expected {sum} and {wrapped}"
            )
        })?;
        let Some(allocation) = held.next() else { continue };
        let seen = core.block_of(&allocation).map(|placed| placed.block.requested.get());
        ensure(Law::Reference, seen == left.first().copied(), || {
            format!("{left:?} are requested, but the first block has {seen:?}")
        })?;
        free(&mut core, allocation)?;
    }
    Ok(requested.len() as u64)
}

/// Handles of streams.
const HANDLES: [u64; 3] = [0, 1, u64::MAX];

/// Returns settings that change how sizes are handled, with sizes at their borders. A negative number of MiB is a huge one.
fn settings_text() -> impl Strategy<Value = String> {
    let mib = || prop::option::of(prop::sample::select(vec![21_i64, 40, 2048, 100_000, 1 << 43, (1 << 44) - 1, -1, -5]));
    let large = prop::option::weighted(0.3, prop::sample::select(vec![12_i64, 21, 1024, 4096]));
    let divisions = vec!["8", "[64:8,256:4,1024:2,4096:1,>:16]", "[>:1]", "36028797018963968"];
    let divisions = prop::option::weighted(0.3, prop::sample::select(divisions));
    let threshold = prop::option::weighted(0.3, prop::sample::select(vec!["0.01", "0.5", "0.999"]));
    (mib(), mib(), large, divisions, threshold).prop_map(|(split, rounding, large, divisions, threshold)| {
        // Smaller sizes than those of large segments are refused.
        let size = |mib: Option<i64>| mib.map(|mib| if mib < 0 { mib } else { mib.max(large.unwrap_or(0)) }.to_string());
        let pairs = [
            ("large_segment_size_mb", large.map(|mib| mib.to_string())),
            ("max_split_size_mb", size(split)),
            ("max_non_split_rounding_mb", size(rounding)),
            ("roundup_power2_divisions", divisions.map(str::to_owned)),
            ("garbage_collection_threshold", threshold.map(str::to_owned)),
        ];
        let pairs = pairs.into_iter().filter_map(|(key, value)| Some(format!("{key}:{}", value?)));
        pairs.collect::<Vec<_>>().join(",")
    })
}

/// One step. Its numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(u64, usize, bool),
    Free(usize),
    ReleaseCached,
    Limit(Option<u64>),
    Fraction(f64),
    ResetPeaks,
    ResetSums,
}

/// Returns a size of any magnitude, often exactly at a limit.
fn size() -> impl Strategy<Value = u64> {
    let near = (9_u32..64, prop::sample::select(vec![2_u128, 3]), prop::sample::select(vec![-513_i128, -512, -1, 0, 1, 512]))
        .prop_map(|(bits, part, offset)| {
            u64::try_from(((1_u128 << bits) * part / 2).saturating_add_signed(offset).max(1)).unwrap_or(u64::MAX)
        });
    let any = (0_u32..64, any::<u64>()).prop_map(|(bits, low)| (low >> bits).max(1));
    // Requests that a free block of another request may serve.
    let alike = (1_u64..8, 0_u64..3).prop_map(|(count, less)| 20 * MIB * count - less);
    one_of![6 => near, 2 => any, 1 => alike]
}

/// Requests of every size on a device without bounds have the same answers, device calls, statistics and trace entries
/// as in the reference allocator, up to more bytes than the statistics can count.
pub(crate) fn any_size(draws: &Draws) -> Outcome {
    let which = any::<usize>;
    let step = one_of![
        12 => (size(), which(), any::<bool>()).prop_map(|(size, stream, raw)| Step::Allocate(size, stream, raw)),
        10 => which().prop_map(Step::Free),
        1 => Just(Step::ReleaseCached),
        1 => prop::option::of(size()).prop_map(Step::Limit),
        1 => one_of![0.0..1.0_f64, Just(1.0), Just(0.0), Just(1.5)].prop_map(Step::Fraction),
        1 => Just(Step::ResetPeaks),
        1 => Just(Step::ResetSums),
    ];
    let total = prop::sample::select(vec![1 << 36, 1 << 50, 1 << 62, (1 << 62) + 4097, 1 << 63, u64::MAX - 4096, u64::MAX]);
    let strategy = (any::<bool>(), settings_text(), total, prop::collection::vec(step, 1..60));
    run_law(draws, 358, strategy, |(is_newer, text, total, steps)| {
        let mut play = Play::new(*is_newer, text, *total)?;
        for (number, step) in steps.iter().enumerate() {
            play.step(step).map_err(|broken| broken.during(format!("step {number}, {step:?}")))?;
        }
        Ok(steps.len() as u64)
    })
}

/// Both allocators, and the allocations that are held.
struct Play {
    profile: &'static Profile,
    core: Core,
    reference: Reference,
    held: Vec<Allocation>,
    told: usize,
}

impl Play {
    fn new(is_newer: bool, text: &str, total: u64) -> Result<Play, Broken> {
        let profile = if is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let settings =
            Settings::from_environment_as(&profile.dialect, text).map_err(|error| Broken::new(Law::Settings, error))?;
        let reference = Reference::new(profile, settings.clone(), total, 0);
        let core = Core::new(Paper::new(total), PyTorch::of(profile, settings), Vec::new());
        Ok(Play { profile, core, reference, held: Vec::new(), told: 0 })
    }

    fn step(&mut self, step: &Step) -> Result<(), Broken> {
        let _ = self.core.device_mut().take_calls();
        match *step {
            Step::Allocate(size, stream, raw) => self.allocate(size, HANDLES[stream % HANDLES.len()], raw)?,
            Step::Free(which) if !self.held.is_empty() => {
                let allocation = self.held.swap_remove(which % self.held.len());
                let address = allocation.address().get();
                let answer = self.core.free(allocation);
                self.reference.begin(self.core.device_mut().take_calls());
                let expected = self.reference.free(address);
                ensure(Law::Reference, answer.is_ok() && expected.is_ok(), || format!("{answer:?}, expected {expected:?}"))?;
            }
            Step::ReleaseCached => {
                let answer = self.core.release_cached();
                self.reference.begin(self.core.device_mut().take_calls());
                let expected = self.reference.release_cached();
                ensure(Law::Reference, answer == expected, || format!("{answer:?}, expected {expected:?}"))?;
            }
            Step::Free(_) => self.reference.begin(Vec::new()),
            _ => self.turn(step)?,
        }
        self.compare()
    }

    /// Changes both allocators in ways that do not reach the device.
    fn turn(&mut self, step: &Step) -> Result<(), Broken> {
        self.reference.begin(Vec::new());
        match *step {
            Step::Limit(bytes) => {
                self.core.set_limit(bytes.map(Bytes));
                self.reference.set_limit(bytes);
            }
            Step::Fraction(fraction) => {
                let (answer, is_legal) = (self.core.set_memory_fraction(fraction), self.reference.set_fraction(fraction));
                ensure(Law::Limit, answer.is_ok() == is_legal, || format!("{answer:?}"))?;
            }
            Step::ResetPeaks => {
                self.core.reset_peak_stats();
                self.reference.reset_peaks();
            }
            _ => {
                self.core.reset_accumulated_stats();
                self.reference.reset_sums();
            }
        }
        Ok(())
    }

    fn allocate(&mut self, size: u64, stream: u64, raw: bool) -> Result<(), Broken> {
        let (bytes, handle) = (Bytes(size), StreamId(stream));
        let answer = if raw { self.core.raw_allocate(bytes, handle) } else { self.core.allocate(bytes, handle) };
        self.reference.begin(self.core.device_mut().take_calls());
        let expected = self.reference.allocate(size, stream, raw);
        let seen = answer.as_ref().map(|allocation| allocation.address().get()).map_err(AllocError::clone);
        ensure(Law::Reference, seen == expected, || format!("the answer is {seen:?}, expected {expected:?}"))?;
        match answer {
            Ok(allocation) => {
                let (seen, expected) = (self.core.segment_of(&allocation), self.reference.segment_of(allocation.address().get()));
                self.held.push(allocation);
                ensure(Law::Reference, seen == Some(expected), || format!("its segment is {seen:?}, expected {expected:?}"))
            }
            Err(error) => texts::check(&error.message(self.profile), texts::of_request(&error, self.profile)),
        }
    }

    fn compare(&mut self) -> Result<(), Broken> {
        if let Some(wrong) = self.reference.end().or_else(|| self.reference.difference_from(self.core.stats())) {
            return Err(Broken::new(Law::Reference, wrong));
        }
        let told = &self.core.observer()[self.told..];
        ensure(Law::Reference, told == self.reference.trace, || {
            format!("the observer received {told:?}, expected {:?}", self.reference.trace)
        })?;
        self.told = self.core.observer().len();
        let (seen, expected) = (self.core.segments(), self.reference.segments());
        ensure(Law::Reference, seen == expected, || format!("the segments are {seen:?}, expected {expected:?}"))?;
        for class in [PoolClass::Small, PoolClass::Large] {
            let free = self.core.heap().free_blocks(PoolSlot::default_pool(class));
            let seen: Vec<(u64, u64)> = free.map(|block| (block.address.get(), block.size.get())).collect();
            let free = self.reference.free_in_order(PoolId::DEFAULT, class);
            let expected: Vec<(u64, u64)> = free.iter().map(|block| (block.address, block.size)).collect();
            ensure(Law::Reference, seen == expected, || format!("the free blocks are {seen:?}, expected {expected:?}"))?;
        }
        let threshold = self.core.policy().settings.garbage_collection_threshold;
        let limit = self.core.heap().limit().filter(|_| threshold > 0.0).map(Bytes::get);
        let due = limit.map(|limit| self.core.heap().reserved().get().saturating_sub((threshold * limit as f64) as u64));
        let target = self.core.policy().collection_target(self.core.heap()).map(Bytes::get);
        ensure(Law::Ladder, target == due.filter(|&bytes| bytes != 0), || {
            format!("garbage collection should release {target:?} bytes, expected {due:?}")
        })?;
        let largest = self.core.heap().largest_free().get();
        ensure(Law::Reference, largest == self.reference.largest_free(), || {
            format!("the largest free block has {largest} bytes")
        })?;
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))
    }
}

/// The number of fractions for each device.
const FRACTIONS: usize = 12;

/// Fractions of every kind: none, all, one bit less than all, halves of a byte, and values that are not valid
/// fractions.
pub(crate) fn fractions(draws: &Draws) -> Outcome {
    let total = one_of![
        prop::sample::select(vec![
            1,
            2,
            3,
            511,
            512,
            513,
            1 << 20,
            (1 << 36) + 1,
            150_110_011_392,
            1 << 53,
            (1 << 53) + 1,
            1 << 62,
            1 << 63,
            u64::MAX - 1024,
            u64::MAX
        ]),
        (0_u32..64, any::<u64>()).prop_map(|(bits, number)| (number >> bits).max(1)),
    ];
    let strategy = (any::<bool>(), total, prop::collection::vec(fraction(), FRACTIONS));
    run_law(draws, 351, strategy, |(is_newer, total, fractions)| {
        one_device(*is_newer, *total, fractions)?;
        Ok(fractions.len() as u64)
    })
}

fn fraction() -> impl Strategy<Value = f64> {
    let borders = vec![
        0.0,
        -0.0,
        0.5,
        1.0,
        1.0 - f64::EPSILON / 2.0,
        1.0 - f64::EPSILON,
        1.0 + f64::EPSILON,
        0.999_999_999_999,
        f64::MIN_POSITIVE,
        -f64::MIN_POSITIVE,
        5e-324,
        -5e-324,
        1.5,
        2.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    one_of![
        3 => prop::sample::select(borders),
        3 => 0.0..1.0_f64,
        2 => (0_u64..1 << 20, 1_u64..1 << 20).prop_map(|(part, whole)| part as f64 / whole as f64),
        1 => any::<f64>(),
    ]
}

fn one_device(is_newer: bool, total: u64, fractions: &[f64]) -> Result<(), Broken> {
    let profile = if is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
    let mut core = Core::new(Paper::new(total), PyTorch::of(profile, Settings::default()), Vec::new());
    let mut reference = Reference::new(profile, Settings::default(), total, 0);
    for &fraction in fractions {
        let (answer, is_legal) = (core.set_memory_fraction(fraction), reference.set_fraction(fraction));
        let same = answer.is_ok() == is_legal && core.heap().limit().map(Bytes::get) == reference.limit();
        ensure(Law::Limit, same, || {
            let limit = core.heap().limit();
            format!(
                "setting {fraction} of {total} bytes returned {answer:?} and set the limit {limit:?}, expected {:?}",
                reference.limit()
            )
        })?;
        let told = reference.limit().map_or(1.0, |limit| limit as f64 / total as f64);
        let seen = core.memory_fraction();
        ensure(Law::Limit, seen == told, || {
            format!("after {fraction} of {total} bytes is set, the fraction is {seen}, expected {told}")
        })?;
        if let Err(error) = answer {
            let begins = error.to_string().starts_with("invalid fraction:");
            ensure(Law::Limit, begins && error.0.to_bits() == fraction.to_bits(), || {
                format!("{fraction} is refused with {error:?}")
            })?;
        }
    }
    Ok(())
}
