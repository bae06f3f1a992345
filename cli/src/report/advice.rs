//! What a page says about a way out: lines of text and a table of settings that were tried.

/// One setting that was tried.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    /// What it is called: settings as in `PYTORCH_CUDA_ALLOC_CONF`, or a word for none.
    pub(super) label: String,
    /// Whether these are the recorded run's own.
    pub(super) is_own: bool,
    /// The most bytes taken from the device.
    pub(super) peak_reserved_bytes: i64,
    /// The entry whose request failed first.
    pub(super) fails_at_entry: Option<usize>,
    /// Retries after giving back everything cached.
    pub(super) retries: i64,
    /// Calls of the driver about memory.
    pub(super) driver_calls: u64,
    /// What they take on the measured device, in nanoseconds.
    pub(super) driver_ns: u64,
}

/// What to do, if anything is known to help.
#[derive(Clone, Debug, Default)]
pub(super) struct Advice {
    /// The line to paste, if there is one.
    pub(super) command: Option<String>,
    /// Why, and what it costs; one line each.
    pub(super) lines: Vec<String>,
}
