//! A device that answers with addresses that cannot be: the allocator must refuse them with an error that names the address, and go
//! on as if nothing had been asked.

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, MIB, StreamId};
use parkade::{AllocError, Allocator};

use crate::backend::{AnyBackend, AnyDevice, Core, Needs, TestDevice, WitnessedDevice};
use crate::law::{Broken, Law, ensure};
use crate::suite::{Effort, Entry, Evidence, Group, Requirement, Trouble, Verdict};

/// Sizes whose requests take a new range from the device.
const SIZES: [u64; 3] = [700, 5 * MIB, 30 * MIB];

/// The entries of this law.
pub(super) fn entries() -> Vec<Entry> {
    let says =
        "an address that overlaps memory in use, is not aligned or does not exist is refused with an error, and nothing changes";
    let kinds = [("segments", ""), ("reserved-ranges", "expandable_segments:True")];
    kinds
        .into_iter()
        .map(|(name, text)| {
            let entry =
                Entry::new(Group::Law, format!("faults/wrong-address/{name}"), says, move |backend: &AnyBackend, _: &Effort| {
                    check(backend, text)
                });
            if text.is_empty() { entry } else { entry.requires(Requirement::ExpandableSegments) }
        })
        .collect()
}

fn check(backend: &AnyBackend, text: &str) -> Verdict {
    let mut operations = 0;
    for size in SIZES {
        for lie in 0..6 {
            operations += one(backend, text, size, lie)?;
        }
    }
    Ok(Evidence::operations(operations))
}

/// Addresses that cannot be, given a range that is in use.
fn wrong_address(lie: usize, used: u64, bytes: u64) -> u64 {
    [used, used + bytes - 512, used.saturating_sub(512), used + 64 * bytes + 256, 0, u64::MAX - 511][lie]
}

fn one(backend: &AnyBackend, text: &str, size: u64, lie: usize) -> Result<u64, Trouble> {
    let device = WitnessedDevice::new(backend.open(&Needs { capacity: Some(Bytes(400 * MIB)), ..Needs::default() })?);
    let settings = Settings::from_environment(text).map_err(|error| Trouble::fail(error.to_string()))?;
    let mut core: Core<AnyDevice> = Allocator::new(device.clone(), PyTorch::new(settings), Vec::new());
    let refused = |error: AllocError| Trouble::fail(format!("a request was refused: {error}"));
    let held = core.allocate(Bytes(size), StreamId::DEFAULT).map_err(refused)?;
    let (base, bytes) = core.segment_of(&held).ok_or_else(|| Trouble::fail("an allocation without a segment"))?;
    let (segments, stats, told) = (core.segments(), core.stats().clone(), core.observer().len());
    let wrong = wrong_address(lie, base.get(), bytes.get());
    device.answer_wrongly(wrong);
    let stream = device.look().streams()[1];
    let answer = core.allocate(Bytes(size), stream);
    let is_named = answer.as_ref().is_err_and(|error| error.to_string().contains(&format!("{wrong:#x}")) || wrong == 0);
    let is_other = matches!(answer, Err(AllocError::OutOfMemory(_) | AllocError::TooLarge { .. } | AllocError::Device(_)));
    ensure(Law::Faults, is_named && !is_other, || {
        format!("{size} bytes at {wrong:#x}, beside {bytes} bytes at {base}: {answer:?}")
    })?;
    core.check().map_err(|violation| Broken::new(Law::Sweep, violation))?;
    let same = core.segments() == segments && *core.stats() == stats && core.observer().len() == told;
    ensure(Law::Faults, same, || format!("after {wrong:#x} the segments are {:?}, they were {segments:?}", core.segments()))?;
    let next = core.allocate(Bytes(size), stream).map_err(refused)?;
    for allocation in [held, next] {
        core.free(allocation).map_err(|error| Trouble::fail(error.to_string()))?;
    }
    core.release_cached().map_err(refused)?;
    drop(core);
    let left = device.look().holdings();
    ensure(Law::Endings, left.is_empty(), || format!("the device keeps {left:?}"))?;
    Ok(6)
}
