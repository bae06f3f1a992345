//! Rescue: PyTorch's expandable segments until a request would fail; then memory moves, and the program goes on.
//!
//! Until PyTorch's own ladder ends without a block, every decision is PyTorch's. By then its cache is released, and what is
//! still stranded lies in pages of 20 MiB and 2 MiB that are partly in use. From the first rescue on, segments have pages of
//! 2 MiB, and each older page is a handle:
//! - The request takes what it needs from the tightest free block of another stream, after that stream's work, or from
//!   entirely free handles of any stream, as few as suffice. If many would have to move, new ones replace them.
//! - If that is not enough, handles break ([`Reach::Breaks`]), those with the most free pages first: what is in use keeps its
//!   addresses and contents in new memory, and the free pages serve the request.
//!
//! Once a program has been rescued, these steps come before PyTorch's release of the whole cache, which would take away what
//! the next step needs again.

use alloc::format;
use alloc::vec::Vec;

use parkade::policy::{Attempt, Policy, PyTorch, Relief, Request, Wrapper};
use parkade::profile::Profile;
use parkade::settings::{Settings, SettingsError};
use parkade::units::Bytes;
use parkade::{Heap, PoolSlot};

use crate::sight::{self, PAGE, is_private};

/// What a rescue may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Move memory that is entirely free. The program need not promise anything.
    Free,
    /// Also break handles that are partly in use ([`Relief::Break`]). While a request is rescued, no other thread may submit
    /// work that uses the allocator's memory.
    Breaks,
}

/// Why settings cannot be rescued.
pub const NEEDS_EXPANDABLE: &str = "a rescue needs expandable segments: leave expandable_segments:False out of the settings";

/// The settings in a text such as that of `PYTORCH_CUDA_ALLOC_CONF`, with expandable segments; `None` if the text switches them
/// off ([`NEEDS_EXPANDABLE`]).
///
/// # Errors
/// PyTorch refuses the text.
pub fn settings_to_rescue(profile: &Profile, text: &str) -> Result<Option<Settings>, SettingsError> {
    let settings = Settings::from_environment_as(&profile.dialect, &format!("expandable_segments:True,{text}"))?;
    Ok(Some(settings).filter(|settings| settings.expandable_segments))
}

/// What to try next for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// This rung of PyTorch's ladder.
    PyTorch(u32),
    /// Say that PyTorch's ladder is at its end, or would release the cache next.
    Declare,
    /// Ask the device for no more than is missing.
    Ask,
    /// Take memory from other streams, or entirely free handles.
    Gather,
    /// Wait for all events.
    Wait,
    /// Take a block that the wait has freed.
    Reuse,
    GatherFreed,
    /// Break the handles that give the most.
    Break,
    AskForBroken,
    GatherBroken,
    /// Break all that have a free page: the device has given less than the heap expected.
    BreakAll,
    AskForAll,
    GiveUp,
}

/// PyTorch's rules, and a rescue where they end.
#[derive(Clone, Debug)]
pub struct Rescue {
    inner: PyTorch,
    /// `None` if nothing is rescued.
    reach: Option<Reach>,
    /// How many requests may be rescued.
    most: u64,
    /// How many requests were rescued, or were to be.
    rescues: u64,
    /// Whether segments have pages of [`PAGE`].
    is_refined: bool,
    step: Step,
    /// Where PyTorch's ladder continues if the current rescue fails, if it has not ended.
    resumes_at: Option<u32>,
    /// Whether the device had no room for the current request although it should have: other processes have taken memory.
    is_refused: bool,
}

impl Rescue {
    /// PyTorch's rules, with a rescue of the given reach. It does nothing while the settings do not make segments expandable.
    #[must_use]
    pub fn new(inner: PyTorch, reach: Option<Reach>) -> Rescue {
        Rescue {
            inner,
            reach,
            most: u64::MAX,
            rescues: 0,
            is_refined: false,
            step: Step::PyTorch(0),
            resumes_at: None,
            is_refused: false,
        }
    }

    /// The same for at most this many requests; after them, requests fail as in PyTorch.
    #[must_use]
    pub fn at_most(self, most: u64) -> Rescue {
        Rescue { most, ..self }
    }

    /// PyTorch's rules.
    #[must_use]
    pub fn pytorch(&self) -> &PyTorch {
        &self.inner
    }

    /// PyTorch's rules, whose settings may change at any time.
    pub fn pytorch_mut(&mut self) -> &mut PyTorch {
        &mut self.inner
    }

    /// The next rung of PyTorch's ladder, or `None` where a rescue begins: at its end, and once a program has been rescued
    /// before it waits and releases the cache.
    fn pytorch_rung(&mut self, heap: &Heap, request: &Request, rung: u32) -> Option<Relief> {
        self.step = Step::PyTorch(rung + 1);
        let relief = self.inner.relieve(heap, request, rung);
        let is_last = relief == Relief::GiveUp;
        let goes_first = relief == Relief::Wait && self.is_refined && self.resumes_at.is_none();
        if !request.is_expandable || self.reach.is_none() || !(is_last || goes_first) {
            return Some(relief);
        }
        if self.resumes_at.is_none() && self.rescues >= self.most {
            return Some(relief);
        }
        self.rescues += u64::from(self.resumes_at.is_none());
        self.resumes_at = goes_first.then_some(rung);
        self.step = Step::Declare;
        None
    }

    fn ask(&mut self, heap: &Heap, request: &Request) -> Option<Relief> {
        let has_room = sight::has_room(heap, request);
        self.is_refused = has_room;
        // A private pool may lack fewer bytes than it seems here.
        (is_private(request) || has_room).then_some(Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask })
    }

    /// Carries out one step of the rescue, and says which is next. `None` if the step does nothing now.
    fn take_step(&mut self, heap: &Heap, request: &Request) -> Option<Relief> {
        let breaks = self.reach == Some(Reach::Breaks);
        let (next, relief) = match self.step {
            Step::PyTorch(rung) => return self.pytorch_rung(heap, request, rung),
            Step::Declare => (Step::Ask, Some(Relief::Rescue { page: PAGE })),
            Step::Ask if !self.is_refined => (Step::GiveUp, None),
            Step::Ask => (Step::Gather, self.ask(heap, request)),
            Step::Gather | Step::GatherFreed => {
                let next = if self.step == Step::Gather { Step::Wait } else { Step::Break };
                let elsewhere = sight::elsewhere(heap, request).map(|block| Relief::TransferPart { block });
                (next, elsewhere.or_else(|| sight::gather(heap, request, self.is_refused)))
            }
            Step::Wait => (Step::Reuse, Some(Relief::Wait)),
            Step::Reuse => {
                let found = heap.first_at_least(request.pool, request.stream, request.size);
                (Step::GatherFreed, found.filter(|block| block.is_expandable).map(|block| Relief::Reuse(block.id)))
            }
            Step::Break => {
                let left = if self.is_refused { 0 } else { sight::left(heap) };
                let handles = if breaks { sight::breakable(heap, request, left) } else { None };
                let handles = handles.filter(|handles| !handles.is_empty());
                (Step::AskForBroken, handles.map(|handles| Relief::Break { handles }))
            }
            Step::AskForBroken => (Step::GatherBroken, self.ask(heap, request)),
            Step::GatherBroken => (Step::BreakAll, sight::gather(heap, request, self.is_refused)),
            Step::BreakAll => {
                if let Some(rung) = self.resumes_at {
                    (Step::PyTorch(rung), None)
                } else {
                    let serves = breaks && sight::breakable(heap, request, sight::left(heap)).is_some();
                    let handles: Vec<_> =
                        if serves { sight::partly_free(heap).map(|part| part.handle.address).collect() } else { Vec::new() };
                    (Step::AskForAll, (!handles.is_empty()).then_some(Relief::Break { handles }))
                }
            }
            Step::AskForAll => (Step::GiveUp, self.ask(heap, request)),
            Step::GiveUp => (Step::GiveUp, Some(Relief::GiveUp)),
        };
        self.step = next;
        relief
    }
}

impl Wrapper for Rescue {
    type Inner = PyTorch;
    const PLACES_AS_INNER: bool = true;

    #[inline(always)]
    fn inner(&self) -> &PyTorch {
        &self.inner
    }

    #[inline(always)]
    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.inner
    }

    fn name(&self) -> &'static str {
        if self.reach.is_some() { "pytorch-rescue" } else { "pytorch" }
    }

    fn page(&self, pool: PoolSlot) -> Bytes {
        if self.is_refined { PAGE } else { self.inner.page(pool) }
    }

    /// From the first rescue on: as large as PyTorch's pages, or what is left where memory is short. A larger handle would be
    /// cheaper to map, but to break it copies all of it that is in use: 25 ms for 500 MiB (H200).
    fn handle(&self, heap: &Heap, request: &Request, _: Bytes) -> Option<Bytes> {
        if !self.is_refined {
            return None;
        }
        self.inner.page(request.pool).min(Bytes(sight::left(heap))).max(PAGE).checked_round_up(PAGE)
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, rung: u32) -> Relief {
        self.is_refined |= heap.refined_page() == Some(PAGE);
        if rung == 0 {
            (self.step, self.resumes_at, self.is_refused) = (Step::PyTorch(0), None, false);
        }
        loop {
            if let Some(relief) = self.take_step(heap, request) {
                return relief;
            }
        }
    }
}
