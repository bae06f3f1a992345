//! Rescue: PyTorch's expandable segments until a request would fail; then memory moves, and the program continues.
//!
//! Until PyTorch's own ladder ends without a block, every decision is PyTorch's. At that point, its cache has been
//! released, and the memory that is still stranded is in 20 MiB and 2 MiB pages that are partly in use. After the
//! first rescue, segments have 2 MiB pages, and each older page is a handle:
//! - The request takes the bytes that it needs from the tightest free block of another stream, after that stream's
//!   work, or from as few entirely free handles as necessary, from any stream. If many would have to move, new handles
//!   replace them.
//! - If that is not enough, handles are broken ([`Reach::Breaks`]), starting with those that have the most free pages:
//!   the memory in use keeps its addresses and contents in new memory, and the free pages serve the request.
//!
//! After a program has been rescued, these steps come before PyTorch's release of the entire cache, which would
//! release memory that the next step needs again.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use parkade::policy::{Attempt, Policy, PyTorch, Relief, Request, Rung, Wrapper};
use parkade::profile::Profile;
use parkade::settings::{Settings, SettingsError};
use parkade::units::Bytes;
use parkade::{Heap, PoolSlot};

use crate::entry::{Entry, Named};
use crate::parameter::Parameter;
use crate::pytorch::{EXPANDABLE_ONLY, RELEASE, release_in_one_form, rules, settings_in_one_form};
use crate::sight::{self, PAGE, is_private};

pub(crate) const ENTRY: Entry = Entry::new(
    "pytorch-rescue",
    "pytorch-expandable until a request would fail; then handles that are partly in use are broken to serve the request",
    "our own",
    |values| {
        let reach = if values.text("reach") == "free" { Reach::Free } else { Reach::Breaks };
        // The values have been checked.
        let profile = Profile::of(values.text("release")).unwrap_or(&Profile::PYTORCH_2_11);
        let settings = settings_to_rescue(profile, values.text("settings")).ok().flatten().unwrap_or_default();
        Box::new(Rescue::new(PyTorch::of(profile, settings), Some(reach)))
    },
)
.with_parameters(&[
    RELEASE,
    Parameter::text(
        "settings",
        "PYTORCH_CUDA_ALLOC_CONF in brackets; segments are expandable",
        "",
        "PyTorch's settings in brackets",
    ),
    Parameter::choice("reach", "whether handles in use are broken, or only free memory moves", "breaks", &["breaks", "free"]),
])
.not_looking_after_waiting()
.checked_by(|values| {
    release_in_one_form(values)?;
    // The text is checked without the prefix, so that the error quotes exactly what the user wrote.
    let (profile, _) = rules(values)?;
    if !settings_to_rescue(profile, values.text("settings")).is_ok_and(|settings| settings.is_some()) {
        return Err(NEEDS_EXPANDABLE.to_string());
    }
    let settings = settings_in_one_form(values)?.filter(|text| text != EXPANDABLE_ONLY);
    values.set("settings", settings);
    Ok(())
});

pub(crate) const FREE_ONLY: Named = Named::listed(
    &ENTRY,
    "pytorch-rescue:reach=free",
    "pytorch-expandable until a request would fail; then memory that is entirely free moves to where it is needed",
    "our own",
    &[("reach", Cow::Borrowed("free"))],
);

/// The actions that a rescue may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Move memory that is entirely free. The program does not have to promise anything.
    Free,
    /// Also break handles that are partly in use ([`Relief::Break`]). While a request is rescued, no other thread may submit
    /// work that uses the allocator's memory.
    Breaks,
}

/// The reason why some settings cannot be combined with a rescue.
pub const NEEDS_EXPANDABLE: &str = "a rescue needs expandable segments: leave expandable_segments:False out of the settings";

/// The settings in a string in the form of `PYTORCH_CUDA_ALLOC_CONF`, with expandable segments; `None` if the string
/// disables them ([`NEEDS_EXPANDABLE`]).
///
/// # Errors
/// PyTorch refuses the string.
pub fn settings_to_rescue(profile: &Profile, text: &str) -> Result<Option<Settings>, SettingsError> {
    let settings = Settings::from_environment_as(&profile.dialect, &format!("expandable_segments:True,{text}"))?;
    Ok(Some(settings).filter(|settings| settings.expandable_segments))
}

/// PyTorch's ladder since 2.11, with the rescue at its end and, for programs that have been rescued before, also before
/// the release of the cache.
const LADDER: [Rung; 9] = [
    Rung::CollectGarbage,
    Rung::Grow,
    Rung::BorrowFromPools,
    Rung::ReleaseOversize,
    Rung::Own,
    Rung::WaitForEvents,
    Rung::ReleaseAll,
    Rung::GrowAgain,
    Rung::Own,
];

/// The same for PyTorch up to 2.10, which searches the pools last.
const BORROWING_LAST: [Rung; 9] = [
    Rung::CollectGarbage,
    Rung::Grow,
    Rung::ReleaseOversize,
    Rung::Own,
    Rung::WaitForEvents,
    Rung::ReleaseAll,
    Rung::GrowAgain,
    Rung::BorrowFromPools,
    Rung::Own,
];

/// The next step of a rescue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Decide whether to rescue the request at this rung.
    Begin,
    /// Report that PyTorch's ladder has ended, or would release the cache next.
    Declare,
    /// Ask the device for only the missing bytes.
    Ask,
    /// Take memory from other streams, or entirely free handles.
    Gather,
    /// Wait for all events.
    Wait,
    /// Take a block that the wait has freed.
    Reuse,
    GatherFreed,
    /// Break the handles that yield the most memory.
    Break,
    AskForBroken,
    GatherBroken,
    /// Break all handles that have a free page, because the device has provided less than the heap expected.
    BreakAll,
    AskForAll,
    /// The rescue has failed.
    End,
}

/// PyTorch's rules, with a rescue when they fail.
#[derive(Clone, Debug)]
pub struct Rescue {
    inner: PyTorch,
    /// `None` if nothing is rescued.
    reach: Option<Reach>,
    /// The maximum number of rescued requests.
    most: u64,
    /// The number of rescues, with the current one while it is tried.
    rescues: u64,
    /// Whether the current request is in that number.
    is_counted: bool,
    /// Whether segments have pages of [`PAGE`].
    is_refined: bool,
    step: Step,
    /// Whether PyTorch's ladder has ended for the current request. If not, it continues after the rescue.
    is_last: bool,
    /// Whether the device unexpectedly had no room for the current request, because other processes have taken memory.
    is_refused: bool,
}

impl Rescue {
    /// Creates a policy with PyTorch's rules and a rescue of the given reach. The rescue does nothing unless the
    /// settings make segments expandable.
    #[must_use]
    pub fn new(inner: PyTorch, reach: Option<Reach>) -> Rescue {
        Rescue {
            inner,
            reach,
            most: u64::MAX,
            rescues: 0,
            is_counted: false,
            is_refined: false,
            step: Step::Begin,
            is_last: false,
            is_refused: false,
        }
    }

    /// Limits the number of rescued requests; after that, requests fail as in PyTorch.
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

    /// Whether to rescue the request at this rung. If so, the request is counted.
    fn begins(&mut self, heap: &Heap, request: &Request) -> bool {
        // Before the release of the cache, only in a program that has been rescued before, and not during a capture, in
        // which PyTorch does not release the cache.
        let is_due = self.is_last || self.is_refined && !heap.is_deferring();
        if !is_due || !request.is_expandable || !self.is_counted && self.rescues >= self.most {
            return false;
        }
        self.rescues += u64::from(!self.is_counted);
        self.is_counted = true;
        true
    }

    /// Ends the steps of this rung.
    fn end(&mut self) -> Relief {
        (self.step, self.is_last) = (Step::Begin, true);
        Relief::Done
    }

    /// Takes the current request out of the count: nothing that was tried has served it.
    fn withdraw(&mut self) {
        self.rescues -= u64::from(self.is_counted);
        self.is_counted = false;
    }

    fn ask(&mut self, heap: &Heap, request: &Request) -> Option<Relief> {
        let has_room = sight::has_room(heap, request);
        self.is_refused = has_room;
        // A private pool may need fewer bytes than this calculation suggests.
        (is_private(request) || has_room).then_some(Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask })
    }

    /// Carries out one step of the rescue and sets the next step. Returns `None` if the step does nothing now.
    fn take_step(&mut self, heap: &Heap, request: &Request) -> Option<Relief> {
        let breaks = self.reach == Some(Reach::Breaks);
        let (next, relief) = match self.step {
            Step::Begin => match self.begins(heap, request) {
                true => (Step::Declare, None),
                false => return Some(self.end()),
            },
            Step::Declare => (Step::Ask, Some(Relief::Rescue { page: PAGE })),
            Step::Ask if !self.is_refined => (Step::End, None),
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
            Step::BreakAll if !self.is_last => (Step::End, None),
            Step::BreakAll => {
                let serves = breaks && sight::breakable(heap, request, sight::left(heap)).is_some();
                let handles: Vec<_> =
                    if serves { sight::partly_free(heap).map(|part| part.handle.address).collect() } else { Vec::new() };
                (Step::AskForAll, (!handles.is_empty()).then_some(Relief::Break { handles }))
            }
            Step::AskForAll => (Step::End, self.ask(heap, request)),
            Step::End => {
                // If this is not the last rung, the next ones may serve the request, and the statistics count a rescue.
                if self.is_last {
                    self.withdraw();
                }
                return Some(self.end());
            }
        };
        self.step = next;
        relief
    }
}

impl Wrapper for Rescue {
    type Inner = PyTorch;

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

    /// After the first rescue, a handle is as large as PyTorch's pages or, if memory is short, as the memory that is left. A
    /// larger handle would be cheaper to map, but breaking it copies everything in it that is in use: 25 ms for 500 MiB (H200).
    fn handle(&self, heap: &Heap, request: &Request, _: Bytes) -> Option<Bytes> {
        if !self.is_refined {
            return None;
        }
        self.inner.page(request.pool).min(Bytes(sight::left(heap))).max(PAGE).checked_round_up(PAGE)
    }

    fn ladder(&self) -> &'static [Rung] {
        match self.reach {
            None => self.inner.ladder(),
            Some(_) if self.inner.profile().borrows_last => &BORROWING_LAST,
            Some(_) => &LADDER,
        }
    }

    fn relieve(&mut self, heap: &Heap, request: &Request, turn: u32) -> Relief {
        self.is_refined |= heap.refined_page() == Some(PAGE);
        if turn == 0 {
            (self.step, self.is_last, self.is_refused) = (Step::Begin, false, false);
            self.is_counted = false;
        }
        loop {
            if let Some(relief) = self.take_step(heap, request) {
                return relief;
            }
        }
    }
}
