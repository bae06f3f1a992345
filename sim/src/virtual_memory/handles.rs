//! Created memory: kept until it is released and mapped nowhere.

use crate::calls::INVALID_VALUE;
use crate::memory::{PageRun, PageRuns};

/// Memory created on a [`SimDevice`](crate::SimDevice), which may be mapped. Valid only on that device and
/// its clones.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimPhysical {
    ordinal: u64,
    bytes: u64,
    slot: u32,
}

impl SimPhysical {
    /// Its number among the memory created on its device, counted from zero, as in the log.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }
}

/// One piece of created memory.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    ordinal: u64,
    pub(super) bytes: u64,
    runs: PageRuns,
    /// How many times it is mapped.
    pub(super) mappings: u64,
    released: bool,
}

/// All created memory, by slot.
#[derive(Clone, Default, Debug)]
pub(super) struct Handles {
    slots: Vec<Option<Handle>>,
    vacant: Vec<u32>,
    next_ordinal: u64,
}

impl Handles {
    /// How many pieces of memory there are.
    pub(super) fn count(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Adds new memory.
    #[inline]
    pub(super) fn insert(&mut self, bytes: u64, runs: PageRuns) -> SimPhysical {
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        let handle = Some(Handle { ordinal, bytes, runs, mappings: 0, released: false });
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot as usize] = handle;
                slot
            }
            None => {
                self.slots.push(handle);
                // 2^32 pages of 2 MiB are eight exbibytes.
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 pieces of memory")
            }
        };
        SimPhysical { ordinal, bytes, slot }
    }

    /// Memory that may be mapped or released.
    ///
    /// # Errors
    /// `INVALID_VALUE` if it was released.
    #[inline]
    pub(super) fn get_mut(&mut self, memory: &SimPhysical) -> Result<&mut Handle, u32> {
        let handle = self.slots.get_mut(memory.slot as usize).and_then(Option::as_mut);
        handle.filter(|handle| handle.ordinal == memory.ordinal && !handle.released).ok_or(INVALID_VALUE)
    }

    /// The pages of the memory in a slot.
    #[inline]
    pub(super) fn runs(&self, slot: u32) -> Option<&[PageRun]> {
        self.slots.get(slot as usize)?.as_ref().map(|handle| &*handle.runs)
    }

    /// Releases memory. Returns its pages, or none while it is mapped.
    #[inline]
    pub(super) fn release(&mut self, memory: &SimPhysical) -> Result<PageRuns, u32> {
        self.get_mut(memory)?.released = true;
        Ok(self.drop_unused(memory.slot))
    }

    /// Notes that one mapping of the memory in a slot has ended. Returns its pages if it was released and that
    /// was the last mapping.
    #[inline]
    pub(super) fn unmapped(&mut self, slot: u32) -> PageRuns {
        if let Some(handle) = &mut self.slots[slot as usize] {
            handle.mappings = handle.mappings.saturating_sub(1);
        }
        self.drop_unused(slot)
    }

    /// Removes memory that is released and mapped nowhere. Returns its pages.
    #[inline]
    fn drop_unused(&mut self, slot: u32) -> PageRuns {
        match self.slots[slot as usize].take_if(|handle| handle.released && handle.mappings == 0) {
            Some(handle) => {
                self.vacant.push(slot);
                handle.runs
            }
            None => PageRuns::default(),
        }
    }
}
