//! Clones of allocators: each takes back what it and its originals had, each is independent of all others, and none takes back
//! what was made elsewhere.

use crate::law::{Broken, Law, ensure};
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::snapshot::SegmentInfo;
use parkade::stats::Stats;
use parkade::trace::TraceEntry;
use parkade::units::{Bytes, MIB, StreamId};
use parkade::{Allocation, Allocator, FreeError};
use proptest::prelude::*;

use crate::core_laws::paper::{Paper, PaperCore as Core};
use crate::core_laws::run::{Draws, Outcome, run};

/// The most allocators at a time.
const MOST: usize = 6;

/// One step; numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum Step {
    Clone(usize),
    /// Makes an allocator that is nobody's clone.
    Make,
    Allocate(usize, u64),
    Free(usize, usize),
    /// Offers one allocator what another one holds.
    Offer(usize, usize, usize),
    Drop(usize),
}

/// An allocation in one allocator, and the number of the allocator that made it.
struct Held {
    allocation: Allocation,
    maker: usize,
}

impl Held {
    fn in_a_clone(&self) -> Held {
        Held { allocation: self.allocation.in_a_clone(), maker: self.maker }
    }
}

/// An allocator, its number and those of its originals, and what it holds.
struct Copied {
    core: Core,
    number: usize,
    originals: Vec<usize>,
    held: Vec<Held>,
}

/// Every allocator of a case.
struct Family {
    all: Vec<Copied>,
    made: usize,
    is_newer: bool,
}

pub(crate) fn check(draws: &Draws) -> Outcome {
    let which = any::<usize>;
    let sizes = prop::sample::select(vec![1, 512, 5000, MIB, 3 * MIB, 30 * MIB]);
    let step = prop_oneof![
        4 => which().prop_map(Step::Clone),
        1 => Just(Step::Make),
        8 => (which(), sizes).prop_map(|(at, size)| Step::Allocate(at, size)),
        6 => (which(), which()).prop_map(|(at, what)| Step::Free(at, what)),
        6 => (which(), which(), which()).prop_map(|(at, from, what)| Step::Offer(at, from, what)),
        1 => which().prop_map(Step::Drop),
    ];
    let strategy = (any::<bool>(), prop::collection::vec(step, 4..60));
    run(&draws.each_for(6), 353, &strategy, |(is_newer, steps)| {
        let mut family = Family { all: Vec::new(), made: 0, is_newer: *is_newer };
        family.make();
        for (number, step) in steps.iter().enumerate() {
            family.step(step).map_err(|broken| broken.during(format!("step {number}, {step:?}")))?;
        }
        family.all.into_iter().try_for_each(finish)?;
        Ok(steps.len() as u64)
    })
}

type Seen = (Vec<SegmentInfo>, Stats, Vec<TraceEntry>);

fn seen(core: &Core) -> Seen {
    (core.segments(), core.stats().clone(), core.observer().clone())
}

/// Gives back whatever an allocator holds: it must take everything.
fn finish(mut copied: Copied) -> Result<(), Broken> {
    for held in copied.held {
        copied.core.free(held.allocation).map_err(|error| Broken::new(Law::Reference, error))?;
    }
    copied.core.release_cached().map_err(|error| Broken::new(Law::Reference, error))?;
    let left = copied.core.heap().reserved();
    ensure(Law::Endings, left == Bytes::ZERO, || format!("allocator {} keeps {left} bytes", copied.number))
}

impl Family {
    fn make(&mut self) {
        let profile = if self.is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
        let core = Allocator::new(Paper::new(1 << 36), PyTorch::of(profile, Settings::default()), Vec::new());
        let (number, originals) = (self.made, Vec::new());
        self.all.push(Copied { core, number, originals, held: Vec::new() });
        self.made += 1;
    }

    /// Performs a step: at most one allocator changes.
    fn step(&mut self, step: &Step) -> Result<(), Broken> {
        let before: Vec<(usize, Seen)> = self.all.iter().map(|copied| (copied.number, seen(&copied.core))).collect();
        let changed = self.act(step)?;
        for copied in &self.all {
            let before = before.iter().find(|(number, _)| *number == copied.number);
            let may_change = changed == Some(copied.number) || before.is_none();
            ensure(Law::Determinism, may_change || before.is_some_and(|(_, before)| *before == seen(&copied.core)), || {
                format!("allocator {} has changed", copied.number)
            })?;
            copied.core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
        }
        Ok(())
    }

    /// Returns the number of the allocator that may have changed.
    fn act(&mut self, step: &Step) -> Result<Option<usize>, Broken> {
        let count = self.all.len();
        let unserved = |error: &dyn std::error::Error| Broken::new(Law::Reference, error);
        match *step {
            Step::Clone(which) if count < MOST => self.copy(which % count).map(|()| None),
            Step::Make if count < MOST => {
                self.make();
                Ok(None)
            }
            Step::Allocate(at, size) => {
                let copied = &mut self.all[at % count];
                let allocation = copied.core.allocate(Bytes(size), StreamId::DEFAULT).map_err(|error| unserved(&error))?;
                copied.held.push(Held { allocation, maker: copied.number });
                Ok(Some(copied.number))
            }
            Step::Free(at, what) if !self.all[at % count].held.is_empty() => {
                let copied = &mut self.all[at % count];
                let held = copied.held.remove(what % copied.held.len());
                let is_known = copied.core.segment_of(&held.allocation).is_some();
                ensure(Law::Reference, is_known, || format!("{:?} is not known", held.allocation))?;
                copied.core.free(held.allocation).map_err(|error| unserved(&error))?;
                Ok(Some(copied.number))
            }
            Step::Offer(at, from, what) => self.offer(at % count, from % count, what).map(|()| None),
            Step::Drop(at) if count > 1 => finish(self.all.remove(at % count)).map(|()| None),
            _ => Ok(None),
        }
    }

    fn copy(&mut self, which: usize) -> Result<(), Broken> {
        let original = &self.all[which];
        let core = original.core.clone();
        ensure(Law::Determinism, seen(&core) == seen(&original.core), || "a clone is in another state".to_owned())?;
        let originals = original.originals.iter().copied().chain([original.number]).collect();
        let held = original.held.iter().map(Held::in_a_clone).collect();
        self.all.push(Copied { core, number: self.made, originals, held });
        self.made += 1;
        Ok(())
    }

    /// Offers what one allocator holds to another, which is not a clone of its maker: whatever is in the same place there, it must
    /// be refused.
    fn offer(&mut self, at: usize, from: usize, what: usize) -> Result<(), Broken> {
        let from = &self.all[from].held;
        let Some(strange) = from.get(what % from.len().max(1)).map(Held::in_a_clone) else { return Ok(()) };
        let copied = &mut self.all[at];
        if strange.maker == copied.number || copied.originals.contains(&strange.maker) {
            return Ok(());
        }
        refused(copied, strange)
    }
}

fn refused(copied: &mut Copied, strange: Held) -> Result<(), Broken> {
    let Held { allocation, maker } = strange;
    let is_known = copied.core.segment_of(&allocation).is_some();
    copied.core.record_stream(&allocation, StreamId(1));
    let answer = copied.core.free(allocation);
    ensure(Law::Reference, answer == Err(FreeError::NotAllocated) && !is_known, || {
        format!("allocator {} was given what it does not hold, made by {maker}: {answer:?}", copied.number)
    })
}
