//! Runs of programs on several streams on the simulated GPU, in which everything takes a little longer or shorter.
//!
//! Between runs the program's time differs by 8 % and the GPU's by 2 % (one standard deviation), and within a run each
//! piece of the program by 20 % and of the GPU's work by 4 %. Now and then either pauses for a millisecond or two. The
//! driver takes four times as long as on an idle GPU.

use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, Allocator};
use parkade_recording::{Action, DeviceRecording, Entry};
use parkade_sim::{SimDevice, SimOptions};

/// Numbers from a seed (xorshift).
#[derive(Clone)]
pub(crate) struct Draw(u64);

impl Draw {
    /// A sequence.
    pub(crate) fn new(seed: u64) -> Draw {
        let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            draw.next();
        }
        draw
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From `low` to below `high`.
    pub(crate) fn below(&mut self, low: u64, high: u64) -> u64 {
        low + (self.unit() * (high - low) as f64) as u64
    }

    /// Around 0, with a standard deviation of 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// A program in progress.
pub(crate) struct Sim {
    core: Allocator<SimDevice, PyTorch, Vec<TraceEntry>>,
    entries: Vec<Entry>,
    noise: Draw,
    cpu_factor: f64,
    gpu_factor: f64,
    /// The sizes of the program's requests.
    pub(crate) draw: Draw,
    ooms: u32,
}

/// Memory, unless the request failed.
pub(crate) type Memory = Option<Allocation>;
/// The stream on which a program computes.
pub(crate) const MAIN: StreamId = StreamId(0);
/// How many times as long the driver takes as the prices say.
const DRIVER_TIMES: u64 = 4;
/// The seed of the sizes, which are the same in each run.
const SIZES: u64 = 77;
/// What a call of the allocator takes without the driver.
const CALL_NS: u64 = 150;

impl Sim {
    /// Notes the entries of a call in which the driver spent so long: in equal parts before each of its entries.
    fn note(&mut self, spent_ns: u64) {
        let now_ns = self.core.device_mut().now_ns();
        let entries = std::mem::take(self.core.observer_mut());
        let is_driver = |entry: &TraceEntry| entry.action.name().starts_with("segment");
        let mut following = entries.iter().filter(|entry| is_driver(entry)).count() as u64;
        let share_ns = spent_ns / following.max(1);
        for entry in entries {
            following -= u64::from(is_driver(&entry));
            let now_us = (now_ns - share_ns * following) / 1000;
            let Some(action) = Action::from_name(entry.action.name().as_bytes()) else { continue };
            let mut noted = Entry::new(action, entry.address, entry.size, entry.stream.get());
            noted.set_time(Some(now_us));
            self.entries.push(noted);
        }
    }

    /// A call of the allocator.
    fn call<T>(&mut self, call: impl FnOnce(&mut Allocator<SimDevice, PyTorch, Vec<TraceEntry>>) -> T) -> T {
        let device = self.core.device_mut();
        let before = device.driver_ns();
        let result = call(&mut self.core);
        let device = self.core.device_mut();
        let spent = device.driver_ns() - before;
        device.advance(CALL_NS + spent * (DRIVER_TIMES - 1));
        self.note(spent * DRIVER_TIMES);
        result
    }

    /// The program's own work.
    pub(crate) fn cpu(&mut self, us: f64) {
        let mut ns = us * 1000.0 * self.cpu_factor * (0.2 * self.noise.normal()).exp();
        if self.noise.unit() < 0.002 {
            ns += -self.noise.unit().max(1e-9).ln() * 1e6;
        }
        self.core.device_mut().advance(ns as u64);
    }

    /// Queues work on a stream.
    pub(crate) fn gpu(&mut self, stream: StreamId, us: f64) {
        self.cpu(8.0);
        let mut ns = us * 1000.0 * self.gpu_factor * (1.0 + 0.04 * self.noise.normal()).max(0.1);
        if self.noise.unit() < 0.0005 {
            ns += -self.noise.unit().max(1e-9).ln() * 2e6;
        }
        self.core.device_mut().spin(stream, ns as u64);
    }

    /// Requests memory.
    pub(crate) fn get(&mut self, bytes: u64, stream: StreamId) -> Memory {
        self.cpu(2.0);
        // Every request begins with this; here apart, so that its entries have the time before the request's waits.
        let _ = self.call(|core| core.process_events());
        let memory = self.call(|core| core.raw_allocate(Bytes(bytes), stream).ok());
        self.ooms += u32::from(memory.is_none());
        memory
    }

    /// Frees memory.
    pub(crate) fn free(&mut self, memory: Memory) {
        self.cpu(1.0);
        if let Some(memory) = memory {
            let _ = self.call(|core| core.free(memory));
        }
    }

    /// Says that another stream uses memory (`record_stream`).
    pub(crate) fn uses(&mut self, memory: &Memory, stream: StreamId) {
        if let Some(memory) = memory {
            self.core.record_stream(memory, stream);
        }
    }

    /// Makes a stream wait for what another one has to do now.
    pub(crate) fn wait(&mut self, stream: StreamId, other: StreamId) {
        self.cpu(3.0);
        let device = self.core.device_mut();
        let Ok(mut event) = device.create_event() else { return };
        let _ = device.record_event(&mut event, other);
        device.stream_wait(stream, &event);
        device.destroy_event(event);
    }

    /// The host reads a result.
    pub(crate) fn item(&mut self, stream: StreamId) {
        self.cpu(10.0);
        self.core.device_mut().wait_for(stream);
        self.cpu(15.0);
    }
}

/// What a program does.
pub(crate) type Body = fn(&mut Sim);

/// Runs a program once. Returns its recording and how many requests failed.
pub(crate) fn run(body: Body, settings: &Settings, limit_bytes: Option<u64>, seed: u64) -> (DeviceRecording, u32) {
    let policy = PyTorch::of(&Profile::PYTORCH_2_11, settings.clone());
    let mut core = Allocator::new(SimDevice::new(SimOptions::h200()), policy, Vec::new());
    core.set_limit(limit_bytes.map(Bytes));
    let mut noise = Draw::new(seed);
    let (cpu_factor, gpu_factor) = ((0.08 * noise.normal()).exp(), (0.02 * noise.normal()).exp());
    let draw = Draw::new(SIZES);
    let mut sim = Sim { core, entries: Vec::new(), noise, cpu_factor, gpu_factor, draw, ooms: 0 };
    body(&mut sim);
    sim.core.device_mut().synchronize();
    let _ = sim.call(|core| core.release_cached());
    (DeviceRecording { trace: sim.entries, ..DeviceRecording::default() }, sim.ooms)
}
