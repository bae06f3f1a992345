//! How large the handles of one stream may be compared with those of other streams.
//!
//! The free memory of a stream serves other streams only in whole handles, so a stream that needs little gets small ones.
//! How much a stream needs shows while it runs: it is the bytes of its requests that no free block served.

use alloc::collections::BTreeMap;

use parkade::units::{Bytes, StreamId};

/// Another stream becomes the main one once it has lacked more than this many times as much.
const TIMES_MAIN: u64 = 16;
/// A handle of another stream is at most this many times the bytes that the request lacks, or the bytes that the stream has
/// lacked so far if that is more.
const TIMES_MISSING: u64 = 2;

/// The bytes that the streams have lacked. There is an entry for each stream that has lacked any; the allocator has a
/// segment for each of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamNeeds {
    missed: BTreeMap<StreamId, Bytes>,
    main: Option<StreamId>,
}

impl StreamNeeds {
    /// Records a request that no free block serves. The first stream is the main one until another stream needs much
    /// more.
    pub(crate) fn note(&mut self, stream: StreamId, size: Bytes) {
        let missed = self.missed.entry(stream).or_default();
        *missed = Bytes(missed.get().saturating_add(size.get()));
        let missed = missed.get();
        let of_main = self.main.map_or(0, |main| self.missed_by(main).get());
        if self.main.is_none() || missed / TIMES_MAIN > of_main {
            self.main = Some(stream);
        }
    }

    /// The most bytes of a new handle for a stream that lacks `missing` bytes now; unlimited for the main stream.
    pub(crate) fn most(&self, stream: StreamId, missing: Bytes) -> Bytes {
        if self.main.is_none_or(|main| main == stream) {
            return Bytes::MAX;
        }
        Bytes(missing.get().saturating_mul(TIMES_MISSING)).max(self.missed_by(stream))
    }

    fn missed_by(&self, stream: StreamId) -> Bytes {
        self.missed.get(&stream).copied().unwrap_or(Bytes::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: StreamId = StreamId(0);
    const SECOND: StreamId = StreamId(7);

    #[test]
    fn a_stream_beside_the_main_one_gets_as_much_as_it_has_missed() {
        let mut needs = StreamNeeds::default();
        assert_eq!(needs.most(FIRST, Bytes::mib(2)), Bytes::MAX, "nobody has missed anything");
        needs.note(FIRST, Bytes::mib(100));
        needs.note(SECOND, Bytes::mib(4));
        assert_eq!(needs.most(FIRST, Bytes::mib(2)), Bytes::MAX);
        assert_eq!(needs.most(SECOND, Bytes::mib(4)), Bytes::mib(8));
        needs.note(SECOND, Bytes::mib(60));
        assert_eq!(needs.most(SECOND, Bytes::mib(4)), Bytes::mib(64));
    }

    #[test]
    fn a_stream_that_only_came_first_is_not_the_main_one_for_long() {
        let mut needs = StreamNeeds::default();
        needs.note(FIRST, Bytes::mib(2));
        needs.note(SECOND, Bytes::mib(32));
        assert_eq!(needs.most(SECOND, Bytes::mib(32)), Bytes::mib(64), "sixteen times is not more than sixteen times");
        needs.note(SECOND, Bytes::mib(2));
        assert_eq!(needs.most(SECOND, Bytes::mib(32)), Bytes::MAX);
        assert_eq!(needs.most(FIRST, Bytes::mib(2)), Bytes::mib(4));
    }

    #[test]
    fn sums_do_not_overflow() {
        let mut needs = StreamNeeds::default();
        needs.note(FIRST, Bytes::MAX);
        needs.note(FIRST, Bytes::MAX);
        needs.note(SECOND, Bytes::MAX);
        assert_eq!(needs.most(SECOND, Bytes::MAX), Bytes::MAX);
    }
}
