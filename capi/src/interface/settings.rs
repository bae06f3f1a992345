//! Settings at run time.

use std::ffi::c_char;

use parkade::settings::{Settings, SettingsError};
use parkade::units::MIB;

use super::{answer, null, ours, place, text};
use crate::failure::Failure;
use crate::serve::{Tunable, parkade_allocator, with_core};
use crate::types::parkade_settings;
use crate::types::parkade_status::{self, PARKADE_INVALID_SETTINGS, PARKADE_UNSUPPORTED};

/// Applies a string of `PYTORCH_CUDA_ALLOC_CONF` at run time, as the release of PyTorch does: some settings that it does
/// not name are reset, others stay. What was set before an error stays set. Only for the policy `pytorch`.
///
/// # Safety
/// The allocator came from `parkade_create` and lives; `settings` is null or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_apply_settings(allocator: *mut parkade_allocator, settings: *const c_char) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller says.
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

/// Reads the settings. Only for the policy `pytorch`.
///
/// # Safety
/// The allocator came from `parkade_create` and lives; `out` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_read_settings(allocator: *mut parkade_allocator, out: *mut parkade_settings) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller says.
        let (allocator, out) = unsafe { (ours(allocator)?, place(out, "the place for the settings")?) };
        let read =
            with_core!(allocator, core => core.allocator_mut().policy_mut().settings_mut().map(|settings| in_c(settings)))?;
        *out = read.ok_or_else(without_settings)?;
        Ok(())
    })
}

/// Sets the settings as they are read; the next decision follows them. What PyTorch would refuse is refused, and changes
/// nothing. Only for the policy `pytorch`.
///
/// # Safety
/// The allocator came from `parkade_create` and lives; `settings` is null or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn parkade_set_settings(
    allocator: *mut parkade_allocator,
    settings: *const parkade_settings,
) -> parkade_status {
    answer(|| {
        // SAFETY: null or valid, as the caller says.
        let (allocator, settings) = unsafe { (ours(allocator)?, settings.as_ref()) };
        let from = settings.ok_or_else(|| null("the settings"))?;
        check(from)?;
        let set = with_core!(allocator, core => core.allocator_mut().policy_mut().settings_mut().map(|to| take(to, from)))?;
        set.ok_or_else(without_settings)
    })
}

fn in_c(from: &Settings) -> parkade_settings {
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

/// PyTorch reads no others.
fn check(settings: &parkade_settings) -> Result<(), Failure> {
    let refuse = |what: String| Err(Failure::new(PARKADE_INVALID_SETTINGS, what));
    let (large, threshold) = (settings.large_segment_bytes, settings.garbage_collection_threshold);
    if large <= 10 * MIB {
        return refuse(format!("large_segment_bytes is {large}, and must be more than 10 MiB"));
    }
    if !(0.0..1.0).contains(&threshold) {
        return refuse(format!("garbage_collection_threshold is {threshold}, and must be in (0, 1), or 0 for never"));
    }
    let odd = settings.roundup_power2_divisions.iter().find(|divisions| **divisions != 0 && !divisions.is_power_of_two());
    odd.map_or(Ok(()), |divisions| refuse(format!("roundup_power2_divisions has {divisions}, which is no power of 2 and not 0")))
}

fn take(to: &mut Settings, from: &parkade_settings) {
    to.max_split_bytes = from.max_split_bytes;
    to.max_non_split_rounding_bytes = from.max_non_split_rounding_bytes;
    to.large_segment_bytes = from.large_segment_bytes;
    to.garbage_collection_threshold = from.garbage_collection_threshold;
    to.roundup_power2_divisions = from.roundup_power2_divisions;
    to.expandable_segments = from.expandable_segments;
    to.graph_capture_record_stream_reuse = from.graph_capture_record_stream_reuse;
    to.throw_on_cudamalloc_oom = from.throw_on_cudamalloc_oom;
}
