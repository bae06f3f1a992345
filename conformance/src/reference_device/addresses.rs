//! Where ranges are placed: the rules of `sim/src/address`, each as plain as its description there.

use std::collections::VecDeque;

use parkade_sim::PAGE_BYTES;
use parkade_sim::address::{
    ASCENDING_START, AddressModel, DESCENDING_END, FALLBACK_START, RESERVATION_FALLBACK_START, RESERVATION_START,
};
use serde::{Deserialize, Serialize};

use super::gaps::{Range, common, gaps, joined};

/// A rule that places ranges.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Rule {
    /// Ascending from an address, with a gap above each range.
    Up(u64, u64),
    /// Descending from an address, with a gap above each range.
    Down(u64, u64),
    /// The lowest hole that is large enough, or new addresses from this one on.
    Reuse(u64),
    /// Ascending, with at least 1 GiB between ranges.
    Apart,
    /// The addresses of a list, for cudaMalloc or for reservations.
    Listed(Vec<u64>, bool),
    /// The rules that were observed in the driver.
    Observed,
    /// Exactly these answers, usable or not.
    Answers(Vec<Option<u64>>),
}

/// A model that gives the answers of a list and notes what it is asked and told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answers {
    list: VecDeque<Option<u64>>,
    next: u64,
    /// Every call: whether it asks for a place, and its two numbers.
    pub(crate) calls: Vec<(bool, u64, u64)>,
    pub(crate) moment: u64,
}

impl Answers {
    pub(crate) fn new(list: Vec<Option<u64>>) -> Answers {
        Answers { list: list.into(), next: 0x6000_0000_0000, calls: Vec::new(), moment: 0 }
    }
}

impl AddressModel for Answers {
    fn place(&mut self, bytes_reserved: u64, request: u64) -> Option<u64> {
        self.calls.push((true, bytes_reserved, request));
        self.list.pop_front().unwrap_or_else(|| {
            let address = self.next;
            self.next = address.checked_add(bytes_reserved)?;
            Some(address)
        })
    }

    fn release(&mut self, address: u64, bytes_reserved: u64) {
        self.calls.push((false, address, bytes_reserved));
    }

    fn set_moment(&mut self, moment: u64) {
        self.moment = moment;
    }

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}

/// A rule and what it has placed.
#[derive(Clone, Debug)]
pub(crate) struct Placer {
    rule: Rule,
    /// The next address, or the end of the next range.
    next: u64,
    /// Addresses that were freed.
    freed: Vec<Range>,
    /// What the rule believes to be in use.
    live: Vec<Range>,
    list: VecDeque<u64>,
    pub(crate) fallbacks: u64,
    fallback_bytes: u64,
    chunks: Vec<Chunk>,
    pub(crate) answers: Answers,
}

/// A part of the address space that the observed driver holds.
#[derive(Clone, Debug)]
struct Chunk {
    start: u64,
    end: u64,
    live: Vec<Range>,
}

/// Chunks begin and end at multiples of this size.
const GRANULE: u64 = 32 << 20;

impl Placer {
    pub(crate) fn new(rule: &Rule) -> Placer {
        let (mut next, mut list, mut answers) = (ASCENDING_START, VecDeque::new(), Vec::new());
        match rule {
            Rule::Up(start, _) | Rule::Down(start, _) | Rule::Reuse(start) => next = *start,
            Rule::Apart => next = RESERVATION_START,
            Rule::Listed(addresses, _) => list = addresses.iter().copied().collect(),
            Rule::Answers(given) => answers = given.clone(),
            Rule::Observed => {}
        }
        let (freed, live, chunks) = (Vec::new(), Vec::new(), Vec::new());
        let answers = Answers::new(answers);
        Placer { rule: rule.clone(), next, freed, live, list, fallbacks: 0, fallback_bytes: 0, chunks, answers }
    }

    /// Returns the address of a new range; `None` if there is none left.
    pub(crate) fn place(&mut self, bytes: u64, request: u64) -> Option<u64> {
        match self.rule {
            Rule::Up(_, gap) => {
                let address = self.next;
                self.next = address.checked_add(bytes)?.checked_add(gap)?;
                Some(address)
            }
            Rule::Down(_, gap) => {
                let address = self.next.checked_sub(bytes.checked_add(gap)?)?;
                if address == 0 {
                    return None;
                }
                self.next = address;
                Some(address)
            }
            Rule::Apart => {
                let address = self.next;
                let gib = 1_u64 << 30;
                self.next = address.checked_add(bytes.div_ceil(gib).checked_mul(gib)?.checked_add(gib)?)?;
                Some(address)
            }
            Rule::Reuse(_) => self.reuse(bytes),
            Rule::Listed(..) => self.listed(bytes),
            Rule::Observed => self.observed(bytes),
            Rule::Answers(_) => self.answers.place(bytes, request),
        }
    }

    /// Frees a range.
    pub(crate) fn release(&mut self, address: u64, bytes: u64) {
        match self.rule {
            Rule::Up(..) | Rule::Down(..) | Rule::Apart => {}
            Rule::Reuse(_) => self.freed.push((address, address + bytes)),
            Rule::Listed(..) => self.live.retain(|&(start, _)| start != address),
            Rule::Observed => {
                self.chunks.iter_mut().for_each(|chunk| chunk.live.retain(|&(start, _)| start != address));
                self.chunks.retain(|chunk| !chunk.live.is_empty());
            }
            Rule::Answers(_) => self.answers.release(address, bytes),
        }
    }

    /// Appends an address to the list, or drops the rest of the list.
    pub(crate) fn extend(&mut self, address: Option<u64>) {
        match address {
            Some(address) => self.list.push_back(address),
            None => self.list.clear(),
        }
    }

    /// Returns how many addresses are left in the list.
    pub(crate) fn remaining(&self) -> usize {
        self.list.len()
    }

    fn reuse(&mut self, bytes: u64) -> Option<u64> {
        self.freed.sort_unstable();
        self.freed = joined(std::mem::take(&mut self.freed));
        if let Some(hole) = self.freed.iter_mut().find(|(start, end)| end - start >= bytes) {
            let address = hole.0;
            hole.0 += bytes;
            self.freed.retain(|(start, end)| start < end);
            return Some(address);
        }
        let address = self.next;
        self.next = address.checked_add(bytes)?;
        Some(address)
    }

    /// Takes the next address of the list if it can be used, or a fallback.
    fn listed(&mut self, bytes: u64) -> Option<u64> {
        let (alignment, start) = match self.rule {
            Rule::Listed(_, true) => (PAGE_BYTES, RESERVATION_FALLBACK_START),
            _ => (512, FALLBACK_START),
        };
        if let Some(address) = self.list.pop_front()
            && address > 0
            && address.is_multiple_of(alignment)
            && self.is_free(address, bytes)
        {
            self.live.push((address, address + bytes));
            return Some(address);
        }
        self.fallbacks += 1;
        let mut address = start.checked_add(self.fallback_bytes)?;
        while !self.is_free(address, bytes) {
            let end = address.checked_add(bytes)?;
            let in_the_way = self.live.iter().filter(|&&range| common(range, (address, end)).is_some());
            address = in_the_way.map(|range| range.1).max()?.checked_next_multiple_of(PAGE_BYTES)?;
        }
        self.live.push((address, address + bytes));
        self.fallback_bytes = address + bytes - start;
        Some(address)
    }

    fn is_free(&self, address: u64, bytes: u64) -> bool {
        let overlaps = |end| self.live.iter().any(|&range| common(range, (address, end)).is_some());
        address.checked_add(bytes).is_some_and(|end| !overlaps(end))
    }

    /// Takes the lowest hole of the newest chunk that has one, or a new chunk at the top of the highest gap that is 32 MiB
    /// longer than the chunk.
    fn observed(&mut self, bytes: u64) -> Option<u64> {
        for chunk in self.chunks.iter_mut().rev() {
            let holes = gaps((chunk.start, chunk.end), chunk.live.iter().copied());
            if let Some(&(start, _)) = holes.iter().find(|(start, end)| end - start >= bytes) {
                chunk.live.push((start, start + bytes));
                return Some(start);
            }
        }
        let length = bytes.checked_next_multiple_of(GRANULE)?;
        let needed = length.checked_add(GRANULE)?;
        let free = gaps((GRANULE, DESCENDING_END), self.chunks.iter().map(|chunk| (chunk.start, chunk.end)));
        let &(_, end) = free.iter().rev().find(|(start, end)| end - start >= needed)?;
        let start = end - length;
        self.chunks.push(Chunk { start, end, live: vec![(start, start + bytes)] });
        Some(start)
    }
}
