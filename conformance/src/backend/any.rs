//! A backend and a device with erased types. The suite is written for them and compiled only once.
//!
//! An [`AnyDevice`] identifies events and memory by numbers, and keeps the device's own objects in tables.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use parkade::device::{BackendError, Capture, DeviceBackend, GraphNode, MemoryInfo, ProcessMemory};
use parkade::units::{Bytes, DeviceAddress, StreamId};

use super::interface::{Backend, DeviceFacts, Holdings, Insight, Needs, TestDevice, Unable};
use super::simulated::Simulated;

/// Any backend: it has the methods of [`Backend`].
#[derive(Clone)]
pub struct AnyBackend(Arc<dyn Backend<Device = AnyDevice> + Send + Sync>);

impl AnyBackend {
    /// Erases a backend's type.
    #[must_use]
    pub fn new<B: Backend<Device: 'static> + Send + Sync + 'static>(backend: B) -> AnyBackend {
        AnyBackend(Arc::new(Erased(backend, AnyDevice::new)))
    }

    /// Returns parkade's simulated device.
    #[must_use]
    pub fn simulated() -> AnyBackend {
        AnyBackend(Arc::new(Erased(Simulated, AnyDevice::copyable)))
    }
}

impl Deref for AnyBackend {
    type Target = dyn Backend<Device = AnyDevice> + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// A backend whose devices become [`AnyDevice`]s.
struct Erased<B: Backend>(B, fn(B::Device) -> AnyDevice);

impl<B: Backend<Device: 'static>> Backend for Erased<B> {
    type Device = AnyDevice;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn open(&self, needs: &Needs) -> Result<AnyDevice, Unable> {
        self.0.open(needs).map(self.1)
    }

    fn facts(&self) -> DeviceFacts {
        self.0.facts()
    }

    fn describe(&self) -> Vec<(&'static str, String)> {
        self.0.describe()
    }

    fn is_simulated(&self) -> bool {
        self.0.is_simulated()
    }
}

/// Any device.
pub struct AnyDevice {
    device: Box<dyn Duplicable>,
}

/// A device that identifies events and memory by numbers.
trait Duplicable: TestDevice<Event = AnyEvent, Physical = AnyPhysical> {
    /// Returns a second device in the same state; `None` if the device cannot be copied.
    fn duplicate(&self) -> Option<AnyDevice>;
}

impl AnyDevice {
    /// Erases a device's type.
    #[must_use]
    pub fn new<D: TestDevice + 'static>(device: D) -> AnyDevice {
        AnyDevice::numbered(device, None)
    }

    /// Does the same for a device that can be copied.
    fn copyable<D: TestDevice<Event: Clone, Physical: Clone> + Clone + 'static>(device: D) -> AnyDevice {
        AnyDevice::numbered(device, Some(Numbered::again))
    }

    fn numbered<D: TestDevice + 'static>(device: D, copy: Option<Again<D>>) -> AnyDevice {
        AnyDevice { device: Box::new(Numbered { device, events: Table::default(), memory: Table::default(), copy }) }
    }

    /// Returns a second device in the same state, whose events and memory have the same numbers; `None` if the device cannot
    /// be copied.
    pub(super) fn duplicate(&self) -> Option<AnyDevice> {
        self.device.duplicate()
    }
}

impl fmt::Debug for AnyDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyDevice")
    }
}

/// An event of an [`AnyDevice`].
#[derive(Clone, Debug)]
pub struct AnyEvent(usize);

/// Memory of an [`AnyDevice`].
#[derive(Clone, Debug)]
pub struct AnyPhysical(usize);

/// Objects by number. A number is reused after its object has been removed.
#[derive(Clone)]
struct Table<T> {
    kept: Vec<Option<T>>,
    unused: Vec<usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { kept: Vec::new(), unused: Vec::new() }
    }
}

impl<T> Table<T> {
    fn keep(&mut self, thing: T) -> usize {
        match self.unused.pop() {
            Some(number) => {
                self.kept[number] = Some(thing);
                number
            }
            None => {
                self.kept.push(Some(thing));
                self.kept.len() - 1
            }
        }
    }

    /// # Panics
    /// If there is no object with this number. Only [`Table::keep`] hands out numbers, and each one is returned once.
    fn take(&mut self, number: usize) -> T {
        self.unused.push(number);
        self.kept[number].take().expect("a number is returned only once")
    }

    fn get(&self, number: usize) -> &T {
        self.kept[number].as_ref().expect("a number is valid until it is returned")
    }

    fn get_mut(&mut self, number: usize) -> &mut T {
        self.kept[number].as_mut().expect("a number is valid until it is returned")
    }
}

/// Copies a device.
type Again<D> = fn(&Numbered<D>) -> Numbered<D>;

/// A device that identifies events and memory by numbers.
struct Numbered<D: DeviceBackend> {
    device: D,
    events: Table<D::Event>,
    memory: Table<D::Physical>,
    copy: Option<Again<D>>,
}

impl<D: DeviceBackend<Event: Clone, Physical: Clone> + Clone> Numbered<D> {
    fn again(&self) -> Numbered<D> {
        let (device, events, memory) = (self.device.clone(), self.events.clone(), self.memory.clone());
        Numbered { device, events, memory, copy: self.copy }
    }
}

impl<D: TestDevice + 'static> Duplicable for Numbered<D> {
    fn duplicate(&self) -> Option<AnyDevice> {
        self.copy.map(|copy| AnyDevice { device: Box::new(copy(self)) })
    }
}

/// Methods that forward to a field.
macro_rules! forward {
    ($field:ident: $($name:ident($($arg:ident: $type:ty),*) $(-> $answer:ty)?;)*) => {
        $(fn $name(&mut self, $($arg: $type),*) $(-> $answer)? {
            self.$field.$name($($arg),*)
        })*
    };
    ($field:ident, look: $($name:ident() -> $answer:ty;)*) => {
        $(fn $name(&self) -> $answer {
            self.$field.$name()
        })*
    };
}
pub(crate) use forward;

/// The methods of [`DeviceBackend`] that take neither an event nor memory.
macro_rules! forward_plain {
    () => {
        forward! { device, look:
            completes_by_handle() -> bool;
            answers_are_checked() -> bool;
            index() -> u32;
            total_memory() -> Bytes;
            breaks_handles() -> bool;
            waits_in_captures() -> bool;
            run_pages() -> u64;
        }
        forward! { device:
            memory_info() -> Result<MemoryInfo, BackendError>;
            processes() -> Vec<ProcessMemory>;
            malloc(size: Bytes) -> Result<DeviceAddress, BackendError>;
            free(address: DeviceAddress) -> Result<(), BackendError>;
            reserve(size: Bytes) -> Result<DeviceAddress, BackendError>;
            unreserve(address: DeviceAddress, size: Bytes) -> Result<(), BackendError>;
            set_access(address: DeviceAddress, size: Bytes) -> Result<(), BackendError>;
            unmap(address: DeviceAddress, size: Bytes) -> Result<(), BackendError>;
            unmap_run(address: DeviceAddress, page: Bytes, pages: u64) -> Result<(), BackendError>;
            synchronize_stream(stream: StreamId) -> Result<(), BackendError>;
            is_idle(stream: StreamId) -> Result<bool, BackendError>;
            capture(stream: StreamId) -> Result<Option<Capture>, BackendError>;
            add_awaited(stream: StreamId, awaited: &mut BTreeSet<GraphNode>) -> Result<(), BackendError>;
        }
    };
}

/// The methods of [`TestDevice`].
macro_rules! forward_tests {
    () => {
        forward! { device, look:
            streams() -> [StreamId; 4];
            live_ranges() -> Vec<(DeviceAddress, Bytes)>;
            holdings() -> Holdings;
            withheld_bytes() -> Bytes;
        }
        forward! { device:
            spin(stream: StreamId, duration_ns: u64) -> Result<(), BackendError>;
            fill(address: DeviceAddress, size: Bytes, word: u32, stream: StreamId) -> Result<(), BackendError>;
            copy(from: DeviceAddress, to: DeviceAddress, size: Bytes, stream: StreamId) -> Result<(), BackendError>;
            read(address: DeviceAddress, into: &mut [u8]) -> Result<(), BackendError>;
            settle();
            pause(duration_ns: u64);
            others_hold(bytes: Bytes) -> Result<(), BackendError>;
            insight() -> Option<&mut dyn Insight>;
        }
    };
}

impl<D: TestDevice> DeviceBackend for Numbered<D> {
    type Event = AnyEvent;
    type Physical = AnyPhysical;

    forward_plain!();

    fn create(&mut self, size: Bytes) -> Result<AnyPhysical, BackendError> {
        self.device.create(size).map(|memory| AnyPhysical(self.memory.keep(memory)))
    }

    fn map(&mut self, address: DeviceAddress, size: Bytes, memory: &AnyPhysical) -> Result<(), BackendError> {
        self.device.map(address, size, self.memory.get(memory.0))
    }

    fn release(&mut self, memory: AnyPhysical) -> Result<(), (AnyPhysical, BackendError)> {
        self.device.release(self.memory.take(memory.0)).map_err(|(own, error)| (AnyPhysical(self.memory.keep(own)), error))
    }

    fn break_handle(
        &mut self,
        address: DeviceAddress,
        size: Bytes,
        memory: AnyPhysical,
        parts: &[(Bytes, Bytes)],
    ) -> Result<Vec<AnyPhysical>, (AnyPhysical, BackendError)> {
        match self.device.break_handle(address, size, self.memory.take(memory.0), parts) {
            Ok(parts) => Ok(parts.into_iter().map(|part| AnyPhysical(self.memory.keep(part))).collect()),
            Err((own, error)) => Err((AnyPhysical(self.memory.keep(own)), error)),
        }
    }

    fn create_run(&mut self, page: Bytes, pages: u64) -> Result<(AnyPhysical, u64), BackendError> {
        self.device.create_run(page, pages).map(|(memory, pages)| (AnyPhysical(self.memory.keep(memory)), pages))
    }

    fn split_run(&mut self, memory: &mut AnyPhysical, page: Bytes, pages: u64) -> Result<AnyPhysical, BackendError> {
        self.device.split_run(self.memory.get_mut(memory.0), page, pages).map(|memory| AnyPhysical(self.memory.keep(memory)))
    }

    fn create_event(&mut self) -> Result<AnyEvent, BackendError> {
        self.device.create_event().map(|event| AnyEvent(self.events.keep(event)))
    }

    fn record_event(&mut self, event: &mut AnyEvent, stream: StreamId) -> Result<(), BackendError> {
        self.device.record_event(self.events.get_mut(event.0), stream)
    }

    fn is_complete(&mut self, event: &AnyEvent) -> Result<bool, BackendError> {
        self.device.is_complete(self.events.get(event.0))
    }

    fn wait(&mut self, event: &AnyEvent) -> Result<(), BackendError> {
        self.device.wait(self.events.get(event.0))
    }

    fn stream_wait(&mut self, stream: StreamId, event: &AnyEvent) -> Result<(), BackendError> {
        self.device.stream_wait(stream, self.events.get(event.0))
    }

    fn destroy_event(&mut self, event: AnyEvent) {
        self.device.destroy_event(self.events.take(event.0));
    }
}

impl<D: TestDevice> TestDevice for Numbered<D> {
    forward_tests!();
}

impl DeviceBackend for AnyDevice {
    type Event = AnyEvent;
    type Physical = AnyPhysical;

    forward_plain!();
    forward! { device:
        create(size: Bytes) -> Result<AnyPhysical, BackendError>;
        map(address: DeviceAddress, size: Bytes, memory: &AnyPhysical) -> Result<(), BackendError>;
        release(memory: AnyPhysical) -> Result<(), (AnyPhysical, BackendError)>;
        break_handle(
            address: DeviceAddress,
            size: Bytes,
            memory: AnyPhysical,
            parts: &[(Bytes, Bytes)]
        ) -> Result<Vec<AnyPhysical>, (AnyPhysical, BackendError)>;
        create_run(page: Bytes, pages: u64) -> Result<(AnyPhysical, u64), BackendError>;
        split_run(memory: &mut AnyPhysical, page: Bytes, pages: u64) -> Result<AnyPhysical, BackendError>;
        create_event() -> Result<AnyEvent, BackendError>;
        record_event(event: &mut AnyEvent, stream: StreamId) -> Result<(), BackendError>;
        is_complete(event: &AnyEvent) -> Result<bool, BackendError>;
        wait(event: &AnyEvent) -> Result<(), BackendError>;
        stream_wait(stream: StreamId, event: &AnyEvent) -> Result<(), BackendError>;
        destroy_event(event: AnyEvent);
    }
}

impl TestDevice for AnyDevice {
    forward_tests!();
}
