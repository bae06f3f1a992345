//! What can be wrong with a snapshot whose pickle is sound, each problem with the place that has it.

/// A snapshot that makes no sense; the display is one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct FormatError {
    /// Where.
    pub place: Place,
    /// What.
    pub problem: FormatProblem,
}

/// A place of a snapshot. Numbers count from 0, as in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Place {
    /// The whole.
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

/// What is wrong at a place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatProblem {
    /// The root is no snapshot.
    #[error(
        "it is {found}, not the dict of torch.cuda.memory._snapshot() with `segments` or `device_traces`, \
         nor the list of memory_snapshot(); dump one of these"
    )]
    NotASnapshot {
        /// What it is.
        found: String,
    },
    /// A key that must be there is not.
    #[error("`{key}` is missing; no version of PyTorch leaves it out")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value of the wrong type.
    #[error("`{key}` is {} where {} belongs", with_article(found), with_article(expected))]
    WrongType {
        /// The key.
        key: &'static str,
        /// The type that it should have.
        expected: &'static str,
        /// The type that it has.
        found: &'static str,
    },
    /// A number out of range.
    #[error("`{key}` is {value}, which is not within {range}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would do.
        range: &'static str,
    },
    /// A text that is none of the known ones.
    #[error("`{key}` is {value:?}, which is none of {known}")]
    UnknownName {
        /// The key.
        key: &'static str,
        /// Its value, cut at 80 bytes.
        value: String,
        /// The known ones.
        known: &'static str,
    },
    /// Memory that ends beyond the address space.
    #[error("{size} bytes at address {address} end beyond 64 bits")]
    EndsBeyond {
        /// The address.
        address: u64,
        /// The size.
        size: u64,
    },
    /// A block that does not begin where the one before ended.
    #[error("it is at address {found} but the blocks before it end at {expected}; blocks must tile their segment")]
    Gap {
        /// Where it should be.
        expected: u64,
        /// Where it is.
        found: u64,
    },
    /// Blocks that are shorter or longer than their segment.
    #[error("its blocks have {blocks} bytes but `total_size` is {total}; blocks must tile their segment")]
    WrongSum {
        /// Sum of the blocks.
        blocks: u64,
        /// The segment's length.
        total: u64,
    },
    /// Two segments at the same place.
    #[error("it overlaps segment {other} of device {device}, at address {address}")]
    Overlap {
        /// The other segment's index.
        other: usize,
        /// The device.
        device: u32,
        /// The first byte that both have.
        address: u64,
    },
    /// A dict with more keys than any version of PyTorch writes.
    #[error("it has more than {limit} keys")]
    TooManyKeys {
        /// The bound.
        limit: usize,
    },
    /// The same few objects repeated to more than the file's length can account for.
    #[error("the same dicts occur again and again, more than a file of this length can hold; no snapshot does that")]
    Repeated,
}

/// A type's name in a sentence.
pub(crate) fn with_article(name: &str) -> String {
    match name {
        "None" => name.to_owned(),
        _ if name.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("an {name}"),
        _ => format!("a {name}"),
    }
}
