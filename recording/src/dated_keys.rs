//! The keys in a snapshot that some PyTorch release added or removed, and which of them a file has.
//!
//! Source: the keys that the function that creates the snapshot refers to, in each release's `torch/lib/libtorch_python.so`
//! (spec 7.8).

/// A minor PyTorch release: `(2, 11)` is 2.11.
pub type Minor = (u8, u8);

/// The part of a snapshot that contains a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The snapshot itself.
    Snapshot,
    /// Each segment.
    Segment,
    /// Each block.
    Block,
    /// Each trace entry.
    Entry,
    /// The allocator's settings.
    Settings,
    /// The actions of trace entries.
    Action,
    /// `memory_stats()`, which is a separate file.
    Statistics,
}

impl Part {
    /// Returns the part, worded as the end of a phrase: "time_us of its trace entries".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Part::Snapshot => "the snapshot",
            Part::Segment => "its segments",
            Part::Block => "its blocks",
            Part::Entry => "its trace entries",
            Part::Settings => "its settings",
            Part::Action => "its actions",
            Part::Statistics => "its statistics",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A key that not every release writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatedKey {
    /// The part that contains the key.
    pub part: Part,
    /// The key.
    pub name: &'static str,
    /// The first release that writes it; `None` if releases before 2.0 already write it.
    pub since: Option<Minor>,
    /// The last release that writes it; `None` if the newest release still writes it.
    pub until: Option<Minor>,
    /// Whether these releases always write it, so that a file without it must be from a different release.
    pub is_always_written: bool,
}

/// All keys that were added or removed since 2.0.
pub const DATED_KEYS: &[DatedKey] = &[
    always(Part::Snapshot, "allocator_settings", (2, 3)),
    always(Part::Snapshot, "external_annotations", (2, 5)),
    sometimes(Part::Snapshot, "host_segments", (2, 14)),
    sometimes(Part::Snapshot, "host_traces", (2, 14)),
    always(Part::Segment, "segment_pool_id", (2, 1)),
    always(Part::Segment, "is_expandable", (2, 1)),
    always(Part::Block, "address", (2, 1)),
    until(Part::Block, "history", (2, 0)),
    until(Part::Block, "cpp_frames", (2, 10)),
    always(Part::Entry, "time_us", (2, 2)),
    always(Part::Entry, "compile_context", (2, 8)),
    always(Part::Entry, "user_metadata", (2, 10)),
    sometimes(Part::Entry, "forward_frames", (2, 11)),
    until(Part::Entry, "cpp_frames", (2, 10)),
    always(Part::Entry, "pool_id", (2, 12)),
    sometimes(Part::Entry, "internal_metadata", (2, 15)),
    always(Part::Settings, "graph_capture_record_stream_reuse", (2, 9)),
    always(Part::Settings, "max_round_threshold", (2, 13)),
    always(Part::Settings, "max_cached_size", (2, 13)),
    sometimes(Part::Action, "segment_map", (2, 1)),
    sometimes(Part::Action, "segment_unmap", (2, 1)),
    sometimes(Part::Action, "annotate", (2, 14)),
];

const fn always(part: Part, name: &'static str, since: Minor) -> DatedKey {
    DatedKey { part, name, since: Some(since), until: None, is_always_written: true }
}

const fn sometimes(part: Part, name: &'static str, since: Minor) -> DatedKey {
    DatedKey { part, name, since: Some(since), until: None, is_always_written: false }
}

const fn until(part: Part, name: &'static str, until: Minor) -> DatedKey {
    DatedKey { part, name, since: None, until: Some(until), is_always_written: false }
}

impl DatedKey {
    /// Returns whether a release writes this key.
    #[must_use]
    pub fn is_of(&self, release: Minor) -> bool {
        self.since.is_none_or(|since| since <= release) && self.until.is_none_or(|until| release <= until)
    }
}

/// The [`DATED_KEYS`] that a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFields {
    /// One bit for each key that is in the file.
    present: u32,
    /// One bit for each part that the file has and in which a missing key is significant.
    parts: u8,
}

/// The fact that a file has a key, or lacks it even though it has the part for that key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldEvidence {
    /// The key.
    pub key: &'static DatedKey,
    /// Whether the file has the key.
    pub is_present: bool,
}

impl FieldEvidence {
    /// Returns whether a release may have written a file for which this fact is true.
    #[must_use]
    pub fn allows(&self, release: Minor) -> bool {
        if self.is_present { self.key.is_of(release) } else { !(self.key.is_always_written && self.key.is_of(release)) }
    }
}

impl Default for FileFields {
    /// Returns the keys that 2.11 always writes, for a recording that is assembled in memory.
    fn default() -> FileFields {
        FileFields { parts: 0, ..FileFields::of_release((2, 11)) }
    }
}

impl FileFields {
    /// No keys, for a file from which nothing has been read yet.
    pub(crate) const NONE: FileFields = FileFields { present: 0, parts: 0 };

    /// Returns the keys that a release always writes.
    #[must_use]
    pub fn of_release(release: Minor) -> FileFields {
        let mut fields = FileFields::NONE;
        for (place, key) in DATED_KEYS.iter().enumerate() {
            fields.parts |= key.part.bit();
            if key.is_always_written && key.is_of(release) {
                fields.present |= 1 << place;
            }
        }
        fields
    }

    /// Returns whether the file has this key.
    #[must_use]
    pub fn has(&self, part: Part, name: &str) -> bool {
        let found = |(place, key): (usize, &DatedKey)| key.part == part && key.name == name && self.present & (1 << place) != 0;
        DATED_KEYS.iter().enumerate().any(found)
    }

    /// Returns the facts that reveal a release: the dated keys that are present, and those that are missing although some
    /// release always writes them.
    pub fn evidence(&self) -> impl Iterator<Item = FieldEvidence> + use<> {
        let FileFields { present, parts } = *self;
        DATED_KEYS.iter().enumerate().filter_map(move |(place, key)| {
            let is_present = present & (1 << place) != 0;
            let says = is_present || (key.is_always_written && parts & key.part.bit() != 0);
            says.then_some(FieldEvidence { key, is_present })
        })
    }

    /// Records a key in this part of the file.
    pub fn note(&mut self, part: Part, name: &[u8]) {
        self.parts |= part.bit();
        let found = DATED_KEYS.iter().position(|key| key.part == part && key.name.as_bytes() == name);
        self.present |= found.map_or(0, |place| 1 << place);
    }

    /// Adds the keys of another part of the file.
    pub(crate) fn add(&mut self, other: FileFields) {
        self.present |= other.present;
        self.parts |= other.parts;
    }

    /// Returns the same keys, but missing keys are no longer significant.
    pub(crate) fn without_absences(self) -> FileFields {
        FileFields { parts: 0, ..self }
    }
}

const _: () = assert!(DATED_KEYS.len() <= 32);

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(fields: FileFields, release: Minor) -> bool {
        fields.evidence().all(|fact| fact.allows(release))
    }

    #[test]
    fn what_a_release_writes_allows_it_and_excludes_others() {
        for minor in 0..=15 {
            assert!(allows(FileFields::of_release((2, minor)), (2, minor)), "2.{minor}");
        }
        let of = |minor| FileFields::of_release((2, minor));
        assert!(!allows(of(11), (2, 12)) && !allows(of(12), (2, 11)) && !allows(of(9), (2, 10)));
        assert!(allows(of(11), (2, 10)) && allows(of(5), (2, 7)) && allows(of(3), (2, 4)), "these write the same");
        assert!(allows(FileFields::default(), (2, 15)) && !allows(FileFields::default(), (2, 4)));
    }

    #[test]
    fn a_key_that_is_not_always_written_says_something_only_if_it_is_there() {
        let mut fields = FileFields::of_release((2, 15));
        assert!(allows(fields, (2, 14)));
        fields.note(Part::Entry, b"internal_metadata");
        assert!(!allows(fields, (2, 14)) && fields.has(Part::Entry, "internal_metadata"));
    }
}
