//! A stage: an allocator on a device on which a scenario is played. Its allocations have names, and its heap can be drawn.
//!
//! Its output is the same on every backend: segments are numbered in order of creation, and positions are offsets from their
//! starts.

mod picture;

use std::collections::BTreeMap;

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::snapshot::SegmentInfo;
use parkade::stats::{Family, Stats};
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade::{AllocError, Allocation, Allocator};

use crate::backend::{AnyBackend, AnyDevice, Core, MadeCall, Needs, TestDevice, WitnessedDevice};
use crate::suite::Trouble;

/// The outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// It was served.
    Served,
    /// Out of memory, with the error's text.
    OutOfMemory(String),
}

impl Request {
    /// The text of the error.
    ///
    /// # Errors
    /// If the request was served, which the scenario says it must not be.
    pub fn refusal(self) -> Result<String, Trouble> {
        match self {
            Request::OutOfMemory(text) => Ok(text),
            Request::Served => Err(Trouble::fail("the request was served; it should have been out of memory")),
        }
    }

    /// Succeeds if the request was served.
    ///
    /// # Errors
    /// If it was refused, which the scenario says it must not be.
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
    /// An empty allocator with these settings and this limit, on a device of the backend.
    ///
    /// # Errors
    /// If there is no such device, or the settings are refused.
    pub fn new(backend: &AnyBackend, needs: &Needs, settings: &str, limit: Option<Bytes>) -> Result<Stage, Trouble> {
        let settings = Settings::from_environment(settings).map_err(|error| Trouble::fail(error.to_string()))?;
        let device = WitnessedDevice::new(backend.open(needs)?);
        let mut core = Allocator::new(device.clone(), PyTorch::new(settings), Vec::new());
        core.set_limit(limit);
        let _ = device.list_calls();
        Ok(Stage { core, device, named: BTreeMap::new() })
    }

    /// The allocator.
    pub fn core(&mut self) -> &mut Core<AnyDevice> {
        &mut self.core
    }

    /// The device; do not hold its guards across a call of the allocator.
    #[must_use]
    pub fn device(&self) -> &WitnessedDevice<AnyDevice> {
        &self.device
    }

    /// The device's streams: the default one and three others.
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
    /// If there is no allocation of this name, or the device fails.
    pub fn free(&mut self, name: &str) -> Result<(), Trouble> {
        let (allocation, _) = self.named.remove(name).ok_or_else(|| Trouble::fail(format!("there is no {name}")))?;
        self.core.free(allocation).map_err(|error| Trouble::fail(format!("{name}: {error}")))
    }

    /// Records that a stream uses a named allocation.
    ///
    /// # Errors
    /// If there is no allocation of this name.
    pub fn record_stream(&mut self, name: &str, stream: StreamId) -> Result<(), Trouble> {
        let (allocation, _) = self.named.get(name).ok_or_else(|| Trouble::fail(format!("there is no {name}")))?;
        self.core.record_stream(allocation, stream);
        Ok(())
    }

    /// Where a named allocation begins.
    ///
    /// # Errors
    /// If there is no allocation of this name.
    pub fn address(&self, name: &str) -> Result<DeviceAddress, Trouble> {
        let found = self.named.get(name).map(|(allocation, _)| allocation.address());
        found.ok_or_else(|| Trouble::fail(format!("there is no {name}")))
    }

    /// The names in use, in alphabetical order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.named.keys().cloned().collect()
    }

    /// `empty_cache`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn release_cached(&mut self) -> Result<(), Trouble> {
        self.core.release_cached().map_err(|error| Trouble::fail(error.to_string()))
    }

    /// The allocator's calls since this was last called: name, and size if it has one; refused calls are marked.
    #[must_use]
    pub fn calls(&mut self) -> Vec<String> {
        self.device.list_calls().iter().map(call_text).collect()
    }

    /// The segments, in order of creation.
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        picture::in_order(self.core.segments(), self.core.observer())
    }

    /// The heap as text, with every allocation by its name.
    #[must_use]
    pub fn picture(&self) -> String {
        let names = self.named.iter().map(|(name, (allocation, _))| (allocation.address().get(), name.as_str())).collect();
        picture::draw(&self.segments(), &names)
    }

    /// The statistics.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        self.core.stats()
    }

    /// The main statistics, one per line: allocated, active and reserved (current and peak), and counts of device calls and
    /// retries.
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

    /// The allocator's trace.
    #[must_use]
    pub fn trace(&self) -> &[TraceEntry] {
        self.core.observer()
    }

    /// Gives everything back, and checks that nothing is left.
    ///
    /// # Errors
    /// If the heap is damaged or the device keeps anything.
    pub fn finish(mut self) -> Result<(), Trouble> {
        self.core.check().map_err(|violation| Trouble::fail(violation.to_string()))?;
        for name in self.names() {
            self.free(&name)?;
        }
        self.device.steer().settle();
        self.release_cached()?;
        let reserved = self.core.heap().reserved();
        if reserved != Bytes::ZERO {
            return Err(Trouble::fail(format!("{reserved} bytes stay reserved")));
        }
        let Stage { core, device, .. } = self;
        drop(core);
        let left = device.look().holdings();
        if left.is_empty() { Ok(()) } else { Err(Trouble::fail(format!("the device keeps {left:?}"))) }
    }
}

fn call_text(call: &MadeCall) -> String {
    let size = if call.bytes > 0 { format!(" {}", parkade::texts::format_bytes(call.bytes)) } else { String::new() };
    format!("{}{size}{}", call.name.as_str(), if call.done { "" } else { " refused" })
}
