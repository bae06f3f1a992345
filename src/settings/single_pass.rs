//! The parser of releases before 2.10: one pass over all keys, which checks each separator.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::dialect::{Action, CommonAction, DeviceAction, Dialect, SinglePass};
use super::tokens::{self, number_error, split};
use super::values::{Backend, ROUNDUP_SLOTS, Settings, SettingsError};
use crate::units::MIB;

/// The size of the smallest large segment, in MiB. Sizes in the settings must exceed it.
const LARGE_MB: u64 = 20;

/// The maximum number of threads for registering pinned memory.
const MAX_REGISTER_THREADS: u64 = 128;

/// Resets the settings that every string resets, stores the string, and applies its keys from left to right.
pub(super) fn apply(settings: &mut Settings, text: &str, dialect: &Dialect, rules: &SinglePass) -> Result<(), SettingsError> {
    settings.max_split_bytes = u64::MAX;
    settings.roundup_power2_divisions = [0; ROUNDUP_SLOTS];
    settings.garbage_collection_threshold = 0.0;
    settings.text = String::from(text);
    let tokens = Tokens { tokens: split(text, |character| character == ' ') };
    let mut index = 0;
    while let Some(key) = tokens.get(index) {
        let last = match dialect.action(key) {
            Some(Action::Common(action)) => apply_common(settings, &tokens, index, action, rules)?,
            Some(Action::Device(action)) => apply_device(settings, &tokens, index, action, rules)?,
            None => return Err(SettingsError::check(format!("Unrecognized CachingAllocator option: {key}"))),
        };
        index = if last + 1 < tokens.tokens.len() { tokens.expect(last + 1, ",")? + 1 } else { last + 1 };
    }
    Ok(())
}

/// The backend that the environment's string asks for. Other values are not checked.
pub(super) fn backend_at_load(text: &str) -> Backend {
    let options = text.split(|character: char| character == ',' || matches!(character, ' ' | '\t'..='\r'));
    let mut asked = options.filter_map(|option| {
        let mut words = option.split(':').filter(|word| !word.is_empty());
        if words.next()? == "backend" { Backend::from_name(words.next()?) } else { None }
    });
    asked.next().unwrap_or(Backend::Native)
}

/// Applies a common key. Returns the index of the last token of its value.
fn apply_common(
    settings: &mut Settings,
    tokens: &Tokens,
    key_index: usize,
    action: CommonAction,
    rules: &SinglePass,
) -> Result<usize, SettingsError> {
    let value = tokens.expect(key_index + 1, ":")? + 1;
    match action {
        CommonAction::MaxSplit => settings.max_split_bytes = tokens.size(value, "max_split_size_mb")?,
        CommonAction::MaxNonSplitRounding => {
            settings.max_non_split_rounding_bytes = tokens.size(value, "max_non_split_rounding_mb")?;
        }
        CommonAction::GarbageCollectionThreshold => settings.garbage_collection_threshold = tokens.threshold(value)?,
        CommonAction::RoundupPower2Divisions => return roundup(settings, tokens, value, rules),
        CommonAction::ExpandableSegments => settings.expandable_segments = tokens.boolean(value, "expandable_segments")?,
        CommonAction::PinnedUseBackgroundThreads => {
            settings.pinned_use_background_threads = tokens.boolean(value, "pinned_use_background_threads")?;
        }
        // These keys exist only in later releases.
        CommonAction::LargeSegment | CommonAction::PinnedMaxRoundThreshold | CommonAction::PinnedMaxCachedSize => {}
    }
    Ok(value)
}

/// Applies one of CUDA's keys. Returns the index of its value.
fn apply_device(
    settings: &mut Settings,
    tokens: &Tokens,
    key_index: usize,
    action: DeviceAction,
    rules: &SinglePass,
) -> Result<usize, SettingsError> {
    let value = tokens.expect(key_index + 1, ":")? + 1;
    match action {
        DeviceAction::Backend => tokens.check_backend(value, settings.backend, rules)?,
        DeviceAction::ReleaseLockOnMalloc => {
            settings.release_lock_on_cudamalloc = tokens.boolean(value, "release_lock_on_cudamalloc")?;
        }
        DeviceAction::PinnedUseHostRegister => {
            settings.pinned_use_cuda_host_register = tokens.boolean(value, "pinned_use_cuda_host_register")?;
        }
        DeviceAction::PinnedNumRegisterThreads => settings.pinned_num_register_threads = tokens.register_threads(value)?,
        DeviceAction::GraphCaptureRecordStreamReuse => {
            settings.graph_capture_record_stream_reuse = tokens.boolean(value, "graph_capture_record_stream_reuse")?;
        }
        // These keys exist only in later releases.
        DeviceAction::PinnedReserveSegment
        | DeviceAction::PerProcessMemoryFraction
        | DeviceAction::PinnedFreeCatchAll
        | DeviceAction::ThrowOnMallocOom
        | DeviceAction::ExpandableReserve
        | DeviceAction::ExpandableReserveByClass => {}
    }
    Ok(value)
}

/// Reads the value of `roundup_power2_divisions`. Returns the index of its last token.
fn roundup(settings: &mut Settings, tokens: &Tokens, value: usize, rules: &SinglePass) -> Result<usize, SettingsError> {
    let missing = "Error, expecting roundup_power2_divisions value";
    let slots = &mut settings.roundup_power2_divisions;
    if tokens.get(value) == Some("[") {
        return roundup_list(slots, tokens, value, rules);
    }
    let divisions = tokens.int(value, missing)?;
    if !divisions.is_power_of_two() {
        return Err(SettingsError::check(format!("For roundups, the {} has to be power of 2 ", rules.divisions)));
    }
    *slots = [divisions; ROUNDUP_SLOTS];
    Ok(value)
}

/// Reads `interval:divisions` pairs up to the `]`. Pairs before an error are kept.
fn roundup_list(
    slots: &mut [u64; ROUNDUP_SLOTS],
    tokens: &Tokens,
    open: usize,
    rules: &SinglePass,
) -> Result<usize, SettingsError> {
    let (mut last_slot, mut is_first, mut index) = (0, true, open + 1);
    while let Some(interval) = tokens.get(index).filter(|&token| token != "]") {
        let value = tokens.expect(index + 1, ":")? + 1;
        let divisions = tokens.int(value, "Error parsing roundup_power2_divisions value")?;
        if !divisions.is_power_of_two() && (divisions != 0 || !rules.allows_zero) {
            let or = if rules.allows_zero { "or 0 to disable roundup " } else { "" };
            return Err(SettingsError::check(format!("For roundups, the {} has to be power of 2 {or}", rules.divisions)));
        }
        if interval == ">" {
            slots.iter_mut().skip(last_slot).for_each(|slot| *slot = divisions);
        } else {
            let size_mb = tokens::unsigned(number_in(interval)).map_err(|error| number_error(error, "stoul"))?;
            if !size_mb.is_power_of_two() {
                return Err(SettingsError::check("For roundups, the intervals have to be power of 2 "));
            }
            last_slot = (size_mb.trailing_zeros() as usize).min(ROUNDUP_SLOTS - 1);
            let first_slot = if is_first { 0 } else { last_slot };
            slots.iter_mut().take(last_slot + 1).skip(first_slot).for_each(|slot| *slot = divisions);
            is_first = false;
        }
        // At this point, PyTorch reads beyond the end of the list.
        index = if tokens.get(value + 1) == Some("]") { value + 1 } else { tokens.expect(value + 1, ",")? + 1 };
    }
    Ok(index)
}

/// The token without the white space before a number, which the C library skips.
fn number_in(token: &str) -> &str {
    token.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r'])
}

/// The tokens of a settings string. `,`, `:`, `[` and `]` are tokens; spaces are removed, even inside words.
struct Tokens {
    tokens: Vec<String>,
}

impl Tokens {
    fn get(&self, index: usize) -> Option<&str> {
        self.tokens.get(index).map(String::as_str)
    }

    /// Returns the index if the token there is `separator`.
    fn expect(&self, index: usize, separator: &str) -> Result<usize, SettingsError> {
        match self.get(index) {
            Some(token) if token == separator => Ok(index),
            _ => Err(SettingsError::check(format!("Error parsing CachingAllocator settings, expected {separator}"))),
        }
    }

    fn present(&self, index: usize, missing: &str) -> Result<&str, SettingsError> {
        self.get(index).ok_or_else(|| SettingsError::check(missing))
    }

    fn int(&self, index: usize, missing: &str) -> Result<u64, SettingsError> {
        tokens::int(number_in(self.present(index, missing)?)).map_err(|error| number_error(error, "stoi"))
    }

    /// Reads a size in MiB, which must exceed a large segment. Returns bytes.
    fn size(&self, index: usize, option: &str) -> Result<u64, SettingsError> {
        let size_mb = self.int(index, &format!("Error, expecting {option} value"))?;
        if size_mb <= LARGE_MB {
            return Err(SettingsError::check(format!("CachingAllocator option {option} too small, must be > {LARGE_MB}")));
        }
        Ok(size_mb.min(u64::MAX / MIB) * MIB)
    }

    fn threshold(&self, index: usize) -> Result<f64, SettingsError> {
        let text = self.present(index, "Error, expecting garbage_collection_threshold value")?;
        let threshold = tokens::double(number_in(text)).map_err(|error| number_error(error, "stod"))?;
        if threshold.is_nan() || threshold <= 0.0 {
            return Err(SettingsError::check("garbage_collect_threshold too small, set it 0.0~1.0"));
        }
        if threshold >= 1.0 {
            return Err(SettingsError::check("garbage_collect_threshold too big, set it 0.0~1.0"));
        }
        Ok(threshold)
    }

    fn boolean(&self, index: usize, option: &str) -> Result<bool, SettingsError> {
        match self.get(index) {
            Some("True") => Ok(true),
            Some("False") => Ok(false),
            _ => Err(SettingsError::check(format!("Expected a single True/False argument for {option}"))),
        }
    }

    fn register_threads(&self, index: usize) -> Result<u64, SettingsError> {
        let threads = self.int(index, "Error, expecting pinned_num_register_threads value")?;
        if !threads.is_power_of_two() {
            return Err(SettingsError::check("Number of register threads has to be power of 2 "));
        }
        if threads > MAX_REGISTER_THREADS {
            return Err(SettingsError::check(format!(
                "Number of register threads should be less than or equal to {MAX_REGISTER_THREADS}"
            )));
        }
        Ok(threads)
    }

    fn check_backend(&self, index: usize, current: Backend, rules: &SinglePass) -> Result<(), SettingsError> {
        let name = self.present(index, "Error parsing backend value")?;
        match Backend::from_name(name) {
            None => Err(SettingsError::check("Unknown allocator backend, options are native and cudaMallocAsync")),
            Some(backend) if backend == current => Ok(()),
            Some(_) => {
                let (file, line) = rules.backend;
                Err(SettingsError::internal(format!(
                    "config[i] == get()->name() INTERNAL ASSERT FAILED at \"{file}\":{line}, please report a bug to PyTorch. \
                     Allocator backend parsed at runtime != allocator backend parsed at load time"
                )))
            }
        }
    }
}
