//! Live allocations in expandable segments whose other pages are unmapped and mapped again.

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB};
use parkade::{AllocError, Allocation, Allocator};
use proptest::prelude::*;

use super::pattern::{Pattern, failed};
use crate::backend::{AnyBackend, AnyDevice, Core, Needs, TestDevice, WitnessedDevice};
use crate::checks::laws_pytorch::campaign::Stopped;
use crate::checks::laws_pytorch::trial::stream_name;
use crate::law::{Broken, Law, ensure};
use serde::{Deserialize, Serialize};

/// The device's memory in these programs.
const CAPACITY: Bytes = Bytes(160 * MIB);
/// Bytes per distinct fill word: less than a page, so that reordered pages are noticed.
const STRETCH: u64 = 256 << 10;

/// A step of a program. Allocations are given by their index among the live ones, wrapping around.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// Allocates this many bytes for one of two streams, and fills them.
    Allocate(u64, usize),
    /// Frees an allocation.
    Free(usize),
    /// Unmaps whole free pages, then reads everything that is live.
    ReleaseCached,
}

/// Random programs.
pub(super) fn programs() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![2 => 4..MIB, 4 => MIB..8 * MIB, 2 => 8 * MIB..24 * MIB];
    let step = prop_oneof![
        5 => (size, prop_oneof![3 => Just(0_usize), 1 => Just(1)]).prop_map(|(bytes, stream)| Step::Allocate(bytes, stream)),
        4 => (0..64_usize).prop_map(Step::Free),
        1 => Just(Step::ReleaseCached),
    ];
    prop::collection::vec(step, 1..40)
}

struct Held {
    allocation: Allocation,
    size: u64,
    pattern: Pattern,
}

struct Keeper {
    core: Core<AnyDevice>,
    device: WitnessedDevice<AnyDevice>,
    held: Vec<Held>,
    names: u32,
    script: Vec<String>,
}

/// Runs a program; returns its number of steps.
pub(super) fn run(backend: &AnyBackend, steps: &[Step]) -> Result<u64, Stopped> {
    let needs = Needs { capacity: Some(CAPACITY), ..Needs::default() };
    let device = WitnessedDevice::new(backend.open(&needs).map_err(Stopped::Unable)?);
    let settings = "expandable_segments:True";
    let head = format!("# parkade ops SCRIPT --capacity {CAPACITY} --settings '{settings}'");
    let settings = Settings::from_environment(settings).expect("legal settings");
    let core = Allocator::new(device.clone(), PyTorch::new(settings), Vec::new());
    let mut keeper = Keeper { core, device, held: Vec::new(), names: 0, script: vec![head] };
    for step in steps {
        keeper.step(*step).map_err(|broken| Stopped::Broken(broken.during(format!("{step:?}")), keeper.script()))?;
    }
    let script = keeper.script();
    keeper.finish().map_err(|broken| Stopped::Broken(broken.during("at the end"), script))?;
    Ok(steps.len() as u64)
}

impl Keeper {
    fn script(&self) -> String {
        self.script.iter().map(|line| format!("{line}\n")).collect()
    }

    fn step(&mut self, step: Step) -> Result<(), Broken> {
        match step {
            Step::Allocate(bytes, place) => self.allocate(bytes, place),
            Step::Free(_) if self.held.is_empty() => Ok(()),
            Step::Free(which) => self.free(which % self.held.len()),
            Step::ReleaseCached => {
                self.script.push("empty_cache".to_owned());
                self.core.release_cached().map_err(failed)?;
                self.read_all()
            }
        }
    }

    fn allocate(&mut self, bytes: u64, place: usize) -> Result<(), Broken> {
        self.script.push(format!("alloc a{} {bytes} {}", self.names + 1, stream_name(place)));
        let stream = self.device.look().streams()[place];
        match self.core.allocate(Bytes(bytes), stream) {
            Ok(allocation) => {
                self.names += 1;
                let pattern = Pattern { name: self.names, version: 0, stretch_bytes: STRETCH };
                let (size, address) = (bytes / 4 * 4, allocation.address());
                self.held.push(Held { allocation, size, pattern });
                pattern.write(&mut self.device.steer(), address, size, stream)
            }
            // The ladder may have released pages on the way, so read everything now.
            Err(AllocError::OutOfMemory(_)) => self.read_all(),
            Err(error) => Err(Broken::new(Law::NoFalseOutOfMemory, error)),
        }
    }

    fn free(&mut self, which: usize) -> Result<(), Broken> {
        self.device.steer().settle();
        self.read(which)?;
        let held = self.held.swap_remove(which);
        self.script.push(format!("free a{}", held.pattern.name));
        self.core.free(held.allocation).map_err(|error| Broken::new(Law::Faults, error))
    }

    fn read(&self, which: usize) -> Result<(), Broken> {
        let held = &self.held[which];
        held.pattern.check(&mut self.device.steer(), held.allocation.address(), held.size)
    }

    fn read_all(&self) -> Result<(), Broken> {
        self.device.steer().settle();
        (0..self.held.len()).try_for_each(|which| self.read(which))
    }

    fn finish(mut self) -> Result<(), Broken> {
        self.read_all()?;
        while !self.held.is_empty() {
            self.free(0)?;
        }
        self.core.release_cached().map_err(failed)?;
        let Keeper { core, device, .. } = self;
        drop(core);
        let left = device.look().holdings();
        ensure(Law::Endings, left.is_empty(), || format!("the device keeps {left:?}"))
    }
}
