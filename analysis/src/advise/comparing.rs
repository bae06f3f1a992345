//! When two options are as good as each other, in memory and in time spent in the driver.
//!
//! One program's options and the settings for all ranks of a job are compared by the same measures.

/// An option needs about as much memory as another if it needs at most one part in this many more.
const NEAR_PART: u64 = 200;
/// Expandable segments leave few holes whatever the program requests, while other settings need little for one sequence and more for the
/// next. So they may need one part in this many more.
const NEAR_PART_EXPANDABLE: u64 = 30;
/// Driver calls cost much more than others' if they take this many times as long ...
const COSTLY_TIMES: u64 = 4;
/// ... and this much longer.
const COSTLY_US: u64 = 500_000;

/// How much more than `bytes` an option may need and still need about as much.
pub(crate) const fn tolerance_bytes(bytes: u64, is_expandable: bool) -> u64 {
    bytes / if is_expandable { NEAR_PART_EXPANDABLE } else { NEAR_PART }
}

/// Whether driver calls of `driver_us` cost much more than those of the option that spends least in the driver.
pub(crate) fn is_costly(driver_us: u64, quickest_us: u64) -> bool {
    driver_us > quickest_us.saturating_mul(COSTLY_TIMES).max(quickest_us.saturating_add(COSTLY_US))
}
