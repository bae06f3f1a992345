//! Captures of graphs, as the program makes them: what the driver would make of its work and its waiting while streams are captured.
//!
//! They take no time and are in no log: nothing runs during a capture.

use parkade::device::GraphNode;
use parkade::units::StreamId;

use super::state::SimDevice;

impl SimDevice {
    /// Begins the capture of a graph on a stream. Returns its number, counted from 1.
    pub fn begin_capture(&mut self, stream: StreamId) -> u64 {
        self.captures.begin(stream.get())
    }

    /// Ends the stream's capture, on all streams that take part in it. Does nothing if there is none.
    pub fn end_capture(&mut self, stream: StreamId) {
        self.captures.end(stream.get());
    }

    /// Whether the stream takes part in a capture.
    #[must_use]
    pub fn is_captured(&self, stream: StreamId) -> bool {
        self.captures.of(stream.get()).is_some()
    }

    /// Work on a captured stream: a node of the graph that waits for all work that the stream was given so far. `None` if the stream is not
    /// captured.
    pub fn capture_work(&mut self, stream: StreamId) -> Option<GraphNode> {
        self.captures.work(stream.get())
    }

    /// Makes later work of `stream` wait for all that `other` was given so far, whose capture `stream` takes part in from now on. Returns
    /// false, and does nothing, if `other` is not captured, or `stream` takes part in another capture.
    #[must_use]
    pub fn capture_wait(&mut self, stream: StreamId, other: StreamId) -> bool {
        self.captures.wait(stream.get(), other.get())
    }
}
