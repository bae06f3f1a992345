//! The errors of a snapshot whose pickle is sound, with their position in the snapshot.

/// The error for a snapshot with invalid contents. Displayed as one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct FormatError {
    /// The position of the problem.
    pub place: Place,
    /// The problem.
    pub problem: FormatProblem,
}

/// A position in a snapshot. Numbers count from 0, as in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Place {
    /// The entire snapshot.
    #[error("the snapshot")]
    Snapshot,
    /// An item of `segments`.
    #[error("segment {segment}")]
    Segment {
        /// Its index in the file's list.
        segment: usize,
    },
    /// A block of a segment.
    #[error("block {block} of segment {segment}")]
    Block {
        /// The segment's index.
        segment: usize,
        /// Its index in the segment's list.
        block: usize,
    },
    /// A device's trace.
    #[error("the trace of device {device}")]
    Trace {
        /// The device's number.
        device: usize,
    },
    /// A trace entry.
    #[error("entry {entry} of device {device}")]
    Entry {
        /// The device's number.
        device: usize,
        /// Its index in the device's trace.
        entry: usize,
    },
    /// `allocator_settings`.
    #[error("allocator_settings")]
    Settings,
    /// An item of `external_annotations`.
    #[error("annotation {annotation}")]
    Annotation {
        /// Its index.
        annotation: usize,
    },
}

/// The problem at a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatProblem {
    /// The file is not a snapshot.
    #[error(
        "it is {found}, not the dict of torch.cuda.memory._snapshot() with `segments` or `device_traces`, \
         nor the list of memory_snapshot(); dump one of these"
    )]
    NotASnapshot {
        /// A description of the contents, with its article.
        found: String,
    },
    /// The file has several snapshots in a list.
    #[error("it is a list of {count} snapshots, perhaps one for each rank: write each to its own file")]
    ListOfSnapshots {
        /// The number of snapshots.
        count: usize,
    },
    /// A required key is missing.
    #[error("`{key}` is missing; no PyTorch version omits it")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value of the wrong type.
    #[error("`{key}` is {} and should be {}", with_article(found), with_article(expected))]
    WrongType {
        /// The key.
        key: &'static str,
        /// The type that it should have, by Python's name.
        expected: &'static str,
        /// The type that it has, by Python's name.
        found: &'static str,
    },
    /// A number out of range.
    #[error("`{key}` is {value} and should be {range}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The accepted range, in words.
        range: &'static str,
    },
    /// A name that is not one of the known ones.
    #[error("`{key}` is {value:?}, which is not one of {known}")]
    UnknownName {
        /// The key.
        key: &'static str,
        /// Its value, truncated to 80 bytes.
        value: String,
        /// The known names.
        known: &'static str,
    },
    /// Memory that extends past the end of the address space.
    #[error("{size} bytes at address {address} extend past 64 bits")]
    EndsBeyond {
        /// The address.
        address: u64,
        /// The size.
        size: u64,
    },
    /// A block that does not begin where the one before it ends.
    #[error("it is at address {found}, but the blocks before it end at {expected}; blocks must fill their segment without gaps")]
    Gap {
        /// The address where it should be.
        expected: u64,
        /// The address where it is.
        found: u64,
    },
    /// Blocks that are shorter or longer than their segment.
    #[error("its blocks add up to {blocks} bytes, but `total_size` is {total}; blocks must fill their segment without gaps")]
    WrongSum {
        /// The sum of its blocks, in bytes.
        blocks: u64,
        /// The segment's length, in bytes.
        total: u64,
    },
    /// Two segments that overlap.
    #[error("it overlaps segment {other} of device {device}, at address {address}")]
    Overlap {
        /// The other segment's index.
        other: usize,
        /// The device.
        device: u32,
        /// The first address that both segments contain.
        address: u64,
    },
    /// A dict with more keys than any PyTorch version writes.
    #[error("it has more than {limit} keys")]
    TooManyKeys {
        /// The maximum number of keys in a dict.
        limit: usize,
    },
    /// A few objects are repeated so often that they expand to more than the file's length allows.
    #[error("the same dicts are repeated more often than a file of this length can justify; no real snapshot does that")]
    Repeated,
}

/// A type's name with its article.
pub(crate) fn with_article(name: &str) -> String {
    match name {
        "None" => name.to_owned(),
        _ if name.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("an {name}"),
        _ => format!("a {name}"),
    }
}
