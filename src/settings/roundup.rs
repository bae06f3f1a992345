//! The value of `roundup_power2_divisions`: one number, or a list of intervals (spec 8.5).

use super::error::SettingsError;
use super::tokens::{Tokens, unclosed_list};

/// The number of intervals: 1 MiB, 2 MiB, ..., 32 GiB and more.
pub const ROUNDUP_SLOTS: usize = 16;

/// Reads the value of the key at `key_index` into `slots`. Returns the index of its last token.
pub(super) fn parse(tokens: &Tokens, key_index: usize, slots: &mut [u64; ROUNDUP_SLOTS]) -> Result<usize, SettingsError> {
    let value = tokens.value_index(key_index)?;
    if tokens.direct(value)? == "[" {
        return parse_list(tokens, value, slots);
    }
    let divisions = tokens.unsigned(value)?;
    if !divisions.is_power_of_two() {
        return Err(SettingsError::value("For roundups, the divisions has to be power of 2 "));
    }
    *slots = [divisions; ROUNDUP_SLOTS];
    Ok(value)
}

/// Reads `interval:divisions` pairs up to the `]`. Pairs before an error stay.
fn parse_list(tokens: &Tokens, open: usize, slots: &mut [u64; ROUNDUP_SLOTS]) -> Result<usize, SettingsError> {
    let mut last_slot = 0;
    let mut is_first = true;
    let mut index = open + 1;
    loop {
        let interval_index = index;
        let Some(interval) = tokens.get(interval_index) else {
            return Err(unclosed_list("tokenizer.size()", "AllocatorConfig.cpp", tokens.asserts, tokens.asserts.roundup_list));
        };
        if interval == "]" {
            return Ok(interval_index);
        }
        let value_index = tokens.value_index(interval_index)?;
        let divisions = tokens.unsigned(value_index)?;
        if divisions != 0 && !divisions.is_power_of_two() {
            return Err(SettingsError::value("For roundups, the divisions has to be power of 2 or 0 to disable roundup "));
        }
        if interval == ">" {
            slots.iter_mut().skip(last_slot + 1).for_each(|slot| *slot = divisions);
        } else {
            last_slot = slot_of(tokens.unsigned(interval_index)?)?;
            let first_slot = if is_first { 0 } else { last_slot };
            slots.iter_mut().take(last_slot + 1).skip(first_slot).for_each(|slot| *slot = divisions);
            is_first = false;
        }
        // Anything but the closing bracket counts as a comma.
        index = if tokens.direct(value_index + 1)? == "]" { value_index + 1 } else { value_index + 2 };
    }
}

/// The slot of the interval that starts at `size_mb`; the last one includes everything above.
fn slot_of(size_mb: u64) -> Result<usize, SettingsError> {
    if !size_mb.is_power_of_two() {
        return Err(SettingsError::value("For roundups, the intervals have to be power of 2 "));
    }
    Ok((size_mb.trailing_zeros() as usize).min(ROUNDUP_SLOTS - 1))
}
