//! Plays a program on the simulated device and on the plain device, and compares everything that can be seen after each step.

use std::collections::BTreeSet;
use std::fmt::Debug;

use parkade::device::{Capture, DeviceBackend, GraphNode};
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::address::Scripted;
use parkade_sim::{Access, AccessError, Call, CallName, Kernel, LogLevel, PAGE_BYTES, SimDevice, SimEvent, SimPhysical};

use super::addresses::{Answers, Rule};
use super::device::Memory;
use super::device::{Event, PlainDevice};
use super::faults::plan_of;
use super::order;
use super::setup::Setup;
use super::step::{Base, LAST, Size, Spot, Step, Use};
use super::texts;
use crate::law::{Broken, Law};

/// Stream handles that no device creates, and two that it might.
const STREAMS: [u64; 4] = [0, 0x2000, 0x5001, 0xffff_ffff_ffff_f000];
/// The number of races that the device keeps.
const KEPT_RACES: usize = 100;
/// More pages than this are not created one by one.
const MANY_PAGES: u64 = 32;
/// The most places where the contents are read at the end.
const MOST_BORDERS: usize = 24;

/// Memory on both devices.
#[derive(Clone)]
struct Held {
    device: SimPhysical,
    plain: Memory,
    is_released: bool,
}

/// Both devices, and what the program holds on them.
pub(crate) struct Player {
    rules: [Option<Rule>; 2],
    device: SimDevice,
    plain: PlainDevice,
    memory: Vec<Held>,
    events: Vec<(SimEvent, Event)>,
    streams: Vec<u64>,
    /// The size of the memory that was mapped last.
    mapped_bytes: u64,
}

/// Returns the element with a number modulo the length, or the last one for [`LAST`].
fn nth<T>(all: &[T], which: usize) -> Option<&T> {
    if which == LAST { all.last() } else { all.get(which % all.len().max(1)) }
}

/// Compares two answers.
fn same<T: PartialEq + Debug>(what: &str, device: &T, plain: &T) -> Result<(), Broken> {
    if device == plain {
        return Ok(());
    }
    Err(Broken::new(Law::Device, format!("{what}: the device has {device:?}, the plain device {plain:?}")))
}

/// Compares the outcomes of work, and the texts of their errors.
fn same_access(device: Result<(), AccessError>, plain: Result<(), AccessError>) -> Result<(), Broken> {
    same("the answer", &device, &plain)?;
    let text = |error: AccessError| texts::illegal(error).to_owned();
    same("the error's text", &device.map_err(|error| error.to_string()), &plain.map_err(text))
}

fn stream_id(stream: u64) -> StreamId {
    StreamId(stream)
}

impl Player {
    pub(crate) fn new(setup: &Setup) -> Player {
        let (device, plain) = (setup.device(), PlainDevice::new(setup));
        let rules = [setup.malloc.clone(), setup.reserve.clone()];
        Player { rules, device, plain, memory: Vec::new(), events: Vec::new(), streams: STREAMS.to_vec(), mapped_bytes: 0 }
    }

    /// Plays the steps, then looks at everything that is left.
    pub(crate) fn play(&mut self, steps: &[Step]) -> Result<(), Broken> {
        self.compare().map_err(|broken| broken.during("at the beginning"))?;
        for (number, step) in (1..).zip(steps) {
            let outcome = self.step(step).and_then(|()| self.compare());
            outcome.map_err(|broken| broken.during(format!("step {number}, {step:?}")))?;
        }
        self.examine().map_err(|broken| broken.during("at the end"))
    }

    fn step(&mut self, step: &Step) -> Result<(), Broken> {
        match step {
            Step::Malloc(_) | Step::Free(_) | Step::Info | Step::Processes => self.memory_call(step),
            Step::SetCapacity(_)
            | Step::SetExternal(_)
            | Step::SetProcess(..)
            | Step::FailNext(_)
            | Step::Plan(_)
            | Step::Log(_)
            | Step::Addresses(..)
            | Step::Moment(_)
            | Step::Clone => self.set(step),
            Step::Reserve(_) | Step::Unreserve(..) | Step::SetAccess(..) | Step::Unmap(..) => self.address_call(step),
            Step::Create(_)
            | Step::CreateRun(..)
            | Step::SplitRun(..)
            | Step::Map(..)
            | Step::UnmapRun(..)
            | Step::Release(_)
            | Step::ReleaseAgain(_)
            | Step::MapAgain(..)
            | Step::Break(..) => self.handle_call(step),
            Step::CreateEvent
            | Step::Record(..)
            | Step::Query(_)
            | Step::Wait(_)
            | Step::StreamWait(..)
            | Step::DestroyEvent(_) => self.event_call(step),
            Step::BeginCapture(_) | Step::EndCapture(_) | Step::CaptureWork(_) | Step::CaptureWait(..) | Step::Capture(..) => {
                self.capture(step)
            }
            Step::Kernel(..) | Step::Crowd(..) | Step::Fill(..) | Step::Copy(..) | Step::Read(..) | Step::Ask(_) => {
                self.work(step)
            }
            _ => self.stream_step(step),
        }
    }

    /// Returns an address, and the end of the range in which it is.
    fn at(&self, spot: Spot) -> (u64, u64) {
        let ranges: Vec<(u64, u64)> = match spot.base {
            Base::Malloc => self.plain.live_ranges().into_iter().map(|(from, bytes)| (from, from + bytes)).collect(),
            Base::Reservation => self.plain.reservations().to_vec(),
            Base::Mapping => self.plain.mapped(),
            Base::Ever => self.plain.named(),
            Base::Space => Vec::new(),
        };
        let (from, to) = nth(&ranges, spot.which).copied().unwrap_or((0, 0));
        (if spot.from_end { to } else { from }.wrapping_add_signed(spot.offset), to)
    }

    fn bytes(&self, size: Size, (address, end): (u64, u64), same: u64) -> u64 {
        match size {
            Size::Bytes(bytes) => bytes,
            Size::Room(more) => self.plain.room().saturating_add_signed(more),
            Size::Rest(more) => end.saturating_sub(address).saturating_add_signed(more),
            Size::Same(more) => same.saturating_add_signed(more),
        }
    }

    fn range(&self, spot: Spot, size: Size) -> (u64, u64) {
        let at = self.at(spot);
        (at.0, self.bytes(size, at, self.mapped_bytes))
    }

    fn size(&self, size: Size) -> u64 {
        self.bytes(size, (0, 0), 0)
    }

    fn stream(&self, which: usize) -> u64 {
        self.streams[which % self.streams.len()]
    }

    fn memory_call(&mut self, step: &Step) -> Result<(), Broken> {
        match *step {
            Step::Malloc(size) => {
                let bytes = self.size(size);
                let seen = self.device.malloc(Bytes(bytes)).map(DeviceAddress::get);
                same("the address", &seen, &self.plain.malloc(bytes))
            }
            Step::Free(spot) => {
                let (address, _) = self.at(spot);
                same("the answer", &self.device.free(DeviceAddress(address)), &self.plain.free(address))
            }
            Step::Info => same("the memory", &self.device.memory_info(), &self.plain.memory_info()),
            _ => same("the processes", &self.device.processes(), &self.plain.processes()),
        }
    }

    fn set(&mut self, step: &Step) -> Result<(), Broken> {
        match *step {
            Step::SetCapacity(size) => {
                let bytes = self.size(size);
                self.device.set_capacity(Bytes(bytes));
                self.plain.set_capacity(bytes);
            }
            Step::SetExternal(size) => {
                let bytes = self.size(size);
                self.device.set_external_bytes(Bytes(bytes));
                self.plain.set_external(bytes);
            }
            Step::SetProcess(pid, size) => {
                let bytes = self.size(size);
                self.device.set_process_bytes(pid, Bytes(bytes));
                self.plain.set_process(pid, bytes);
            }
            Step::FailNext(calls) => {
                self.device.fail_next(calls);
                self.plain.set_fail_next(calls);
            }
            Step::Plan(ref faults) => {
                self.device.set_fault_plan(plan_of(faults));
                self.plain.set_plan(faults);
            }
            Step::Log(level) => {
                self.compare_logs()?;
                let level = [LogLevel::Off, LogLevel::Memory, LogLevel::Events][usize::from(level) % 3];
                self.device.set_log_level(level);
                self.plain.set_log_level(level);
            }
            Step::Addresses(is_reservation, address) => self.set_addresses(is_reservation, address),
            Step::Moment(moment) => {
                self.device.set_moment(moment);
                self.plain.malloc_rule.answers.moment = moment;
            }
            _ => self.go_on_with_a_clone(),
        }
        Ok(())
    }

    fn set_addresses(&mut self, is_reservation: bool, address: Option<u64>) {
        let device = &mut self.device;
        let model = if is_reservation { device.reservation_model_mut() } else { device.address_model_mut::<Scripted>() };
        let Some(model) = model else { return };
        match address {
            Some(address) => model.push(address),
            None => model.clear(),
        }
        let rule = if is_reservation { &mut self.plain.reserve_rule } else { &mut self.plain.malloc_rule };
        rule.extend(address);
    }

    /// Continues with a clone, after the original has done whatever could change something that they share.
    fn go_on_with_a_clone(&mut self) {
        let clone = self.device.clone();
        let mut original = std::mem::replace(&mut self.device, clone);
        original.complete_all();
        for (address, _) in original.live_ranges().collect::<Vec<_>>() {
            let _ = original.free(address);
        }
        for bytes in [512, PAGE_BYTES, 3 * PAGE_BYTES] {
            let _ = original.malloc(Bytes(bytes));
            let _ = original.reserve(Bytes(bytes));
        }
        original.set_moment(u64::MAX);
    }

    fn address_call(&mut self, step: &Step) -> Result<(), Broken> {
        match *step {
            Step::Reserve(size) => {
                let bytes = self.size(size);
                let seen = self.device.reserve(Bytes(bytes)).map(DeviceAddress::get);
                same("the address", &seen, &self.plain.reserve(bytes))
            }
            Step::Unreserve(spot, size) => {
                let (address, bytes) = self.range(spot, size);
                let seen = self.device.unreserve(DeviceAddress(address), Bytes(bytes));
                same("the answer", &seen, &self.plain.unreserve(address, bytes))
            }
            Step::SetAccess(spot, size) => {
                let (address, bytes) = self.range(spot, size);
                let seen = self.device.set_access(DeviceAddress(address), Bytes(bytes));
                same("the answer", &seen, &self.plain.set_access(address, bytes))
            }
            Step::Unmap(spot, size) => {
                let (address, bytes) = self.range(spot, size);
                let seen = self.device.unmap(DeviceAddress(address), Bytes(bytes));
                same("the answer", &seen, &self.plain.unmap(address, bytes))
            }
            _ => Ok(()),
        }
    }

    /// Returns the place of memory that is released, or that is not.
    fn memory_at(&self, which: usize, is_released: bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.memory.len()).filter(|&index| self.memory[index].is_released == is_released).collect();
        nth(&all, which).copied()
    }

    fn hold(&mut self, device: SimPhysical, plain: Memory) -> Result<(), Broken> {
        let seen = (device.ordinal(), device.pieces(), device.piece_bytes(), device.bytes());
        same("the memory", &seen, &(plain.first as u64, plain.pieces as u64, plain.piece_bytes, plain.bytes()))?;
        self.memory.push(Held { device, plain, is_released: false });
        Ok(())
    }

    fn handle_call(&mut self, step: &Step) -> Result<(), Broken> {
        match *step {
            Step::Create(size) => {
                let bytes = self.size(size);
                let (seen, expected) = (self.device.create(Bytes(bytes)), self.plain.create(bytes));
                same("the outcome", &seen.as_ref().err(), &expected.as_ref().err())?;
                seen.ok().zip(expected.ok()).map_or(Ok(()), |(device, plain)| self.hold(device, plain))
            }
            Step::CreateRun(page, pages) => {
                // The plain device creates page by page.
                let pages = if self.plain.room() / PAGE_BYTES > MANY_PAGES { pages.min(MANY_PAGES) } else { pages };
                let (seen, expected) = (self.device.create_run(Bytes(page), pages), self.plain.create_run(page, pages));
                let count = seen.as_ref().map(|run| run.1).map_err(|error| *error);
                same("the pages", &count, &expected.as_ref().map(|run| run.1).map_err(|error| *error))?;
                seen.ok().zip(expected.ok()).map_or(Ok(()), |(device, plain)| self.hold(device.0, plain.0))
            }
            Step::SplitRun(which, pages, is_whole) => {
                let Some(index) = self.memory_at(which, false) else { return Ok(()) };
                let held = &mut self.memory[index];
                let page = if is_whole { held.plain.piece_bytes } else { held.plain.piece_bytes + PAGE_BYTES };
                let seen = self.device.split_run(&mut held.device, Bytes(page), pages);
                let expected = held.plain.split(page, pages);
                same("the outcome", &seen.as_ref().err(), &expected.as_ref().err())?;
                same("what is kept", &held.device.bytes(), &held.plain.bytes())?;
                seen.ok().zip(expected.ok()).map_or(Ok(()), |(device, plain)| self.hold(device, plain))
            }
            Step::Map(spot, size, which) => self.map(spot, size, self.memory_at(which, false)),
            Step::MapAgain(spot, which) => self.map(spot, Size::Same(0), self.memory_at(which, true)),
            Step::UnmapRun(spot, which, pages) => self.unmap_run(spot, which, pages),
            Step::Release(which) => self.release(self.memory_at(which, false)),
            Step::ReleaseAgain(which) => self.release(self.memory_at(which, true)),
            Step::Break(which, spot, ref parts, more) => self.break_handle(which, spot, parts, more),
            _ => Ok(()),
        }
    }

    fn map(&mut self, spot: Spot, size: Size, index: Option<usize>) -> Result<(), Broken> {
        let Some(held) = index.map(|index| self.memory[index].clone()) else { return Ok(()) };
        let at = self.at(spot);
        let bytes = self.bytes(size, at, held.plain.bytes());
        self.mapped_bytes = held.plain.bytes();
        let seen = self.device.map(DeviceAddress(at.0), Bytes(bytes), &held.device);
        same("the answer", &seen, &self.plain.map(at.0, bytes, &held.plain))
    }

    /// Unmaps pages in one call, where the interface allows that.
    fn unmap_run(&mut self, spot: Spot, which: usize, pages: u64) -> Result<(), Broken> {
        let page = self.memory_at(which, false).map_or(PAGE_BYTES, |index| self.memory[index].plain.piece_bytes);
        let (address, _) = self.at(spot);
        let pages = pages.min(self.plain.run_pages());
        let is_outside = self.plain.reservations().iter().all(|&(from, to)| address < from || to <= address);
        let is_run = pages <= 1 || is_outside || self.plain.is_in_pages(address, page, pages);
        let pages = if is_run { pages } else { 1 };
        let seen = self.device.unmap_run(DeviceAddress(address), Bytes(page), pages);
        same("the answer", &seen, &self.plain.unmap_run(address, page, pages))
    }

    fn release(&mut self, index: Option<usize>) -> Result<(), Broken> {
        let Some(index) = index else { return Ok(()) };
        let held = self.memory[index].clone();
        let seen = self.device.release(held.device.clone());
        let expected = self.plain.release(&held.plain);
        same("the answer", &seen, &expected.map_err(|error| (held.device, error)))?;
        self.memory[index].is_released |= expected.is_ok();
        Ok(())
    }

    /// Breaks memory of one piece.
    fn break_handle(&mut self, which: usize, spot: Spot, parts: &[(u64, u64)], more: u64) -> Result<(), Broken> {
        let Some(index) = self.memory_at(which, false).filter(|&index| self.memory[index].plain.pieces == 1) else {
            return Ok(());
        };
        let held = self.memory[index].clone();
        let mapped = self.plain.mapping_of(held.plain.first);
        let address = mapped.unwrap_or(self.at(spot).0).wrapping_add_signed(spot.offset);
        let parts: Vec<(u64, u64)> = parts.iter().map(|part| (part.0 * PAGE_BYTES, part.1 * PAGE_BYTES + more)).collect();
        let given: Vec<(Bytes, Bytes)> = parts.iter().map(|part| (Bytes(part.0), Bytes(part.1))).collect();
        let size = held.device.bytes();
        let seen = self.device.break_handle(DeviceAddress(address), Bytes(size), held.device.clone(), &given);
        let expected = self.plain.break_handle(address, &held.plain, &parts);
        match (seen, expected) {
            (Ok(seen), Ok(expected)) => {
                same("the number of parts", &seen.len(), &expected.len())?;
                self.memory[index].is_released = true;
                seen.into_iter().zip(expected).try_for_each(|(device, plain)| self.hold(device, plain))
            }
            (seen, expected) => {
                let seen = seen.map(|parts| parts.len());
                same("the answer", &seen, &expected.map(|parts| parts.len()).map_err(|error| (held.device, error)))
            }
        }
    }

    fn event_call(&mut self, step: &Step) -> Result<(), Broken> {
        if let Step::CreateEvent = step {
            let (seen, expected) = (self.device.create_event(), self.plain.create_event());
            let ordinal = seen.as_ref().map(SimEvent::ordinal).map_err(|error| *error);
            same("the event", &ordinal, &expected.as_ref().map(|event| event.ordinal).map_err(|error| *error))?;
            self.events.extend(seen.ok().zip(expected.ok()));
            return Ok(());
        }
        let (Step::Record(which, _)
        | Step::Query(which)
        | Step::Wait(which)
        | Step::StreamWait(_, which, _)
        | Step::DestroyEvent(which)) = *step
        else {
            return Ok(());
        };
        let streams = self.streams.clone();
        let count = self.events.len().max(1);
        let Some((event, plain)) = self.events.get_mut(which % count) else { return Ok(()) };
        match *step {
            Step::Record(_, stream) => {
                let stream = streams[stream % streams.len()];
                let seen = self.device.record_event(event, stream_id(stream));
                same("the answer", &seen, &self.plain.record(plain, stream))
            }
            Step::Query(_) => same("the answer", &self.device.is_complete(event), &self.plain.query(plain)),
            Step::Wait(_) => same("the answer", &self.device.wait(event), &self.plain.wait(plain)),
            Step::StreamWait(stream, _, true) => {
                let stream = streams[stream % streams.len()];
                let seen = DeviceBackend::stream_wait(&mut self.device, stream_id(stream), event);
                same("the answer", &seen, &self.plain.stream_wait(stream, plain))
            }
            Step::StreamWait(stream, ..) => {
                let stream = streams[stream % streams.len()];
                SimDevice::stream_wait(&mut self.device, stream_id(stream), event);
                self.plain.hold_back(stream, plain);
                Ok(())
            }
            _ => {
                self.device.destroy_event(event.clone());
                self.plain.destroy_event(plain);
                Ok(())
            }
        }
    }

    fn stream_step(&mut self, step: &Step) -> Result<(), Broken> {
        let which = match *step {
            Step::IsIdle(which)
            | Step::SynchronizeStream(which)
            | Step::DestroyStream(which)
            | Step::WaitFor(which)
            | Step::Spin(which, _)
            | Step::Complete(which)
            | Step::CompleteOne(which) => which,
            _ => 0,
        };
        let stream = self.stream(which);
        let id = stream_id(stream);
        match *step {
            Step::IsIdle(_) => return same("the answer", &self.device.is_idle(id), &self.plain.is_idle(stream)),
            Step::SynchronizeStream(_) => {
                return same("the answer", &self.device.synchronize_stream(id), &self.plain.synchronize_stream(stream));
            }
            Step::CompleteOne(_) => {
                return same("the events", &self.device.complete_one(id), &self.plain.complete_one(stream));
            }
            Step::CreateStream => {
                let (seen, expected) = (self.device.create_stream().get(), self.plain.create_stream());
                self.streams.push(expected);
                return same("the stream", &seen, &expected);
            }
            Step::DestroyStream(_) => {
                self.device.destroy_stream(id);
                self.plain.destroy_stream(stream);
            }
            Step::WaitFor(_) => {
                self.device.wait_for(id);
                self.plain.wait_for(stream);
            }
            Step::Spin(_, ns) => {
                self.device.spin(id, ns);
                let nothing = self.plain.kernel(stream, ns, "spin", &[]);
                return same("the answer", &Ok(()), &nothing);
            }
            Step::Advance(ns) => {
                self.device.advance(ns);
                self.plain.clock.pass(ns);
            }
            Step::Complete(_) => {
                self.device.complete(id);
                self.plain.complete(stream);
            }
            Step::CompleteAll => {
                self.device.complete_all();
                self.plain.complete_all();
            }
            _ => {
                self.device.synchronize();
                self.plain.synchronize();
            }
        }
        Ok(())
    }

    fn work(&mut self, step: &Step) -> Result<(), Broken> {
        match *step {
            Step::Kernel(stream, duration_ns, ref uses) => {
                let stream = self.stream(stream);
                let access = |used: &Use| {
                    let (address, bytes) = self.range(used.at, used.size);
                    let access = if used.writes { Access::write } else { Access::read };
                    access(DeviceAddress(address), Bytes(bytes))
                };
                let uses: Vec<Access> = uses.iter().map(access).collect();
                let accesses = uses.clone();
                let kernel = Kernel { stream: stream_id(stream), duration_ns, label: "kernel".into(), accesses };
                same_access(self.device.kernel(kernel), self.plain.kernel(stream, duration_ns, "kernel", &uses))
            }
            Step::Crowd(stream, count, spot, writes) => (0..count as i64).try_for_each(|number| {
                let at = Spot { offset: spot.offset.wrapping_add(8 * number), ..spot };
                self.work(&Step::Kernel(stream, 0, vec![Use { at, size: Size::Bytes(4), writes }]))
            }),
            Step::Fill(spot, size, word, stream) => {
                let ((address, bytes), stream) = (self.range(spot, size), self.stream(stream));
                let seen = self.device.fill(DeviceAddress(address), Bytes(bytes), word, stream_id(stream));
                same_access(seen, self.plain.fill(address, bytes, word, stream))
            }
            Step::Copy(from, to, size, stream) => {
                let ((from, bytes), (to, _), stream) = (self.range(from, size), self.at(to), self.stream(stream));
                let seen = self.device.copy(DeviceAddress(from), DeviceAddress(to), Bytes(bytes), stream_id(stream));
                same_access(seen, self.plain.copy(from, to, bytes, stream))
            }
            Step::Read(spot, bytes) => self.read(self.at(spot).0, bytes),
            Step::Ask(spot) => self.ask(self.at(spot).0),
            _ => Ok(()),
        }
    }

    fn read(&mut self, address: u64, bytes: u64) -> Result<(), Broken> {
        let mut into = vec![0xee; bytes as usize];
        let seen = self.device.read(DeviceAddress(address), &mut into).map(|()| into.clone());
        if seen.is_err() {
            same("what a refused read returns", &into, &vec![0xee; bytes as usize])?;
        }
        same(&format!("{bytes} bytes at {address:#x}"), &seen, &self.plain.read(address, bytes))
    }

    fn ask(&self, address: u64) -> Result<(), Broken> {
        let at = DeviceAddress(address);
        same("the address's name", &self.device.name_address(at), &self.plain.name_text(address))?;
        same("the page", &self.device.page_behind(at).map(|page| page.0), &self.plain.page_behind(address))?;
        let Some(expected) = self.plain.pages_at(address) else { return Ok(()) };
        let seen = self.device.pages_at(at).iter().map(|run| (run.first.0, run.first.0 + run.count));
        same("the pages", &super::gaps::joined(seen), &expected)
    }

    fn capture(&mut self, step: &Step) -> Result<(), Broken> {
        match *step {
            Step::BeginCapture(which) => {
                let stream = self.stream(which);
                let seen = self.device.begin_capture(stream_id(stream));
                same("the capture", &seen, &self.plain.captures.begin(stream))
            }
            Step::EndCapture(which) => {
                let stream = self.stream(which);
                self.device.end_capture(stream_id(stream));
                self.plain.captures.end(stream);
                Ok(())
            }
            Step::CaptureWork(which) => {
                let stream = self.stream(which);
                let seen = self.device.capture_work(stream_id(stream)).map(|node| node.0);
                same("the node", &seen, &self.plain.captures.work(stream))
            }
            Step::CaptureWait(which, other) => {
                let (stream, other) = (self.stream(which), self.stream(other));
                let seen = self.device.capture_wait(stream_id(stream), stream_id(other));
                same("the answer", &seen, &self.plain.captures.wait(stream, other))
            }
            Step::Capture(which, known) => self.compare_capture(self.stream(which), known),
            _ => Ok(()),
        }
    }

    /// Compares the capture of a stream, and what it awaits if the nodes up to a multiple of this number are known.
    fn compare_capture(&mut self, stream: u64, known: u64) -> Result<(), Broken> {
        let id = stream_id(stream);
        let expected = self.plain.captures.of(stream);
        same("whether it is captured", &self.device.is_captured(id), &expected.is_some())?;
        let expected = expected.map(|(id, ends)| Capture { id, ends: ends.into_iter().map(GraphNode).collect() });
        same("the capture", &self.device.capture(id), &Ok(expected))?;
        let known: BTreeSet<u64> = if known > 0 { [known, 2 * known].into() } else { BTreeSet::new() };
        let mut seen: BTreeSet<GraphNode> = known.iter().copied().map(GraphNode).collect();
        same("the answer", &self.device.add_awaited(id, &mut seen), &Ok(()))?;
        let mut expected = known;
        self.plain.captures.add_awaited(stream, &mut expected);
        same("the awaited nodes", &seen.into_iter().map(|node| node.0).collect(), &expected)
    }
}

/// What is compared after each step, and at the end.
impl Player {
    fn compare(&self) -> Result<(), Broken> {
        let (device, plain) = (&self.device, &self.plain);
        let sum = plain.clock.sum();
        same("the time", &device.now_ns(), &plain.clock.now_ns)?;
        for call in CallName::ALL {
            same(&format!("the totals of {}", call.as_str()), &device.totals(call), &plain.totals(call))?;
        }
        let seen = (device.driver_calls(), device.driver_ns(), device.waited_ns(), device.waiting_calls());
        same("calls, price, waiting time, waits", &seen, &(sum.calls, sum.cost_ns, sum.wait_ns, plain.clock.waits))?;
        let seen = (device.used_bytes().get(), device.peak_used_bytes().get(), device.capacity().get(), device.withheld().get());
        let expected = (plain.used_bytes(), plain.peak_bytes(), plain.capacity(), plain.withheld());
        same("used, peak, capacity, withheld", &seen, &expected)?;
        let seen = (device.index(), device.total_memory().get());
        same("index and total", &seen, &(plain.index(), plain.total_memory()))?;
        let seen = (device.live_events(), device.live_reservations(), device.live_physical());
        same("events, reservations, memory", &seen, &(plain.live_events(), plain.reservations().len(), plain.live_pieces()))?;
        let seen = (device.fault_plan().fired(), device.run_pages());
        same("faults, pages in one call", &seen, &(plain.plan.fired, plain.run_pages()))?;
        let live: Vec<(u64, u64)> = device.live_ranges().map(|(from, bytes)| (from.get(), bytes.get())).collect();
        same("the live ranges", &live, &plain.live_ranges())?;
        self.compare_models()?;
        self.compare_races()
    }

    fn compare_models(&self) -> Result<(), Broken> {
        let (device, plain) = (&self.device, &self.plain);
        let models = [
            (device.address_model::<Scripted>(), device.address_model::<Answers>(), &plain.malloc_rule),
            (device.reservation_model(), device.reservation_model(), &plain.reserve_rule),
        ];
        for (rule, (scripted, answers, placer)) in self.rules.iter().zip(models) {
            let expected = [matches!(rule, Some(Rule::Listed(..))), matches!(rule, Some(Rule::Answers(_)))];
            same("the kind of model", &[scripted.is_some(), answers.is_some()], &expected)?;
            if let Some(model) = scripted {
                let expected = (placer.fallbacks, placer.remaining());
                same("fallbacks and the rest of the list", &(model.fallbacks(), model.remaining()), &expected)?;
            }
            if let Some(model) = answers {
                same("what the model is asked", model, &placer.answers)?;
            }
        }
        Ok(())
    }

    fn compare_races(&self) -> Result<(), Broken> {
        let (seen, expected) = (self.device.races(), self.plain.races());
        same("the number of races", &(seen.len() as u64 + self.device.more_races()), &(expected.len() as u64))?;
        same("the number of races that are kept", &seen.len(), &expected.len().min(KEPT_RACES))?;
        // The last ones are new.
        for (seen, expected) in seen.iter().zip(expected).rev().take(8) {
            same("a race", &((*seen.first).clone(), (*seen.second).clone()), expected)?;
            same("the text of a race", &seen.to_string(), &order::text(expected))?;
        }
        Ok(())
    }

    fn compare_logs(&mut self) -> Result<(), Broken> {
        let (seen, expected) = (self.device.take_log(), self.plain.take_log());
        same("the length of the log", &seen.len(), &expected.len())?;
        for (seen, expected) in seen.iter().zip(&expected) {
            same("a logged call", seen, expected)?;
            same("the text of a call", &seen.render(), &texts::line(expected))?;
        }
        same("the log after it was taken", &self.device.take_log(), &Vec::<Call>::new())
    }

    /// Looks at everything that is left.
    fn examine(&mut self) -> Result<(), Broken> {
        self.compare_logs()?;
        for step in [Step::Processes, Step::Info] {
            self.memory_call(&step)?;
        }
        let events = (0..self.events.len()).map(Step::Query);
        events.collect::<Vec<_>>().iter().try_for_each(|step| self.event_call(step))?;
        for stream in self.streams.clone() {
            self.compare_capture(stream, 0)?;
        }
        let ranges = [self.plain.named(), self.plain.mapped()].concat();
        for (from, to) in ranges {
            for address in [from.wrapping_sub(1), from, to - 1, to] {
                self.ask(address)?;
            }
        }
        let borders = self.plain.written_borders();
        let skipped = borders.len().saturating_sub(MOST_BORDERS);
        for border in borders.into_iter().skip(skipped) {
            self.read(border.saturating_sub(5), 5)?;
            self.read(border, 5)?;
        }
        self.compare()
    }
}
