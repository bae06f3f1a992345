//! An event: a mark in a stream, and what is known to be done once it is complete.

use std::sync::Arc;

use super::stream::Mark;
use crate::race::Order;

/// An event of a [`SimDevice`](crate::SimDevice). Means something only to the device that created it and to that device's clones.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimEvent {
    ordinal: u64,
    mark: Option<Mark>,
    /// What is done once the event is complete, for the race detector; `None` if that is nothing new.
    order: Option<Arc<Order>>,
}

impl SimEvent {
    /// The event of this number, not recorded yet.
    pub(crate) fn new(ordinal: u64) -> Self {
        SimEvent { ordinal, mark: None, order: None }
    }

    /// Moves it to a new mark.
    pub(crate) fn record(&mut self, mark: Mark, order: Option<Arc<Order>>) {
        self.mark = Some(mark);
        self.order = order;
    }

    /// Its number among the events created on its device, as it appears in the log.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Where it was recorded last.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// What is done once it is complete.
    pub(crate) fn order(&self) -> Option<&Order> {
        self.order.as_deref()
    }
}
