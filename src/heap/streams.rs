//! The streams that a heap knows, each with a 16-bit slot, which blocks store instead of the handle.

use super::Heap;
use crate::units::StreamId;

/// Too many streams for one heap: a slot has 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyStreams;

impl Heap {
    #[inline]
    pub(crate) fn known_stream_slot(&self, stream: StreamId) -> Option<u16> {
        if self.last_stream.0 == stream {
            return Some(self.last_stream.1);
        }
        let place = self.stream_order.binary_search_by_key(&stream, |&slot| self.streams[usize::from(slot)]).ok()?;
        Some(self.stream_order[place])
    }

    /// The slot of a stream; a new one for a new stream.
    #[inline]
    pub(crate) fn stream_slot(&mut self, stream: StreamId) -> Result<u16, TooManyStreams> {
        if self.last_stream.0 != stream {
            self.last_stream = (stream, self.find_or_add_stream(stream)?);
        }
        Ok(self.last_stream.1)
    }

    /// The slot of a stream that is the same as in the last request.
    #[inline]
    pub(crate) fn same_stream_slot(&self, stream: StreamId) -> Option<u16> {
        (self.last_stream.0 == stream).then_some(self.last_stream.1)
    }

    /// All streams, the default stream first, then in the order of their first request.
    #[must_use]
    pub fn streams_seen(&self) -> &[StreamId] {
        &self.streams
    }

    fn find_or_add_stream(&mut self, stream: StreamId) -> Result<u16, TooManyStreams> {
        match self.stream_order.binary_search_by_key(&stream, |&slot| self.streams[usize::from(slot)]) {
            Ok(place) => Ok(self.stream_order[place]),
            Err(place) => {
                let slot = u16::try_from(self.streams.len()).map_err(|_| TooManyStreams)?;
                self.streams.push(stream);
                self.stream_order.insert(place, slot);
                Ok(slot)
            }
        }
    }
}
