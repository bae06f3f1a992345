//! The same program on two simulated devices: one takes many pages at once, the other one by one. No decision may differ.

use crate::law::{Broken, Law, ensure};
use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AdoptedBlock, AdoptedContent, AdoptedSegment, Allocation, Allocator};
use parkade_sim::{SimOptions, SimPhysical};
use proptest::prelude::*;

use crate::core_laws::kept::{Kept, KeptCore};
use crate::core_laws::run::{Draws, Outcome, run};

/// One step; numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(u64, u64),
    Free(usize),
    ReleaseCached,
    /// Bytes that others hold.
    OthersHold(u64),
    /// Adopts an expandable segment: these pages have memory, of this many each time.
    Adopt(u16, u64),
}

/// One of the two allocators.
struct Side {
    core: KeptCore,
    held: Vec<Allocation>,
}

pub(crate) fn check(draws: &Draws) -> Outcome {
    let sizes =
        prop::sample::select(vec![1, MIB, 2 * MIB, 5 * MIB, 19 * MIB, 20 * MIB, 21 * MIB, 100 * MIB, 333 * MIB, 700 * MIB]);
    let step = prop_oneof![
        10 => (sizes, 0..2_u64).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        9 => any::<usize>().prop_map(Step::Free),
        2 => Just(Step::ReleaseCached),
        1 => prop::sample::select(vec![0, 0, 600 * MIB]).prop_map(Step::OthersHold),
        2 => (any::<u16>(), 1..6_u64).prop_map(|(pages, run)| Step::Adopt(pages, run)),
    ];
    let large = prop::sample::select(vec!["", ",large_segment_size_mb:12", ",large_segment_size_mb:64"]);
    let most = prop::sample::select(vec![2, 3, 7, u64::MAX]);
    let strategy = (any::<bool>(), large, most, prop::collection::vec(step, 1..40));
    run(&draws.each_for(6), 357, &strategy, |(is_newer, large, most, steps)| {
        let mut sides = [side(*is_newer, large, *most)?, side(*is_newer, large, 1)?];
        for (number, step) in steps.iter().enumerate() {
            let answers = sides.each_mut().map(|side| side.act(step));
            ensure(Law::Reference, answers[0] == answers[1], || format!("step {number}, {step:?}, is answered {answers:?}"))?;
            let [seen, expected] = sides.each_ref().map(Side::seen);
            ensure(Law::Reference, seen == expected, || format!("step {number}, {step:?}: {seen:?}, expected {expected:?}"))?;
            sides[0].core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        }
        Ok(steps.len() as u64)
    })
}

fn side(is_newer: bool, large: &str, most: u64) -> Result<Side, Broken> {
    let profile = if is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
    let text = format!("expandable_segments:True{large}");
    let settings = Settings::from_environment_as(&profile.dialect, &text).map_err(|error| Broken::new(Law::Settings, error))?;
    let device = Kept::new(SimOptions::new(Bytes(1500 * MIB))).with_runs(most);
    Ok(Side { core: Allocator::new(device, PyTorch::of(profile, settings), Vec::new()), held: Vec::new() })
}

impl Side {
    /// What can be seen of the allocator and of what it holds of the device.
    fn seen(&self) -> String {
        let core = &self.core;
        let used = core.device().look().used_bytes();
        format!("{used} {:?} {:?} {:?}", core.expandable_segments(), core.segments(), core.stats().entries())
    }

    /// Performs a step. Returns what is answered, in words.
    fn act(&mut self, step: &Step) -> String {
        match *step {
            Step::Allocate(size, stream) => match self.core.allocate(Bytes(size), StreamId(stream)) {
                Ok(allocation) => {
                    self.held.push(allocation);
                    format!("{:?}", self.held.last())
                }
                Err(error) => error.to_string(),
            },
            Step::Free(which) if !self.held.is_empty() => {
                let allocation = self.held.swap_remove(which % self.held.len());
                format!("{:?}", self.core.free(allocation))
            }
            Step::ReleaseCached => format!("{:?}", self.core.release_cached()),
            Step::OthersHold(bytes) => {
                self.core.device().steer().set_external_bytes(Bytes(bytes));
                String::new()
            }
            Step::Adopt(pages, run) => self.adopt(pages, run),
            Step::Free(_) => String::new(),
        }
    }

    /// Adopts a segment of 16 pages, of which those with a bit in `pages` are allocated, together where they are neighbours, and
    /// the others have no memory.
    fn adopt(&mut self, pages: u16, run: u64) -> String {
        let page = Bytes(self.core.policy().settings.large_segment_bytes);
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
            memory.next().expect("memory for each run of pages")
        });
        // A device that takes pages one by one is asked more often, but for the same pages.
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
