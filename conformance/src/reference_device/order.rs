//! Compares the race detector with a naive checker, which turns a random program into a graph of all its events and
//! checks every pair of accesses in the graph's transitive closure.

use std::collections::BTreeSet;

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_sim::{Access, AccessKind, EventTiming, Kernel, SimDevice, SimEvent, SimOptions, SimPhysical};
use proptest::prelude::*;

const PAGE: u64 = 2 * MIB;
const CELL: u64 = 4096;
const CELLS: u64 = 6;
const STREAMS: usize = 3;
const EVENTS: usize = 3;
/// Routes to memory: two addresses of one created page, and two cudaMallocs that share a page.
const WAYS: usize = 4;
/// The number of races that the detector keeps.
const MAX_RACES: usize = 100;

/// Route, first cell, number of cells, and whether they are read or written.
type Span = (usize, u64, u64, AccessKind);

#[derive(Clone, Debug)]
enum Op {
    Kernel(usize, u64, Vec<Span>),
    Record(usize, usize),
    StreamWait(usize, usize),
    Query(usize),
    Wait(usize),
    SynchronizeStream(usize),
    Synchronize,
    HostRead(Span),
    Remap(usize),
    FreeAndMalloc(usize),
}

fn span() -> impl Strategy<Value = Span> {
    let kind = prop_oneof![Just(AccessKind::Read), Just(AccessKind::Write)];
    (0..WAYS, 0..CELLS, 1..4_u64, kind).prop_map(|(way, first, count, kind)| (way, first, count.min(CELLS - first), kind))
}

fn op() -> impl Strategy<Value = Op> {
    let (stream, event) = (0..STREAMS, 0..EVENTS);
    let kernel = (stream.clone(), 0..1000_u64, prop::collection::vec(span(), 0..4));
    let kernel = kernel.prop_map(|(stream, duration_ns, spans)| Op::Kernel(stream, duration_ns, spans));
    prop_oneof![
        12 => kernel,
        5 => (event.clone(), stream.clone()).prop_map(|(event, stream)| Op::Record(event, stream)),
        5 => (stream.clone(), event.clone()).prop_map(|(stream, event)| Op::StreamWait(stream, event)),
        3 => event.clone().prop_map(Op::Query),
        3 => event.prop_map(Op::Wait),
        1 => stream.prop_map(Op::SynchronizeStream),
        1 => Just(Op::Synchronize),
        2 => span().prop_map(Op::HostRead),
        1 => (0..2_usize).prop_map(Op::Remap),
        1 => (2..WAYS).prop_map(Op::FreeAndMalloc),
    ]
}

fn timing() -> impl Strategy<Value = EventTiming> {
    prop_oneof![
        Just(EventTiming::Clock),
        Just(EventTiming::Eager),
        Just(EventTiming::Lazy),
        any::<u64>().prop_map(EventTiming::Seeded)
    ]
}

/// All events of the program, and their order.
#[derive(Default)]
struct Graph {
    /// For every node, the nodes before it.
    before: Vec<BTreeSet<usize>>,
    host: Option<usize>,
    streams: [Option<usize>; STREAMS],
}

impl Graph {
    fn node(&mut self, edges: &[Option<usize>]) -> usize {
        let mut before = BTreeSet::new();
        for &edge in edges.iter().flatten() {
            before.insert(edge);
            before.extend(&self.before[edge]);
        }
        self.before.push(before);
        self.before.len() - 1
    }

    /// Adds a host call, which comes after the host's earlier calls and the events that it waits for.
    fn call(&mut self, waits: &[Option<usize>]) {
        let edges = [&[self.host], waits].concat();
        self.host = Some(self.node(&edges));
    }

    /// Adds an event that a host call queues on a stream.
    fn put(&mut self, stream: usize, waits: &[Option<usize>]) -> usize {
        self.call(&[]);
        let edges = [&[self.host, self.streams[stream]], waits].concat();
        let node = self.node(&edges);
        self.streams[stream] = Some(node);
        node
    }
}

/// An access by a stream.
struct Kept {
    number: u64,
    node: usize,
    way: usize,
    /// (memory, cell). The two addresses of the page are the same memory; each cudaMalloc is
    /// different memory.
    cells: Vec<(u64, u64)>,
    kind: AccessKind,
}

struct Program {
    device: SimDevice,
    free_waits: bool,
    memory: SimPhysical,
    addresses: [DeviceAddress; WAYS],
    /// Returns the memory at the end of each route.
    memories: [u64; WAYS],
    streams: [StreamId; STREAMS],
    events: Vec<SimEvent>,
    recorded: [Option<usize>; EVENTS],
    graph: Graph,
    kept: Vec<Kept>,
    numbers: u64,
    races: Vec<(u64, u64)>,
}

impl Program {
    fn new(options: SimOptions, free_waits: bool) -> Self {
        let mut device = SimDevice::new(options.free_waits(free_waits));
        let start = device.reserve(Bytes(2 * PAGE)).unwrap();
        let memory = device.create(Bytes(PAGE)).unwrap();
        let mut addresses = [start; WAYS];
        addresses[1] = start.offset(Bytes(PAGE));
        for address in &addresses[..2] {
            device.map(*address, Bytes(PAGE), &memory).unwrap();
            device.set_access(*address, Bytes(PAGE)).unwrap();
        }
        addresses[2] = device.malloc(Bytes(CELLS * CELL)).unwrap();
        addresses[3] = device.malloc(Bytes(CELLS * CELL)).unwrap();
        let streams = [StreamId::DEFAULT, device.create_stream(), device.create_stream()];
        let events = (0..EVENTS).map(|_| device.create_event().unwrap()).collect();
        let mut program = Program {
            device,
            free_waits,
            memory,
            addresses,
            memories: [0, 0, 1, 2],
            streams,
            events,
            recorded: [None; EVENTS],
            graph: Graph::default(),
            kept: Vec::new(),
            numbers: 0,
            races: Vec::new(),
        };
        // The detector starts numbering with the first access.
        program.kernel(0, 0, &[(3, 0, 1, AccessKind::Read)]);
        program
    }

    fn cells(&self, (way, first, count, _): Span) -> Vec<(u64, u64)> {
        (first..first + count).map(|cell| (self.memories[way], cell)).collect()
    }

    /// Returns whether `later` hides `earlier` in a cell that both access: it is ordered after `earlier`, uses the
    /// same address, and is not a read after a write.
    fn hides(&self, later: &Kept, earlier: &Kept) -> bool {
        let is_behind = later.node == earlier.node || self.graph.before[later.node].contains(&earlier.node);
        later.number > earlier.number && is_behind && later.way == earlier.way && later.kind >= earlier.kind
    }

    /// Records a race with every access that counts, uses one of the cells, and is not ordered before `node`.
    fn look_for_races(&mut self, node: usize, cells: &[(u64, u64)], counts: impl Fn(&Kept) -> bool) {
        self.numbers += 1;
        let before = &self.graph.before[node];
        for first in self.kept.iter().filter(|kept| kept.node != node && !before.contains(&kept.node) && counts(kept)) {
            let is_hidden = |cell| self.kept.iter().any(|later| later.cells.contains(cell) && self.hides(later, first));
            if first.cells.iter().any(|cell| cells.contains(cell) && !is_hidden(cell)) {
                self.races.push((first.number, self.numbers));
            }
        }
    }

    fn kernel(&mut self, stream: usize, duration_ns: u64, spans: &[Span]) {
        let access = |&(way, first, count, kind): &Span| {
            let address = self.addresses[way].offset(Bytes(first * CELL));
            Access { address, size: Bytes(count * CELL), kind }
        };
        let accesses = spans.iter().map(access).collect();
        let kernel = Kernel { stream: self.streams[stream], duration_ns, label: "kernel".into(), accesses };
        self.device.kernel(kernel).unwrap();
        let node = self.graph.put(stream, &[]);
        for &span in spans {
            let (cells, kind) = (self.cells(span), span.3);
            self.look_for_races(node, &cells, |kept| kept.kind == AccessKind::Write || kind == AccessKind::Write);
            self.kept.push(Kept { number: self.numbers, node, way: span.0, cells, kind });
        }
    }

    /// Records that the host has seen an event complete. Everything before it is therefore done, and every event
    /// recorded before it is complete.
    fn host_saw(&mut self, event: usize) -> Result<(), TestCaseError> {
        self.graph.call(&[self.recorded[event]]);
        let Some(node) = self.recorded[event] else { return Ok(()) };
        for other in 0..EVENTS {
            if self.recorded[other].is_some_and(|other| self.graph.before[node].contains(&other)) {
                let is_complete = self.device.is_complete(&self.events[other]);
                prop_assert_eq!(is_complete, Ok(true), "event {} is complete, but {} before it is not", event, other);
            }
        }
        Ok(())
    }

    fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Kernel(stream, duration_ns, ref spans) => self.kernel(stream, duration_ns, spans),
            Op::Record(event, stream) => {
                self.device.record_event(&mut self.events[event], self.streams[stream]).unwrap();
                self.recorded[event] = Some(self.graph.put(stream, &[]));
            }
            Op::StreamWait(stream, event) => {
                self.device.stream_wait(self.streams[stream], &self.events[event]);
                self.graph.put(stream, &[self.recorded[event]]);
            }
            Op::Query(event) => {
                if self.device.is_complete(&self.events[event]).unwrap() {
                    self.host_saw(event)?;
                }
            }
            Op::Wait(event) => {
                self.device.wait(&self.events[event]).unwrap();
                self.host_saw(event)?;
            }
            Op::SynchronizeStream(stream) => {
                self.device.synchronize_stream(self.streams[stream]).unwrap();
                self.graph.call(&[self.graph.streams[stream]]);
            }
            Op::Synchronize => {
                self.device.synchronize();
                self.graph.call(&self.graph.streams.clone());
            }
            Op::HostRead(span) => self.host_read(span),
            Op::Remap(way) => self.remap(way),
            Op::FreeAndMalloc(way) => self.free_and_malloc(way),
        }
        Ok(())
    }

    fn host_read(&mut self, span: Span) {
        let (way, first, count, _) = span;
        let mut into = vec![0; (count * CELL) as usize];
        self.device.read(self.addresses[way].offset(Bytes(first * CELL)), &mut into).unwrap();
        self.graph.call(&[self.graph.streams[0]]);
        let cells = self.cells(span);
        self.look_for_races(self.graph.host.unwrap(), &cells, |kept| kept.kind == AccessKind::Write);
    }

    fn remap(&mut self, way: usize) {
        self.device.unmap(self.addresses[way], Bytes(PAGE)).unwrap();
        self.device.map(self.addresses[way], Bytes(PAGE), &self.memory).unwrap();
        self.device.set_access(self.addresses[way], Bytes(PAGE)).unwrap();
        self.end(way);
    }

    fn free_and_malloc(&mut self, way: usize) {
        self.device.free(self.addresses[way]).unwrap();
        if self.free_waits {
            self.graph.call(&self.graph.streams.clone());
        }
        self.end(way);
        self.memories[way] = 100 + self.numbers; // different memory, even at the same address
        self.addresses[way] = self.device.malloc(Bytes(CELLS * CELL)).unwrap();
    }

    /// Removes the memory behind a route.
    fn end(&mut self, way: usize) {
        self.graph.call(&[]);
        let cells = self.cells((way, 0, CELLS, AccessKind::Write));
        self.look_for_races(self.graph.host.unwrap(), &cells, |kept| kept.way == way);
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let found: Vec<(u64, u64)> = self.device.races().iter().map(|race| (race.first.number, race.second.number)).collect();
        let expected = &self.races[..self.races.len().min(MAX_RACES)];
        prop_assert_eq!(&found[..], expected);
        prop_assert_eq!(found.len() as u64 + self.device.more_races(), self.races.len() as u64);
        Ok(())
    }
}

proptest! {
    #[test]
    fn the_detector_agrees_with_the_closure_of_the_graph(
        timing in timing(), free_waits in any::<bool>(), ops in prop::collection::vec(op(), 1..80)
    ) {
        let mut program = Program::new(SimOptions::new(Bytes::mib(64)).event_timing(timing), free_waits);
        for op in &ops {
            program.step(op)?;
            program.check()?;
        }
    }

    #[test]
    fn a_program_on_one_stream_never_races(timing in timing(), ops in prop::collection::vec(op(), 1..80)) {
        let mut program = Program::new(SimOptions::new(Bytes::mib(64)).event_timing(timing), true);
        for op in ops {
            let op = match op {
                Op::Kernel(_, duration_ns, spans) => Op::Kernel(0, duration_ns, spans),
                Op::Record(event, _) => Op::Record(event, 0),
                Op::StreamWait(_, event) => Op::StreamWait(0, event),
                Op::SynchronizeStream(_) => Op::SynchronizeStream(0),
                Op::Remap(way) => {
                    program.step(&Op::SynchronizeStream(0))?; // cuMemUnmap does not wait
                    Op::Remap(way)
                }
                other => other,
            };
            program.step(&op)?;
        }
        prop_assert_eq!((program.device.races(), program.device.more_races()), (&[][..], 0));
    }
}
