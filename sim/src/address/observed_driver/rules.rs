//! The address model itself.

use std::collections::VecDeque;

use super::change::Event;
use super::layout::{GRANULE_BYTES, Layout};
use super::learn::LearnedAddressSpace;
use crate::address::linear::DESCENDING_END;
use crate::address::model::AddressModel;

/// Places ranges by the rules observed of NVIDIA's driver: in the newest chunk with a hole, or in a new chunk
/// as high as it fits. The rules are described, and measured against recordings, at the top of this folder's
/// `mod.rs`.
#[derive(Clone, Debug)]
pub struct ObservedDriver {
    layout: Layout,
    moment: u64,
    /// The changes still to come, by moment.
    events: VecDeque<Event>,
    /// Whether only learned addresses are free so far. A run that needs more than the recorded one gets all
    /// other addresses too.
    is_narrow: bool,
}

impl ObservedDriver {
    /// An address space used by nobody else, free below [`DESCENDING_END`].
    #[must_use]
    pub fn new() -> Self {
        let mut layout = Layout::default();
        layout.add_space(GRANULE_BYTES, DESCENDING_END - GRANULE_BYTES);
        ObservedDriver { layout, moment: 0, events: VecDeque::new(), is_narrow: false }
    }

    /// The address space of a recorded process. Its changes happen when [`AddressModel::set_moment`] passes
    /// their moments. The same as [`ObservedDriver::new`] if nothing was learned.
    #[must_use]
    pub fn learned(learned: &LearnedAddressSpace) -> Self {
        if learned.events.is_empty() {
            return ObservedDriver::new();
        }
        let events = learned.events.iter().copied().collect();
        ObservedDriver { layout: Layout::default(), moment: 0, events, is_narrow: true }
    }
}

impl Default for ObservedDriver {
    fn default() -> Self {
        ObservedDriver::new()
    }
}

impl AddressModel for ObservedDriver {
    fn place(&mut self, bytes_reserved: u64, _request: u64) -> Option<u64> {
        while let Some(event) = self.events.pop_front_if(|event| event.moment <= self.moment) {
            event.apply(&mut self.layout);
        }
        let mut spot = self.layout.choose(bytes_reserved);
        if self.is_narrow && spot.is_none() {
            self.is_narrow = false;
            self.layout.add_space(GRANULE_BYTES, DESCENDING_END - GRANULE_BYTES);
            spot = self.layout.choose(bytes_reserved);
        }
        let spot = spot?;
        self.layout.take(spot, bytes_reserved);
        Some(spot.address())
    }

    fn release(&mut self, address: u64, bytes_reserved: u64) {
        self.layout.release(address, bytes_reserved);
    }

    fn set_moment(&mut self, moment: u64) {
        self.moment = moment;
    }

    fn boxed_clone(&self) -> Box<dyn AddressModel> {
        Box::new(self.clone())
    }
}
