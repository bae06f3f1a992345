//! What a plan in two levels needs, as MEMO makes it: the layer first, then the program with each layer as one block.
//!
//! Zhao and others, MEMO: Fine-grained Tensor Management for Ultra-long Context LLM Training (arXiv 2407.12117), plan
//! a training step offline. A whole step is too much for an exact solver, and its layers are alike: so the requests
//! that come and go within one layer are planned once, and in the plan of the whole step each layer has one block, as
//! high as that plan. The paper solves both with mixed integer programs; here both use the [packer](crate::packing).
//! The paper's text beyond the abstract was not available.
//!
//! Different here: nothing is moved to the host. What a layer keeps for the backward pass, which MEMO swaps out, is
//! planned with the program. And a workload does not say where its layers begin, so they are looked for.

use std::collections::BTreeMap;
use std::ops::Range;

use super::all::BLOCK_BYTES;
use super::lifetimes::buffers;
use super::packed::{BoundsError, pack_checked};
use crate::packing::{Buffer, Effort, Instance, Packing, check};
use crate::workload::{Event, Workload};

/// A layer is repeated at least so often, one directly after the other.
const LEAST_LAYERS: usize = 3;
/// It has at least so many requests.
const LEAST_REQUESTS: usize = 4;
/// And at most so many.
const MOST_REQUESTS: usize = 512;
/// The packer's budget for one layer: this part of the whole.
const LAYER_PART: u64 = 64;

/// A plan in two levels of a workload's start and first two steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoPlan {
    /// What the plan needs, checked.
    pub height_bytes: u64,
    /// The best packing found without layers, of the same requests: one level.
    pub packing_bytes: u64,
    /// The most bytes live at once in what was planned, in blocks of 512 bytes.
    pub load_bytes: u64,
    /// How many layers became one block.
    pub layers: usize,
    /// How many requests are in these blocks.
    pub in_layers: usize,
    /// All requests that were planned.
    pub requests: usize,
}

/// Why a workload has no such plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoLayers {
    /// It has no step that repeats ([`Workload::repeating_step`]).
    NoStep,
    /// Nothing in its step repeats as layers do: three times or more, one directly after the other, with requests that
    /// come and go within each.
    NoLayers,
}

impl MemoPlan {
    /// Plans the workload's start and its first two steps.
    ///
    /// # Errors
    /// [`BoundsError`] for a buffer of 0 bytes, or sizes that add up to more than 2^62 bytes.
    pub fn of(workload: &Workload, effort: &Effort) -> Result<Result<MemoPlan, NoLayers>, BoundsError> {
        let Some(chunks) = chunks(workload) else { return Ok(Err(NoLayers::NoStep)) };
        let all = planned(workload, &chunks);
        let layers: Vec<Vec<usize>> = chunks.iter().flat_map(|chunk| layers(&all, chunk.clone())).collect();
        if layers.is_empty() {
            return Ok(Err(NoLayers::NoLayers));
        }
        let (instance, packing) = two_levels(&all, &layers, effort)?;
        check(&instance, &packing).map_err(BoundsError::Packing)?;
        Ok(Ok(MemoPlan {
            height_bytes: packing.height,
            packing_bytes: pack_checked(&instance, effort)?.packing.height,
            load_bytes: instance.load(),
            layers: layers.len(),
            in_layers: layers.iter().map(Vec::len).sum(),
            requests: all.len(),
        }))
    }
}

/// The requests before the first step, and those of the first two steps. Buffers are numbered in order.
fn chunks(workload: &Workload) -> Option<[Range<usize>; 3]> {
    let step = workload.repeating_step()?;
    let all = workload.buffers();
    let number = |request: usize| step.requests.get(request).map_or(all, |request| all.min(request.buffer as usize));
    let [first, second, end] = [0, 1, 2].map(|steps| number(step.begin + steps * step.length));
    Some([0..first, first..second, second..end])
}

/// The buffers up to the end of the second step.
fn planned(workload: &Workload, chunks: &[Range<usize>; 3]) -> Vec<Buffer> {
    let mut left = chunks[2].end;
    let is_within = |event: &&Event| {
        let is_request = matches!(event, Event::Allocate { .. });
        let is_within = !is_request || left > 0;
        left -= usize::from(is_request && is_within);
        is_within
    };
    let events = workload.events.iter().take_while(is_within).copied().collect();
    buffers(&Workload { events, ..Workload::default() }, BLOCK_BYTES)
}

/// For each layer among the requests of a chunk, those that come and go within it.
fn layers(all: &[Buffer], chunk: Range<usize>) -> Vec<Vec<usize>> {
    let (mut layers, mut is_taken) = (Vec::new(), vec![false; all.len()]);
    for length in LEAST_REQUESTS..=MOST_REQUESTS.min(chunk.len() / LEAST_LAYERS) {
        let mut at = chunk.start;
        while at + LEAST_LAYERS * length <= chunk.end {
            let repeats = |&place: &usize| place + length < chunk.end && all[place].size == all[place + length].size;
            let same = (at..chunk.end).take_while(repeats).count();
            let run = at..at + same + length;
            if same < (LEAST_LAYERS - 1) * length || is_taken[run.clone()].contains(&true) {
                at += same.saturating_sub(length).max(1);
                continue;
            }
            let found = of_run(all, run.clone(), length);
            if !found.is_empty() {
                is_taken[run.clone()].fill(true);
                layers.extend(found);
            }
            at = run.end;
        }
    }
    layers
}

/// The layers of a run of requests that repeats after `length`: they begin where most bytes come and go within them.
fn of_run(all: &[Buffer], run: Range<usize>, length: usize) -> Vec<Vec<usize>> {
    let sizes = all[run.start..run.start + length].iter().map(|buffer| buffer.size);
    if sizes.clone().min() == sizes.max() {
        return Vec::new();
    }
    // What is never freed lives one event longer than the last that is.
    let last = all.iter().map(|buffer| buffer.end).max().unwrap_or(0).saturating_sub(1);
    let beginning_at = |shift: usize| -> Vec<Vec<usize>> {
        let begins = (run.start + shift..run.end).step_by(length).take_while(|begin| begin + length <= run.end);
        let within = |begin: usize| -> Vec<usize> {
            let end = all.get(begin + length).map_or(last, |next| next.start);
            (begin..begin + length).filter(|&place| all[place].end <= end).collect()
        };
        begins.map(within).filter(|layer| layer.len() > 1).collect()
    };
    let bytes = |layers: &Vec<Vec<usize>>| layers.iter().flatten().map(|&place| u128::from(all[place].size)).sum::<u128>();
    let shifted = (0..length).map(beginning_at);
    // The first of equal ones.
    shifted.rev().max_by_key(bytes).filter(|layers| layers.len() >= LEAST_LAYERS).unwrap_or_default()
}

/// Plans each layer, then the program with a block for each; all buffers at their places.
fn two_levels(all: &[Buffer], layers: &[Vec<usize>], effort: &Effort) -> Result<(Instance, Packing), BoundsError> {
    let of_layer = Effort { steps: (effort.steps / LAYER_PART).max(1), ..*effort };
    let mut plans: BTreeMap<Vec<(u64, u64, u64)>, Packing> = BTreeMap::new();
    let mut inner = Vec::with_capacity(layers.len());
    let mut is_inside = vec![false; all.len()];
    let mut outer: Vec<Buffer> = Vec::new();
    for layer in layers {
        let begin = layer.iter().map(|&place| all[place].start).min().unwrap_or(0);
        let own: Vec<Buffer> = layer
            .iter()
            .map(|&place| Buffer { start: all[place].start - begin, end: all[place].end - begin, ..all[place] })
            .collect();
        let key = own.iter().map(|buffer| (buffer.start, buffer.end, buffer.size)).collect();
        let plan = match plans.entry(key) {
            std::collections::btree_map::Entry::Occupied(plan) => plan.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                let instance = Instance::new(own.clone()).map_err(BoundsError::Instance)?;
                place.insert(pack_checked(&instance, &of_layer)?.packing)
            }
        };
        let end = begin + own.iter().map(|buffer| buffer.end).max().unwrap_or(0);
        outer.push(Buffer { start: begin, end, size: plan.height, alignment: 1 });
        inner.push(plan.offsets.clone());
        layer.iter().for_each(|&place| is_inside[place] = true);
    }
    let outside: Vec<usize> = (0..all.len()).filter(|&place| !is_inside[place]).collect();
    outer.extend(outside.iter().map(|&place| all[place]));
    let instance = Instance::new(outer).map_err(BoundsError::Instance)?;
    let blocks = pack_checked(&instance, effort)?.packing;
    let mut offsets = vec![0; all.len()];
    for ((layer, inner), base) in layers.iter().zip(&inner).zip(&blocks.offsets) {
        layer.iter().zip(inner).for_each(|(&place, offset)| offsets[place] = base + offset);
    }
    for (&place, &offset) in outside.iter().zip(&blocks.offsets[layers.len()..]) {
        offsets[place] = offset;
    }
    let whole = Instance::new(all.to_vec()).map_err(BoundsError::Instance)?;
    Ok((whole, Packing { offsets, height: blocks.height }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::parse;

    const QUICK: Effort = Effort { steps: 2_000_000, seed: 1 };

    /// Weights; then steps of four layers forward, of 1 MiB kept and of 2 and 3 that come and go, and back again.
    fn program(steps: usize) -> Workload {
        let (mut events, mut count) = (Vec::new(), 0);
        let mut allocate = |events: &mut Vec<Event>, bytes: u64| {
            events.push(Event::Allocate { buffer: count, bytes, stream: 0 });
            count += 1;
            count - 1
        };
        allocate(&mut events, 100);
        for _ in 0..steps {
            let mut kept = Vec::new();
            for _ in 0..4 {
                kept.push(allocate(&mut events, 1 << 20));
                let passing = [2 << 20, 3 << 20, 5 << 20].map(|bytes| allocate(&mut events, bytes));
                events.extend(passing.map(|buffer| Event::Free { buffer }));
            }
            for kept in kept.into_iter().rev() {
                let passing = [7 << 20, 11 << 20, 13 << 20, 17 << 20].map(|bytes| allocate(&mut events, bytes));
                events.extend(passing.map(|buffer| Event::Free { buffer }));
                events.push(Event::Free { buffer: kept });
            }
        }
        Workload { name: "layers".into(), says: "Layers.".into(), events, steps: Vec::new() }
    }

    #[test]
    fn layers_become_blocks_and_the_plan_holds() {
        let plan = MemoPlan::of(&program(5), &QUICK).expect("an instance").expect("layers");
        // Four layers forward and four back in each of two steps, with three and four requests that come and go.
        assert_eq!((plan.layers, plan.in_layers, plan.requests), (16, 56, 65));
        assert_eq!((plan.height_bytes, plan.load_bytes), ((52 << 20) + 512, (52 << 20) + 512));
    }

    #[test]
    fn what_has_no_layers_says_so() {
        assert_eq!(MemoPlan::of(&program(0), &QUICK), Ok(Err(NoLayers::NoStep)));
        let flat: Vec<Event> = (0..10_u32)
            .flat_map(|step| {
                let of_step = 4 * step..4 * step + 4;
                let requests = of_step.clone().map(|buffer| Event::Allocate { buffer, bytes: 512 << (buffer % 4), stream: 0 });
                requests.chain(of_step.map(|buffer| Event::Free { buffer }))
            })
            .collect();
        let flat = Workload { events: flat, ..program(0) };
        assert_eq!(MemoPlan::of(&flat, &QUICK), Ok(Err(NoLayers::NoLayers)), "a step of four requests has no layers");
    }

    #[test]
    fn it_is_never_below_the_load_and_found_for_a_transformer() {
        let workload = parse("gpt2:steps=4").expect("a workload");
        let plan = MemoPlan::of(&workload, &QUICK).expect("an instance").expect("layers");
        assert!(plan.height_bytes >= plan.load_bytes && plan.layers >= 24, "{plan:?}");
        assert_eq!(plan.load_bytes, workload.load_bytes(BLOCK_BYTES), "two steps are as full as all of them");
    }
}
