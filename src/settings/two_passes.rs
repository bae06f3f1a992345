//! The parsers of PyTorch 2.10 and later: one for the keys that all accelerators share, and one for CUDA's own keys
//! and the choice of the backend at load time (spec 8.2 to 8.5).
//!
//! `,`, `:`, `[` and `]` are tokens. White space is removed everywhere, even inside words. Like PyTorch, this module
//! only checks that there is a separator between two tokens, not which one it is.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::dialect::{Action, AssertLines, CommonAction, DeviceAction, Dialect};
use super::tokens::{self, number_error, split};
use super::values::{Backend, ROUNDUP_SLOTS, ReserveSize, Settings, SettingsError};
use crate::units::MIB;

/// The maximum number of MiB whose bytes fit in 64 bits; larger values are reduced to it.
const MAX_MIB: u64 = u64::MAX / MIB;

/// Resets the settings that every string resets, stores the string, and applies its keys from left to right.
pub(super) fn apply_common(settings: &mut Settings, text: &str, dialect: &Dialect) -> Result<(), SettingsError> {
    settings.max_split_bytes = u64::MAX;
    settings.roundup_power2_divisions = [0; ROUNDUP_SLOTS];
    settings.garbage_collection_threshold = 0.0;
    settings.text = String::from(text);
    let tokens = Tokens::new(text, dialect.asserts);
    apply_large_segment(settings, &tokens, dialect)?;
    let mut index = 0;
    while let Some(key) = tokens.get(index) {
        let last = match dialect.action(key) {
            Some(Action::Common(action)) => apply_common_key(settings, &tokens, index, action)?,
            Some(Action::Device(_)) => tokens.skip_key(index)?,
            None => return Err(SettingsError::value(format!("Unrecognized key '{key}' in Accelerator allocator config."))),
        };
        index = tokens.next_key(last);
    }
    Ok(())
}

/// The first pass reads the size of large segments, which is a bound for other values. It considers every token, not
/// only keys.
fn apply_large_segment(settings: &mut Settings, tokens: &Tokens, dialect: &Dialect) -> Result<(), SettingsError> {
    let mut index = 0;
    while let Some(token) = tokens.get(index) {
        if dialect.action(token) == Some(Action::Common(CommonAction::LargeSegment)) {
            index = tokens.value_index(index)?;
            let size_mb = tokens.unsigned(index)?;
            if size_mb <= 10 {
                return Err(SettingsError::value("CachingAllocator option large_segment_size_mb must be > 10 MB"));
            }
            settings.large_segment_bytes = size_mb.min(MAX_MIB) * MIB;
        }
        index += 1;
    }
    // In a release without this key, nothing resets the size.
    if dialect.action("large_segment_size_mb").is_some() {
        settings.max_non_split_rounding_bytes = settings.large_segment_bytes;
    }
    Ok(())
}

/// Applies one key. Returns the index of the last token of its value.
fn apply_common_key(
    settings: &mut Settings,
    tokens: &Tokens,
    key_index: usize,
    action: CommonAction,
) -> Result<usize, SettingsError> {
    match action {
        CommonAction::LargeSegment => return tokens.skip_key(key_index),
        CommonAction::RoundupPower2Divisions => {
            return parse_roundup(tokens, key_index, &mut settings.roundup_power2_divisions);
        }
        _ => {}
    }
    let value = tokens.value_index(key_index)?;
    match action {
        CommonAction::MaxSplit => {
            settings.max_split_bytes = size_at(settings, tokens, value, "max_split_size_mb")?;
        }
        CommonAction::MaxNonSplitRounding => {
            settings.max_non_split_rounding_bytes = size_at(settings, tokens, value, "max_non_split_rounding_mb")?;
        }
        CommonAction::GarbageCollectionThreshold => {
            settings.garbage_collection_threshold = threshold_at(tokens, value)?;
        }
        CommonAction::ExpandableSegments => settings.expandable_segments = tokens.boolean(value)?,
        CommonAction::PinnedUseBackgroundThreads => settings.pinned_use_background_threads = tokens.boolean(value)?,
        CommonAction::PinnedMaxRoundThreshold => settings.pinned_max_round_threshold_mb = tokens.unsigned(value)?,
        CommonAction::PinnedMaxCachedSize => settings.pinned_max_cached_size_mb = tokens.unsigned(value)?,
        CommonAction::LargeSegment | CommonAction::RoundupPower2Divisions => {}
    }
    Ok(value)
}

/// Reads a size in MiB, which must be at least that of a large segment. Returns bytes.
fn size_at(settings: &Settings, tokens: &Tokens, index: usize, option: &str) -> Result<u64, SettingsError> {
    let size_mb = tokens.unsigned(index)?;
    let smallest_mb = settings.large_segment_bytes / MIB;
    if size_mb < smallest_mb {
        return Err(SettingsError::value(format!("CachingAllocator option {option} too small, must be >= {smallest_mb}")));
    }
    Ok(size_mb.min(MAX_MIB) * MIB)
}

fn threshold_at(tokens: &Tokens, index: usize) -> Result<f64, SettingsError> {
    let threshold = tokens.double(index)?;
    if threshold > 0.0 && threshold < 1.0 {
        Ok(threshold)
    } else {
        Err(SettingsError::value("garbage_collect_threshold is invalid, set it in (0.0, 1.0)"))
    }
}

/// Reads the value of `roundup_power2_divisions`, whose key is at `key_index`, into `slots`: one number, or a list of intervals
/// (spec 8.5). Returns the index of its last token.
fn parse_roundup(tokens: &Tokens, key_index: usize, slots: &mut [u64; ROUNDUP_SLOTS]) -> Result<usize, SettingsError> {
    let value = tokens.value_index(key_index)?;
    if tokens.direct(value)? == "[" {
        return parse_roundup_list(tokens, value, slots);
    }
    let divisions = tokens.unsigned(value)?;
    if !divisions.is_power_of_two() {
        return Err(SettingsError::value("For roundups, the divisions has to be power of 2 "));
    }
    *slots = [divisions; ROUNDUP_SLOTS];
    Ok(value)
}

/// Reads `interval:divisions` pairs up to the `]`. Pairs before an error are kept.
fn parse_roundup_list(tokens: &Tokens, open: usize, slots: &mut [u64; ROUNDUP_SLOTS]) -> Result<usize, SettingsError> {
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
        // PyTorch accepts any token except the closing bracket as a comma.
        index = if tokens.direct(value_index + 1)? == "]" { value_index + 1 } else { value_index + 2 };
    }
}

/// The slot of the interval that starts at `size_mb`. The last slot also includes all larger sizes.
fn slot_of(size_mb: u64) -> Result<usize, SettingsError> {
    if !size_mb.is_power_of_two() {
        return Err(SettingsError::value("For roundups, the intervals have to be power of 2 "));
    }
    Ok((size_mb.trailing_zeros() as usize).min(ROUNDUP_SLOTS - 1))
}

/// The maximum number of threads for registering pinned memory.
const MAX_REGISTER_THREADS: u64 = 128;

/// Applies the CUDA keys of the string from left to right and skips all others.
pub(super) fn apply_device(settings: &mut Settings, text: &str, dialect: &Dialect) -> Result<(), SettingsError> {
    let tokens = Tokens::new(text, dialect.asserts);
    let mut index = 0;
    while let Some(key) = tokens.get(index) {
        let last = match dialect.action(key) {
            Some(Action::Device(action)) => apply_device_key(settings, &tokens, index, action)?,
            Some(Action::Common(_)) => tokens.skip_key(index)?,
            None => return Err(SettingsError::value(format!("Unrecognized key '{key}' in CUDA allocator config."))),
        };
        index = tokens.next_key(last);
    }
    Ok(())
}

/// The backend that the environment's string asks for. Other values are not checked, and nothing after the first
/// `backend` key is read.
pub(super) fn backend_at_load(text: &str, dialect: &Dialect) -> Result<Backend, SettingsError> {
    let tokens = Tokens::new(text, dialect.asserts);
    let mut index = 0;
    while let Some(key) = tokens.get(index) {
        if dialect.action(key) == Some(Action::Device(DeviceAction::Backend)) {
            let value = tokens.value_index(index)?;
            let backend = Backend::from_name(tokens.direct(value)?);
            return Ok(backend.unwrap_or(Backend::Native));
        }
        index = tokens.next_key(tokens.skip_key(index)?);
    }
    Ok(Backend::Native)
}

/// Applies one key. Returns the index of its value.
fn apply_device_key(
    settings: &mut Settings,
    tokens: &Tokens,
    key_index: usize,
    action: DeviceAction,
) -> Result<usize, SettingsError> {
    let value = tokens.value_index(key_index)?;
    match action {
        DeviceAction::Backend => check_backend(settings.backend, tokens, value)?,
        DeviceAction::ReleaseLockOnMalloc => settings.release_lock_on_cudamalloc = tokens.boolean(value)?,
        DeviceAction::PinnedUseHostRegister => settings.pinned_use_cuda_host_register = tokens.boolean(value)?,
        DeviceAction::PinnedNumRegisterThreads => settings.pinned_num_register_threads = register_threads_at(tokens, value)?,
        DeviceAction::PinnedReserveSegment => settings.pinned_reserve_segment_mb = reserve_segment_at(tokens, value)?,
        DeviceAction::GraphCaptureRecordStreamReuse => {
            settings.graph_capture_record_stream_reuse = tokens.boolean(value)?;
        }
        DeviceAction::PerProcessMemoryFraction => settings.per_process_memory_fraction = fraction_at(tokens, value)?,
        DeviceAction::PinnedFreeCatchAll => settings.pinned_free_catch_all = tokens.boolean(value)?,
        DeviceAction::ThrowOnMallocOom => settings.throw_on_cudamalloc_oom = tokens.boolean(value)?,
        DeviceAction::ExpandableReserve => {
            // PyTorch warns about an invalid value and keeps the setting.
            if let Some(size) = ReserveSize::parse(tokens.checked(value)?) {
                settings.expandable_segments_reserve = Some(size);
            }
        }
        DeviceAction::ExpandableReserveByClass => return skip_classes(tokens, value),
    }
    Ok(value)
}

/// Skips stream classes and their segment sizes. There is no call that could assign a stream to a class.
fn skip_classes(tokens: &Tokens, open: usize) -> Result<usize, SettingsError> {
    let mut index = open + 1;
    while tokens.checked(index)? != "]" {
        // A name, any token as the colon, and a size, followed by a comma or nothing.
        tokens.checked(index + 1)?;
        tokens.direct(index + 2)?;
        index += 3;
        if tokens.get(index) == Some(",") {
            index += 1;
        }
    }
    Ok(index)
}

fn check_backend(current: Backend, tokens: &Tokens, index: usize) -> Result<(), SettingsError> {
    let name = tokens.direct(index)?;
    match Backend::from_name(name) {
        None => Err(SettingsError::value("Unknown allocator backend, options are native and cudaMallocAsync")),
        Some(backend) if backend == current => Ok(()),
        Some(_) => Err(internal_assert(
            tokens.asserts,
            "tokenizer[i] == get()->name()",
            ("cuda/CUDAAllocatorConfig.cpp", tokens.asserts.backend),
            &format!(
                "Allocator backend parsed at runtime != allocator backend parsed at load time, {name} != {}",
                current.name()
            ),
        )),
    }
}

fn register_threads_at(tokens: &Tokens, index: usize) -> Result<u64, SettingsError> {
    let threads = tokens.unsigned(index)?;
    if !threads.is_power_of_two() {
        return Err(SettingsError::value(format!("Number of register threads has to be power of 2, got {threads}")));
    }
    if threads > MAX_REGISTER_THREADS {
        return Err(SettingsError::value(format!(
            "Number of register threads should be less than or equal to {MAX_REGISTER_THREADS}, got {threads}"
        )));
    }
    Ok(threads)
}

fn reserve_segment_at(tokens: &Tokens, index: usize) -> Result<u64, SettingsError> {
    match tokens.unsigned(index)? {
        0 => Err(SettingsError::value("Pinned reserve segment size has to be greater than 0")),
        size_mb => Ok(size_mb),
    }
}

fn fraction_at(tokens: &Tokens, index: usize) -> Result<f64, SettingsError> {
    let fraction = tokens.double(index)?;
    if (0.0..=1.0).contains(&fraction) {
        Ok(fraction)
    } else {
        Err(SettingsError::value("per_process_memory_fraction is invalid, set it in [0.0, 1.0]"))
    }
}

impl ReserveSize {
    /// Reads `0.5` or `40G`; `None` for anything that is not a positive finite number.
    fn parse(text: &str) -> Option<ReserveSize> {
        let (number, make): (&str, fn(f64) -> ReserveSize) = match text.strip_suffix('G') {
            Some(number) => (number, ReserveSize::Gibibytes),
            None => (text, ReserveSize::Fraction),
        };
        tokens::double(number).ok().filter(|value| value.is_finite() && *value > 0.0).map(make)
    }
}

/// The tokens of a settings string.
struct Tokens {
    tokens: Vec<String>,
    asserts: AssertLines,
}

impl Tokens {
    fn new(text: &str, asserts: AssertLines) -> Tokens {
        // These are C's white-space characters; other Unicode white space is part of words.
        Tokens { tokens: split(text, |character| matches!(character, ' ' | '\t'..='\r')), asserts }
    }

    fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The token at `index`, if it exists.
    fn get(&self, index: usize) -> Option<&str> {
        self.tokens.get(index).map(String::as_str)
    }

    /// The token at `index`, or an error if there is none.
    fn checked(&self, index: usize) -> Result<&str, SettingsError> {
        self.get(index).ok_or_else(|| missing_token(self.asserts, self.asserts.checked_index))
    }

    /// Like [`Tokens::checked`], but the message contains the source line of PyTorch's direct access.
    fn direct(&self, index: usize) -> Result<&str, SettingsError> {
        self.get(index).ok_or_else(|| missing_token(self.asserts, self.asserts.direct_index))
    }

    /// The index of the value of the key at `key_index`, or an error if there is no separator before the value.
    fn value_index(&self, key_index: usize) -> Result<usize, SettingsError> {
        self.checked(key_index + 1)?;
        Ok(key_index + 2)
    }

    fn unsigned(&self, index: usize) -> Result<u64, SettingsError> {
        tokens::unsigned(self.checked(index)?).map_err(|error| number_error(error, "stoull"))
    }

    fn double(&self, index: usize) -> Result<f64, SettingsError> {
        tokens::double(self.checked(index)?).map_err(|error| number_error(error, "stod"))
    }

    fn boolean(&self, index: usize) -> Result<bool, SettingsError> {
        match self.checked(index)? {
            "True" => Ok(true),
            "False" => Ok(false),
            other => Err(SettingsError::value(format!(
                "Expected 'True' or 'False' at index {index} in ConfigTokenizer but got '{other}'"
            ))),
        }
    }

    /// The index of the last token of the value of the key at `key_index`: one token, or a list up to its `]`.
    fn skip_key(&self, key_index: usize) -> Result<usize, SettingsError> {
        let value = self.value_index(key_index)?;
        if self.checked(value)? != "[" {
            return Ok(value);
        }
        let rest = self.tokens.iter().skip(value + 1);
        match rest.into_iter().position(|token| token == "]") {
            Some(offset) => Ok(value + 1 + offset),
            None => Err(unclosed_list("config_.size()", "AllocatorConfig.h", self.asserts, self.asserts.skipped_list)),
        }
    }

    /// The index of the next key after a value that ends at `last`. Skips the token between them, regardless of what
    /// it is.
    fn next_key(&self, last: usize) -> usize {
        if last + 1 < self.len() { last + 2 } else { last + 1 }
    }
}

fn missing_token(asserts: AssertLines, line: u32) -> SettingsError {
    internal_assert(asserts, "i < config_.size()", ("core/AllocatorConfig.h", line), "Index out of bounds in ConfigTokenizer")
}

/// The error for a list without a closing `]`, which the loop in `file` detects.
fn unclosed_list(size: &str, file: &str, asserts: AssertLines, line: u32) -> SettingsError {
    let text = "Expected closing bracket ']' in ConfigTokenizer but reached end of config";
    internal_assert(asserts, &format!("i < {size}"), (&format!("core/{file}"), line), text)
}

/// The message of a failed internal assert.
fn internal_assert(asserts: AssertLines, condition: &str, (file, line): (&str, u32), text: &str) -> SettingsError {
    SettingsError::internal(format!(
        "{condition} INTERNAL ASSERT FAILED at \"{}/c10/{file}\":{line}, please report a bug to PyTorch. {text}",
        asserts.root
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    /// Compares with the sizes that PyTorch reserved on a device with 1 GiB, before rounding to pages.
    #[test]
    fn sizes_are_parts_or_gibibytes() {
        let bytes = |text| ReserveSize::parse(text).map(|size| size.bytes(Bytes::mib(1024)).0);
        assert_eq!(bytes("0.5"), Some(1 << 29));
        assert_eq!(bytes("2G"), Some(2 << 30));
        assert_eq!([bytes("x"), bytes("-1"), bytes("0"), bytes("inf"), bytes("")], [None; 5]);
    }
}
