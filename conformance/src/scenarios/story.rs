//! The vocabulary of scenarios. A story is an allocator on a stage, the events so far, and checks on the outcome. A row
//! is a document's claim about a scenario, together with the findings.

use std::fmt;
use std::fmt::Write;

use parkade::stats::{Family, Stats};
use parkade::units::{Bytes, DeviceAddress, MIB};
use parkade_recording::message::OutOfMemoryMessage;

use crate::backend::{AnyBackend, Needs};
use crate::scripted_allocator::{Request, Stage};
use crate::shipped::{self, Shipped, ShippedError};
use crate::suite::{Entry, Evidence, Group, Trouble, Verdict};

pub(crate) use parkade::texts::format_bytes;
pub(crate) use parkade_recording::memory_summary;

/// Returns an entry whose check needs only its backend.
pub(crate) fn scenario(
    name: impl Into<String>,
    says: &'static str,
    check: impl Fn(&AnyBackend) -> Verdict + Send + Sync + 'static,
) -> Entry {
    Entry::new(Group::Scenario, name, says, move |backend, _| check(backend))
}

/// The statistics recorded with PyTorch on the H200, in the order of the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Figures {
    /// `allocated_bytes.all.current`.
    pub(crate) allocated: i64,
    /// `reserved_bytes.all.current`.
    pub(crate) reserved: i64,
    /// `inactive_split_bytes.all.current`.
    pub(crate) split_free: i64,
    /// `num_alloc_retries`.
    pub(crate) retries: i64,
    /// `num_ooms`.
    pub(crate) ooms: i64,
    /// `segment.all.current`.
    pub(crate) segments: i64,
    /// `num_device_alloc`.
    pub(crate) device_allocs: i64,
    /// `num_device_free`.
    pub(crate) device_frees: i64,
}

impl From<[i64; 8]> for Figures {
    /// Creates the statistics from values in the order of the fields.
    fn from([allocated, reserved, split_free, retries, ooms, segments, device_allocs, device_frees]: [i64; 8]) -> Figures {
        Figures { allocated, reserved, split_free, retries, ooms, segments, device_allocs, device_frees }
    }
}

impl Figures {
    fn of(stats: &Stats) -> Figures {
        let now = |family| stats.family(family).all.current;
        Figures {
            allocated: now(Family::AllocatedBytes),
            reserved: now(Family::ReservedBytes),
            split_free: now(Family::InactiveSplitBytes),
            retries: stats.num_alloc_retries,
            ooms: stats.num_ooms,
            segments: now(Family::Segment),
            device_allocs: stats.num_device_alloc,
            device_frees: stats.num_device_free,
        }
    }
}

/// Returns this many hundredths of a GiB, rounded down to whole bytes.
pub(crate) const fn gib_hundredths(hundredths: u64) -> Bytes {
    Bytes((hundredths << 30) / 100)
}

/// Returns this many MiB.
pub(crate) const fn mib(count: u64) -> Bytes {
    Bytes(count * MIB)
}

/// Fails the scenario with `otherwise` unless `holds`.
pub(crate) fn claim(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Trouble> {
    if holds { Ok(()) } else { Err(Trouble::fail(otherwise())) }
}

/// Converts an error from the code under test into a failure of the scenario.
pub(crate) fn failed(error: impl fmt::Display) -> Trouble {
    Trouble::fail(error.to_string())
}

/// An allocator on a stage, and the evidence gathered so far.
pub(crate) struct Story {
    pub(crate) stage: Stage,
    evidence: Evidence,
}

impl Story {
    /// Opens a stage on an entire device.
    pub(crate) fn new(backend: &AnyBackend, settings: &str, limit: Option<Bytes>) -> Result<Self, Trouble> {
        Story::on(backend, &Needs::default(), settings, limit)
    }

    /// Opens a stage on a device with this capacity.
    pub(crate) fn within(backend: &AnyBackend, capacity: Bytes, settings: &str) -> Result<Self, Trouble> {
        Story::on(backend, &Needs { capacity: Some(capacity), ..Needs::default() }, settings, None)
    }

    fn on(backend: &AnyBackend, needs: &Needs, settings: &str, limit: Option<Bytes>) -> Result<Self, Trouble> {
        let stage = Stage::new(backend, needs, settings, limit)?;
        let mut story = Story { stage, evidence: Evidence::default() };
        let settings = if settings.is_empty() { "(none)" } else { settings };
        let limit = limit.map_or_else(|| "none".to_owned(), |limit| format_bytes(limit.get()));
        story.say(&format!("settings {settings}, limit {limit}"));
        if let Some(capacity) = needs.capacity {
            story.say(&format!("a device with exactly {}", format_bytes(capacity.get())));
        }
        Ok(story)
    }

    /// Adds a line to the text, which must be the same on every backend and in every run.
    pub(crate) fn say(&mut self, line: &str) {
        self.evidence.text.push_str(line);
        self.evidence.text.push('\n');
    }

    /// Adds a line that may differ between backends and between runs.
    pub(crate) fn measure(&mut self, line: &str) {
        self.evidence.measured.push_str(line);
        self.evidence.measured.push('\n');
    }

    /// Counts operations that were not performed through the story.
    pub(crate) fn count(&mut self, operations: u64) {
        self.evidence.operations += operations;
    }

    /// Makes a request that must be served.
    pub(crate) fn alloc(&mut self, name: &str, bytes: Bytes) -> Result<(), Trouble> {
        self.evidence.operations += 1;
        self.stage.alloc(name, bytes)?.served()
    }

    /// Makes a request that must run out of memory.
    pub(crate) fn refuse(&mut self, name: &str, bytes: Bytes) -> Result<(), Trouble> {
        self.evidence.operations += 1;
        let text = self.stage.alloc(name, bytes)?.refusal()?;
        self.tell_refusal(&text)
    }

    /// Makes a request that may be served or refused. Returns true if it was served.
    pub(crate) fn ask(&mut self, name: &str, bytes: Bytes) -> Result<bool, Trouble> {
        self.evidence.operations += 1;
        match self.stage.alloc(name, bytes)? {
            Request::Served => Ok(true),
            Request::OutOfMemory(text) => self.tell_refusal(&text).map(|()| false),
        }
    }

    /// An error's text also states what the device and other processes hold. Only the allocator's part is added to the
    /// text; the full message is added to the measurements.
    fn tell_refusal(&mut self, text: &str) -> Result<(), Trouble> {
        let message = OutOfMemoryMessage::parse(text).map_err(|error| Trouble::fail(format!("{text}: {error}")))?;
        self.say(&format!("out of memory: {message}"));
        self.measure(text);
        Ok(())
    }

    /// Frees an allocation.
    pub(crate) fn free(&mut self, name: &str) -> Result<(), Trouble> {
        self.evidence.operations += 1;
        self.stage.free(name)
    }

    /// Adds the statistics and a picture of the heap to the text.
    pub(crate) fn show(&mut self, title: &str) {
        let (figures, picture) = (self.stage.figures(), self.stage.picture());
        self.say(&format!("\n== {title} ==\n{figures}{picture}"));
    }

    /// Adds only the statistics to the text, for a heap with too many segments to draw.
    pub(crate) fn show_figures(&mut self, title: &str) {
        let figures = self.stage.figures();
        self.say(&format!("\n== {title} ==\n{figures}"));
    }

    /// Fails unless the statistics are these.
    pub(crate) fn expect(&self, when: &str, figures: impl Into<Figures>) -> Result<(), Trouble> {
        let (expected, found) = (figures.into(), Figures::of(self.stage.stats()));
        claim(expected == found, || format!("{when}: expected {expected:?}, found {found:?}"))
    }

    /// Returns the current statistics.
    pub(crate) fn figures(&self) -> Figures {
        Figures::of(self.stage.stats())
    }

    /// Fails unless the allocator has made exactly these calls since the last call of this method. Adds them to the text.
    pub(crate) fn expect_calls(&mut self, when: &str, expected: &[&str]) -> Result<(), Trouble> {
        let found = self.stage.calls();
        claim(found == expected, || format!("{when}: expected the calls {expected:?}, found {found:?}"))?;
        self.tell_calls(when, &found);
        Ok(())
    }

    /// Adds calls to the text.
    pub(crate) fn tell_calls(&mut self, when: &str, calls: &[String]) {
        let mut text = format!("{when}: ");
        // Repeated calls are counted instead of listed.
        for (number, run) in calls.chunk_by(|one, other| one == other).enumerate() {
            let (comma, times) = (if number > 0 { ", " } else { "" }, run.len());
            // Writing to a string does not fail.
            let _ = if times > 1 { write!(text, "{comma}{} x {times}", run[0]) } else { write!(text, "{comma}{}", run[0]) };
        }
        if calls.is_empty() {
            text.push_str("no driver call");
        }
        self.say(&text);
    }

    /// Fails unless the allocation begins at this address or, if `is_same` is false, fails if it does.
    pub(crate) fn expect_same_place(&self, address: DeviceAddress, name: &str, is_same: bool) -> Result<(), Trouble> {
        let found = self.stage.address(name)?;
        let word = if is_same { "not " } else { "" };
        claim((found == address) == is_same, || format!("{name} is at {found}, which is {word}{address}"))
    }

    /// Frees everything, checks that all of it was returned to the device, and returns the
    /// evidence.
    pub(crate) fn finish(self) -> Verdict {
        self.stage.finish()?;
        Ok(self.evidence)
    }
}

/// Whether the documents are right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// The outcome is what the documents say.
    Reproduced,
    /// The claim holds in part, or with different figures.
    Different,
    /// The claim does not hold.
    Refuted,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Finding::Reproduced => "reproduced",
            Finding::Different => "different",
            Finding::Refuted => "refuted",
        })
    }
}

/// A scenario in the documents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its id, such as `A5`. The names of its entries begin with it: `A5/default`.
    pub id: &'static str,
    /// What the documents say.
    pub claim: &'static str,
    /// Whether the documents are right.
    pub finding: Finding,
    /// The findings, with the key figures. Every number is in the evidence of one of the scenario's entries, which a test checks.
    pub found: &'static str,
}

/// Returns the scenario that an entry belongs to.
#[must_use]
pub fn id_of(entry: &str) -> &str {
    entry.split('/').next().unwrap_or(entry)
}

/// Reads a recording in the repository. Without a checkout, as in a published crate, the entry is skipped.
pub(crate) fn recording(name: &str) -> Result<Shipped, Trouble> {
    shipped::read(name).map_err(|error| match error {
        ShippedError::NoFolder { .. } => Trouble::Skip(error.to_string()),
        error => Trouble::fail(error.to_string()),
    })
}
