//! A stage: an allocator on a device, on which scenarios are played. Its allocations have names, and its heap can be
//! drawn.
//!
//! Its output is the same on every backend: segments are numbered in order of creation, and positions are offsets from their
//! starts.

use std::collections::BTreeMap;
use std::fmt::Write;

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::stats::{Family, Stats};
use parkade::texts::format_bytes;
use parkade::trace::{TraceAction, TraceEntry};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{AllocError, Allocation, Allocator};

use crate::backend::{AnyBackend, AnyDevice, Core, MadeCall, Needs, TestDevice, WitnessedDevice};
use crate::suite::Trouble;

/// The outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// It was served.
    Served,
    /// It was refused with out of memory; this is the error's text.
    OutOfMemory(String),
}

impl Request {
    /// Returns the text of the error.
    ///
    /// # Errors
    /// If the request was served although the scenario requires a refusal.
    pub fn refusal(self) -> Result<String, Trouble> {
        match self {
            Request::OutOfMemory(text) => Ok(text),
            Request::Served => Err(Trouble::fail("the request was served, but should have run out of memory")),
        }
    }

    /// Returns `Ok` if the request was served.
    ///
    /// # Errors
    /// If it was refused although the scenario requires it to be served.
    pub fn served(self) -> Result<(), Trouble> {
        match self {
            Request::Served => Ok(()),
            Request::OutOfMemory(text) => Err(Trouble::fail(format!("the request should have been served: {text}"))),
        }
    }
}

/// An allocator on a device, with named allocations.
pub struct Stage {
    core: Core<AnyDevice>,
    device: WitnessedDevice<AnyDevice>,
    named: BTreeMap<String, (Allocation, Bytes)>,
}

impl Stage {
    /// Creates an empty allocator with these settings and this limit, on one of the backend's
    /// devices.
    ///
    /// # Errors
    /// If no suitable device is available, or the settings are refused.
    pub fn new(backend: &AnyBackend, needs: &Needs, settings: &str, limit: Option<Bytes>) -> Result<Stage, Trouble> {
        let settings = Settings::from_environment(settings).map_err(|error| Trouble::fail(error.to_string()))?;
        let device = WitnessedDevice::new(backend.open(needs)?);
        let mut core = Allocator::new(device.clone(), PyTorch::new(settings), Vec::new());
        core.set_limit(limit);
        let _ = device.list_calls();
        Ok(Stage { core, device, named: BTreeMap::new() })
    }

    /// Returns the allocator.
    pub fn core(&mut self) -> &mut Core<AnyDevice> {
        &mut self.core
    }

    /// Returns the device. Do not hold its guards during a call to the allocator.
    #[must_use]
    pub fn device(&self) -> &WitnessedDevice<AnyDevice> {
        &self.device
    }

    /// Returns the device's streams: the default one and three others.
    #[must_use]
    pub fn streams(&self) -> [StreamId; 4] {
        self.device.look().streams()
    }

    /// Requests memory on the default stream, under a name that is not in use.
    ///
    /// # Errors
    /// If the request fails for any reason other than out of memory.
    pub fn alloc(&mut self, name: &str, bytes: Bytes) -> Result<Request, Trouble> {
        self.alloc_on(name, bytes, StreamId::DEFAULT)
    }

    /// Requests memory on a stream, under a name that is not in use.
    ///
    /// # Errors
    /// If the request fails for any reason other than out of memory.
    pub fn alloc_on(&mut self, name: &str, bytes: Bytes, stream: StreamId) -> Result<Request, Trouble> {
        assert!(!self.named.contains_key(name), "{name} is in use");
        match self.core.allocate(bytes, stream) {
            Ok(allocation) => {
                self.named.insert(name.to_owned(), (allocation, bytes));
                Ok(Request::Served)
            }
            Err(AllocError::OutOfMemory(report)) => Ok(Request::OutOfMemory(report.to_string())),
            Err(error) => Err(Trouble::fail(format!("{name}: {error}"))),
        }
    }

    /// Frees a named allocation.
    ///
    /// # Errors
    /// If there is no allocation with this name, or the device fails.
    pub fn free(&mut self, name: &str) -> Result<(), Trouble> {
        let (allocation, _) = self.named.remove(name).ok_or_else(|| Trouble::fail(format!("there is no allocation {name}")))?;
        self.core.free(allocation).map_err(|error| Trouble::fail(format!("{name}: {error}")))
    }

    /// Records that a stream uses a named allocation.
    ///
    /// # Errors
    /// If there is no allocation with this name.
    pub fn record_stream(&mut self, name: &str, stream: StreamId) -> Result<(), Trouble> {
        let (allocation, _) = self.named.get(name).ok_or_else(|| Trouble::fail(format!("there is no allocation {name}")))?;
        self.core.record_stream(allocation, stream);
        Ok(())
    }

    /// Returns the address of a named allocation.
    ///
    /// # Errors
    /// If there is no allocation with this name.
    pub fn address(&self, name: &str) -> Result<DeviceAddress, Trouble> {
        let found = self.named.get(name).map(|(allocation, _)| allocation.address());
        found.ok_or_else(|| Trouble::fail(format!("there is no allocation {name}")))
    }

    /// Returns the names in use, in alphabetical order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.named.keys().cloned().collect()
    }

    /// Calls `empty_cache`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn release_cached(&mut self) -> Result<(), Trouble> {
        self.core.release_cached().map_err(|error| Trouble::fail(error.to_string()))
    }

    /// Returns the allocator's calls since the last call to this method, with the name and (if it has one) the size;
    /// refused calls are marked.
    #[must_use]
    pub fn calls(&mut self) -> Vec<String> {
        self.device.list_calls().iter().map(call_text).collect()
    }

    /// Returns the segments in order of creation.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        in_order(self.core.segments(), self.core.observer())
    }

    /// Returns the heap as text, with every allocation shown by its name.
    #[must_use]
    pub fn picture(&self) -> String {
        let names = self.named.iter().map(|(name, (allocation, _))| (allocation.address().get(), name.as_str())).collect();
        draw(&self.segments(), &names)
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.core.stats()
    }

    /// Returns the main statistics, one per line: allocated, active and reserved (current and peak), and counts of
    /// device calls and retries.
    #[must_use]
    pub fn figures(&self) -> String {
        let stats = self.core.stats();
        let line = |name: &str, family| {
            let stat = stats.family(family).all;
            format!("{name:<10} {:>14} B, at most {:>14} B\n", stat.current, stat.peak)
        };
        let pressure = format!(
            "segments   {:>14}, device allocations {}, device frees {}, retries {}, out of memory {}\n",
            stats.family(Family::Segment).all.current,
            stats.num_device_alloc,
            stats.num_device_free,
            stats.num_alloc_retries,
            stats.num_ooms
        );
        [
            line("allocated", Family::AllocatedBytes),
            line("active", Family::ActiveBytes),
            line("reserved", Family::ReservedBytes),
            line("split free", Family::InactiveSplitBytes),
            pressure,
        ]
        .concat()
    }

    /// Returns the allocator's trace.
    #[must_use]
    pub fn trace(&self) -> &[TraceEntry] {
        self.core.observer()
    }

    /// Frees everything and checks that nothing is left.
    ///
    /// # Errors
    /// If the heap is damaged or anything is left on the device.
    pub fn finish(mut self) -> Result<(), Trouble> {
        self.core.check().map_err(|violation| Trouble::fail(violation.to_string()))?;
        for name in self.names() {
            self.free(&name)?;
        }
        self.device.steer().settle();
        self.release_cached()?;
        let reserved = self.core.heap().reserved();
        if reserved != Bytes::ZERO {
            return Err(Trouble::fail(format!("{reserved} bytes are still reserved")));
        }
        let Stage { core, device, .. } = self;
        drop(core);
        let left = device.look().holdings();
        if left.is_empty() { Ok(()) } else { Err(Trouble::fail(format!("these were not returned to the device: {left:?}"))) }
    }
}

fn call_text(call: &MadeCall) -> String {
    let size = if call.bytes > 0 { format!(" {}", format_bytes(call.bytes)) } else { String::new() };
    format!("{}{size}{}", call.name.as_str(), if call.done { "" } else { " refused" })
}

/// The width of a bar in characters.
const WIDTH: u64 = 64;

/// Returns the segments in order of creation. A run in an expandable segment counts from the time when its first
/// address last got memory; runs from the same mapping are in address order.
fn in_order(mut segments: Vec<SegmentInfo>, trace: &[TraceEntry]) -> Vec<SegmentInfo> {
    let made = |segment: &SegmentInfo| {
        let start = segment.address.get();
        trace.iter().rposition(|entry| match entry.action {
            TraceAction::SegmentAlloc => entry.address == start,
            TraceAction::SegmentMap => entry.address <= start && start - entry.address < entry.size,
            _ => false,
        })
    };
    segments.sort_by_cached_key(|segment| (made(segment), segment.address));
    segments
}

/// Draws one line and a bar per segment: `#` is live, `~` is waiting for events, `.` is free. A block has at least one
/// character.
///
/// Empty segments are listed last, smallest first, without numbers: which of several equal ones remains depends on
/// their addresses, so it differs between devices.
fn draw(segments: &[SegmentInfo], names: &BTreeMap<u64, &str>) -> String {
    let mut out = String::new();
    let is_empty = |segment: &&SegmentInfo| segment.blocks.iter().all(|block| block.state == BlockActivity::Inactive);
    let (mut empty, used): (Vec<_>, Vec<_>) = segments.iter().partition(is_empty);
    empty.sort_by_key(|segment| (segment.expandable, segment.class, segment.total, segment.stream));
    for (number, segment) in used.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{} {}: {}", kind(segment), number + 1, described(segment));
        let _ = writeln!(out, "  [{}]", bar(segment));
        for block in &segment.blocks {
            let state = match block.state {
                BlockActivity::Allocated => names.get(&block.address.get()).copied().unwrap_or("(unnamed)"),
                BlockActivity::PendingFree => "(waits for events)",
                BlockActivity::Inactive => "(free)",
            };
            let offset = format_bytes(block.address.get() - segment.address.get());
            let _ = writeln!(out, "  {offset:>12} + {:<12} {state}", format_bytes(block.size.get()));
        }
    }
    for segment in empty {
        let _ = writeln!(out, "free {}: {}", kind(segment), described(segment));
    }
    if segments.is_empty() {
        out.push_str("(no segments)\n");
    }
    out
}

fn kind(segment: &SegmentInfo) -> &'static str {
    if segment.expandable { "expandable" } else { "segment" }
}

fn described(segment: &SegmentInfo) -> String {
    let stream = if segment.stream == StreamId::DEFAULT { "default stream" } else { "another stream" };
    format!("{}, {} pool, {stream}", format_bytes(segment.total.get()), segment.class.name())
}

fn bar(segment: &SegmentInfo) -> String {
    let scale = |bytes: u64| u128::from(bytes) * u128::from(WIDTH) / u128::from(segment.total.get().max(1));
    let mut bar = String::new();
    for block in &segment.blocks {
        let mark = match block.state {
            BlockActivity::Allocated => '#',
            BlockActivity::PendingFree => '~',
            BlockActivity::Inactive => '.',
        };
        let end = scale(block.address.get() - segment.address.get() + block.size.get());
        let length = end.saturating_sub(bar.chars().count() as u128).max(1);
        bar.extend((0..length).map(|_| mark));
    }
    bar
}
