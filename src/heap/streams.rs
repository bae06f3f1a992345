//! The streams that the heap knows. Each has a 16-bit slot, which blocks store instead of the handle.

use alloc::vec;
use alloc::vec::Vec;

use crate::units::StreamId;

/// The heap has too many streams: a slot has 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyStreams;

/// The streams by slot and by handle.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    /// The handles by slot, in order of first use; the default stream has slot 0.
    pub(super) handles: Vec<StreamId>,
    /// The slots, ordered by handle.
    pub(super) order: Vec<u16>,
    /// The stream of the last request, because most requests are for the same stream as the one before.
    last: (StreamId, u16),
}

impl Streams {
    pub(super) fn new() -> Streams {
        Streams { handles: vec![StreamId::DEFAULT], order: vec![0], last: (StreamId::DEFAULT, 0) }
    }

    /// The slot of a stream that has one.
    #[inline]
    pub(super) fn known_slot(&self, stream: StreamId) -> Option<u16> {
        if self.last.0 == stream {
            return Some(self.last.1);
        }
        self.place(stream).ok().map(|place| self.order[place])
    }

    /// The slot of a stream. A new stream gets a new slot.
    #[inline]
    pub(super) fn slot(&mut self, stream: StreamId) -> Result<u16, TooManyStreams> {
        if self.last.0 != stream {
            self.last = (stream, self.find_or_add(stream)?);
        }
        Ok(self.last.1)
    }

    fn find_or_add(&mut self, stream: StreamId) -> Result<u16, TooManyStreams> {
        match self.place(stream) {
            Ok(place) => Ok(self.order[place]),
            Err(place) => {
                let slot = u16::try_from(self.handles.len()).map_err(|_| TooManyStreams)?;
                self.handles.push(stream);
                self.order.insert(place, slot);
                Ok(slot)
            }
        }
    }

    /// The stream's position in the order of handles, or the position at which it would be.
    fn place(&self, stream: StreamId) -> Result<usize, usize> {
        self.order.binary_search_by_key(&stream, |&slot| self.handles[usize::from(slot)])
    }
}
