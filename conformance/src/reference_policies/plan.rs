//! A second planner for STAlloc. It finds the place of each request of a program's first step by trying every possible offset.
//!
//! The rules are from the first paragraphs of `policies/src/stalloc.rs`: each recurring request of more than 512 bytes gets
//! the lowest free offset in the area of its stream and PyTorch collection, in whichever of three orders needs the least memory.

use parkade::policy::{Policy, PyTorch};
use parkade::settings::Settings;
use parkade::units::{Bytes, PoolClass, StreamId};
use parkade_policies::FirstStep;

/// A planned request.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) size: u64,
    pub(crate) stream: StreamId,
    /// The position of its area in the list of areas.
    pub(crate) area: usize,
    pub(crate) offset: u64,
    class: PoolClass,
    /// Whether it is live after each of the program's requests.
    live: Vec<bool>,
}

/// An area of memory.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) class: PoolClass,
    pub(crate) stream: StreamId,
    pub(crate) bytes: u64,
}

/// A plan.
#[derive(Clone, Default, Debug)]
pub(crate) struct Plan {
    pub(crate) requests: Vec<Planned>,
    pub(crate) areas: Vec<Area>,
    pub(crate) repeats_from: usize,
}

impl Plan {
    /// Plans a program's first step. The plan is empty if no request of the step is planned, or if there are more than 20,000
    /// requests.
    pub(crate) fn of(step: &FirstStep) -> Plan {
        let (begin, end) = (step.repeats_from, step.requests.len());
        if begin >= end || end > 20_000 {
            return Plan::default();
        }
        let pytorch = PyTorch::new(Settings::default());
        let (mut requests, mut repeats_from) = (Vec::new(), 0);
        for (number, request) in step.requests.iter().enumerate() {
            if number == begin {
                repeats_from = requests.len();
            }
            let Some(size) = pytorch.round(request.bytes).filter(|size| size.get() > 512 && request.comes_again) else {
                continue;
            };
            let (class, stream) = (pytorch.classify(size), request.stream);
            let live = moments(begin, end, number, request.freed_after);
            requests.push(Planned { size: size.get(), stream, area: 0, offset: 0, class, live });
        }
        if repeats_from == requests.len() {
            return Plan::default();
        }
        let mut areas: Vec<Area> = Vec::new();
        for request in &requests {
            if !areas.iter().any(|area| (area.class, area.stream) == (request.class, request.stream)) {
                areas.push(Area { class: request.class, stream: request.stream, bytes: 0 });
            }
        }
        areas.sort_by_key(|area| (area.class, area.stream));
        for (place, area) in areas.iter_mut().enumerate() {
            let own = |request: &Planned| (request.class, request.stream) == (area.class, area.stream);
            let members: Vec<usize> = (0..requests.len()).filter(|&request| own(&requests[request])).collect();
            let offsets = best_offsets(&requests, &members);
            for (&member, &offset) in members.iter().zip(&offsets) {
                (requests[member].area, requests[member].offset) = (place, offset);
            }
            area.bytes = height(&requests, &members, &offsets);
        }
        Plan { requests, areas, repeats_from }
    }

    /// Returns the bytes of all areas.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.areas.iter().fold(0, |sum, area| sum.saturating_add(area.bytes)))
    }
}

/// Returns, for each request of the program, whether the given request is live after it. The requests from `begin` to `end`
/// repeat forever.
fn moments(begin: usize, end: usize, number: usize, freed_after: Option<usize>) -> Vec<bool> {
    let mut live = vec![false; end];
    // A request before the step that is not freed lives until the end of the step.
    let freed = freed_after.unwrap_or(usize::MAX).max(number + 1);
    if number < begin {
        live[number..freed.min(end)].fill(true);
        return live;
    }
    let mut moment = number;
    for _ in 0..(freed - number).min(end - begin) {
        live[moment] = true;
        moment = if moment + 1 == end { begin } else { moment + 1 };
    }
    live
}

fn meet(one: &Planned, other: &Planned) -> bool {
    one.live.iter().zip(&other.live).any(|(one, other)| *one && *other)
}

/// Returns the memory that these offsets need.
fn height(requests: &[Planned], members: &[usize], offsets: &[u64]) -> u64 {
    members.iter().zip(offsets).map(|(&member, offset)| offset.saturating_add(requests[member].size)).max().unwrap_or(0)
}

/// Returns the offsets in the first of the three orders that need the least memory: by size, by size and lifetime, and by
/// lifetime, each the largest first.
fn best_offsets(requests: &[Planned], members: &[usize]) -> Vec<u64> {
    let mut best: Option<(u64, Vec<u64>)> = None;
    for order in 0..3 {
        let key = |request: &Planned| {
            let (size, time) = (u128::from(request.size), request.live.iter().filter(|live| **live).count() as u128);
            [(size, time), (size * time, size), (time, size)][order]
        };
        let mut left: Vec<usize> = (0..members.len()).collect();
        let (mut offsets, mut done) = (vec![0; members.len()], Vec::new());
        while !left.is_empty() {
            // Among equal keys, the first request comes first.
            let largest = left.iter().map(|&place| key(&requests[members[place]])).max();
            let next = left.iter().position(|&place| Some(key(&requests[members[place]])) == largest).unwrap_or(0);
            let place = left.remove(next);
            offsets[place] = lowest_offset(requests, members, &offsets, &done, place);
            done.push(place);
        }
        let bytes = height(requests, members, &offsets);
        if best.as_ref().is_none_or(|(least, _)| bytes < *least) {
            best = Some((bytes, offsets));
        }
    }
    best.map(|(_, offsets)| offsets).unwrap_or_default()
}

/// Returns the lowest offset at which a request does not overlap any request that is live at the same time.
fn lowest_offset(requests: &[Planned], members: &[usize], offsets: &[u64], done: &[usize], place: usize) -> u64 {
    let own = &requests[members[place]];
    let others: Vec<(u64, u64)> = done
        .iter()
        .filter(|&&other| meet(own, &requests[members[other]]))
        .map(|&other| (offsets[other], offsets[other].saturating_add(requests[members[other]].size)))
        .collect();
    let is_free = |from: u64| others.iter().all(|&(start, end)| end <= from || from.saturating_add(own.size) <= start);
    let ends = others.iter().map(|&(_, end)| end);
    std::iter::once(0).chain(ends).filter(|&from| is_free(from)).min().unwrap_or(0)
}
