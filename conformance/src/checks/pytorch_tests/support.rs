//! Helpers for these tests: the modes in which PyTorch runs them, entries for them, and memory checks.

use parkade::units::{Bytes, DeviceAddress, StreamId};

use crate::backend::{AnyBackend, Needs, TestDevice, first_other_word};
use crate::scripted_allocator::Stage;
use crate::suite::{Effort, Entry, Group, Requirement, Trouble, Verdict};

/// How segments are allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// With one cudaMalloc each.
    Ordinary,
    /// As expandable segments, mapped page by page.
    Expandable,
}

impl Mode {
    pub(super) const BOTH: [Mode; 2] = [Mode::Ordinary, Mode::Expandable];

    /// Returns the mode as a settings string.
    pub(super) fn settings(self) -> &'static str {
        match self {
            Mode::Ordinary => "",
            Mode::Expandable => "expandable_segments:True",
        }
    }

    /// Returns the settings string with another setting added.
    pub(super) fn with(self, setting: &str) -> String {
        match self {
            Mode::Ordinary => setting.to_owned(),
            Mode::Expandable => format!("{},{setting}", self.settings()),
        }
    }
}

/// Returns the entry of a test in ordinary mode.
pub(super) fn once(
    name: &'static str,
    says: &'static str,
    test: impl Fn(&AnyBackend) -> Verdict + Send + Sync + 'static,
) -> Entry {
    Entry::new(Group::PyTorchTest, name, says, move |backend, _| test(backend))
}

/// Returns the entries of a test in both modes.
pub(super) fn twice(
    name: &'static str,
    says: &'static str,
    test: impl Fn(&AnyBackend, Mode, &Effort) -> Verdict + Clone + Send + Sync + 'static,
) -> [Entry; 2] {
    Mode::BOTH.map(|mode| {
        let test = test.clone();
        let suffix = if mode == Mode::Expandable { "/expandable" } else { "" };
        let entry =
            Entry::new(Group::PyTorchTest, format!("{name}{suffix}"), says, move |backend, effort| test(backend, mode, effort));
        if mode == Mode::Expandable { entry.requires(Requirement::ExpandableSegments) } else { entry }
    })
}

/// Fails unless `holds`.
pub(super) fn ensure(holds: bool, says: impl FnOnce() -> String) -> Result<(), Trouble> {
    if holds { Ok(()) } else { Err(Trouble::fail(says())) }
}

/// Fails unless both are equal.
pub(super) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), Trouble> {
    ensure(found == expected, || format!("{what}: {found:?} found, {expected:?} expected"))
}

/// Opens a device with this capacity.
pub(super) fn with_capacity(capacity: Bytes) -> Needs {
    Needs { capacity: Some(capacity), ..Needs::default() }
}

/// Fills a named allocation with a word.
pub(super) fn fill(stage: &Stage, name: &str, bytes: Bytes, word: u32, stream: StreamId) -> Result<(), Trouble> {
    Ok(stage.device().steer().fill(stage.address(name)?, bytes, word, stream)?)
}

/// Returns whether memory is filled with a word, after all work is done.
pub(super) fn holds(stage: &Stage, address: DeviceAddress, bytes: usize, word: u32) -> Result<bool, Trouble> {
    let mut found = vec![0; bytes];
    let mut device = stage.device().steer();
    device.settle();
    device.read(address, &mut found)?;
    Ok(first_other_word(&found, word).is_none())
}
