//! A story: a bench, what it said so far, and the words for what must be so.

use std::fmt::Write;

use parkade::stats::{Family, Stats};
use parkade::units::{Bytes, DeviceAddress, MIB};
use parkade_conformance::backend::{Backend, Needs, TestDevice};
use parkade_conformance::stage::{Request, Stage};
use parkade_conformance::suite::{Evidence, Trouble, Verdict};
use parkade_recording::message::OutOfMemoryMessage;

/// The statistics that PyTorch's experiments on the H200 noted, in the order of their lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Figures {
    /// `allocated_bytes.all.current`.
    pub(super) allocated: i64,
    /// `reserved_bytes.all.current`.
    pub(super) reserved: i64,
    /// `inactive_split_bytes.all.current`.
    pub(super) split_free: i64,
    /// `num_alloc_retries`.
    pub(super) retries: i64,
    /// `num_ooms`.
    pub(super) ooms: i64,
    /// `segment.all.current`.
    pub(super) segments: i64,
    /// `num_device_alloc`.
    pub(super) device_allocs: i64,
    /// `num_device_free`.
    pub(super) device_frees: i64,
}

impl From<[i64; 8]> for Figures {
    /// In the order of the lines of the experiments.
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

/// Bytes of so many hundredths of a GiB, rounded down.
pub(super) const fn gib_hundredths(hundredths: u64) -> Bytes {
    Bytes((hundredths << 30) / 100)
}

/// Bytes of so many MiB.
pub(super) const fn mib(count: u64) -> Bytes {
    Bytes(count * MIB)
}

/// Says that something must be so.
pub(super) fn claim(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Trouble> {
    if holds { Ok(()) } else { Err(Trouble::fail(otherwise())) }
}

/// A bench, and what is told of it.
pub(super) struct Story<D: TestDevice> {
    pub(super) bench: Stage<D>,
    evidence: Evidence,
}

impl<D: TestDevice> Story<D> {
    /// On a whole device.
    pub(super) fn new<B: Backend<Device = D>>(backend: &B, settings: &str, limit: Option<Bytes>) -> Result<Self, Trouble> {
        Story::on(backend, &Needs::default(), settings, limit)
    }

    /// On a device that has so much memory and no more.
    pub(super) fn within<B: Backend<Device = D>>(backend: &B, capacity: Bytes, settings: &str) -> Result<Self, Trouble> {
        Story::on(backend, &Needs { capacity: Some(capacity), ..Needs::default() }, settings, None)
    }

    fn on<B: Backend<Device = D>>(backend: &B, needs: &Needs, settings: &str, limit: Option<Bytes>) -> Result<Self, Trouble> {
        let bench = Stage::new(backend, needs, settings, limit)?;
        let mut story = Story { bench, evidence: Evidence::default() };
        let settings = if settings.is_empty() { "(none)" } else { settings };
        let limit = limit.map_or_else(|| "none".to_owned(), |limit| parkade::texts::format_bytes(limit.get()));
        story.say(&format!("settings {settings}, limit {limit}"));
        if let Some(capacity) = needs.capacity {
            story.say(&format!("a device with {} and no more", parkade::texts::format_bytes(capacity.get())));
        }
        Ok(story)
    }

    /// Tells something, which is the same on every backend and in every run.
    pub(super) fn say(&mut self, line: &str) {
        self.evidence.text.push_str(line);
        self.evidence.text.push('\n');
    }

    /// Tells something that was measured.
    pub(super) fn measure(&mut self, line: &str) {
        self.evidence.measured.push_str(line);
        self.evidence.measured.push('\n');
    }

    /// Counts operations that no method of the story carried out.
    pub(super) fn count(&mut self, operations: u64) {
        self.evidence.operations += operations;
    }

    /// A request that must be served.
    pub(super) fn alloc(&mut self, name: &str, bytes: Bytes) -> Result<(), Trouble> {
        self.evidence.operations += 1;
        self.bench.alloc(name, bytes)?.served()
    }

    /// A request that must be out of memory.
    pub(super) fn refuse(&mut self, name: &str, bytes: Bytes) -> Result<(), Trouble> {
        self.evidence.operations += 1;
        let text = self.bench.alloc(name, bytes)?.refusal()?;
        self.tell_refusal(&text)
    }

    /// A request that may be either. True if it was served.
    pub(super) fn ask(&mut self, name: &str, bytes: Bytes) -> Result<bool, Trouble> {
        self.evidence.operations += 1;
        match self.bench.alloc(name, bytes)? {
            Request::Served => Ok(true),
            Request::OutOfMemory(text) => self.tell_refusal(&text).map(|()| false),
        }
    }

    /// An error's text has what the device and other processes hold in it: told is the allocator's part, and the whole is measured.
    fn tell_refusal(&mut self, text: &str) -> Result<(), Trouble> {
        let message = OutOfMemoryMessage::parse(text).map_err(|error| Trouble::fail(format!("{text}: {error}")))?;
        self.say(&format!("out of memory: {message}"));
        self.measure(text);
        Ok(())
    }

    /// Gives memory back.
    pub(super) fn free(&mut self, name: &str) -> Result<(), Trouble> {
        self.evidence.operations += 1;
        self.bench.free(name)
    }

    /// Tells the statistics and draws the heap.
    pub(super) fn show(&mut self, title: &str) {
        let (figures, picture) = (self.bench.figures(), self.bench.picture());
        self.say(&format!("\n== {title} ==\n{figures}{picture}"));
    }

    /// Tells the statistics alone, where the heap has too many segments to be drawn.
    pub(super) fn show_figures(&mut self, title: &str) {
        let figures = self.bench.figures();
        self.say(&format!("\n== {title} ==\n{figures}"));
    }

    /// The statistics must be these.
    pub(super) fn expect(&self, when: &str, figures: impl Into<Figures>) -> Result<(), Trouble> {
        let (expected, found) = (figures.into(), Figures::of(self.bench.stats()));
        claim(expected == found, || format!("{when}: expected {expected:?}, found {found:?}"))
    }

    /// The statistics now.
    pub(super) fn figures(&self) -> Figures {
        Figures::of(self.bench.stats())
    }

    /// The allocator must have made these calls since it was last asked, and no other. They are told.
    pub(super) fn expect_calls(&mut self, when: &str, expected: &[&str]) -> Result<(), Trouble> {
        let found = self.bench.calls();
        claim(found == expected, || format!("{when}: expected the calls {expected:?}, found {found:?}"))?;
        self.tell_calls(when, &found);
        Ok(())
    }

    /// Tells calls.
    pub(super) fn tell_calls(&mut self, when: &str, calls: &[String]) {
        let mut text = format!("{when}: ");
        // Runs of the same call are counted.
        for (number, run) in calls.chunk_by(|one, other| one == other).enumerate() {
            let (comma, times) = (if number > 0 { ", " } else { "" }, run.len());
            // Writing to a string does not fail.
            let _ = if times > 1 { write!(text, "{comma}{} x {times}", run[0]) } else { write!(text, "{comma}{}", run[0]) };
        }
        if calls.is_empty() {
            text.push_str("no call of the driver");
        }
        self.say(&text);
    }

    /// Two named allocations must, or must not, begin at the same address.
    pub(super) fn expect_same_place(&self, address: DeviceAddress, name: &str, is_same: bool) -> Result<(), Trouble> {
        let found = self.bench.address(name)?;
        let word = if is_same { "not " } else { "" };
        claim((found == address) == is_same, || format!("{name} lies at {found}, which is {word}{address}"))
    }

    /// Gives everything back, looks whether that is so, and hands the evidence over.
    pub(super) fn finish(self) -> Verdict {
        self.bench.finish()?;
        Ok(self.evidence)
    }
}
