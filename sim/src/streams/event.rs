//! Events of the simulated device.

use std::sync::Arc;

use super::stream::Mark;
use crate::race::Order;

/// An event of a [`SimDevice`](crate::SimDevice). Valid only on that device and its clones.
///
/// It carries its own place in its stream, so a cloned device understands clones of its events.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SimEvent {
    ordinal: u64,
    mark: Option<Mark>,
    /// For the race detector: what is done once the event is complete. `None` if the host knew that already.
    order: Option<Arc<Order>>,
}

impl SimEvent {
    /// An event that is not recorded yet.
    pub(crate) fn new(ordinal: u64) -> Self {
        SimEvent { ordinal, mark: None, order: None }
    }

    /// Sets its newest record.
    pub(crate) fn record(&mut self, mark: Mark, order: Option<Arc<Order>>) {
        self.mark = Some(mark);
        self.order = order;
    }

    /// Its number among the events created on its device, counted from zero, as in the log.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Its newest record.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// What is done once it is complete.
    pub(crate) fn order(&self) -> Option<&Order> {
        self.order.as_deref()
    }
}
