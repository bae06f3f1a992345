//! The largest numbers that the heap has room for: streams and private pools have 16 bits.

use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{
    AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment, AllocError, Allocation, Allocator, AnswerProblem, PoolError,
    PoolFilter,
};

use crate::core_laws::paper::{Paper, PaperCore as Core};
use crate::core_laws::run::{Draws, Outcome};
use crate::law::{Broken, Law, ensure};

/// The most streams, the default one among them.
const STREAMS: u64 = 1 << 16;

/// The most private pools.
const POOLS: u64 = (1 << 15) - 1;

fn core() -> Core {
    Allocator::new(Paper::new(1 << 40), PyTorch::of(&Profile::PYTORCH_2_11, Settings::default()), Vec::new())
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
    // Handles in ascending order, but for every seventh.
    let handle = |number: u64| if number > 0 && number.is_multiple_of(7) { u64::MAX - number } else { number };
    let block = AdoptedBlock { size: Bytes(2 * MIB), content: AdoptedContent::Free };
    // A stream is known from its first use on, even if nothing comes of it. A request that is refused would take longer.
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
    ensure(Law::Reference, answer == Err(AllocError::TooManyStreams), || format!("stream {STREAMS} is answered {answer:?}"))?;
    let answer = refused(&mut core, next);
    let is_full = answer == Some(AdoptError::TooManyStreams);
    ensure(Law::Reference, is_full, || format!("to adopt for stream {STREAMS}: {answer:?}"))?;
    // The streams with the highest slots have blocks of their own.
    let last: Vec<u64> = [0, 1, 2, STREAMS / 2, STREAMS - 3, STREAMS - 2, STREAMS - 1].map(handle).to_vec();
    for &stream in &last {
        let first = allocate(&mut core, 4 * MIB, stream)?;
        let (address, again) = (first.address(), core.segment_of(&first));
        free(&mut core, first)?;
        let second = allocate(&mut core, 4 * MIB, stream)?;
        let same = second.address() == address && core.segment_of(&second) == again;
        ensure(Law::Reference, same, || format!("stream {stream:#x} does not get its own block again"))?;
        free(&mut core, second)?;
        let largest = core.heap().largest_free().get();
        ensure(Law::Reference, largest == 20 * MIB, || format!("the largest free block has {largest} bytes after {stream:#x}"))?;
    }
    let mut seen: Vec<u64> = core.segments().iter().map(|segment| segment.stream.get()).collect();
    let mut expected = last;
    seen.sort_unstable();
    expected.sort_unstable();
    ensure(Law::Reference, seen == expected, || format!("segments are of streams {seen:?}, expected {expected:?}"))?;
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
    ensure(Law::Pools, answers == [refused; 2], || format!("pool {} is answered {answers:?}", POOLS + 1))?;
    let uses = core.pool_use_count(next);
    ensure(Law::Pools, uses == Err(PoolError::Unknown(next)), || format!("the pool that was refused has {uses:?} uses"))?;
    // With every number taken, whatever goes over all pools still does.
    let cached = allocate(&mut core, 3 * MIB, 0)?;
    free(&mut core, cached)?;
    core.release_cached().map_err(|error| Broken::new(Law::Pools, error))?;
    let kept = core.segments().len();
    ensure(Law::Pools, kept == 0, || format!("{kept} segments stay when the cache is released"))?;
    // One more use of a pool that is there needs no number.
    core.create_pool(id(POOLS)).map_err(failed)?;
    core.release_pool(id(POOLS)).map_err(failed)?;
    for number in [1, 2, POOLS / 2, POOLS - 1, POOLS] {
        let pool = id(number);
        core.begin_pool(pool, PoolFilter::All).map_err(failed)?;
        let held = allocate(&mut core, 3 * MIB, 0)?;
        core.end_pool(pool).map_err(failed)?;
        let of_pool: Vec<PoolId> = core.segments().iter().map(|segment| segment.pool).collect();
        ensure(Law::Pools, of_pool == [pool], || format!("a request in {pool:?} made segments in {of_pool:?}"))?;
        free(&mut core, held)?;
        // Its number is free again.
        core.release_pool(pool).and_then(|()| core.release_pool(pool)).map_err(failed)?;
        core.release_cached_pool(pool).map_err(|error| Broken::new(Law::Pools, error))?;
        ensure(Law::Pools, core.pool_use_count(pool).is_err() && core.segments().is_empty(), || format!("{pool:?} stays"))?;
        core.create_pool(next).map_err(failed)?;
        let full = core.create_pool(pool);
        ensure(Law::Pools, full == Err(PoolError::TooMany), || format!("one pool for another, and one more: {full:?}"))?;
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

pub(crate) fn bytes(_: &Draws) -> Outcome {
    const MOST: u64 = i64::MAX as u64;
    let adopt = |core: &mut Core, address: u64, size: u64| core.adopt(&free_segment(address, size), &mut |_, _| ((), 1)).err();
    // All at once, and one byte more; and what is left beside a segment of its own.
    for (first, left) in [(0, MOST), (30 * MIB, MOST - 30 * MIB), (1 << 62, MOST - (1 << 62))] {
        let mut core = core();
        if first > 0 {
            let answer = core.raw_allocate(Bytes(first), StreamId::DEFAULT);
            ensure(Law::Reference, answer.is_ok(), || format!("{first} bytes: {answer:?}"))?;
        }
        let answers = [left + 1, left, 1].map(|size| adopt(&mut core, 3 << 61, size));
        let expected = [Some(AdoptError::TooMuch), None, Some(AdoptError::TooMuch)];
        ensure(Law::Reference, answers == expected, || format!("beside {first} bytes: {answers:?}"))?;
        let reserved = core.heap().reserved().get();
        ensure(Law::Reference, reserved == MOST, || format!("{reserved} bytes are held, expected {MOST}"))?;
        core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    }
    // The same for what the device hands out: whole multiples of 2 MiB.
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
            format!("beside {adopted} bytes requests are answered {answers:?}, and the last one {error:?}")
        })?;
    }
    Ok(5)
}
