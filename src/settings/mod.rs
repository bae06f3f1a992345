//! The allocator's settings and the string that sets them, as `PYTORCH_CUDA_ALLOC_CONF` does and
//! `torch._C._accelerator_setAllocatorSettings` (spec section 8).
//!
//! PyTorch parses a string twice: a half that all accelerators share and a half of CUDA's own, each skipping the other's keys.
//! Their order differs between load time and run time, and with it which of several errors is reported.

mod common;
mod device;
mod dialect;
mod error;
mod numbers;
mod reserve;
mod roundup;
mod tokens;
mod values;

pub use dialect::Dialect;
pub use error::{ErrorKind, SettingsError};
pub use numbers::read_double;
pub use reserve::ReserveSize;
pub use roundup::ROUNDUP_SLOTS;
pub use values::{Backend, Settings};

impl Settings {
    /// Applies a string at run time, as PyTorch 2.11 does. It resets `max_split_size_mb`, `roundup_power2_divisions` and
    /// `garbage_collection_threshold`; what it does not name of the rest keeps its value (spec 8.3).
    ///
    /// # Errors
    /// PyTorch's, with its message. What was set before the error stays set, as it does there.
    pub fn apply(&mut self, text: &str) -> Result<(), SettingsError> {
        self.apply_as(&Dialect::PYTORCH_2_11, text)
    }

    /// [`Settings::apply`] as another version of PyTorch does it.
    ///
    /// # Errors
    /// As [`Settings::apply`].
    pub fn apply_as(&mut self, dialect: &Dialect, text: &str) -> Result<(), SettingsError> {
        common::apply(self, text, dialect)?;
        device::apply(self, text, dialect)
    }

    /// The settings of a process whose environment has this string, as PyTorch 2.11 reads it: first the backend, then CUDA's
    /// half of the string, then the common one (spec 8.4).
    ///
    /// With the `cudaMallocAsync` backend PyTorch reads the rest only when something asks for it, in the order of the asking.
    ///
    /// # Errors
    /// PyTorch's, with its message. An error in the search for the backend ends a real process while it loads its libraries.
    pub fn from_environment(text: &str) -> Result<Settings, SettingsError> {
        Settings::from_environment_as(&Dialect::PYTORCH_2_11, text)
    }

    /// [`Settings::from_environment`] as another version of PyTorch does it.
    ///
    /// # Errors
    /// As [`Settings::from_environment`].
    pub fn from_environment_as(dialect: &Dialect, text: &str) -> Result<Settings, SettingsError> {
        let mut settings = Settings { backend: device::backend_at_load(text, dialect)?, ..Settings::default() };
        device::apply(&mut settings, text, dialect)?;
        common::apply(&mut settings, text, dialect)?;
        Ok(settings)
    }
}
