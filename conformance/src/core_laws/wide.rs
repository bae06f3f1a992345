//! Requests of every size on a device without bounds: the same answers, device calls, statistics and trace entries as the
//! reference allocator's, up to more bytes than the statistics can count.

use crate::backend::WitnessedDevice;
use crate::law::{Broken, Law, ensure};
use crate::reference_model::{Reference, texts};
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, PoolClass, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, PoolSlot};
use proptest::prelude::*;

use crate::core_laws::paper::Paper;
use crate::core_laws::run::{Draws, Outcome, run};

/// Handles of streams.
const STREAMS: [u64; 3] = [0, 1, u64::MAX];

/// Settings strings that change how sizes are treated.
const TEXTS: [&str; 8] = [
    "",
    "max_split_size_mb:2048",
    "max_split_size_mb:1000000,max_non_split_rounding_mb:2000000",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[64:8,256:4,1024:2,4096:1,>:16]",
    "large_segment_size_mb:1024",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0.01,max_split_size_mb:100000,large_segment_size_mb:4096",
];

/// One step; numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(u64, usize, bool),
    Free(usize),
    ReleaseCached,
    Limit(Option<u64>),
    Fraction(f64),
    ResetPeaks,
    ResetSums,
}

/// A size of any magnitude, often just at a border.
fn size() -> impl Strategy<Value = u64> {
    let near = (9_u32..64, prop::sample::select(vec![2_u128, 3]), prop::sample::select(vec![-513_i128, -512, -1, 0, 1, 512]))
        .prop_map(|(bits, part, offset)| {
            u64::try_from(((1_u128 << bits) * part / 2).saturating_add_signed(offset).max(1)).unwrap_or(u64::MAX)
        });
    let any = (0_u32..64, any::<u64>()).prop_map(|(bits, low)| (low >> bits).max(1));
    prop_oneof![3 => near, 1 => any]
}

pub(crate) fn check(draws: &Draws) -> Outcome {
    let which = any::<usize>;
    let step = prop_oneof![
        12 => (size(), which(), any::<bool>()).prop_map(|(size, stream, raw)| Step::Allocate(size, stream, raw)),
        10 => which().prop_map(Step::Free),
        1 => Just(Step::ReleaseCached),
        1 => prop::option::of(size()).prop_map(Step::Limit),
        1 => prop_oneof![0.0..1.0_f64, Just(1.0), Just(0.0), Just(1.5)].prop_map(Step::Fraction),
        1 => Just(Step::ResetPeaks),
        1 => Just(Step::ResetSums),
    ];
    let total = prop::sample::select(vec![1 << 36, 1 << 50, 1 << 62, (1 << 62) + 4097]);
    let strategy = (any::<bool>(), prop::sample::select(TEXTS.to_vec()), total, prop::collection::vec(step, 1..60));
    run(draws, 358, &strategy, |(is_newer, text, total, steps)| {
        let mut play = Play::new(*is_newer, text, *total)?;
        for (number, step) in steps.iter().enumerate() {
            play.step(step).map_err(|broken| broken.during(format!("step {number}, {step:?}")))?;
        }
        Ok(steps.len() as u64)
    })
}

/// Both allocators, and what is held.
struct Play {
    profile: &'static Profile,
    device: WitnessedDevice<Paper>,
    core: Allocator<WitnessedDevice<Paper>, PyTorch, Vec<TraceEntry>>,
    reference: Reference,
    held: Vec<Allocation>,
    told: usize,
}

impl Play {
    fn new(is_newer: bool, text: &str, total: u64) -> Result<Play, Broken> {
        let profile = if is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let settings =
            Settings::from_environment_as(&profile.dialect, text).map_err(|error| Broken::new(Law::Settings, error))?;
        let device = WitnessedDevice::new(Paper::new(total));
        let reference = Reference::new(profile, settings.clone(), total, 0);
        let core = Allocator::new(device.clone(), PyTorch::of(profile, settings), Vec::new());
        Ok(Play { profile, device, core, reference, held: Vec::new(), told: 0 })
    }

    fn step(&mut self, step: &Step) -> Result<(), Broken> {
        let _ = self.device.list_calls();
        match *step {
            Step::Allocate(size, stream, raw) => self.allocate(size, STREAMS[stream % STREAMS.len()], raw)?,
            Step::Free(which) if !self.held.is_empty() => {
                let allocation = self.held.swap_remove(which % self.held.len());
                let address = allocation.address().get();
                let answer = self.core.free(allocation);
                self.reference.begin(self.device.list_calls());
                let expected = self.reference.free(address);
                ensure(Law::Reference, answer.is_ok() && expected.is_ok(), || format!("{answer:?}, expected {expected:?}"))?;
            }
            Step::ReleaseCached => {
                let answer = self.core.release_cached();
                self.reference.begin(self.device.list_calls());
                let expected = self.reference.release_cached();
                ensure(Law::Reference, answer == expected, || format!("{answer:?}, expected {expected:?}"))?;
            }
            Step::Free(_) => self.reference.begin(Vec::new()),
            _ => self.turn(step)?,
        }
        self.compare()
    }

    /// Changes both in ways that reach no device.
    fn turn(&mut self, step: &Step) -> Result<(), Broken> {
        self.reference.begin(Vec::new());
        match *step {
            Step::Limit(bytes) => {
                self.core.set_limit(bytes.map(Bytes));
                self.reference.set_limit(bytes);
            }
            Step::Fraction(fraction) => {
                let (answer, is_legal) = (self.core.set_memory_fraction(fraction), self.reference.set_fraction(fraction));
                ensure(Law::Limit, answer.is_ok() == is_legal, || format!("{answer:?}"))?;
            }
            Step::ResetPeaks => {
                self.core.reset_peak_stats();
                self.reference.reset_peaks();
            }
            _ => {
                self.core.reset_accumulated_stats();
                self.reference.reset_sums();
            }
        }
        Ok(())
    }

    fn allocate(&mut self, size: u64, stream: u64, raw: bool) -> Result<(), Broken> {
        let (bytes, handle) = (Bytes(size), StreamId(stream));
        let answer = if raw { self.core.raw_allocate(bytes, handle) } else { self.core.allocate(bytes, handle) };
        self.reference.begin(self.device.list_calls());
        let expected = self.reference.allocate(size, stream, raw);
        let seen = answer.as_ref().map(|allocation| allocation.address().get()).map_err(AllocError::clone);
        ensure(Law::Reference, seen == expected, || format!("the answer is {seen:?}, expected {expected:?}"))?;
        match answer {
            Ok(allocation) => {
                let (seen, expected) = (self.core.segment_of(&allocation), self.reference.segment_of(allocation.address().get()));
                self.held.push(allocation);
                ensure(Law::Reference, seen == Some(expected), || format!("its segment is {seen:?}, expected {expected:?}"))
            }
            Err(error) => texts::check(&error.message(self.profile), texts::of_request(&error, self.profile)),
        }
    }

    fn compare(&mut self) -> Result<(), Broken> {
        if let Some(wrong) = self.reference.end().or_else(|| self.reference.difference_from(self.core.stats())) {
            return Err(Broken::new(Law::Reference, wrong));
        }
        let told = &self.core.observer()[self.told..];
        ensure(Law::Reference, told == self.reference.trace, || {
            format!("{told:?} was told, expected {:?}", self.reference.trace)
        })?;
        self.told = self.core.observer().len();
        let (seen, expected) = (self.core.segments(), self.reference.segments());
        ensure(Law::Reference, seen == expected, || format!("the segments are {seen:?}, expected {expected:?}"))?;
        for class in [PoolClass::Small, PoolClass::Large] {
            let free = self.core.heap().free_blocks(PoolSlot::default_pool(class));
            let seen: Vec<(u64, u64)> = free.map(|block| (block.address.get(), block.size.get())).collect();
            let free = self.reference.free_in_order(PoolId::DEFAULT, class);
            let expected: Vec<(u64, u64)> = free.iter().map(|block| (block.address, block.size)).collect();
            ensure(Law::Reference, seen == expected, || format!("the free blocks are {seen:?}, expected {expected:?}"))?;
        }
        let threshold = self.core.policy().settings.garbage_collection_threshold;
        let limit = self.core.heap().limit().filter(|_| threshold > 0.0).map(Bytes::get);
        let due = limit.map(|limit| self.core.heap().reserved().get().saturating_sub((threshold * limit as f64) as u64));
        let target = self.core.policy().collection_target(self.core.heap()).map(Bytes::get);
        ensure(Law::Ladder, target == due.filter(|&bytes| bytes != 0), || {
            format!("{target:?} bytes are to be collected, expected {due:?}")
        })?;
        let largest = self.core.heap().largest_free().get();
        ensure(Law::Reference, largest == self.reference.largest_free(), || {
            format!("the largest free block has {largest} bytes")
        })?;
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))
    }
}
