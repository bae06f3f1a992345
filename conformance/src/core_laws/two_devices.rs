//! Runs the same program on two devices that differ in what they can do or report. No decision may differ.

use parkade::device::DeviceBackend;
use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AdoptedBlock, AdoptedContent, AdoptedSegment, Allocation, PoolSlot};
use parkade_sim::{SimOptions, SimPhysical};
use proptest::prelude::*;

use crate::core_laws::devices::{Paged, PagedCore, Paper, PaperCore};
use crate::drawn::one_of;
use crate::drawn::{Draws, Outcome, run_law};
use crate::law::{Broken, Law, ensure};

/// Stream handles, lowest first. That is also their order in PyTorch's hash tables, and therefore the order in which
/// the other device is queried.
const STREAMS: [u64; 4] = [0, 7, 0x1000, u64::MAX];

/// One step. Its numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum EventStep {
    Allocate(u64, usize),
    Record(usize, usize),
    Free(usize),
    Complete(u64),
    ProcessEvents,
    ReleaseCached,
}

struct EventSide {
    core: PaperCore,
    held: Vec<Allocation>,
}

/// Devices whose events complete in the order of their streams' handles: an allocator that stops at the first
/// incomplete event makes the same decisions as one that queries every stream.
pub(crate) fn events_by_handle(draws: &Draws) -> Outcome {
    let which = any::<usize>;
    let sizes = prop::sample::select(vec![512, 4096, MIB, 3 * MIB, 12 * MIB]);
    let step = one_of![
        8 => (sizes, which()).prop_map(|(size, stream)| EventStep::Allocate(size, stream)),
        10 => (which(), which()).prop_map(|(what, stream)| EventStep::Record(what, stream)),
        7 => which().prop_map(EventStep::Free),
        4 => (1..6_u64).prop_map(EventStep::Complete),
        2 => Just(EventStep::ProcessEvents),
        1 => Just(EventStep::ReleaseCached),
    ];
    run_law(&draws.each_for(4), 359, (any::<bool>(), prop::collection::vec(step, 1..80)), |(is_newer, steps)| {
        let (mut says_so, mut silent) = (EventSide::new(*is_newer, true), EventSide::new(*is_newer, false));
        for (number, step) in steps.iter().enumerate() {
            says_so.step(step)?;
            silent.step(step)?;
            let same = says_so.core.segments() == silent.core.segments()
                && says_so.core.stats() == silent.core.stats()
                && says_so.core.observer() == silent.core.observer();
            ensure(Law::Determinism, same, || {
                let [seen, expected] = [says_so.core.segments(), silent.core.segments()];
                format!("after step {number}, {step:?}, the segments are {seen:?}, expected {expected:?}")
            })?;
            says_so.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        }
        Ok(steps.len() as u64)
    })
}

impl EventSide {
    fn new(is_newer: bool, says_so: bool) -> EventSide {
        let profile = if is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let device = Paper::new(1 << 36).completing_by_handle(says_so);
        EventSide { core: PaperCore::new(device, PyTorch::of(profile, Settings::default()), Vec::new()), held: Vec::new() }
    }

    fn step(&mut self, step: &EventStep) -> Result<(), Broken> {
        let stream = |place: usize| StreamId(STREAMS[place % STREAMS.len()]);
        let failed = |error: &dyn std::error::Error| Broken::new(Law::Reference, error);
        match *step {
            EventStep::Allocate(size, place) => {
                self.held.push(self.core.allocate(Bytes(size), stream(place)).map_err(|error| failed(&error))?);
            }
            EventStep::Record(what, place) if !self.held.is_empty() => {
                self.core.record_stream(&self.held[what % self.held.len()], stream(place));
            }
            EventStep::Free(what) if !self.held.is_empty() => {
                let allocation = self.held.swap_remove(what % self.held.len());
                self.core.free(allocation).map_err(|error| failed(&error))?;
            }
            EventStep::Complete(count) => self.core.device_mut().complete(count),
            EventStep::ProcessEvents => self.core.process_events().map_err(|error| failed(&error))?,
            EventStep::ReleaseCached => self.core.release_cached().map_err(|error| failed(&error))?,
            EventStep::Record(..) | EventStep::Free(_) => {}
        }
        Ok(())
    }
}

/// One step. Its numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum PageStep {
    Allocate(u64, u64),
    Free(usize),
    ReleaseCached,
    /// Makes others hold this many bytes.
    OthersHold(u64),
    /// Adopts an expandable segment in which these pages have memory, in handles of this many
    /// pages.
    Adopt(u16, u64),
}

/// One of the two allocators.
struct PageSide {
    core: PagedCore,
    held: Vec<Allocation>,
}

/// Runs the same program on two simulated devices, one of which takes many pages at once while the other takes them one
/// by one. No decision may differ.
pub(crate) fn page_runs(draws: &Draws) -> Outcome {
    let sizes =
        prop::sample::select(vec![1, MIB, 2 * MIB, 5 * MIB, 19 * MIB, 20 * MIB, 21 * MIB, 100 * MIB, 333 * MIB, 700 * MIB]);
    let step = one_of![
        10 => (sizes, 0..2_u64).prop_map(|(size, stream)| PageStep::Allocate(size, stream)),
        9 => any::<usize>().prop_map(PageStep::Free),
        2 => Just(PageStep::ReleaseCached),
        1 => prop::sample::select(vec![0, 0, 600 * MIB]).prop_map(PageStep::OthersHold),
        2 => (any::<u16>(), 1..6_u64).prop_map(|(pages, run)| PageStep::Adopt(pages, run)),
    ];
    let large = prop::sample::select(vec!["", ",large_segment_size_mb:12", ",large_segment_size_mb:64"]);
    let most = prop::sample::select(vec![2, 3, 7, u64::MAX]);
    let strategy = (any::<bool>(), large, most, prop::collection::vec(step, 1..40));
    run_law(&draws.each_for(6), 357, strategy, |(is_newer, large, most, steps)| {
        let mut sides = [side(*is_newer, large, *most)?, side(*is_newer, large, 1)?];
        let runs = sides.each_ref().map(|side| side.core.device().run_pages());
        ensure(Law::Reference, runs == [*most, 1], || format!("the devices take {runs:?} pages at once, expected {most} and 1"))?;
        for (number, step) in steps.iter().enumerate() {
            let answers = sides.each_mut().map(|side| side.act(step));
            ensure(Law::Reference, answers[0] == answers[1], || format!("step {number}, {step:?}, returned {answers:?}"))?;
            let [seen, expected] = sides.each_ref().map(PageSide::seen);
            ensure(Law::Reference, seen == expected, || format!("step {number}, {step:?}: {seen:?}, expected {expected:?}"))?;
            sides[0].core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        }
        Ok(steps.len() as u64)
    })
}

fn side(is_newer: bool, large: &str, most: u64) -> Result<PageSide, Broken> {
    let profile = if is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
    let text = format!("expandable_segments:True{large}");
    let settings = Settings::from_environment_as(&profile.dialect, &text).map_err(|error| Broken::new(Law::Settings, error))?;
    let device = Paged::new(SimOptions::new(Bytes(1500 * MIB))).with_runs(most);
    Ok(PageSide { core: PagedCore::new(device, Box::new(PyTorch::of(profile, settings)), Vec::new()), held: Vec::new() })
}

impl PageSide {
    /// Returns the visible state of the allocator and of its holdings on the device.
    fn seen(&self) -> String {
        let core = &self.core;
        let used = core.device().sim.used_bytes();
        format!("{used} {:?} {:?} {:?}", core.expandable_segments(), core.segments(), core.stats().entries())
    }

    /// Performs a step. Returns the answer as text.
    fn act(&mut self, step: &PageStep) -> String {
        match *step {
            PageStep::Allocate(size, stream) => match self.core.allocate(Bytes(size), StreamId(stream)) {
                Ok(allocation) => {
                    self.held.push(allocation);
                    format!("{:?}", self.held.last())
                }
                Err(error) => error.to_string(),
            },
            PageStep::Free(which) if !self.held.is_empty() => {
                let allocation = self.held.swap_remove(which % self.held.len());
                format!("{:?}", self.core.free(allocation))
            }
            PageStep::ReleaseCached => format!("{:?}", self.core.release_cached()),
            PageStep::OthersHold(bytes) => {
                self.core.device_mut().sim.set_external_bytes(Bytes(bytes));
                String::new()
            }
            PageStep::Adopt(pages, run) => self.adopt(pages, run),
            PageStep::Free(_) => String::new(),
        }
    }

    /// Adopts a segment of 16 pages: those with a bit in `pages` are allocated (adjacent ones as one block), and the
    /// others have no memory.
    fn adopt(&mut self, pages: u16, run: u64) -> String {
        let page = self.core.policy().page(PoolSlot::default_pool(PoolClass::Large));
        let Ok(base) = self.core.device_mut().reserve(Bytes(16 * page.get())) else { return "no addresses".to_owned() };
        let (mut blocks, mut memory): (Vec<AdoptedBlock>, Vec<(SimPhysical, u64)>) = (Vec::new(), Vec::new());
        let is_mapped = |place: u64| place < 16 && pages >> place & 1 == 1;
        let mut place = 0;
        while place < 16 {
            let behind = (place..=16).find(|&next| next == 16 || is_mapped(next) != is_mapped(place)).unwrap_or(16);
            let size = Bytes((behind - place) * page.get());
            let content = if is_mapped(place) { AdoptedContent::Allocated(size) } else { AdoptedContent::Unmapped };
            blocks.push(AdoptedBlock { size, content });
            let mut at = if is_mapped(place) { place } else { behind };
            while at < behind {
                let device = self.core.device_mut();
                let Ok((handle, count)) = device.create_run(page, run.min(behind - at)) else { return "no memory".to_owned() };
                let (address, size) = (base.offset(Bytes(at * page.get())), Bytes(count * page.get()));
                if device.map(address, size, &handle).and_then(|()| device.set_access(address, size)).is_err() {
                    return "not mapped".to_owned();
                }
                memory.push((handle, count));
                at += count;
            }
            place = behind;
        }
        let (pool, class, stream) = (PoolId::DEFAULT, PoolClass::Large, StreamId(0));
        let segment = AdoptedSegment { address: base, stream, pool, class, page: Some(page), blocks };
        let mut memory = memory.into_iter();
        let mut asked = Vec::new();
        let answer = self.core.adopt(&segment, &mut |address, pages| {
            asked.push((address, pages));
            memory.next().expect("there is memory for each run of pages")
        });
        // A device that takes pages one by one gets more calls, but for the same pages.
        let ends: Vec<DeviceAddress> = asked.iter().map(|(address, pages)| address.offset(Bytes(pages * page.get()))).collect();
        let mut ends_once = ends;
        ends_once.dedup();
        match answer {
            Ok(allocations) => {
                let text = format!("{allocations:?} {ends_once:?}");
                self.held.extend(allocations);
                text
            }
            Err(error) => error.to_string(),
        }
    }
}
