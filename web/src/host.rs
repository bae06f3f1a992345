//! The functions that JavaScript provides, as safe functions.

use std::io;
use std::time::Duration;

use parkade_cli::terminal::surroundings::Contents;

#[link(wasm_import_module = "parkade")]
unsafe extern "C" {
    /// Reads bytes of a file; returns how many, or -1 if it cannot be read.
    fn read(file: u32, offset: f64, to: *mut u8, length: usize) -> i32;
    /// Returns milliseconds since some fixed point.
    safe fn now_ms() -> f64;
    fn progress(done: f64, total: f64, unit: *const u8, length: usize);
    fn bug(message: *const u8, length: usize);
}

/// The maximum number of bytes that one call reads.
const MOST: usize = 1 << 22;

/// A file that JavaScript reads.
#[derive(Clone)]
pub(crate) struct HostFile {
    pub(crate) number: u32,
    /// Its length, in bytes.
    pub(crate) length: u64,
}

impl Contents for HostFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let length = to.len().min(MOST).min(usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX));
        // SAFETY: the host writes at most `length` bytes, and `to` has as many.
        let count = unsafe { read(self.number, offset as f64, to.as_mut_ptr(), length) };
        let count = usize::try_from(count).map_err(|_| io::Error::other("the browser could not read the file"))?;
        if count == 0 && length > 0 {
            return Err(io::Error::other("the file has become shorter since it was chosen"));
        }
        Ok(count)
    }
}

/// Returns the time since some fixed point.
pub(crate) fn now() -> Duration {
    Duration::try_from_secs_f64(now_ms() / 1000.0).unwrap_or_default()
}

/// Reports the progress to the host.
pub(crate) fn report_progress(done: u64, total: u64, unit: &str) {
    // SAFETY: the host only reads the text, before it returns.
    unsafe { progress(done as f64, total as f64, unit.as_ptr(), unit.len()) }
}

/// Reports the message of a panic, which ends the module, to the host.
pub(crate) fn report_bug(message: &str) {
    // SAFETY: the host only reads the text, before it returns.
    unsafe { bug(message.as_ptr(), message.len()) }
}
