//! The parser for CUDA's own keys, and the choice of the backend at load time (spec 8.3, 8.4).

use alloc::format;

use super::dialect::{Action, DeviceAction, Dialect};
use super::error::SettingsError;
use super::reserve::ReserveSize;
use super::tokens::{Tokens, internal_assert};
use super::values::{Backend, Settings};

/// The most threads for registering pinned memory.
const MAX_REGISTER_THREADS: u64 = 128;

/// Applies the CUDA keys of the string from left to right and skips the others.
pub(super) fn apply(settings: &mut Settings, text: &str, dialect: &Dialect) -> Result<(), SettingsError> {
    let tokens = Tokens::new(text, dialect.asserts);
    let mut index = 0;
    while let Some(key) = tokens.get(index) {
        let last = match dialect.action(key) {
            Some(Action::Device(action)) => apply_key(settings, &tokens, index, action)?,
            Some(Action::Common(_)) => tokens.skip_key(index)?,
            None => return Err(SettingsError::value(format!("Unrecognized key '{key}' in CUDA allocator config."))),
        };
        index = tokens.next_key(last);
    }
    Ok(())
}

/// The backend that the environment's string asks for. Values are not checked here, and nothing after the
/// first `backend` key is read.
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
fn apply_key(settings: &mut Settings, tokens: &Tokens, key_index: usize, action: DeviceAction) -> Result<usize, SettingsError> {
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
            // PyTorch warns of an invalid value and keeps the setting.
            if let Some(size) = ReserveSize::parse(tokens.checked(value)?) {
                settings.expandable_segments_reserve = Some(size);
            }
        }
        DeviceAction::ExpandableReserveByClass => return skip_classes(tokens, value),
    }
    Ok(value)
}

/// Skips classes of streams with the sizes of their segments. Nothing here can put a stream into a class.
fn skip_classes(tokens: &Tokens, open: usize) -> Result<usize, SettingsError> {
    let mut index = open + 1;
    while tokens.checked(index)? != "]" {
        // A name, anything for the colon, a size; then a comma or nothing.
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
