//! The operations of a run that a simulation recorded.

/// An operation of a run that a simulation recorded: what its entries do not contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// The number of entries up to the operation's end.
    pub entries: usize,
    /// Bytes of allocated blocks after it.
    pub allocated_bytes: u64,
    /// Whether the allocator released its cache and retried.
    pub is_retried: bool,
    /// Whether it is a call to `empty_cache`.
    pub empties_cache: bool,
}
