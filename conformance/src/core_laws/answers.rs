//! The answers that a device may return. The allocator checks every range that the device hands out against all ranges
//! that it holds, and only against those. A list of ranges that is searched linearly determines which answers must be
//! refused, and how.

use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::{ReserveSize, Settings};
use parkade::units::{Bytes, DeviceAddress, MIB, PoolClass, PoolId, StreamId};
use parkade::{AdoptError, AdoptedBlock, AdoptedContent, AdoptedSegment};
use parkade::{AllocError, Allocation, AnswerProblem, WrongAnswer};
use parkade_sim::CallName;
use proptest::prelude::*;

use crate::backend::MadeCall;
use crate::core_laws::devices::{Addresses, Paper, PaperCore};
use crate::drawn::one_of;
use crate::drawn::{Draws, Outcome, run_law};
use crate::law::{Broken, Law, ensure};

/// The first byte and the size of every range that the allocator holds, as the device's calls show it.
#[derive(Default)]
struct Book(Vec<(u64, u64)>);

impl Book {
    /// Notes the ranges that the device handed out and took back. Returns the newest answer that must be refused.
    fn note(&mut self, calls: &[MadeCall]) -> Result<Option<WrongAnswer>, Broken> {
        let mut wrong = None;
        for call in calls {
            match call.name {
                CallName::Malloc => wrong = self.hand_out("malloc", call).or(wrong),
                CallName::AddressReserve => wrong = self.hand_out("reserve", call).or(wrong),
                CallName::Free | CallName::AddressFree => self.take_back(call.address)?,
                _ => {}
            }
        }
        Ok(wrong)
    }

    /// Notes a range, or returns why it must be refused.
    fn hand_out(&mut self, name: &'static str, call: &MadeCall) -> Option<WrongAnswer> {
        let (start, bytes) = (call.answer, call.bytes);
        let problem = self.problem(start, bytes);
        if problem.is_none() {
            self.0.push((start, bytes));
        }
        problem.map(|problem| WrongAnswer { call: name, address: DeviceAddress(start), bytes: Bytes(bytes), problem })
    }

    fn take_back(&mut self, address: u64) -> Result<(), Broken> {
        let place = self.0.iter().position(|(start, _)| *start == address);
        let strange = || Broken::new(Law::Faults, format!("{address:#x} was returned, although it was not held"));
        self.0.swap_remove(place.ok_or_else(strange)?);
        Ok(())
    }

    /// Returns the problem with a range; `None` if there is none.
    fn problem(&self, start: u64, bytes: u64) -> Option<AnswerProblem> {
        let end = u128::from(start) + u128::from(bytes);
        if start == 0 {
            return Some(AnswerProblem::Null);
        }
        if !start.is_multiple_of(512) {
            return Some(AnswerProblem::Unaligned);
        }
        if end >= 1 << 64 {
            return Some(AnswerProblem::TooLong);
        }
        let meets =
            |(other, size): &&(u64, u64)| u128::from(*other) < end && u128::from(*other) + u128::from(*size) > u128::from(start);
        // If there are several, the highest one is named.
        let other = self.0.iter().filter(meets).max();
        other.map(|&(other, size)| AnswerProblem::Overlaps(DeviceAddress(other), Bytes(size)))
    }
}

/// One step. Its numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request, and the address that the device returns if the request reaches it.
    Allocate(u64, Answer),
    /// Adopts a segment of this many bytes.
    Adopt(u64, Answer),
    Free(usize),
    ReleaseCached,
    /// Makes segments expandable or ordinary from now on.
    Expandable(bool),
    /// Continues with a clone.
    Clone,
}

/// Returns an address: near the beginning or the end of a held range, or an impossible one.
#[derive(Clone, Copy, Debug)]
struct Answer {
    near: usize,
    is_end: bool,
    offset: i64,
    odd: Option<u64>,
}

fn answer() -> impl Strategy<Value = Answer> {
    let part = MIB as i64;
    let offsets =
        vec![-20 * part, -20 * part - 512, -2 * part, -2 * part + 512, -1024, -512, -256, -1, 0, 0, 0, 1, 512, 2 * part];
    let top = u64::MAX - 511;
    let odd = vec![0, 1, 256, 511, 513, top, top - (2 * MIB) + 512, top - 2 * MIB, top - 20 * MIB, u64::MAX];
    let odd = prop::option::weighted(0.25, prop::sample::select(odd));
    (any::<usize>(), any::<bool>(), prop::sample::select(offsets), odd).prop_map(|(near, is_end, offset, odd)| Answer {
        near,
        is_end,
        offset,
        odd,
    })
}

struct Play {
    core: PaperCore,
    held: Vec<Allocation>,
    book: Book,
}

pub(crate) fn check(draws: &Draws) -> Outcome {
    let sizes = || prop::sample::select(vec![512, 2 * MIB, 3 * MIB, 12 * MIB, 30 * MIB]);
    let step = one_of![
        12 => (sizes(), answer()).prop_map(|(size, answer)| Step::Allocate(size, answer)),
        4 => (sizes(), answer()).prop_map(|(size, answer)| Step::Adopt(size, answer)),
        4 => any::<usize>().prop_map(Step::Free),
        2 => Just(Step::ReleaseCached),
        1 => any::<bool>().prop_map(Step::Expandable),
        2 => Just(Step::Clone),
    ];
    let strategy = (any::<bool>(), any::<bool>(), prop::collection::vec(step, 1..50));
    run_law(draws, 361, strategy, |(is_newer, is_short, steps)| {
        let profile = if *is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let expandable_segments_reserve = (*is_short && *is_newer).then_some(ReserveSize::Fraction(0.1));
        let settings = Settings { expandable_segments_reserve, expandable_segments: *is_short, ..Settings::default() };
        let device = Paper::new(64 * MIB).with_virtual_memory();
        let core = PaperCore::new(device, PyTorch::of(profile, settings), Vec::new());
        let mut play = Play { core, held: Vec::new(), book: Book::default() };
        for (number, step) in steps.iter().enumerate() {
            play.step(step).map_err(|broken| broken.during(format!("step {number}, {step:?}")))?;
        }
        Ok(steps.len() as u64)
    })
}

impl Play {
    fn address(&self, answer: Answer) -> u64 {
        let held = &self.book.0;
        let near = held.get(answer.near % held.len().max(1)).copied().unwrap_or((1 << 40, 0));
        let border = if answer.is_end { near.0.saturating_add(near.1) } else { near.0 };
        answer.odd.unwrap_or_else(|| border.saturating_add_signed(answer.offset))
    }

    fn step(&mut self, step: &Step) -> Result<(), Broken> {
        let failed = |error: &dyn std::error::Error| Broken::new(Law::Faults, error);
        match *step {
            Step::Allocate(size, answer) => self.allocate(size, self.address(answer))?,
            Step::Adopt(size, answer) => self.adopt(size, self.address(answer))?,
            Step::Free(which) if !self.held.is_empty() => {
                let allocation = self.held.swap_remove(which % self.held.len());
                self.core.free(allocation).map_err(|error| failed(&error))?;
            }
            Step::ReleaseCached => self.core.release_cached().map_err(|error| failed(&error))?,
            Step::Expandable(is_expandable) => self.core.policy_mut().settings.expandable_segments = is_expandable,
            Step::Clone => {
                self.held = self.held.iter().map(Allocation::in_a_clone).collect();
                self.core = self.core.clone();
            }
            Step::Free(_) => {}
        }
        self.book.note(&self.core.device_mut().take_calls())?;
        self.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))
    }

    fn allocate(&mut self, size: u64, address: u64) -> Result<(), Broken> {
        let before = (self.core.segments(), self.core.stats().clone(), self.core.observer().len());
        self.core.device_mut().addresses = Addresses::Fixed(address);
        let answer = self.core.allocate(Bytes(size), StreamId::DEFAULT);
        let expected = self.book.note(&self.core.device_mut().take_calls())?;
        let seen = match &answer {
            Ok(_) => None,
            Err(AllocError::Answer(wrong)) => Some(*wrong),
            // A reserved range that is too short for the request was returned, or is kept for later.
            Err(AllocError::OutOfMemory(_) | AllocError::TooLarge { .. }) => return Ok(()),
            Err(error) => return Err(Broken::new(Law::Faults, error)),
        };
        ensure(Law::Faults, seen == expected, || {
            format!("an answer of {address:#x} results in {seen:x?}, expected {expected:x?}")
        })?;
        match answer {
            Ok(allocation) => {
                self.held.push(allocation);
                Ok(())
            }
            Err(_) => {
                let same = before == (self.core.segments(), self.core.stats().clone(), self.core.observer().len());
                ensure(Law::Faults, same, || format!("after {address:#x} the segments are {:?}", self.core.segments()))
            }
        }
    }

    fn adopt(&mut self, size: u64, address: u64) -> Result<(), Broken> {
        let blocks = vec![AdoptedBlock { size: Bytes(size), content: AdoptedContent::Allocated(Bytes(size)) }];
        let (pool, class, stream) = (PoolId::DEFAULT, PoolClass::Large, StreamId::DEFAULT);
        let segment = AdoptedSegment { address: DeviceAddress(address), stream, pool, class, page: None, blocks };
        let answer = self.core.adopt(&segment, &mut |_, _| ((), 1));
        let is_long = u128::from(address) + u128::from(size) >= 1 << 64;
        let expected = self.book.problem(address, size);
        let expected = expected.map(|_| if is_long { AdoptError::TooLarge } else { AdoptError::Misplaced });
        ensure(Law::Faults, answer.as_ref().err() == expected.as_ref(), || {
            format!("adopting {size} bytes at {address:#x} returned {answer:?}, expected {expected:?}")
        })?;
        if let Ok(allocations) = answer {
            self.held.extend(allocations);
            self.book.0.push((address, size));
        }
        Ok(())
    }
}
