//! A second implementation of the error texts, based on the specification (spec 2.13 to 2.15, 5.3, 11.0).

use parkade::profile::Profile;
use parkade::stats::{Family, Stat, Stats};
use parkade::texts::{Hint, OutOfMemory};
use parkade::units::DeviceAddress;
use parkade::{AllocError, CheckpointError, PoolError};

use super::ReleaseRules;
use super::release::Asserted;
use crate::law::{Broken, Law, ensure};

/// Formats bytes as messages show them: each unit is used up to 1024, with two decimals, and ties round to even.
pub fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..=1024 => return format!("{bytes} bytes"),
        1025..=1_048_576 => (1 << 10, "KiB"),
        1_048_577..=1_073_741_824 => (1 << 20, "MiB"),
        _ => (1_u128 << 30, "GiB"),
    };
    // A double holds only 53 bits of a number.
    let scaled = (bytes as f64) as u128 * 100;
    let (mut hundredths, rest) = (scaled / unit, scaled % unit);
    if 2 * rest > unit || (2 * rest == unit && hundredths % 2 == 1) {
        hundredths += 1;
    }
    format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
}

fn out_of_memory(report: &OutOfMemory, rules: &ReleaseRules) -> String {
    let mut text = format!("CUDA out of memory. Tried to allocate {}. ", size(report.segment_bytes.get()));
    let (total, free) = (size(report.device_total.get()), size(report.device_free.get()));
    let device = match char::from_u32(report.device).filter(|_| rules.writes_device_as_character()) {
        // The text ends at a null character.
        Some('\0') => return text + "GPU ",
        Some(character) => character.to_string(),
        None => report.device.to_string(),
    };
    text += &format!("GPU {device} has a total {} of {total} of which {free} is free. ", rules.capacity());
    for process in &report.processes {
        let who = process.pid.map_or("Including non-PyTorch memory, this process".to_owned(), |pid| format!("Process {pid}"));
        text += &format!("{who} has {} memory in use. ", size(process.used.get()));
    }
    if let Some(limit) = report.limit.filter(|_| rules.tells_limit()) {
        text += &format!("{} allowed; ", size(limit.get()));
    }
    let private = if rules.tells_private_pools() { report.private_cached_bytes.get() } else { 0 };
    let allocated = (report.allocated_bytes as u64).wrapping_add(private);
    let unallocated = (report.reserved_bytes as u64).wrapping_sub(allocated);
    text += &format!("Of the allocated memory {} is allocated by PyTorch, ", size(allocated));
    if private != 0 {
        text += &format!("with {} allocated in private pools (e.g., CUDA Graphs), ", size(private));
    }
    text += &format!("and {} is reserved by PyTorch but unallocated.", size(unallocated));
    text + &hint(report, rules)
}

fn hint(report: &OutOfMemory, rules: &ReleaseRules) -> String {
    match report.hint {
        Hint::None => String::new(),
        Hint::ExpandableSegments => rules.hint(),
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

/// Returns the text of a refused request; `None` for errors that are not PyTorch's.
pub fn of_request(error: &AllocError, profile: &Profile) -> Option<String> {
    let rules = ReleaseRules::of(profile.name);
    match error {
        AllocError::OutOfMemory(report) => Some(out_of_memory(report, &rules)),
        AllocError::TooLarge { .. } => Some("CUDA out of memory. Tried to allocate more than 1EB memory.".to_owned()),
        AllocError::Rejected { requested } => Some(format!(
            "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. \
             Requested size: {}",
            size(requested.get())
        )),
        AllocError::Pool(error) => of_pool(*error, profile),
        AllocError::ExpandableRelease => Some(rules.assertion(Asserted::NotExpandable)),
        AllocError::Capturing => Some(rules.assertion(Asserted::NotCapturing)),
        AllocError::NotCaptured => {
            let is_captured = !rules.fails_outside_captures;
            let more = if is_captured { "Could not find memory pool id for capture." } else { "Invalid stream capture status" };
            Some(rules.assertion(Asserted::Captured) + more)
        }
        _ => None,
    }
}

/// Returns the text of a refused call on a pool.
pub fn of_pool(error: PoolError, profile: &Profile) -> Option<String> {
    let asserted = match error {
        PoolError::AlreadyRouted(_) => return Some("beginAllocateToPool: already recording to mempool_id".to_owned()),
        PoolError::NotRouted(_) => return Some("endAllocatePool: not currently recording to mempool_id".to_owned()),
        PoolError::TooMany => return None,
        PoolError::Captured(_) => {
            let text = ReleaseRules::of(profile.name).assertion(Asserted::Ended);
            return Some(text + "This stream should not be capturing when the capture is ended");
        }
        PoolError::Unknown(_) => Asserted::Known,
        PoolError::Abandoned(_) => Asserted::Used,
        PoolError::NotInUse(_) => Asserted::Balanced,
        PoolError::Overreleased(_) => Asserted::WasBalanced,
    };
    Some(ReleaseRules::of(profile.name).assertion(asserted))
}

/// Returns the text of a refused memory fraction, which is shown as `number`.
pub fn of_fraction(number: &str, profile: &Profile) -> String {
    let rules = ReleaseRules::of(profile.name);
    if rules.asserts_fraction {
        rules.assertion(Asserted::Fraction) + &format!("invalid fraction:{number}. Please set within (0, 1).")
    } else {
        format!("invalid fraction:{number}. Please set within [0, 1].")
    }
}

/// Checks a text if it is known.
pub fn check(seen: &str, expected: Option<String>) -> Result<(), Broken> {
    let same = expected.as_ref().is_none_or(|expected| expected == seen);
    ensure(Law::Reference, same, || format!("the text is {seen:?}, expected {:?}", expected.unwrap_or_default()))
}

/// Returns the text of a refused checkpoint.
pub fn of_checkpoint(error: &CheckpointError) -> Option<String> {
    let unexplained = "to be true, but got false.  (Could this error message be improved?  If so, please report an enhancement request \
                       to PyTorch.)";
    Some(match error {
        CheckpointError::UnknownPool(_) => "Could not find pool of id".to_owned(),
        CheckpointError::LostPool(_) => "Could not find private pool id".to_owned(),
        CheckpointError::Abandoned(_) => "Not expected to checkpoint freeable graph".to_owned(),
        CheckpointError::EventsPending(_) => "Events should have synchronized when checkpointing block".to_owned(),
        CheckpointError::BlockPending(_) => "Events should have synchronized when setting checkpointed block".to_owned(),
        CheckpointError::SegmentMissing(DeviceAddress(address)) => format!(" could not find 0x{address:x}"),
        CheckpointError::SizeDiffers(_) => format!("Expected curr_block->size == block_state.size {unexplained}"),
        CheckpointError::LengthDiffers(_) => {
            format!("Expected (curr_block != nullptr) == ((i + 1) < (segment_len)) {unexplained}")
        }
        CheckpointError::TailInUse(_) => "Invalid expandable segment structure during checkpoint restore".to_owned(),
        CheckpointError::TailGrew(_) => format!("Expected curr_block->next == nullptr {unexplained}"),
        CheckpointError::TailMapped(_) => format!("Expected !curr_block->mapped {unexplained}"),
        CheckpointError::Parted | CheckpointError::Device(_) => return None,
    })
}

/// Returns the text of `torch.cuda.memory_summary()` (spec 6.4).
pub fn summary(device: u32, stats: &Stats, is_abbreviated: bool) -> String {
    let rule = |mark: &str| mark.repeat(75);
    let mut lines = vec![
        rule("="),
        format!("                  PyTorch CUDA memory summary, device ID {device:<17} "),
        rule("-"),
        format!("            CUDA OOMs: {:<12} |        cudaMalloc retries: {:<8}  ", stats.num_ooms, stats.num_alloc_retries),
        rule("="),
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ".to_owned(),
    ];
    let metrics = [
        ("Allocated memory", Family::AllocatedBytes, true),
        ("Active memory", Family::ActiveBytes, true),
        ("Requested memory", Family::RequestedBytes, true),
        ("GPU reserved memory", Family::ReservedBytes, true),
        ("Non-releasable memory", Family::InactiveSplitBytes, true),
        ("Allocations", Family::Allocation, false),
        ("Active allocs", Family::Active, false),
        ("GPU reserved segments", Family::Segment, false),
        ("Non-releasable allocs", Family::InactiveSplit, false),
    ];
    for (name, family, is_size) in metrics {
        let set = stats.family(family);
        lines.extend([rule("-"), row(name, &set.all, &set.all, is_size)]);
        if !is_abbreviated {
            lines.push(row("      from large pool", &set.large, &set.all, is_size));
            lines.push(row("      from small pool", &set.small, &set.all, is_size));
        }
    }
    for (name, stat) in [("Oversize allocations", stats.oversize_allocations), ("Oversize GPU segments", stats.oversize_segments)]
    {
        lines.extend([rule("-"), row(name, &stat, &stat, false)]);
    }
    lines.push(rule("="));
    lines.iter().map(|line| format!("|{line}|\n")).collect()
}

fn row(name: &str, stat: &Stat, all: &Stat, is_size: bool) -> String {
    let pairs = [(stat.current, all.current), (stat.peak, all.peak), (stat.allocated, all.allocated), (stat.freed, all.freed)];
    let cells = pairs.map(|(value, all)| cell(value, all, is_size));
    format!(" {name:<21} | {} ", cells.join(" | "))
}

fn cell(mut value: i64, all: i64, is_size: bool) -> String {
    let (units, divisor, threshold): (&[&str], i64, f64) = if is_size {
        (&["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024, 786_432.0)
    } else {
        (&[" ", "K", "M"], 1000, 750_000.0)
    };
    let (mut all, mut unit) = (all as f64, 0);
    while unit + 1 < units.len() && all >= threshold {
        let floor = value / divisor - i64::from(value % divisor < 0);
        (value, all, unit) = (floor, all / divisor as f64, unit + 1);
    }
    if is_size { format!("{value:6} {}", units[unit]) } else { format!("{value:7} {} ", units[unit]) }
}
