//! What is known to be done: vector clocks of the streams and the host.
//!
//! Accesses are numbered 1, 2, 3, ... over the whole device, and streams are first in, first out. So what is
//! known about a stream is one number: all its accesses up to that number are done. Launched work knows what
//! its stream has waited for and what the host knew at the launch. The host's knowledge never shrinks.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of the last access known to be done, by stream.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Order {
    last: BTreeMap<u64, u64>,
}

impl Order {
    fn knows(&self, stream: u64, number: u64) -> bool {
        self.last.get(&stream).is_some_and(|&last| last >= number)
    }

    fn learn(&mut self, stream: u64, number: u64) {
        let last = self.last.entry(stream).or_default();
        *last = number.max(*last);
    }

    fn join(&mut self, other: &Order) {
        other.last.iter().for_each(|(&stream, &number)| self.learn(stream, number));
    }
}

#[derive(Clone, Default, Debug)]
struct StreamClock {
    /// The number of the last access queued on it.
    last: u64,
    /// What it has waited for, beyond what the host knew at that time.
    knows: Order,
}

/// The clocks of the host and of all streams.
#[derive(Clone, Default, Debug)]
pub(super) struct Clocks {
    /// The host knows that all accesses up to this number are done.
    floor: u64,
    /// What the host knows beyond that.
    host: Order,
    streams: BTreeMap<u64, StreamClock>,
}

impl Clocks {
    /// Whether the host knows that an access on a stream is done.
    pub(super) fn host_knows(&self, stream: u64, number: u64) -> bool {
        number <= self.floor || self.host.knows(stream, number)
    }

    /// Whether work queued on `stream` now starts after an access on `other`.
    pub(super) fn stream_knows(&self, stream: u64, other: u64, number: u64) -> bool {
        let waited = || self.streams.get(&stream).is_some_and(|clock| clock.knows.knows(other, number));
        stream == other || self.host_knows(other, number) || waited()
    }

    /// An access was queued on a stream.
    pub(super) fn launched(&mut self, stream: u64, number: u64) {
        self.streams.entry(stream).or_default().last = number;
    }

    /// What is known to be done, beyond what the host knows, once a mark recorded on the stream now is
    /// complete. `None` if nothing.
    pub(super) fn recorded(&self, stream: u64) -> Option<Arc<Order>> {
        let order = self.news(stream);
        (!order.last.is_empty()).then(|| Arc::new(order))
    }

    /// A stream waits for a mark.
    pub(super) fn stream_waits(&mut self, stream: u64, order: &Order) {
        let mut knows = self.streams.get(&stream).map_or_else(Order::default, |clock| clock.knows.clone());
        knows.join(order);
        knows.last.retain(|&other, &mut number| !self.host_knows(other, number));
        self.streams.entry(stream).or_default().knows = knows;
    }

    /// The host has seen a mark complete.
    pub(super) fn host_waits(&mut self, order: &Order) {
        self.host.join(order);
    }

    /// The host has waited for a whole stream.
    pub(super) fn host_waits_for(&mut self, stream: u64) {
        let news = self.news(stream);
        self.host.join(&news);
        self.streams.remove(&stream);
    }

    /// The host has waited for everything up to `number`, the last access.
    pub(super) fn host_waits_for_all(&mut self, number: u64) {
        *self = Clocks { floor: number, ..Clocks::default() };
    }

    fn news(&self, stream: u64) -> Order {
        let Some(clock) = self.streams.get(&stream) else { return Order::default() };
        let mut order = clock.knows.clone();
        order.learn(stream, clock.last);
        order.last.retain(|&other, &mut number| !self.host_knows(other, number));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knowledge_passes_from_stream_to_stream_to_host() {
        let mut clocks = Clocks::default();
        clocks.launched(1, 1);
        let first = clocks.recorded(1).unwrap();
        clocks.launched(1, 2);
        clocks.stream_waits(2, &first);
        assert_eq!([1, 2].map(|number| clocks.stream_knows(2, 1, number)), [true, false]);
        let second = clocks.recorded(2).unwrap();
        clocks.stream_waits(3, &second);
        assert!(clocks.stream_knows(3, 1, 1), "through stream 2");
        assert!(!clocks.host_knows(1, 1));
        clocks.host_waits(&second);
        assert_eq!([1, 2].map(|number| clocks.host_knows(1, number)), [true, false]);
        assert!(clocks.stream_knows(9, 1, 1), "a launch knows what the host knows");
        clocks.host_waits_for(1);
        assert!(clocks.host_knows(1, 2));
        assert_eq!(clocks.recorded(1), None);
    }

    #[test]
    fn a_mark_is_not_about_later_work() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.recorded(1), None);
        clocks.launched(1, 1);
        clocks.host_waits_for_all(1);
        assert_eq!(clocks.recorded(1), None, "the host knows");
        clocks.launched(1, 2);
        assert!(!clocks.host_knows(1, 2));
        assert!(clocks.stream_knows(1, 1, 2) && !clocks.stream_knows(2, 1, 2));
    }
}
