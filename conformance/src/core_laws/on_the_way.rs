//! What happens to a request on its way: a callback frees memory and the policy is asked once more, or pages move to it.
//!
//! The device's calls say what was asked for: the size of the segment, and how many pages were created, mapped, unmapped and released.

use crate::law::{Broken, Law, ensure};
use std::cell::Cell;
use std::rc::Rc;

use parkade::policy::{Attempt, Placement, Policy, PyTorch, Relief, Request, Wrapper};
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB, StreamId};
use parkade::{Allocation, BlockId, Heap};
use parkade_sim::{CallName, SimOptions};

use crate::core_laws::devices::{AnyKeptCore, Kept};
use crate::core_laws::run::{Draws, Outcome};

/// The bytes of a page.
const PAGE: u64 = 20 * MIB;

/// The most pages that a case moves or asks for.
const MOST: u64 = 4;

fn failed(error: impl std::fmt::Display) -> Broken {
    Broken::new(Law::Answers, error)
}

/// PyTorch's rules, but each search that fails asks for a segment that is 2 MiB larger than the one before did.
#[derive(Debug)]
struct Growing(PyTorch, Rc<Cell<u64>>);

impl Wrapper for Growing {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }

    fn place(&mut self, heap: &Heap, request: &Request) -> Placement {
        self.1.update(|searches| searches + 1);
        match Policy::place(&mut self.0, heap, request) {
            Placement::Segment(bytes) => Placement::Segment(Bytes(bytes.get() + self.1.get() * 2 * MIB)),
            found @ Placement::Reuse(_) => found,
        }
    }
}

/// PyTorch's rules, but the first rung remaps every free block.
#[derive(Debug)]
struct Remapping(PyTorch);

impl Wrapper for Remapping {
    type Inner = PyTorch;

    fn inner(&self) -> &PyTorch {
        &self.0
    }

    fn inner_mut(&mut self) -> &mut PyTorch {
        &mut self.0
    }

    fn relieve(&mut self, heap: &Heap, _: &Request, rung: u32) -> Relief {
        let blocks: Vec<BlockId> = heap.pool_slots().flat_map(|slot| heap.free_blocks(slot)).map(|block| block.id).collect();
        match rung {
            0 => Relief::Remap { blocks },
            1 => Relief::Release { blocks: Vec::new(), attempt: Attempt::Ask },
            _ => Relief::GiveUp,
        }
    }
}

pub(crate) fn check(_: &Draws) -> Outcome {
    let mut cases = 0;
    for answers in (0..8_u32).map(|bits| [bits & 1 == 1, bits & 2 == 2, bits & 4 == 4]) {
        for count in 0..=answers.len() {
            searched_again(&answers[..count])?;
            cases += 1;
        }
    }
    for free in (1..=MOST).flat_map(|first| (0..=MOST).map(move |second| [first, second])) {
        for wanted in 1..=2 * MOST {
            remapped(free, wanted)?;
            cases += 1;
        }
    }
    Ok(cases)
}

/// Callbacks that say whether they freed something: if any did, the segment is as large as the second search says.
fn searched_again(answers: &[bool]) -> Result<(), Broken> {
    let asked = Rc::new(Cell::new(0));
    let policy = Box::new(Growing(PyTorch::new(Settings::default()), Rc::clone(&asked)));
    let mut core = AnyKeptCore::new(Kept::new(SimOptions::new(Bytes(200 * MIB))), policy, Vec::new());
    for &says in answers {
        core.register_free_memory_callback(Box::new(move |_| says));
    }
    let held = core.allocate(Bytes(3 * MIB), StreamId::DEFAULT).map_err(failed)?;
    let searches = 1 + u64::from(answers.contains(&true));
    let (seen, expected) = (core.heap().reserved().get(), 20 * MIB + searches * 2 * MIB);
    ensure(Law::Answers, asked.get() == searches && seen == expected, || {
        let asked = asked.get();
        format!("callbacks say {answers:?}: searched {asked} times, a segment of {seen} bytes; expected {searches}, {expected}")
    })?;
    core.free(held).map_err(failed)
}

/// Two segments with this many free pages, and a request of another stream for so many: each page that is unmapped is mapped again,
/// one is created only where there are too few, and one is released only where there are too many.
fn remapped(free: [u64; 2], wanted: u64) -> Result<(), Broken> {
    let settings = Settings { expandable_segments: true, ..Settings::default() };
    let policy = Box::new(Remapping(PyTorch::new(settings)));
    let mut core = AnyKeptCore::new(Kept::new(SimOptions::new(Bytes(30 * PAGE))), policy, Vec::new());
    let allocate = |core: &mut AnyKeptCore, pages: u64, stream: u64| -> Result<Allocation, Broken> {
        core.allocate(Bytes(pages * PAGE), StreamId(stream)).map_err(failed)
    };
    // Both at once, or the second request would take the pages of the first.
    let mut held = Vec::new();
    for (pages, stream) in free.into_iter().zip(1..).filter(|(pages, _)| *pages > 0) {
        held.push(allocate(&mut core, pages, stream)?);
    }
    for allocation in held {
        core.free(allocation).map_err(failed)?;
    }
    let before = core.device().look().used_bytes().get();
    core.device().steer().take_log();
    let held = allocate(&mut core, wanted, 9)?;
    let log = core.device().steer().take_log();
    let seen = [CallName::MemUnmap, CallName::MemMap, CallName::MemCreate, CallName::MemRelease]
        .map(|name| log.iter().filter(|call| call.name == name).count() as u64);
    let unmapped: u64 = free.iter().sum();
    let expected = [unmapped, wanted, wanted.saturating_sub(unmapped), unmapped.saturating_sub(wanted)];
    let during = || format!("{free:?} free pages of other streams are remapped for a request of {wanted}");
    ensure(Law::Answers, seen == expected, || {
        format!("{}: unmapped, mapped, created and released {seen:?} pages, expected {expected:?}", during())
    })?;
    let (used, reserved) = (core.device().look().used_bytes().get(), core.heap().reserved().get());
    ensure(Law::Accounting, [used, reserved] == [wanted * PAGE; 2], || {
        format!("{}: the device gave {before} bytes before and {used} after, and {reserved} are counted", during())
    })?;
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    core.free(held).map_err(failed)
}
