//! The allocator's settings and the string that sets them, through `PYTORCH_CUDA_ALLOC_CONF` or
//! `torch._C._accelerator_setAllocatorSettings` (spec section 8).
//!
//! PyTorch parses a string with two parsers, one for the keys that all accelerators share and one for CUDA's own, and
//! each skips the other's keys. Their order differs between load time and run time, so if there are several errors,
//! the one that PyTorch reports also differs. Releases before 2.10 have one parser for all keys.

mod dialect;
mod single_pass;
mod tokens;
mod two_passes;
mod values;

pub use dialect::Dialect;
use dialect::Parser;
pub use tokens::read_double;
pub use values::{Backend, ErrorKind, ROUNDUP_SLOTS, ReserveSize, Settings, SettingsError};

impl Settings {
    /// Applies a string at run time, as PyTorch 2.11 does. First resets `max_split_size_mb`,
    /// `roundup_power2_divisions` and `garbage_collection_threshold`; other settings keep their values unless the
    /// string names them (spec 8.3).
    ///
    /// # Errors
    /// PyTorch's error, with its message. Settings applied before the error are kept, as in PyTorch.
    pub fn apply(&mut self, text: &str) -> Result<(), SettingsError> {
        self.apply_as(&Dialect::PYTORCH_2_11, text)
    }

    /// Like [`Settings::apply`], but in the dialect of a given release.
    ///
    /// # Errors
    /// As [`Settings::apply`].
    pub fn apply_as(&mut self, dialect: &Dialect, text: &str) -> Result<(), SettingsError> {
        if let Parser::SinglePass(rules) = &dialect.parser {
            return single_pass::apply(self, text, dialect, rules);
        }
        two_passes::apply_common(self, text, dialect)?;
        two_passes::apply_device(self, text, dialect)
    }

    /// The settings of a process with this string in its environment. PyTorch 2.11 first reads the backend, then
    /// CUDA's keys, and then the common keys (spec 8.4).
    ///
    /// With the `cudaMallocAsync` backend, PyTorch reads the other keys lazily.
    ///
    /// # Errors
    /// PyTorch's error, with its message. An error in reading the backend ends a real process while it is loading its
    /// libraries.
    pub fn from_environment(text: &str) -> Result<Settings, SettingsError> {
        Settings::from_environment_as(&Dialect::PYTORCH_2_11, text)
    }

    /// Like [`Settings::from_environment`], but in the dialect of a given release.
    ///
    /// # Errors
    /// As [`Settings::from_environment`].
    pub fn from_environment_as(dialect: &Dialect, text: &str) -> Result<Settings, SettingsError> {
        if let Parser::SinglePass(rules) = &dialect.parser {
            let mut settings = Settings { backend: single_pass::backend_at_load(text), ..Settings::default() };
            single_pass::apply(&mut settings, text, dialect, rules)?;
            return Ok(settings);
        }
        let mut settings = Settings { backend: two_passes::backend_at_load(text, dialect)?, ..Settings::default() };
        two_passes::apply_device(&mut settings, text, dialect)?;
        two_passes::apply_common(&mut settings, text, dialect)?;
        Ok(settings)
    }
}
