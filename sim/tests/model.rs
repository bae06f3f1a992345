//! Compares random programs with a naive model: ranges never overlap, memory adds up, completed events stay complete,
//! time only advances, and the same program results in the same device.

use std::collections::BTreeSet;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};
use parkade_sim::address::{Ascending, Descending, Reuse, Scripted};
use parkade_sim::{EventTiming, LogLevel, SimDevice, SimEvent, SimOptions};
use proptest::prelude::*;

const PAGE: u64 = 2 * MIB;
const CAPACITY: u64 = 64 * MIB + 12_345;

fn recorded(device: &mut SimDevice, stream: u64) -> SimEvent {
    let mut event = device.create_event().unwrap();
    device.record_event(&mut event, StreamId(stream)).unwrap();
    event
}

#[derive(Clone, Debug)]
enum Op {
    Malloc(u64),
    Free(usize),
    FreeWrong(u64),
    Launch(u64, u64),
    Record(u64),
    Query(usize),
    Wait(usize),
    CompleteOne(u64),
    External(u64),
    FailNext,
    Synchronize,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..=MIB).prop_map(Op::Malloc),
        2 => (1..2048_u64).prop_map(|blocks| Op::Malloc(blocks * 512)),
        4 => (MIB + 1..12 * MIB).prop_map(Op::Malloc),
        8 => any::<usize>().prop_map(Op::Free),
        1 => any::<u64>().prop_map(Op::FreeWrong),
        2 => (0..3_u64, 0..1_000_000_u64).prop_map(|(stream, ns)| Op::Launch(stream, ns)),
        3 => (0..3_u64).prop_map(Op::Record),
        3 => any::<usize>().prop_map(Op::Query),
        1 => any::<usize>().prop_map(Op::Wait),
        1 => (0..3_u64).prop_map(Op::CompleteOne),
        1 => (0..80 * MIB).prop_map(Op::External),
        1 => Just(Op::FailNext),
        1 => Just(Op::Synchronize),
    ]
}

/// Options, and whether small cudaMallocs share pages with them.
fn options() -> impl Strategy<Value = (SimOptions, bool)> {
    let timing = prop_oneof![
        Just(EventTiming::Clock),
        Just(EventTiming::Eager),
        Just(EventTiming::Lazy),
        any::<u64>().prop_map(EventTiming::Seeded)
    ];
    let script = prop::collection::vec((1..40_u64).prop_map(|page| page * PAGE), 0..30);
    let base = || SimOptions::new(Bytes(CAPACITY));
    let model = prop_oneof![
        Just(base().address_model(Ascending::new())),
        Just(base().address_model(Descending::new())),
        Just(base().address_model(Reuse::new())),
        script.prop_map(move |script| base().address_model(Scripted::new(script))),
    ];
    (model, timing, any::<bool>(), any::<bool>()).prop_map(|(options, timing, shares, waits)| {
        (options.event_timing(timing).shares_pages(shares).free_waits(waits), shares)
    })
}

/// A naive model: a list of live ranges, whose pages are counted only from sizes and addresses.
#[derive(Default)]
struct Naive {
    shares: bool,
    live: Vec<(u64, u64)>,
    external: u64,
    events: Vec<(SimEvent, bool)>,
}

impl Naive {
    /// Returns the number of pages of large ranges and of distinct pages that contain small ones. (All address models
    /// here place ranges on pages.)
    fn used_bytes(&self) -> u64 {
        let small = |bytes: u64| self.shares && bytes <= MIB;
        let shared: BTreeSet<u64> = self.live.iter().filter(|live| small(live.1)).map(|live| live.0 / PAGE).collect();
        let own: u64 = self.live.iter().filter(|live| !small(live.1)).map(|live| live.1.div_ceil(PAGE)).sum();
        (shared.len() as u64 + own) * PAGE
    }

    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.live.iter().any(|&(other, other_bytes)| address < other + other_bytes && other < address + bytes)
    }
}

fn malloc(device: &mut SimDevice, naive: &mut Naive, bytes: u64) -> Result<(), TestCaseError> {
    let before = naive.used_bytes();
    let room = CAPACITY.saturating_sub(naive.external + before);
    match device.malloc(Bytes(bytes)) {
        Ok(address) => {
            prop_assert_eq!(address.get() % 512, 0);
            prop_assert!(!naive.overlaps(address.get(), bytes), "{} overlaps a live range", address);
            naive.live.push((address.get(), bytes));
            prop_assert!(naive.used_bytes() - before <= room, "the device handed out memory that it did not have");
        }
        Err(error) => {
            prop_assert_eq!(error, BackendError::OutOfMemory { requested: Bytes(bytes) });
            prop_assert!(bytes.div_ceil(PAGE) * PAGE > room, "refused {} with {} free", bytes, room);
        }
    }
    Ok(())
}

/// Makes one event call. An event that was seen as complete must stay complete.
fn touch_event(device: &mut SimDevice, naive: &mut Naive, index: usize, wait: bool) -> Result<(), TestCaseError> {
    let count = naive.events.len().max(1);
    if let Some((event, seen)) = naive.events.get_mut(index % count) {
        if wait {
            device.wait(event).unwrap();
            *seen = true;
        }
        let now = device.is_complete(event).unwrap();
        prop_assert!(now || !*seen, "an event became incomplete again");
        *seen = now;
    }
    Ok(())
}

fn step(device: &mut SimDevice, naive: &mut Naive, op: &Op) -> Result<(), TestCaseError> {
    match *op {
        Op::Malloc(bytes) => malloc(device, naive, bytes)?,
        Op::Free(index) if !naive.live.is_empty() => {
            let (address, _) = naive.live.swap_remove(index % naive.live.len());
            prop_assert_eq!(device.free(DeviceAddress(address)), Ok(()));
        }
        Op::Free(_) => {}
        Op::FreeWrong(address) => {
            if naive.live.iter().all(|&(start, _)| start != address) {
                prop_assert!(device.free(DeviceAddress(address)).is_err());
            }
        }
        Op::Launch(stream, ns) => device.spin(StreamId(stream), ns),
        Op::Record(stream) => naive.events.push((recorded(device, stream), false)),
        Op::Query(index) => touch_event(device, naive, index, false)?,
        Op::Wait(index) => touch_event(device, naive, index, true)?,
        Op::CompleteOne(stream) => prop_assert!(device.complete_one(StreamId(stream)) <= 1),
        Op::External(bytes) => {
            naive.external = bytes;
            device.set_external_bytes(Bytes(bytes));
        }
        Op::FailNext => {
            device.fail_next(1);
            prop_assert!(device.malloc(Bytes(1)).is_err());
        }
        Op::Synchronize => {
            device.synchronize();
            naive.events.iter_mut().for_each(|(_, seen)| *seen = true);
        }
    }
    Ok(())
}

fn check(device: &mut SimDevice, naive: &Naive) -> Result<(), TestCaseError> {
    let used = naive.used_bytes();
    prop_assert_eq!(device.used_bytes(), Bytes(used));
    prop_assert!(device.peak_used_bytes() >= device.used_bytes());
    let free = device.memory_info().unwrap().free.get();
    prop_assert_eq!(free, CAPACITY.saturating_sub(naive.external + used));
    let mut expected: Vec<u64> = naive.live.iter().map(|&(address, _)| address).collect();
    expected.sort_unstable();
    prop_assert_eq!(device.live_ranges().map(|(address, _)| address.get()).collect::<Vec<_>>(), expected);
    Ok(())
}

proptest! {
    #[test]
    fn random_programs_agree_with_a_naive_model((options, shares) in options(), ops in prop::collection::vec(op(), 1..150)) {
        let mut device = SimDevice::new(options);
        let mut naive = Naive { shares, ..Naive::default() };
        let (mut last_ns, mut last_cost_ns) = (0, 0);
        for op in &ops {
            step(&mut device, &mut naive, op)?;
            check(&mut device, &naive)?;
            prop_assert!(device.now_ns() >= last_ns && device.driver_ns() >= last_cost_ns, "time went backwards");
            prop_assert!(device.now_ns() == device.driver_ns() + device.waited_ns(), "only calls move the clock");
            (last_ns, last_cost_ns) = (device.now_ns(), device.driver_ns());
        }
        for (address, _) in std::mem::take(&mut naive.live) {
            device.free(DeviceAddress(address)).unwrap();
        }
        prop_assert_eq!(device.used_bytes(), Bytes::ZERO);
    }

    #[test]
    fn the_same_program_gives_the_same_device((options, shares) in options(), ops in prop::collection::vec(op(), 1..100)) {
        let run = |mut device: SimDevice| {
            device.set_log_level(LogLevel::Events);
            let mut naive = Naive { shares, ..Naive::default() };
            for op in &ops {
                step(&mut device, &mut naive, op)?;
            }
            Ok::<_, TestCaseError>((device.take_log(), device.now_ns()))
        };
        prop_assert_eq!(run(SimDevice::new(options.clone()))?, run(SimDevice::new(options))?);
    }
}
