//! Limits on the handles of one stream, compared with those of other streams.
//!
//! The free memory of a stream can serve other streams only in whole handles, so a stream that needs little gets small
//! ones. A stream's need is measured while it runs: it is the total size of its requests that no free block could
//! serve.

use alloc::collections::BTreeMap;

use parkade::units::{Bytes, StreamId};

/// Another stream becomes the main one if it needs more than this many times as much.
const TIMES_MAIN: u64 = 16;
/// The maximum size of another stream's handle is this many times the missing bytes of the request, or the stream's
/// need so far if that is more.
const TIMES_MISSING: u64 = 2;

/// The streams' needs in bytes. There is an entry for each stream that has needed memory; the allocator has a segment
/// for each of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamNeeds {
    missed: BTreeMap<StreamId, Bytes>,
    main: Option<StreamId>,
}

impl StreamNeeds {
    /// Records a request that no free block can serve. The first stream is the main one until another stream needs
    /// much more.
    pub(crate) fn note(&mut self, stream: StreamId, size: Bytes) {
        let missed = self.missed.entry(stream).or_default();
        *missed = Bytes(missed.get().saturating_add(size.get()));
        let missed = missed.get();
        let of_main = self.main.map_or(0, |main| self.missed_by(main).get());
        if self.main.is_none() || missed / TIMES_MAIN > of_main {
            self.main = Some(stream);
        }
    }

    /// The maximum size of a new handle for a stream that is missing `missing` bytes; unlimited for the main stream.
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
        assert_eq!(needs.most(FIRST, Bytes::mib(2)), Bytes::MAX, "no stream has needed anything");
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
        assert_eq!(
            needs.most(SECOND, Bytes::mib(32)),
            Bytes::mib(64),
            "exactly sixteen times as much is not enough to become the main stream"
        );
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
