//! Ten thousand requests, frees and cache releases in random order, checking what the memory holds.

use std::collections::BTreeMap;

use parkade::Allocation;
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};

use super::support::{Mode, ensure, twice};
use crate::backend::{AnyBackend, Needs, TestDevice};
use crate::checks::draw::Draws;
use crate::scripted_allocator::Stage;
use crate::suite::{Effort, Entry, Evidence, Trouble, Verdict};

const OPERATIONS: u64 = 10_000;
/// Above this many live bytes, tensors are freed before anything else.
const MOST: u64 = (1 << 30) / 10;
/// Bytes read at a tensor's start, middle and end; their addresses show that no two overlap in between.
const SAMPLE: usize = 4096;

pub(super) fn entries() -> Vec<Entry> {
    let says = "through 10,000 random requests, frees and cache releases each tensor keeps what was written";
    twice("test_allocator_fuzz", says, fuzz).into()
}

struct Tensor {
    allocation: Allocation,
    bytes: Bytes,
    word: u32,
}

fn fuzz(backend: &AnyBackend, mode: Mode, effort: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    let mut draws = Draws::new(effort.seed.wrapping_add(123));
    let (mut tensors, mut total, mut word) = (Vec::<Tensor>::new(), 0, 0);
    let mut places = BTreeMap::<u64, u64>::new();
    for _ in 0..OPERATIONS {
        while total >= MOST {
            total -= free(&mut stage, &mut tensors, &mut places, &mut draws)?;
        }
        // Ten to ten to one, as in the test; with nothing to free, nothing is freed.
        match draws.below(21) {
            0..10 => {
                word += 1;
                let bytes = Bytes((2 * MIB + draws.below(18 * MIB)) / 4 * 4);
                tensors.push(request(&mut stage, &mut places, bytes, word)?);
                total += bytes.get();
            }
            10..20 if !tensors.is_empty() => total -= free(&mut stage, &mut tensors, &mut places, &mut draws)?,
            10..20 => {}
            _ => stage.release_cached()?,
        }
    }
    while !tensors.is_empty() {
        free(&mut stage, &mut tensors, &mut places, &mut draws)?;
    }
    stage.finish()?;
    Ok(Evidence { operations: OPERATIONS, measured: format!("{word} tensors"), text: String::new() })
}

fn request(stage: &mut Stage, places: &mut BTreeMap<u64, u64>, bytes: Bytes, word: u32) -> Result<Tensor, Trouble> {
    let allocation = stage.core().allocate(bytes, StreamId::DEFAULT).map_err(|error| Trouble::fail(error.to_string()))?;
    let (start, end) = (allocation.address().get(), allocation.address().get() + bytes.get());
    let below = places.range(..end).next_back().filter(|(_, other)| **other > start);
    ensure(below.is_none(), || format!("tensor {word} shares bytes with another one"))?;
    places.insert(start, end);
    stage.device().steer().fill(allocation.address(), bytes, word, StreamId::DEFAULT)?;
    Ok(Tensor { allocation, bytes, word })
}

fn free(
    stage: &mut Stage,
    tensors: &mut Vec<Tensor>,
    places: &mut BTreeMap<u64, u64>,
    draws: &mut Draws,
) -> Result<u64, Trouble> {
    let Tensor { allocation, bytes, word } = tensors.swap_remove(draws.below(tensors.len() as u64) as usize);
    let last = bytes.get() - SAMPLE as u64;
    for offset in [0, last / 8 * 4, last] {
        check(stage, allocation.address().offset(Bytes(offset)), word)?;
    }
    places.remove(&allocation.address().get());
    stage.core().free(allocation).map_err(|error| Trouble::fail(error.to_string()))?;
    Ok(bytes.get())
}

fn check(stage: &Stage, address: DeviceAddress, word: u32) -> Result<(), Trouble> {
    let mut found = [0; SAMPLE];
    stage.device().steer().read(address, &mut found)?;
    let holds = found.chunks_exact(4).all(|piece| piece == word.to_le_bytes());
    ensure(holds, || format!("tensor {word} holds something else"))
}
