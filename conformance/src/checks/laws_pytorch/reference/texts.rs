//! The texts of errors, written a second time from the specification (spec 2.13 to 2.15, 5.3, 11.0).

use parkade::profile::Profile;
use parkade::texts::{Hint, OutOfMemory};
use parkade::{AllocError, PoolError};

use crate::law::{Broken, Law, ensure};

/// Bytes as messages show them: a unit is used up to 1024 of it.
fn size(bytes: u64) -> String {
    let value = bytes as f64;
    if bytes <= 1 << 10 {
        format!("{bytes} bytes")
    } else if bytes <= 1 << 20 {
        format!("{:.2} KiB", value / 1024.0)
    } else if bytes <= 1 << 30 {
        format!("{:.2} MiB", value / (1024.0 * 1024.0))
    } else {
        format!("{:.2} GiB", value / (1024.0 * 1024.0 * 1024.0))
    }
}

fn out_of_memory(report: &OutOfMemory) -> String {
    let mut text = format!("CUDA out of memory. Tried to allocate {}. ", size(report.segment_bytes.get()));
    let (total, free) = (size(report.device_total.get()), size(report.device_free.get()));
    text += &format!("GPU {} has a total capacity of {total} of which {free} is free. ", report.device);
    for process in &report.processes {
        let who = process.pid.map_or("Including non-PyTorch memory, this process".to_owned(), |pid| format!("Process {pid}"));
        text += &format!("{who} has {} memory in use. ", size(process.used.get()));
    }
    if let Some(limit) = report.limit {
        text += &format!("{} allowed; ", size(limit.get()));
    }
    let private = report.private_cached_bytes.get();
    let allocated = (report.allocated_bytes as u64).wrapping_add(private);
    let unallocated = (report.reserved_bytes as u64).wrapping_sub(allocated);
    text += &format!("Of the allocated memory {} is allocated by PyTorch, ", size(allocated));
    if private != 0 {
        text += &format!("with {} allocated in private pools (e.g., CUDA Graphs), ", size(private));
    }
    text += &format!("and {} is reserved by PyTorch but unallocated.", size(unallocated));
    text + &hint(report)
}

fn hint(report: &OutOfMemory) -> String {
    match report.hint {
        Hint::ExpandableSegments => " If reserved but unallocated memory is large try setting \
             PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  \
             (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
            .to_owned(),
        Hint::Addresses => {
            " expandable_segments is enabled. If instead the process is running out of virtual address space (VSZ), \
             expandable segments may be over-reserving VA (each segment reserves ~9/8 of device memory, times the number of \
             streams); reduce it via PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve / expandable_segments_reserve_by_class."
                .to_owned()
        }
        Hint::LargerReserve(reserve) => format!(
            " This allocation exceeds the expandable-segment reserve of {} for this stream, and a single allocation cannot span \
             expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve or \
             expandable_segments_reserve_by_class (or unset it) so that a segment is at least {}.",
            size(reserve.get()),
            size(report.segment_bytes.get())
        ),
    }
}

/// The text of a refused request; `None` for errors that are not PyTorch's.
pub(super) fn of_request(error: &AllocError, profile: &Profile) -> Option<String> {
    match error {
        AllocError::OutOfMemory(report) => Some(out_of_memory(report)),
        AllocError::TooLarge { .. } => Some("CUDA out of memory. Tried to allocate more than 1EB memory.".to_owned()),
        AllocError::Rejected { requested } => Some(format!(
            "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. \
             Requested size: {}",
            size(requested.get())
        )),
        AllocError::Pool(error) => of_pool(*error, profile),
        _ => None,
    }
}

/// The text of a refused call about a pool.
pub(super) fn of_pool(error: PoolError, profile: &Profile) -> Option<String> {
    let is_newer = profile.name == "2.15";
    let (assertion, line) = match error {
        PoolError::AlreadyRouted(_) => return Some("beginAllocateToPool: already recording to mempool_id".to_owned()),
        PoolError::NotRouted(_) => return Some("endAllocatePool: not currently recording to mempool_id".to_owned()),
        PoolError::TooMany => return None,
        PoolError::Unknown(_) => ("it != graph_pools.end()", if is_newer { 3481 } else { 2807 }),
        PoolError::Abandoned(_) => ("it->second->use_count > 0", if is_newer { 3473 } else { 2799 }),
        PoolError::NotInUse(_) => ("uc >= 0", if is_newer { 3373 } else { 2698 }),
    };
    let folder = if is_newer { "/__w/pytorch/pytorch" } else { "/pytorch" };
    let file = format!("{folder}/c10/cuda/CUDACachingAllocator.cpp");
    Some(format!("{assertion} INTERNAL ASSERT FAILED at \"{file}\":{line}, please report a bug to PyTorch. "))
}

/// Checks a text, if it is known.
pub(super) fn check(seen: &str, expected: Option<String>) -> Result<(), Broken> {
    let same = expected.as_ref().is_none_or(|expected| expected == seen);
    ensure(Law::Reference, same, || format!("the text is {seen:?}, expected {:?}", expected.unwrap_or_default()))
}
