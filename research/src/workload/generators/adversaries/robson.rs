//! Robson's adversary: a policy that never moves memory ends with at least `live (1 + log2(largest) / 2) - largest
//! + 1` units, although never more than `live` units are live at once.
//!
//! Memory is filled with buffers of the smallest size. Then the size is doubled, step by step. One unit of every
//! stretch as long as the new size is marked, and every buffer that covers no marked unit is freed: a block of the
//! new size then fits only into a stretch with nothing left in it. What was freed is requested again in blocks of
//! the new size. Which unit is marked follows from the previous step, in one of two ways: the adversary takes the
//! one that occupies more space with fewer live bytes.

use parkade::policy::Policy;

use super::attack::{Attack, AttackError};
use super::probe::Probe;

/// The sizes and the load of Robson's adversary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Robson {
    /// The smallest size. The theorem is exact if the policy rounds neither it nor its multiples by powers of two.
    pub unit_bytes: u64,
    /// The largest size, in units: a power of two.
    pub largest_units: u64,
    /// The most units live at once: a multiple of `largest_units`.
    pub live_units: u64,
}

/// More units than this would take too long.
const MOST_UNITS: u64 = 1 << 20;

/// Plays Robson's adversary against a policy, with more memory than it needs.
///
/// # Errors
/// [`AttackError`] if the numbers are not allowed, or the policy refuses a request.
pub fn robson(policy: Box<dyn Policy + Send>, numbers: Robson) -> Result<Attack, AttackError> {
    let Robson { unit_bytes, largest_units, live_units } = numbers;
    if !largest_units.is_power_of_two() {
        return Err(AttackError::Shape("the largest size must be a power of two"));
    }
    if live_units == 0 || !live_units.is_multiple_of(largest_units) || live_units > MOST_UNITS {
        return Err(AttackError::Shape("the load must be a multiple of the largest size, and at most 2^20 units"));
    }
    if unit_bytes == 0 || unit_bytes > 1 << 30 {
        return Err(AttackError::Shape("the smallest size must be from 1 byte to 1 GiB"));
    }
    let mut probe = Probe::new(policy);
    for _ in 0..live_units {
        probe.allocate(unit_bytes)?;
    }
    let mut marked = 0;
    for step in 1..=largest_units.ilog2() {
        let size = 1 << step;
        // Units that are occupied but not live, over all stretches with a block on their marked unit.
        let wasted = |mark: u64| -> u64 {
            let kept = probe.live().filter(|&(position, bytes)| covers(position, bytes, unit_bytes, size, mark));
            kept.map(|(_, bytes)| size - bytes / unit_bytes).sum()
        };
        let other = marked + size / 2;
        if wasted(other) > wasted(marked) {
            marked = other;
        }
        probe.free_unless(|position, bytes| covers(position, bytes, unit_bytes, size, marked))?;
        let free_units = live_units - probe.live_bytes() / unit_bytes;
        for _ in 0..free_units / size {
            probe.allocate(size * unit_bytes)?;
        }
    }
    let name = format!("robson-{live_units}-{largest_units}");
    let says =
        format!("Robson's adversary: sizes double from 1 to {largest_units} units of {unit_bytes} bytes, {live_units} live");
    Ok(probe.finish(name, says))
}

/// Whether a buffer covers a unit whose number is `mark` modulo `size`. Units start at multiples of their size; a
/// buffer that starts between two of them still covers as many units as it is long.
fn covers(position: u64, bytes: u64, unit_bytes: u64, size: u64, mark: u64) -> bool {
    let (first, units) = (position.div_ceil(unit_bytes), bytes / unit_bytes);
    // The distance from its first unit to the next marked one.
    let distance = (mark + size - first % size) % size;
    distance < units
}
