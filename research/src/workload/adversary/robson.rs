//! Robson's adversary: whatever a policy does, as long as it moves nothing, it ends with `live (1 + log2(largest) / 2) - largest + 1`
//! units, though never more than `live` units live at once.
//!
//! Memory is filled with the smallest size. Then sizes are doubled, step by step: of each stretch as long as the new size, one byte is
//! marked, and everything that covers no marked byte is given back, so that no stretch has room for a block of the new size but where
//! nothing was left; and what was given back is asked for again in blocks of the new size. Which byte is marked follows from the
//! byte of the last step, in one of two ways: the one that keeps more room taken by less.

use parkade::policy::Policy;

use super::driver::Driver;
use super::{Attack, AttackError};

/// Sizes and load of Robson's adversary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Robson {
    /// The smallest size. The theorem is exact where the policy rounds neither it nor its multiples by powers of two.
    pub unit_bytes: u64,
    /// The largest size in units: a power of two.
    pub largest_units: u64,
    /// Units that live at once at most: a multiple of `largest_units`.
    pub live_units: u64,
}

/// More units than this take too long.
const MOST_UNITS: u64 = 1 << 20;

/// Plays Robson's adversary against a policy, with more memory than it needs.
///
/// # Errors
/// [`AttackError`]: numbers that make no adversary, or a policy that refuses.
pub fn robson(policy: Box<dyn Policy + Send>, numbers: Robson) -> Result<Attack, AttackError> {
    let Robson { unit_bytes, largest_units, live_units } = numbers;
    if !largest_units.is_power_of_two() {
        return Err(AttackError::Shape("its largest size is no power of two"));
    }
    if live_units == 0 || !live_units.is_multiple_of(largest_units) || live_units > MOST_UNITS {
        return Err(AttackError::Shape("its load is no multiple of its largest size, or more than 2^20 units"));
    }
    if unit_bytes == 0 || unit_bytes > 1 << 30 {
        return Err(AttackError::Shape("its smallest size is 0 or more than 1 GiB"));
    }
    let mut driver = Driver::new(policy);
    for _ in 0..live_units {
        driver.allocate(unit_bytes)?;
    }
    let mut marked = 0;
    for step in 1..=largest_units.ilog2() {
        let size = 1 << step;
        // Units that are taken but not used, over all stretches that have a block on their marked unit.
        let wasted = |mark: u64| -> u64 {
            let kept = driver.live().filter(|&(position, bytes)| covers(position, bytes, unit_bytes, size, mark));
            kept.map(|(_, bytes)| size - bytes / unit_bytes).sum()
        };
        let other = marked + size / 2;
        if wasted(other) > wasted(marked) {
            marked = other;
        }
        driver.free_unless(|position, bytes| covers(position, bytes, unit_bytes, size, marked))?;
        let free_units = live_units - driver.live_bytes() / unit_bytes;
        for _ in 0..free_units / size {
            driver.allocate(size * unit_bytes)?;
        }
    }
    let name = format!("robson-{live_units}-{largest_units}");
    let says =
        format!("Robson's adversary: sizes double from 1 to {largest_units} units of {unit_bytes} bytes, {live_units} live");
    Ok(driver.finish(name, says))
}

/// Whether a buffer covers a unit whose number is `mark` modulo `size`. Units begin at multiples of their size, so a buffer that begins
/// between two still covers as many as it is long.
fn covers(position: u64, bytes: u64, unit_bytes: u64, size: u64, mark: u64) -> bool {
    let (first, units) = (position.div_ceil(unit_bytes), bytes / unit_bytes);
    // The distance from the first unit up to the next marked one.
    let distance = (mark + size - first % size) % size;
    distance < units
}
