//! The addresses of expandable segments, and which of their pages have memory.
//!
//! The heap knows blocks; this knows pages. A segment is one reserved range of addresses, divided into pages
//! of one size, each with memory of its own or none (spec 4.1).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::units::StreamId;

/// One reserved range.
#[derive(Clone, Debug)]
pub(crate) struct Reservation<M> {
    /// Bytes of addresses.
    pub(crate) size: u64,
    /// Bytes of a page.
    pub(crate) page: u64,
    /// The stream whose work must be done before a page is unmapped.
    pub(crate) stream: StreamId,
    /// Numbered in the order of creation.
    pub(crate) number: u64,
    /// The memory of each page, up to the last one mapped.
    memory: Vec<Option<M>>,
}

impl<M> Reservation<M> {
    /// Notes the memory of a page.
    pub(crate) fn put(&mut self, page: u64, memory: M) {
        let page = page as usize;
        if self.memory.len() <= page {
            self.memory.resize_with(page + 1, || None);
        }
        self.memory[page] = Some(memory);
    }

    /// Takes the memory of a page.
    pub(crate) fn take(&mut self, page: u64) -> Option<M> {
        let memory = self.memory.get_mut(page as usize)?.take();
        while self.memory.last().is_some_and(Option::is_none) {
            self.memory.pop();
        }
        memory
    }

    /// Pages that have memory, in order.
    pub(crate) fn mapped_pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.memory.iter().enumerate().filter(|(_, memory)| memory.is_some()).map(|(page, _)| page as u64)
    }

    /// Bytes that have memory.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.mapped_pages().count() as u64 * self.page
    }
}

/// All reserved ranges, by address.
#[derive(Clone, Debug)]
pub(crate) struct Reservations<M> {
    by_base: BTreeMap<u64, Reservation<M>>,
    made: u64,
    /// Unmapped memory that the device failed to release. Retried whenever memory is released.
    unreleased: Vec<M>,
    /// Ranges, by first byte and size, that the device failed to unmap although no segment uses them. Retried
    /// likewise.
    stuck: Vec<(u64, u64)>,
    /// Memory that was unmapped to be mapped elsewhere, with its page size. Empty between operations.
    spare: Vec<(u64, M)>,
}

impl<M> Reservations<M> {
    pub(crate) fn new() -> Reservations<M> {
        Reservations { by_base: BTreeMap::new(), made: 0, unreleased: Vec::new(), stuck: Vec::new(), spare: Vec::new() }
    }

    pub(crate) fn insert(&mut self, base: u64, size: u64, page: u64, stream: StreamId) {
        let number = self.made;
        self.made += 1;
        self.by_base.insert(base, Reservation { size, page, stream, number, memory: Vec::new() });
    }

    /// Keeps memory that the device failed to release.
    pub(crate) fn keep_unreleased(&mut self, memory: M) {
        self.unreleased.push(memory);
    }

    pub(crate) fn take_unreleased(&mut self) -> Vec<M> {
        core::mem::take(&mut self.unreleased)
    }

    /// Keeps the unmapped memory of a page of `page` bytes for the mapping that follows.
    pub(crate) fn keep_spare(&mut self, page: u64, memory: M) {
        self.spare.push((page, memory));
    }

    /// Takes kept memory of this page size.
    pub(crate) fn take_spare_page(&mut self, page: u64) -> Option<M> {
        let place = self.spare.iter().rposition(|(bytes, _)| *bytes == page)?;
        Some(self.spare.swap_remove(place).1)
    }

    /// Takes all kept memory.
    pub(crate) fn take_spare(&mut self) -> Vec<(u64, M)> {
        core::mem::take(&mut self.spare)
    }

    /// Remembers a range that the device failed to unmap.
    pub(crate) fn keep_stuck(&mut self, address: u64, bytes: u64) {
        self.stuck.push((address, bytes));
    }

    pub(crate) fn take_stuck(&mut self) -> Vec<(u64, u64)> {
        core::mem::take(&mut self.stuck)
    }

    /// Whether anything waits to be released or unmapped again.
    pub(crate) fn has_leftovers(&self) -> bool {
        !self.unreleased.is_empty() || !self.stuck.is_empty()
    }

    /// The range that holds an address, with its first byte.
    pub(crate) fn holding(&mut self, address: u64) -> Option<(u64, &mut Reservation<M>)> {
        let (&base, range) = self.by_base.range_mut(..=address).next_back()?;
        (address - base < range.size).then_some((base, range))
    }

    pub(crate) fn remove(&mut self, base: u64) -> Option<Reservation<M>> {
        self.by_base.remove(&base)
    }

    /// All ranges, by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Reservation<M>)> {
        self.by_base.iter().map(|(&base, range)| (base, range))
    }

    /// The first byte of the first range.
    pub(crate) fn first(&self) -> Option<u64> {
        self.by_base.keys().next().copied()
    }
}
