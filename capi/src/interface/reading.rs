//! The calls that read (statistics, snapshots, the history and the device's memory), and the settings at run time.

use std::ffi::{c_char, c_void};

use parkade::device::DeviceBackend;
use parkade::settings::{Settings, SettingsError};
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::{Family, Stat, StatSet, Stats};
use parkade::trace::TraceRing;
use parkade::units::MIB;

use super::{answer, id, in_c, null, ours, place, text};
use crate::callbacks::entry_in_c;
use crate::failure::Failure;
use crate::serve::{Tunable, parkade_allocator, with_core};
use crate::types::parkade_status::{self, PARKADE_INVALID_SETTINGS, PARKADE_UNSUPPORTED};
use crate::types::{
    parkade_entry, parkade_expandable, parkade_pool, parkade_segment, parkade_settings, parkade_snapshot_block, parkade_stat,
    parkade_stat_set, parkade_stats,
};

/// A heap as plain data.
pub struct parkade_snapshot {
    segments: Vec<parkade_segment>,
    blocks: Vec<parkade_snapshot_block>,
}

fn stat(stat: &Stat) -> parkade_stat {
    parkade_stat { current: stat.current, peak: stat.peak, allocated: stat.allocated, freed: stat.freed }
}

fn set(set: &StatSet) -> parkade_stat_set {
    parkade_stat_set { all: stat(&set.all), small: stat(&set.small), large: stat(&set.large) }
}

fn stats(of: &Stats) -> parkade_stats {
    let family = |family| set(&of.family(family));
    parkade_stats {
        allocation: family(Family::Allocation),
        segment: family(Family::Segment),
        active: family(Family::Active),
        inactive_split: family(Family::InactiveSplit),
        allocated_bytes: family(Family::AllocatedBytes),
        reserved_bytes: family(Family::ReservedBytes),
        active_bytes: family(Family::ActiveBytes),
        inactive_split_bytes: family(Family::InactiveSplitBytes),
        requested_bytes: family(Family::RequestedBytes),
        oversize_allocations: stat(&of.oversize_allocations),
        oversize_segments: stat(&of.oversize_segments),
        num_alloc_retries: of.num_alloc_retries,
        num_ooms: of.num_ooms,
        num_sync_all_streams: of.num_sync_all_streams,
        num_device_alloc: of.num_device_alloc,
        num_device_free: of.num_device_free,
        num_oom_rejections: of.num_oom_rejections,
        max_split_size: of.max_split_size,
        num_rescues: of.num_rescues,
        copied_bytes: of.copied_bytes,
    }
}

/// Writes the statistics to `out`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_read_stats(allocator: *mut parkade_allocator, out: *mut parkade_stats) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, out) = unsafe { (ours(allocator)?, place(out, "the output pointer for the statistics")?) };
        *out = with_core!(allocator, core => stats(core.allocator().stats()))?;
        Ok(())
    })
}

/// Calls `each` with the bytes that each private pool has reserved, under the rules of PyTorch releases that count
/// them.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; the function can be called with `user` and
/// does not call the allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_read_pool_stats(
    allocator: *mut parkade_allocator,
    each: Option<unsafe extern "C" fn(user: *mut c_void, pool: parkade_pool, reserved: *const parkade_stat_set)>,
    user: *mut c_void,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        let each = each.ok_or_else(|| null("the function"))?;
        let pools = with_core!(allocator, core => core.allocator().stats().reserved_by_pool.clone())?;
        for (pool, reserved) in &pools {
            let reserved = set(reserved);
            // SAFETY: as the caller guarantees.
            unsafe { each(user, in_c(*pool), &raw const reserved) };
        }
        Ok(())
    })
}

/// Sets every peak to its current value.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_reset_peak_stats(allocator: *mut parkade_allocator) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        with_core!(allocator, core => core.allocator_mut().reset_peak_stats())
    })
}

/// Sets every sum and counter to 0.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_reset_accumulated_stats(allocator: *mut parkade_allocator) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        with_core!(allocator, core => core.allocator_mut().reset_accumulated_stats())
    })
}

/// Writes the device's free and total memory, as the driver reports them.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `free` and `total` are
/// null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_memory_info(
    allocator: *mut parkade_allocator,
    free: *mut u64,
    total: *mut u64,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, free, total) = unsafe { (ours(allocator)?, place(free, "free")?, place(total, "total")?) };
        let info = with_core!(allocator, core => core.allocator_mut().device_mut().memory_info())?;
        let info = info.map_err(Failure::of_device)?;
        (*free, *total) = (info.free.get(), info.total.get());
        Ok(())
    })
}

/// Writes the size of the largest free block to `out`; 0 if there is none.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_largest_free_block(allocator: *mut parkade_allocator, out: *mut u64) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, out) = unsafe { (ours(allocator)?, place(out, "the output pointer for the size")?) };
        *out = with_core!(allocator, core => core.allocator().heap().largest_free().get())?;
        Ok(())
    })
}

/// Calls `each` for every expandable segment, in order of creation.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; the function can be called with `user` and
/// does not call the allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_read_expandable(
    allocator: *mut parkade_allocator,
    each: Option<unsafe extern "C" fn(user: *mut c_void, segment: *const parkade_expandable)>,
    user: *mut c_void,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        let each = each.ok_or_else(|| null("the function"))?;
        let segments = with_core!(allocator, core => core.allocator().expandable_segments())?;
        for (stream, page, mapped) in segments {
            let segment = parkade_expandable { stream: stream.0, page: page.get(), mapped: mapped.get() };
            // SAFETY: as the caller guarantees.
            unsafe { each(user, &raw const segment) };
        }
        Ok(())
    })
}

/// Takes a snapshot of all segments, or of one private pool's segments. Free it with `parkade_snapshot_free`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `pool` is null or readable, `out` null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_snapshot_take(
    allocator: *mut parkade_allocator,
    pool: *const parkade_pool,
    out: *mut *mut parkade_snapshot,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, pool, out) =
            unsafe { (ours(allocator)?, pool.as_ref(), place(out, "the output pointer for the snapshot")?) };
        let segments = with_core!(allocator, core => match pool {
            None => core.allocator_mut().snapshot(),
            Some(pool) => core.allocator_mut().snapshot_pool(id(*pool)),
        })?;
        *out = Box::into_raw(Box::new(snapshot(&segments)));
        Ok(())
    })
}

fn snapshot(of: &[SegmentInfo]) -> parkade_snapshot {
    let (mut segments, mut blocks) = (Vec::with_capacity(of.len()), Vec::new());
    for segment in of {
        segments.push(parkade_segment {
            address: segment.address.get(),
            total: segment.total.get(),
            allocated: segment.allocated.get(),
            active: segment.active.get(),
            requested: segment.requested.get(),
            stream: segment.stream.0,
            pool: in_c(segment.pool),
            rank: segment.rank,
            is_large: segment.class == parkade::units::PoolClass::Large,
            is_expandable: segment.expandable,
            first_block: blocks.len(),
            block_count: segment.blocks.len(),
        });
        blocks.extend(segment.blocks.iter().map(|block| parkade_snapshot_block {
            address: block.address.get(),
            size: block.size.get(),
            requested: block.requested.get(),
            is_allocated: block.state == BlockActivity::Allocated,
            is_active: block.state != BlockActivity::Inactive,
        }));
    }
    parkade_snapshot { segments, blocks }
}

/// Returns the segments of a snapshot, by address, and writes their number to `count`. They exist as long as the
/// snapshot.
///
/// # Safety
/// The snapshot was created by `parkade_snapshot_take` and has not been freed; `count` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_snapshot_segments(
    snapshot: *const parkade_snapshot,
    count: *mut usize,
) -> *const parkade_segment {
    // SAFETY: null or valid, as the caller guarantees.
    unsafe { list(snapshot.as_ref().map(|snapshot| &*snapshot.segments), count) }
}

/// Returns the blocks of a snapshot, segment by segment, and writes their number to `count`. They exist as long as the
/// snapshot.
///
/// # Safety
/// The snapshot was created by `parkade_snapshot_take` and has not been freed; `count` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_snapshot_blocks(
    snapshot: *const parkade_snapshot,
    count: *mut usize,
) -> *const parkade_snapshot_block {
    // SAFETY: null or valid, as the caller guarantees.
    unsafe { list(snapshot.as_ref().map(|snapshot| &*snapshot.blocks), count) }
}

/// # Safety
/// `count` is null or writable.
unsafe fn list<T>(list: Option<&[T]>, count: *mut usize) -> *const T {
    let list = list.unwrap_or_default();
    // SAFETY: as the caller guarantees.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = list.len();
    }
    list.as_ptr()
}

/// Frees a snapshot. Does nothing for null.
///
/// # Safety
/// The snapshot was created by `parkade_snapshot_take` and is freed only once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_snapshot_free(snapshot: *mut parkade_snapshot) {
    if !snapshot.is_null() {
        // SAFETY: created from a box, and freed only once.
        drop(unsafe { Box::from_raw(snapshot) });
    }
}

/// Starts an empty history that keeps the newest `most_entries` entries; 0 ends the history.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_record_history(allocator: *mut parkade_allocator, most_entries: usize) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        let history = (most_entries != 0).then(|| TraceRing::new(most_entries));
        with_core!(allocator, core => core.allocator_mut().observer_mut().history = history)
    })
}

/// Calls `each` for the entries in the history, oldest first.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; the function can be called with `user` and
/// does not call the allocator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_read_history(
    allocator: *mut parkade_allocator,
    each: Option<unsafe extern "C" fn(user: *mut c_void, entry: *const parkade_entry)>,
    user: *mut c_void,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let allocator = unsafe { ours(allocator) }?;
        let each = each.ok_or_else(|| null("the function"))?;
        let entries: Vec<parkade_entry> = with_core!(allocator, core => {
            let history = core.allocator().observer().history.as_ref();
            history.map(|ring| ring.entries().map(entry_in_c).collect()).unwrap_or_default()
        })?;
        for entry in &entries {
            // SAFETY: as the caller guarantees.
            unsafe { each(user, entry) };
        }
        Ok(())
    })
}

/// Applies a string in the form of `PYTORCH_CUDA_ALLOC_CONF` at run time, as the PyTorch release does: some settings
/// that the string does not name are reset, others are kept. Settings applied before an error are kept. This is only
/// for the policy `pytorch`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `settings` is null or
/// a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_apply_settings(allocator: *mut parkade_allocator, settings: *const c_char) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, settings) = unsafe { (ours(allocator)?, text(settings, "the settings")?.unwrap_or_default()) };
        let dialect = &allocator.profile.dialect;
        let applied: Option<Result<(), SettingsError>> = with_core!(allocator, core => {
            core.allocator_mut().policy_mut().settings_mut().map(|current| current.apply_as(dialect, settings))
        })?;
        match applied {
            Some(outcome) => outcome.map_err(|error| Failure::new(PARKADE_INVALID_SETTINGS, error)),
            None => Err(without_settings()),
        }
    })
}

fn without_settings() -> Failure {
    Failure::new(PARKADE_UNSUPPORTED, "this policy takes no settings; only pytorch does")
}

/// Writes the settings to `out`. This is only for the policy `pytorch`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `out` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_read_settings(allocator: *mut parkade_allocator, out: *mut parkade_settings) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, out) = unsafe { (ours(allocator)?, place(out, "the output pointer for the settings")?) };
        let read = with_core!(allocator, core => core.allocator_mut().policy_mut().settings_mut().map(|settings| settings_in_c(settings)))?;
        *out = read.ok_or_else(without_settings)?;
        Ok(())
    })
}

/// Sets the settings, in the form in which `parkade_read_settings` writes them; they apply from the next decision.
/// Refuses settings that PyTorch would refuse, and changes nothing in that case. This is only for the policy `pytorch`.
///
/// # Safety
/// The allocator was created by `parkade_create` and has not been destroyed; `settings` is null or
/// readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_set_settings(
    allocator: *mut parkade_allocator,
    settings: *const parkade_settings,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller guarantees.
        let (allocator, settings) = unsafe { (ours(allocator)?, settings.as_ref()) };
        let from = settings.ok_or_else(|| null("the settings"))?;
        check_settings(from)?;
        let set =
            with_core!(allocator, core => core.allocator_mut().policy_mut().settings_mut().map(|to| take_settings(to, from)))?;
        set.ok_or_else(without_settings)
    })
}

fn settings_in_c(from: &Settings) -> parkade_settings {
    parkade_settings {
        max_split_bytes: from.max_split_bytes,
        max_non_split_rounding_bytes: from.max_non_split_rounding_bytes,
        large_segment_bytes: from.large_segment_bytes,
        garbage_collection_threshold: from.garbage_collection_threshold,
        roundup_power2_divisions: from.roundup_power2_divisions,
        expandable_segments: from.expandable_segments,
        graph_capture_record_stream_reuse: from.graph_capture_record_stream_reuse,
        throw_on_cudamalloc_oom: from.throw_on_cudamalloc_oom,
    }
}

/// Refuses values that PyTorch's parser never produces.
fn check_settings(settings: &parkade_settings) -> Result<(), Failure> {
    let refuse = |what: String| Err(Failure::new(PARKADE_INVALID_SETTINGS, what));
    let (large, threshold) = (settings.large_segment_bytes, settings.garbage_collection_threshold);
    if large <= 10 * MIB {
        return refuse(format!("large_segment_bytes is {large}, but must be more than 10 MiB"));
    }
    let is_unlimited = settings.max_split_bytes == u64::MAX;
    let whole = [
        ("large_segment_bytes", large),
        ("max_split_bytes", if is_unlimited { 0 } else { settings.max_split_bytes }),
        ("max_non_split_rounding_bytes", settings.max_non_split_rounding_bytes),
    ];
    if let Some((name, bytes)) = whole.into_iter().find(|(_, bytes)| !bytes.is_multiple_of(MIB)) {
        return refuse(format!("{name} is {bytes}, but must be a multiple of 1 MiB"));
    }
    if !(0.0..1.0).contains(&threshold) {
        return refuse(format!("garbage_collection_threshold is {threshold}, but must be in (0, 1), or 0 for never"));
    }
    let odd = settings.roundup_power2_divisions.iter().find(|divisions| **divisions != 0 && !divisions.is_power_of_two());
    odd.map_or(Ok(()), |divisions| {
        refuse(format!("roundup_power2_divisions contains {divisions}, which is neither a power of 2 nor 0"))
    })
}

fn take_settings(to: &mut Settings, from: &parkade_settings) {
    to.max_split_bytes = from.max_split_bytes;
    to.max_non_split_rounding_bytes = from.max_non_split_rounding_bytes;
    to.large_segment_bytes = from.large_segment_bytes;
    to.garbage_collection_threshold = from.garbage_collection_threshold;
    to.roundup_power2_divisions = from.roundup_power2_divisions;
    to.expandable_segments = from.expandable_segments;
    to.graph_capture_record_stream_reuse = from.graph_capture_record_stream_reuse;
    to.throw_on_cudamalloc_oom = from.throw_on_cudamalloc_oom;
}
