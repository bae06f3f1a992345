//! Eight programs on several streams, which request memory like training runs and servers that copy or communicate
//! alongside the computation, and their runs on a simulated GPU on which every duration varies slightly.
//!
//! Between runs, the program's time varies by 8 % and the GPU's by 2 % (one standard deviation); within a run, each
//! part of the program varies by 20 % and each part of the GPU's work by 4 %. Occasionally, the program or the GPU
//! pauses for a millisecond or two. Driver calls take four times as long as on an idle GPU.

use std::collections::VecDeque;

use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, StreamId};
use parkade::{Allocation, Allocator};
use parkade_recording::{Action, DeviceRecording, Entry};
use parkade_sim::{SimDevice, SimOptions};

const KB: u64 = 1 << 10;
const S1: StreamId = StreamId(0x1000);
const S2: StreamId = StreamId(0x2000);
const S3: StreamId = StreamId(0x3000);
const S4: StreamId = StreamId(0x4000);

/// The duration of a layer of width 1024 on this many rows, in microseconds.
fn layer_us(rows: u64) -> f64 {
    4.0 + rows as f64 * 0.05
}

/// One training step on this many rows.
fn train(sim: &mut Sim, rows: u64, depth: usize) {
    let mut kept = Vec::new();
    for _ in 0..depth {
        let out = sim.get(rows * 4 * KB, MAIN);
        sim.gpu(MAIN, layer_us(rows));
        let active = sim.get(rows * 4 * KB, MAIN);
        sim.gpu(MAIN, rows as f64 * 0.004 + 3.0);
        sim.cpu(20.0);
        kept.push((out, active));
    }
    let mut gradient = sim.get(rows * 4 * KB, MAIN);
    while let Some((out, active)) = kept.pop() {
        let before = sim.get(rows * 4 * KB, MAIN);
        sim.gpu(MAIN, rows as f64 * 0.005 + 3.0);
        sim.free(active);
        let weight = sim.get(4096 * KB, MAIN);
        sim.gpu(MAIN, layer_us(rows));
        let input = sim.get(rows * 4 * KB, MAIN);
        sim.gpu(MAIN, layer_us(rows));
        sim.free(out);
        sim.free(before);
        sim.free(gradient);
        sim.free(weight);
        sim.cpu(25.0);
        gradient = input;
    }
    sim.free(gradient);
}

/// The next batch is copied while this one is used for training.
fn double_buffer(sim: &mut Sim) {
    let load = |sim: &mut Sim| {
        let rows = sim.draw.below(1000, 9000);
        let raw = sim.get(rows * 4 * KB, S1);
        sim.gpu(S1, rows as f64 * 0.08);
        let batch = sim.get(rows * 4 * KB, S1);
        sim.gpu(S1, rows as f64 * 0.005);
        sim.free(raw);
        (batch, rows)
    };
    let mut following = load(sim);
    for step in 0..50 {
        sim.wait(MAIN, S1);
        let (batch, rows) = following;
        sim.uses(&batch, MAIN);
        following = load(sim);
        train(sim, rows, 6);
        sim.free(batch);
        if step % 10 == 9 {
            sim.item(MAIN);
        }
    }
    sim.free(following.0);
}

/// Gradients are summed in buckets alongside the backward pass; nothing ever waits for the GPU.
fn grad_reduce(sim: &mut Sim) {
    for _ in 0..60 {
        let rows = sim.draw.below(300, 6000);
        let mut kept: Vec<Memory> = Vec::new();
        for _ in 0..10 {
            kept.push(sim.get(rows * 6 * KB, MAIN));
            sim.gpu(MAIN, layer_us(rows) * 2.0);
            sim.cpu(15.0);
        }
        let mut held = Vec::new();
        let mut bucket = Vec::new();
        while let Some(active) = kept.pop() {
            let gradient = sim.get(9216 * KB, MAIN);
            sim.gpu(MAIN, layer_us(rows) * 4.0);
            sim.free(active);
            bucket.push(gradient);
            if bucket.len() == 3 || kept.is_empty() {
                sim.wait(S1, MAIN);
                let flat = sim.get(9216 * KB * bucket.len() as u64, S1);
                sim.gpu(S1, 60.0);
                for gradient in bucket.drain(..) {
                    sim.uses(&gradient, S1);
                    sim.free(gradient);
                }
                for _ in 0..3 {
                    let sum = sim.get(9216 * KB, S1);
                    sim.gpu(S1, 150.0);
                    sim.free(sum);
                }
                held.push(flat);
            }
        }
        sim.wait(MAIN, S1);
        for flat in held {
            sim.uses(&flat, MAIN);
            sim.gpu(MAIN, 20.0);
            sim.free(flat);
        }
    }
}

/// Weights are fetched two layers ahead.
fn layer_prefetch(sim: &mut Sim) {
    let widths = [4, 4, 8, 4, 4, 12, 4, 4, 8, 4, 4, 16];
    for step in 0..70 {
        let rows = sim.draw.below(300, 5000);
        let mut hidden = sim.get(rows * 4 * KB, MAIN);
        let mut waiting = VecDeque::new();
        for place in 0..widths.len() + 2 {
            if let Some(width) = widths.get(place) {
                let weight = sim.get(width * 1024 * KB, S1);
                sim.gpu(S1, *width as f64 * 25.0);
                waiting.push_back(weight);
            }
            if place < 2 {
                continue;
            }
            let Some(weight) = waiting.pop_front() else { break };
            let width = widths[place - 2];
            sim.wait(MAIN, S1);
            let wide = sim.get(rows * width * KB, MAIN);
            sim.gpu(MAIN, layer_us(rows) * width as f64 / 4.0);
            let out = sim.get(rows * 4 * KB, MAIN);
            sim.gpu(MAIN, layer_us(rows) * width as f64 / 4.0);
            sim.uses(&weight, MAIN);
            sim.free(weight);
            sim.free(wide);
            sim.free(hidden);
            hidden = out;
            sim.cpu(10.0);
        }
        sim.free(hidden);
        if step % 16 == 15 {
            sim.item(MAIN);
        }
    }
}

/// Requests of any length run on four streams.
fn serving(sim: &mut Sim) {
    let streams = [S1, S2, S3, S4];
    for turn in 0..120 {
        let mut results = Vec::new();
        for _ in 0..sim.draw.below(2, 7) {
            let stream = streams[sim.draw.below(0, 4) as usize];
            let rows = 2_f64.powf(8.0 + 6.0 * sim.draw.unit()) as u64;
            let prompt = sim.get(rows * 2 * KB, MAIN);
            sim.gpu(MAIN, rows as f64 * 0.01);
            sim.wait(stream, MAIN);
            let mut hidden: Memory = None;
            for _ in 0..6 {
                let out = sim.get(rows * 2 * KB, stream);
                sim.gpu(stream, layer_us(rows) * 0.4);
                sim.free(hidden);
                hidden = out;
            }
            let cache = sim.get(rows * 4 * KB, stream);
            sim.gpu(stream, rows as f64 * 0.01);
            sim.free(hidden);
            let answer = sim.get(rows * 2 * KB, stream);
            sim.gpu(stream, rows as f64 * 0.005);
            sim.uses(&prompt, stream);
            sim.free(prompt);
            sim.free(cache);
            results.push((answer, stream, rows));
            sim.cpu(15.0);
        }
        let all: u64 = results.iter().map(|(_, _, rows)| rows).sum();
        for (answer, stream, _) in &results {
            sim.wait(MAIN, *stream);
            sim.uses(answer, MAIN);
        }
        let total = sim.get(all * 2 * KB, MAIN);
        sim.gpu(MAIN, all as f64 * 0.01);
        for (answer, _, _) in results {
            sim.free(answer);
        }
        sim.free(total);
        if turn % 12 == 11 {
            sim.item(MAIN);
        }
    }
}

/// Activations are copied to the host and back.
fn offload(sim: &mut Sim) {
    for step in 0..50 {
        let rows = sim.draw.below(500, 4096);
        for _ in 0..10 {
            let out = sim.get(rows * 4 * KB, MAIN);
            sim.gpu(MAIN, layer_us(rows) * 3.0);
            sim.wait(S1, MAIN);
            sim.gpu(S1, rows as f64 * 0.08);
            sim.uses(&out, S1);
            sim.free(out);
            sim.cpu(30.0);
        }
        for _ in 0..10 {
            sim.wait(S2, S1);
            let back = sim.get(rows * 4 * KB, S2);
            sim.gpu(S2, rows as f64 * 0.08);
            sim.wait(MAIN, S2);
            let gradient = sim.get(rows * 4 * KB, MAIN);
            sim.gpu(MAIN, layer_us(rows) * 6.0);
            sim.uses(&back, MAIN);
            sim.free(back);
            sim.free(gradient);
            sim.cpu(30.0);
        }
        if step % 8 == 7 {
            sim.item(MAIN);
        }
    }
}

/// Batches of images of any size are decoded on two streams, three ahead.
fn images(sim: &mut Sim) {
    let load = |sim: &mut Sim, number: u64| {
        let stream = if number.is_multiple_of(2) { S1 } else { S2 };
        let (batch, side) = (sim.draw.below(6, 24), sim.draw.below(4, 10) * 32);
        let pixels = batch * side * side;
        let raw = sim.get(pixels * 3, stream);
        sim.gpu(stream, pixels as f64 * 0.0002);
        let ready = sim.get(pixels * 12, stream);
        sim.gpu(stream, pixels as f64 * 0.00002);
        sim.free(raw);
        (ready, pixels, stream)
    };
    let mut queue: VecDeque<_> = (0..3).map(|number| load(sim, number)).collect();
    for step in 0..110 {
        let Some((ready, pixels, stream)) = queue.pop_front() else { break };
        sim.wait(MAIN, stream);
        sim.uses(&ready, MAIN);
        let mut kept = Vec::new();
        for shrink in [48, 24, 12] {
            let out = sim.get(pixels * shrink, MAIN);
            sim.gpu(MAIN, pixels as f64 * 0.0006);
            kept.push(out);
            let work = sim.get(pixels * 4, MAIN);
            sim.gpu(MAIN, pixels as f64 * 0.0002);
            sim.free(work);
        }
        sim.free(ready);
        let next = load(sim, step + 3);
        queue.push_back(next);
        while let Some(out) = kept.pop() {
            let gradient = sim.get(pixels * 24, MAIN);
            sim.gpu(MAIN, pixels as f64 * 0.001);
            sim.free(out);
            sim.free(gradient);
            sim.cpu(40.0);
        }
        if step % 25 == 24 {
            sim.item(MAIN);
        }
    }
    for (ready, _, _) in queue {
        sim.free(ready);
    }
}

/// Three stages, each on its own stream, pass micro-batches along.
fn pipeline(sim: &mut Sim) {
    let streams = [S1, S2, S3];
    for step in 0..40 {
        let mut kept = Vec::new();
        for _ in 0..6 {
            let rows = sim.draw.below(200, 5000);
            let mut hidden = sim.get(rows * 4 * KB, MAIN);
            sim.gpu(MAIN, rows as f64 * 0.01);
            sim.uses(&hidden, S1);
            sim.wait(S1, MAIN);
            for (place, &stream) in streams.iter().enumerate() {
                if place > 0 {
                    sim.wait(stream, streams[place - 1]);
                    sim.uses(&hidden, stream);
                }
                for _ in 0..3 {
                    let out = sim.get(rows * 4 * KB, stream);
                    sim.gpu(stream, layer_us(rows));
                    sim.cpu(20.0);
                    sim.free(hidden);
                    hidden = out;
                }
            }
            kept.push((hidden, rows));
        }
        sim.wait(MAIN, S3);
        for (hidden, rows) in kept {
            sim.uses(&hidden, MAIN);
            sim.gpu(MAIN, layer_us(rows) * 6.0);
            sim.free(hidden);
        }
        if step % 10 == 9 {
            sim.item(MAIN);
        }
    }
}

/// Tokens go to experts and back on a communication stream.
fn experts(sim: &mut Sim) {
    for step in 0..70 {
        let rows = sim.draw.below(2000, 12000);
        let tokens = sim.get(rows * 4 * KB, MAIN);
        sim.gpu(MAIN, rows as f64 * 0.01);
        sim.wait(S1, MAIN);
        sim.uses(&tokens, S1);
        let mut chunks = Vec::new();
        let mut left = rows;
        for place in 0..8 {
            let part = if place == 7 { left } else { sim.draw.below(0, left / 2 + 1) };
            left -= part;
            let chunk = sim.get(part * 4 * KB + 512, S1);
            sim.gpu(S1, part as f64 * 0.02);
            chunks.push((chunk, part));
        }
        sim.free(tokens);
        let mut outputs = Vec::new();
        for (chunk, part) in chunks {
            sim.wait(MAIN, S1);
            let wide = sim.get(part * 8 * KB + 512, MAIN);
            sim.gpu(MAIN, layer_us(part) * 2.0);
            let out = sim.get(part * 4 * KB + 512, MAIN);
            sim.gpu(MAIN, layer_us(part) * 2.0);
            sim.free(wide);
            sim.uses(&chunk, MAIN);
            sim.free(chunk);
            outputs.push(out);
        }
        sim.wait(S1, MAIN);
        let all = sim.get(rows * 4 * KB, S1);
        sim.gpu(S1, rows as f64 * 0.02);
        for out in outputs {
            sim.uses(&out, S1);
            sim.free(out);
        }
        sim.wait(MAIN, S1);
        sim.uses(&all, MAIN);
        sim.gpu(MAIN, rows as f64 * 0.01);
        sim.free(all);
        if step % 9 == 8 {
            sim.item(MAIN);
        }
    }
}

/// All programs. The second half was not examined while the model was being developed.
pub(crate) const PROGRAMS: [(&str, Body); 8] = [
    ("double_buffer", double_buffer),
    ("grad_reduce", grad_reduce),
    ("layer_prefetch", layer_prefetch),
    ("serving", serving),
    ("offload", offload),
    ("images", images),
    ("pipeline", pipeline),
    ("experts", experts),
];

/// Numbers from a seed (xorshift).
#[derive(Clone)]
struct Draw(u64);

impl Draw {
    /// Creates a sequence.
    fn new(seed: u64) -> Draw {
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
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// At least `low` and less than `high`.
    fn below(&mut self, low: u64, high: u64) -> u64 {
        low + (self.unit() * (high - low) as f64) as u64
    }

    /// Normally distributed around 0, with a standard deviation of 1.
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
    /// Draws the sizes of the program's requests.
    draw: Draw,
    ooms: u32,
}

/// The memory; `None` if the request failed.
type Memory = Option<Allocation>;
/// The stream on which a program computes.
const MAIN: StreamId = StreamId(0);
/// The factor by which driver calls take longer than their listed costs.
const DRIVER_TIMES: u64 = 4;
/// The seed of the sizes, which are the same in every run.
const SIZES: u64 = 77;
/// The time that an allocator call takes without the driver.
const CALL_NS: u64 = 150;

impl Sim {
    /// Records the entries of a call in which the driver spent this much time, divided equally among the intervals
    /// before the call's entries.
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

    /// A call to the allocator.
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
    fn cpu(&mut self, us: f64) {
        let mut ns = us * 1000.0 * self.cpu_factor * (0.2 * self.noise.normal()).exp();
        if self.noise.unit() < 0.002 {
            ns += -self.noise.unit().max(1e-9).ln() * 1e6;
        }
        self.core.device_mut().advance(ns as u64);
    }

    /// Queues work on a stream.
    fn gpu(&mut self, stream: StreamId, us: f64) {
        self.cpu(8.0);
        let mut ns = us * 1000.0 * self.gpu_factor * (1.0 + 0.04 * self.noise.normal()).max(0.1);
        if self.noise.unit() < 0.0005 {
            ns += -self.noise.unit().max(1e-9).ln() * 2e6;
        }
        self.core.device_mut().spin(stream, ns as u64);
    }

    /// Requests memory.
    fn get(&mut self, bytes: u64, stream: StreamId) -> Memory {
        self.cpu(2.0);
        // Every request begins with this call; it is made separately here so that its entries get the time before the
        // request waits.
        let _ = self.call(|core| core.process_events());
        let memory = self.call(|core| core.raw_allocate(Bytes(bytes), stream).ok());
        self.ooms += u32::from(memory.is_none());
        memory
    }

    /// Frees memory.
    fn free(&mut self, memory: Memory) {
        self.cpu(1.0);
        if let Some(memory) = memory {
            let _ = self.call(|core| core.free(memory));
        }
    }

    /// Records that another stream uses memory (`record_stream`).
    fn uses(&mut self, memory: &Memory, stream: StreamId) {
        if let Some(memory) = memory {
            self.core.record_stream(memory, stream);
        }
    }

    /// Makes a stream wait for the work that is currently queued on another stream.
    fn wait(&mut self, stream: StreamId, other: StreamId) {
        self.cpu(3.0);
        let device = self.core.device_mut();
        let Ok(mut event) = device.create_event() else { return };
        let _ = device.record_event(&mut event, other);
        device.stream_wait(stream, &event);
        device.destroy_event(event);
    }

    /// Makes the host read a result.
    fn item(&mut self, stream: StreamId) {
        self.cpu(10.0);
        self.core.device_mut().wait_for(stream);
        self.cpu(15.0);
    }
}

/// The body of a program.
pub(crate) type Body = fn(&mut Sim);

/// Runs a program once. Returns its recording and the number of failed requests.
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
