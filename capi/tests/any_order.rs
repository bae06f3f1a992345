//! Calls in any order, compared with a core that gets the flags of each call before it: no flag, pool or settings of a call
//! may matter to the next one.

use std::ffi::{CStr, CString, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{ptr, slice};

use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, BlockInfo, PlacedBlock, SegmentInfo};
use parkade::stats::{Family, Stat, StatSet};
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, PoolFilter};
use parkade_capi::parkade_action::*;
use parkade_capi::parkade_status::{self, *};
use parkade_capi::*;
use parkade_sim::{SimDevice, SimOptions};
use proptest::collection::vec;
use proptest::prelude::*;

const CAPACITY: u64 = 96 * MIB;

fn create(settings: &str, release: &str) -> *mut parkade_allocator {
    let (settings, release) = (CString::new(settings).expect("settings"), CString::new(release).expect("a release"));
    let options = parkade_options {
        size: size_of::<parkade_options>(),
        device: 0,
        flags: 0,
        simulated_bytes: CAPACITY,
        policy: ptr::null(),
        settings: settings.as_ptr(),
        release: release.as_ptr(),
        most_rescues: 0,
    };
    let mut allocator = ptr::null_mut();
    // SAFETY: both are valid for the call, and a simulated GPU has no streams.
    assert_eq!(unsafe { parkade_create(&raw const options, &raw mut allocator) }, PARKADE_OK);
    allocator
}

/// A call, by its kind, with numbers that choose its arguments.
type Call = (u8, usize, usize, u32);

fn calls() -> impl Strategy<Value = Vec<Call>> {
    vec((0..18_u8, 0..64_usize, 0..64_usize, 0..9_u32), 1..32)
}

const SIZES: [u64; 8] = [0, 1, 512, MIB, MIB + 1, 5 * MIB, 10 * MIB, 30 * MIB];

fn pool_of(number: usize) -> parkade_pool {
    parkade_pool { first: 0, second: 1 + number as u64 % 2 }
}

fn id(pool: parkade_pool) -> PoolId {
    PoolId(pool.first, pool.second)
}

/// The entries that an observer has received.
#[derive(Default)]
struct Seen {
    entries: Vec<parkade_entry>,
}

unsafe extern "C" fn observe(user: *mut c_void, entry: *const parkade_entry) {
    // SAFETY: `user` was passed with this function, and the entry is valid for the call.
    unsafe { (*user.cast::<Seen>()).entries.push(*entry) };
}

fn status_of(error: &AllocError) -> parkade_status {
    match error {
        AllocError::OutOfMemory(_) | AllocError::Rejected { .. } | AllocError::TooLarge { .. } => PARKADE_OUT_OF_MEMORY,
        AllocError::Pool(_) => PARKADE_POOL_ERROR,
        _ => PARKADE_DEVICE_ERROR,
    }
}

/// An allocator behind the C interface and a core of its own kind, which get the same calls.
struct Pair {
    allocator: *mut parkade_allocator,
    seen: Box<Seen>,
    core: Allocator<SimDevice, PyTorch, Vec<TraceEntry>>,
    live: Vec<(*mut c_void, Allocation)>,
    /// All entries so far.
    entries: Vec<ShownEntry>,
    /// The number of blocks that waited for other streams in a snapshot.
    pending: usize,
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: created by `parkade_create`, and not used again.
        unsafe { parkade_destroy(self.allocator) };
    }
}

impl Pair {
    fn new(settings: &str, profile: &'static Profile) -> Pair {
        let allocator = create(settings, profile.name);
        let mut seen = Box::<Seen>::default();
        // SAFETY: `seen` lives longer than the allocator, which is used by this thread only.
        unsafe {
            assert_eq!(parkade_set_observer(allocator, Some(observe), ptr::from_mut(&mut *seen).cast()), PARKADE_OK);
            assert_eq!(parkade_record_history(allocator, HISTORY), PARKADE_OK);
        }
        let policy = PyTorch::of(profile, Settings::from_environment_as(&profile.dialect, settings).expect("settings"));
        let core = Allocator::new(SimDevice::new(SimOptions::new(Bytes(CAPACITY))), policy, Vec::new());
        Pair { allocator, seen, core, live: Vec::new(), entries: Vec::new(), pending: 0 }
    }

    /// Makes a request of both and compares the answers.
    fn request(&mut self, bytes: u64, stream: u64, flags: u32, pool: parkade_pool, at: Option<*mut c_void>) {
        let request = parkade_request { bytes, stream, flags, pool };
        let mut out = ptr::dangling_mut::<c_void>();
        // SAFETY: the allocator is used by this thread only, and both pointers are valid.
        let status = unsafe {
            match (at, flags) {
                (None, 0) => parkade_allocate(self.allocator, bytes, stream, &raw mut out),
                (None, _) => parkade_serve(self.allocator, &raw const request, &raw mut out),
                (Some(at), _) => parkade_serve_at(self.allocator, &raw const request, at, &raw mut out),
            }
        };
        if flags >= 8 {
            assert_eq!(status, PARKADE_INVALID_ARGUMENT, "no such flag");
            return;
        }
        let (size, stream) = (Bytes(bytes), StreamId(stream));
        self.core.choose_pool((flags & PARKADE_CHOOSES_POOL != 0).then_some(id(pool)));
        self.core.set_capturing(flags & PARKADE_CAPTURING != 0);
        let served = match at {
            _ if bytes == 0 => Ok(None),
            Some(at) => self.core.allocate_at(size, stream, DeviceAddress(at.addr() as u64)),
            None if flags & PARKADE_RAW != 0 => self.core.raw_allocate(size, stream).map(Some),
            None => self.core.allocate(size, stream).map(Some),
        };
        match served {
            Ok(served) => {
                assert_eq!((status, out.addr() as u64), (PARKADE_OK, served.as_ref().map_or(0, |block| block.address().get())));
                self.live.extend(served.map(|block| (out, block)));
            }
            Err(error) => assert_eq!(status, status_of(&error), "{error:?}"),
        }
    }

    fn call(&mut self, (kind, one, other, flags): Call) {
        let (bytes, stream, pool) = (SIZES[one % SIZES.len()], [0, 4096][other % 2], pool_of(other / 2));
        let capturing = flags & PARKADE_CAPTURING;
        match kind {
            0..4 => self.request(bytes, stream, 0, pool, None),
            4..7 => self.request(bytes, stream, flags, pool, None),
            7 if !self.live.is_empty() => {
                let (begin, _) = self.live[one % self.live.len()];
                self.request(512, stream, flags & !PARKADE_RAW, pool, Some(begin.wrapping_byte_add(512 * (other % 5))));
            }
            8..11 if !self.live.is_empty() => self.free(one % self.live.len(), capturing),
            11 if !self.live.is_empty() => {
                let (address, block) = &self.live[one % self.live.len()];
                // SAFETY: the allocator is used by this thread only.
                assert_eq!(unsafe { parkade_record_stream(self.allocator, *address, stream, capturing) }, PARKADE_OK);
                self.core.set_capturing(capturing != 0);
                self.core.record_stream(block, StreamId(stream));
            }
            12 => self.begin(pool, other),
            13 => {
                // SAFETY: as above.
                let status = unsafe { parkade_pool_end(self.allocator, pool) };
                self.core.set_capturing(false);
                assert_eq!(status == PARKADE_OK, self.core.end_pool(id(pool)).is_ok());
            }
            14 => self.empty(pool, other, capturing),
            15 => {
                let limit = [0, 20, 45, 70][other % 4] * MIB;
                // SAFETY: as above.
                assert_eq!(unsafe { parkade_set_limit(self.allocator, limit) }, PARKADE_OK);
                self.core.set_limit((limit > 0).then_some(Bytes(limit)));
            }
            16 => {
                // SAFETY: as above.
                assert_eq!(unsafe { parkade_reset_peak_stats(self.allocator) }, PARKADE_OK);
                self.core.reset_peak_stats();
            }
            17 => {
                // SAFETY: as above.
                assert_eq!(unsafe { parkade_reset_accumulated_stats(self.allocator) }, PARKADE_OK);
                self.core.reset_accumulated_stats();
            }
            _ => {}
        }
    }

    fn free(&mut self, place: usize, flags: u32) {
        let (address, block) = self.live.swap_remove(place);
        // SAFETY: the allocator is used by this thread only, and an address inside of a block is not one that it knows.
        unsafe {
            assert_eq!(parkade_free(self.allocator, address.wrapping_byte_add(1)), PARKADE_UNKNOWN_ADDRESS);
            let status =
                if flags == 0 { parkade_free(self.allocator, address) } else { parkade_free_so(self.allocator, address, flags) };
            assert_eq!(status, PARKADE_OK);
        }
        self.core.set_capturing(flags != 0);
        self.core.free(block).expect("it is in use");
    }

    fn begin(&mut self, pool: parkade_pool, number: usize) {
        let (route, filter) = match number % 3 {
            0 => (parkade_route::PARKADE_ROUTE_ALL, PoolFilter::All),
            1 => (parkade_route::PARKADE_ROUTE_STREAM, PoolFilter::Stream(StreamId(4096))),
            _ => (parkade_route::PARKADE_ROUTE_CHOSEN, PoolFilter::Chosen),
        };
        // SAFETY: the allocator is used by this thread only.
        let status = unsafe { parkade_pool_begin(self.allocator, pool, route as i32, 4096) };
        self.core.set_capturing(false);
        assert_eq!(status == PARKADE_OK, self.core.begin_pool(id(pool), filter).is_ok());
    }

    /// Releases a use of a pool, and empties the cache or the cache of this pool.
    fn empty(&mut self, pool: parkade_pool, number: usize, flags: u32) {
        self.core.set_capturing(false);
        if number.is_multiple_of(3) {
            // SAFETY: the allocator is used by this thread only.
            let status = unsafe { parkade_pool_release(self.allocator, pool) };
            assert_eq!(status == PARKADE_OK, self.core.release_pool(id(pool)).is_ok());
        }
        let only = if number.is_multiple_of(2) { &raw const pool } else { ptr::null() };
        // SAFETY: as above; the pool is null or readable.
        let status = unsafe { parkade_empty_cache(self.allocator, only, flags) };
        self.core.set_capturing(flags != 0);
        let emptied = if number.is_multiple_of(2) { self.core.release_cached_pool(id(pool)) } else { self.core.release_cached() };
        assert_eq!(status, emptied.err().map_or(PARKADE_OK, |error| status_of(&error)));
    }

    /// Compares everything that both have done and know.
    fn compare(&mut self) {
        let theirs: Vec<ShownEntry> = self
            .core
            .observer()
            .iter()
            .map(|entry| (action_of(entry.action), entry.address, entry.size, entry.stream.get(), entry.pool))
            .collect();
        assert_eq!(self.seen.entries.iter().map(shown_entry).collect::<Vec<_>>(), theirs);
        self.entries.extend(theirs);
        self.seen.entries.clear();
        self.core.observer_mut().clear();
        self.compare_history_and_memory();
        self.compare_statistics();
        self.compare_heaps(None);
        self.compare_heaps(Some(pool_of(0)));
        for (address, block) in &self.live {
            let PlacedBlock { block, segment, segment_size, is_expandable, .. } = self.core.block_of(block).expect("it is live");
            let mut found =
                parkade_block_info { size: 0, requested: 0, segment: 0, segment_size: 0, is_expandable: !is_expandable };
            // SAFETY: as above.
            assert_eq!(unsafe { parkade_block(self.allocator, *address, &raw mut found) }, PARKADE_OK);
            assert_eq!((found.size, found.requested), (block.size.get(), block.requested.get()));
            assert_eq!((found.segment, found.segment_size), (segment.get(), segment_size.get()));
            assert_eq!(found.is_expandable, is_expandable);
        }
    }
}

/// The number of entries that a history keeps.
const HISTORY: usize = 5;

/// An entry: its action, its address, its size, its stream and its pool.
type ShownEntry = (i32, u64, u64, u64, PoolId);

fn shown_entry(entry: &parkade_entry) -> ShownEntry {
    (entry.action as i32, entry.address, entry.size, entry.stream, id(entry.pool))
}

/// The bytes that each pool has reserved.
type OfPools = Vec<(PoolId, [[i64; 4]; 3])>;

unsafe extern "C" fn list_pools(user: *mut c_void, pool: parkade_pool, reserved: *const parkade_stat_set) {
    // SAFETY: `user` was passed with this function, and the statistic is valid for the call.
    unsafe { (*user.cast::<OfPools>()).push((id(pool), numbers(&*reserved))) };
}

/// Returns the numbers of a statistic in C's form.
fn in_c(set: &StatSet) -> [[i64; 4]; 3] {
    [set.all, set.small, set.large].map(|Stat { current, peak, allocated, freed }| [current, peak, allocated, freed])
}

fn numbers(set: &parkade_stat_set) -> [[i64; 4]; 3] {
    [set.all, set.small, set.large].map(|one| [one.current, one.peak, one.allocated, one.freed])
}

unsafe extern "C" fn list_expandable(user: *mut c_void, segment: *const parkade_expandable) {
    // SAFETY: `user` was passed with this function, and the segment is valid for the call.
    unsafe { (*user.cast::<Vec<parkade_expandable>>()).push(*segment) };
}

/// The numbers and facts about a segment and its blocks, in C's form.
type Shown = ([u64; 6], PoolId, u32, [bool; 2], Vec<([u64; 3], [bool; 2])>);

fn shown(segment: &SegmentInfo) -> Shown {
    let SegmentInfo { address, total, allocated, active, requested, stream, pool, class, expandable, rank, blocks } = segment;
    let block = |block: &BlockInfo| {
        let activity = match block.state {
            BlockActivity::Allocated => [true, true],
            BlockActivity::PendingFree => [false, true],
            BlockActivity::Inactive => [false, false],
        };
        ([block.address.get(), block.size.get(), block.requested.get()], activity)
    };
    let bytes = [address.get(), total.get(), allocated.get(), active.get(), requested.get(), stream.get()];
    (bytes, *pool, *rank, [*class == PoolClass::Large, *expandable], blocks.iter().map(block).collect())
}

fn shown_in_c(segment: &parkade_segment, blocks: &[parkade_snapshot_block]) -> Shown {
    let block =
        |block: &parkade_snapshot_block| ([block.address, block.size, block.requested], [block.is_allocated, block.is_active]);
    let bytes = [segment.address, segment.total, segment.allocated, segment.active, segment.requested, segment.stream];
    let blocks = blocks[segment.first_block..][..segment.block_count].iter().map(block).collect();
    (bytes, id(segment.pool), segment.rank, [segment.is_large, segment.is_expandable], blocks)
}

impl Pair {
    /// Compares the newest entries, the device's memory, and what each private pool has reserved.
    fn compare_history_and_memory(&mut self) {
        let (mut newest, mut pools, mut free, mut total) = (Seen::default(), OfPools::new(), 0, 0);
        // SAFETY: the allocator is used by this thread only, and the pointers are valid.
        unsafe {
            let user = ptr::from_mut(&mut newest).cast();
            assert_eq!(parkade_read_history(self.allocator, Some(observe), user), PARKADE_OK);
            let user = ptr::from_mut(&mut pools).cast();
            assert_eq!(parkade_read_pool_stats(self.allocator, Some(list_pools), user), PARKADE_OK);
            assert_eq!(parkade_memory_info(self.allocator, &raw mut free, &raw mut total), PARKADE_OK);
        }
        let kept = &self.entries[self.entries.len().saturating_sub(HISTORY)..];
        assert_eq!(newest.entries.iter().map(shown_entry).collect::<Vec<_>>(), kept);
        let info = self.core.device_mut().memory_info().expect("a simulated device works");
        assert_eq!((free, total), (info.free.get(), info.total.get()));
        let counted = self.core.stats().reserved_by_pool.iter();
        assert_eq!(pools, counted.map(|(&pool, reserved)| (pool, in_c(reserved))).collect::<OfPools>());
    }

    /// Compares all numbers of the statistics.
    fn compare_statistics(&self) {
        let mut found = parkade_stats::default();
        // SAFETY: the allocator is used by this thread only.
        assert_eq!(unsafe { parkade_read_stats(self.allocator, &raw mut found) }, PARKADE_OK);
        let stats = self.core.stats();
        let families = [
            (Family::Allocation, found.allocation),
            (Family::Segment, found.segment),
            (Family::Active, found.active),
            (Family::InactiveSplit, found.inactive_split),
            (Family::AllocatedBytes, found.allocated_bytes),
            (Family::ReservedBytes, found.reserved_bytes),
            (Family::ActiveBytes, found.active_bytes),
            (Family::InactiveSplitBytes, found.inactive_split_bytes),
            (Family::RequestedBytes, found.requested_bytes),
        ];
        for (family, set) in families {
            assert_eq!(numbers(&set), in_c(&stats.family(family)), "{family:?}");
        }
        let only = |one| numbers(&parkade_stat_set { all: one, ..parkade_stat_set::default() });
        let only_of = |all| in_c(&StatSet { all, ..StatSet::default() });
        assert_eq!(only(found.oversize_allocations), only_of(stats.oversize_allocations));
        assert_eq!(only(found.oversize_segments), only_of(stats.oversize_segments));
        assert_eq!(
            [found.num_alloc_retries, found.num_ooms, found.num_sync_all_streams, found.num_device_alloc, found.num_device_free],
            [stats.num_alloc_retries, stats.num_ooms, stats.num_sync_all_streams, stats.num_device_alloc, stats.num_device_free]
        );
        assert_eq!(
            [found.num_oom_rejections, found.max_split_size, found.num_rescues, found.copied_bytes],
            [stats.num_oom_rejections, stats.max_split_size, stats.num_rescues, stats.copied_bytes]
        );
    }

    /// Compares the snapshots of all segments or of a pool's, and what else can be read about the heap.
    fn compare_heaps(&mut self, only: Option<parkade_pool>) {
        let (mut taken, mut segments, mut blocks, mut largest) = (ptr::null_mut(), 0, 0, 0);
        let mut expandable: Vec<parkade_expandable> = Vec::new();
        // SAFETY: the allocator is used by this thread only; the snapshot is read before it is freed, and the pointers are valid.
        let found: Vec<Shown> = unsafe {
            let pool = only.as_ref().map_or(ptr::null(), ptr::from_ref);
            assert_eq!(parkade_snapshot_take(self.allocator, pool, &raw mut taken), PARKADE_OK);
            let of_snapshot = parkade_snapshot_segments(taken, &raw mut segments);
            let of_segments = parkade_snapshot_blocks(taken, &raw mut blocks);
            let (of_snapshot, of_segments) =
                (slice::from_raw_parts(of_snapshot, segments), slice::from_raw_parts(of_segments, blocks));
            let found = of_snapshot.iter().map(|segment| shown_in_c(segment, of_segments)).collect();
            parkade_snapshot_free(taken);
            assert_eq!(parkade_largest_free_block(self.allocator, &raw mut largest), PARKADE_OK);
            let user = ptr::from_mut(&mut expandable).cast();
            assert_eq!(parkade_read_expandable(self.allocator, Some(list_expandable), user), PARKADE_OK);
            found
        };
        let expected = match only {
            None => self.core.snapshot(),
            Some(pool) => self.core.snapshot_pool(id(pool)),
        };
        let is_pending = |block: &&BlockInfo| block.state == BlockActivity::PendingFree;
        self.pending += expected.iter().flat_map(|segment| &segment.blocks).filter(is_pending).count();
        assert_eq!(found, expected.iter().map(shown).collect::<Vec<_>>());
        assert_eq!(blocks, expected.iter().map(|segment| segment.blocks.len()).sum::<usize>());
        assert_eq!(largest, self.core.heap().largest_free().get());
        let expandable = expandable.iter().map(|segment| (StreamId(segment.stream), Bytes(segment.page), Bytes(segment.mapped)));
        assert_eq!(expandable.collect::<Vec<_>>(), self.core.expandable_segments());
    }
}

fn action_of(action: TraceAction) -> i32 {
    let action = match action {
        TraceAction::Alloc => PARKADE_ALLOC,
        TraceAction::FreeRequested => PARKADE_FREE_REQUESTED,
        TraceAction::FreeCompleted => PARKADE_FREE_COMPLETED,
        TraceAction::SegmentAlloc => PARKADE_SEGMENT_ALLOC,
        TraceAction::SegmentFree => PARKADE_SEGMENT_FREE,
        TraceAction::SegmentMap => PARKADE_SEGMENT_MAP,
        TraceAction::SegmentUnmap => PARKADE_SEGMENT_UNMAP,
        TraceAction::Snapshot => PARKADE_SNAPSHOT,
        TraceAction::Oom => PARKADE_OOM,
    };
    action as i32
}

#[test]
fn each_call_has_its_own_flags_and_no_others() {
    let pending = AtomicUsize::new(0);
    let config = ProptestConfig { source_file: Some(file!()), ..ProptestConfig::with_cases(100) };
    proptest!(config, |(calls in calls(), is_expandable in any::<bool>(), is_newer in any::<bool>())| {
        let settings = if is_expandable { "expandable_segments:True" } else { "" };
        let profile = if is_newer { &Profile::PYTORCH_2_13 } else { &Profile::PYTORCH_2_11 };
        let mut pair = Pair::new(settings, profile);
        for call in calls {
            pair.call(call);
            pair.compare();
        }
        pending.fetch_add(pair.pending, Ordering::Relaxed);
    });
    assert!(pending.into_inner() > 0, "some blocks wait for other streams");
}

/// The numbers at the borders of what PyTorch accepts as sizes in its settings.
const BORDERS: [u64; 11] =
    [0, 1, MIB - 1, MIB, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 11 * MIB, 20 * MIB + 1, u64::MAX - MIB + 1, u64::MAX];
/// The thresholds at which garbage collection may begin, and their neighbours.
const THRESHOLDS: [f64; 8] = [0.0, -0.0, 0.5, 1.0 - f64::EPSILON, 1.0, 1.5, -f64::MIN_POSITIVE, f64::NAN];

/// Returns whether PyTorch's parser may produce these settings.
fn is_possible(settings: &parkade_settings) -> bool {
    let is_whole = |bytes: u64| bytes.is_multiple_of(MIB);
    let threshold = settings.garbage_collection_threshold;
    settings.large_segment_bytes > 10 * MIB
        && is_whole(settings.large_segment_bytes)
        && (settings.max_split_bytes == u64::MAX || is_whole(settings.max_split_bytes))
        && is_whole(settings.max_non_split_rounding_bytes)
        && (threshold == 0.0 || (threshold > 0.0 && threshold < 1.0))
        && settings.roundup_power2_divisions.iter().all(|&divisions| divisions == 0 || divisions.count_ones() == 1)
}

fn read_settings(allocator: *mut parkade_allocator) -> parkade_settings {
    let mut settings = parkade_settings::default();
    // SAFETY: the caller is the only thread that uses the allocator.
    assert_eq!(unsafe { parkade_read_settings(allocator, &raw mut settings) }, PARKADE_OK);
    settings
}

proptest! {
    #[test]
    fn settings_are_those_that_were_set_last_and_possible(
        drawn in vec((0..11_usize, 0..11_usize, 0..11_usize, 0..8_usize, (0..16_usize, 0..9_u64), 0..8_u8), 1..8),
    ) {
        let allocator = create("", "2.11");
        let mut expected = read_settings(allocator);
        for (split, rounding, large, threshold, (place, divisions), flags) in drawn {
            let mut settings = parkade_settings {
                max_split_bytes: BORDERS[split],
                // Most drawn settings are possible except for one value.
                max_non_split_rounding_bytes: if split % 2 == 0 { BORDERS[rounding] } else { 20 * MIB },
                large_segment_bytes: if rounding % 2 == 0 { BORDERS[large] } else { 20 * MIB },
                garbage_collection_threshold: if large % 2 == 0 { THRESHOLDS[threshold] } else { 0.25 },
                roundup_power2_divisions: [0; 16],
                expandable_segments: flags & 1 != 0,
                graph_capture_record_stream_reuse: flags & 2 != 0,
                throw_on_cudamalloc_oom: flags & 4 != 0,
            };
            settings.roundup_power2_divisions[place] = divisions;
            // SAFETY: the allocator is used by this thread only, and the settings are readable.
            let status = unsafe { parkade_set_settings(allocator, &raw const settings) };
            let is_set = is_possible(&settings);
            prop_assert_eq!(status, if is_set { PARKADE_OK } else { PARKADE_INVALID_SETTINGS }, "{:?}", settings);
            expected = if is_set { settings } else { expected };
            prop_assert_eq!(format!("{:?}", read_settings(allocator)), format!("{expected:?}"));
        }
        // SAFETY: created by `parkade_create`, and not used again.
        unsafe { parkade_destroy(allocator) };
    }
}

/// Far above the addresses of the simulated device.
const LENT_FROM: usize = 1 << 50;

/// The memory of a program for its pool, and the number of pieces that it has lent.
struct Lent {
    next: usize,
    pieces: usize,
}

unsafe extern "C" fn take(user: *mut c_void, bytes: u64) -> *mut c_void {
    // SAFETY: `user` was passed with this function, and one thread calls it.
    let lent = unsafe { &mut *user.cast::<Lent>() };
    lent.pieces += 1;
    lent.next += bytes as usize;
    ptr::without_provenance_mut(lent.next - bytes as usize)
}

unsafe extern "C" fn give_back(user: *mut c_void, _: *mut c_void) {
    // SAFETY: as above.
    unsafe { (*user.cast::<Lent>()).pieces -= 1 };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Memory comes from the program exactly for those requests that choose its pool, and its segments are not expandable.
    #[test]
    fn only_the_pool_of_a_lender_has_lent_memory(
        requests in vec((0..8_usize, 0..4_u8), 1..20),
        sets in any::<u32>(),
        is_expandable in any::<bool>(),
    ) {
        let allocator = create(if is_expandable { "expandable_segments:True" } else { "" }, "2.11");
        let mut lent = Box::new(Lent { next: LENT_FROM, pieces: 0 });
        let pool = pool_of(0);
        let mut is_set = false;
        // SAFETY: the allocator is used by this thread only, what it is given lives longer, and nobody uses the memory.
        unsafe {
            assert_eq!(parkade_pool_begin(allocator, pool, parkade_route::PARKADE_ROUTE_CHOSEN as i32, 0), PARKADE_OK);
            for (number, (size, kind)) in requests.into_iter().enumerate() {
                if sets >> number & 1 == 1 {
                    is_set = !is_set;
                    let take = is_set.then_some(take as unsafe extern "C" fn(*mut c_void, u64) -> *mut c_void);
                    let user = ptr::from_mut(&mut *lent).cast();
                    assert_eq!(parkade_pool_set_memory(allocator, pool, take, Some(give_back), user), PARKADE_OK);
                }
                let (chooses, pieces) = (kind == 0, lent.pieces);
                let flags = if chooses { PARKADE_CHOOSES_POOL } else { u32::from(kind == 1) * PARKADE_RAW };
                let request = parkade_request { bytes: SIZES[size].max(1), stream: 0, flags, pool };
                let mut out = ptr::null_mut();
                if parkade_serve(allocator, &raw const request, &raw mut out) != PARKADE_OK {
                    prop_assert!(!(chooses && is_set), "{:?}", CStr::from_ptr(parkade_error_text()));
                    continue;
                }
                let mut found = parkade_block_info { size: 0, requested: 0, segment: 0, segment_size: 0, is_expandable: false };
                assert_eq!(parkade_block(allocator, out, &raw mut found), PARKADE_OK);
                let is_lent = (LENT_FROM as u64..lent.next as u64).contains(&found.segment);
                prop_assert!(chooses || (!is_lent && lent.pieces == pieces), "{:?}", found);
                prop_assert_eq!(found.is_expandable, is_expandable && !is_lent, "{:?}", found);
                prop_assert!(lent.pieces == pieces || (chooses && is_set));
            }
            parkade_destroy(allocator);
        }
        prop_assert_eq!(lent.pieces, 0, "everything is given back");
    }
}
