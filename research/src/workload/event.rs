//! What a workload is: requests, frees, uses, work and pools, in order, as plain data.

/// A sequence of requests to an allocator, with the work that goes on meanwhile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Workload {
    /// A short name, unique within a study: letters, digits, `-`, `_`, `.` and `=`.
    pub name: String,
    /// One sentence: what the workload is.
    pub says: String,
    /// What happens, in order.
    pub events: Vec<Event>,
    /// The event with which each of its steps begins, in order; empty if its steps are not known. A step is what the
    /// program does again and again: a step of training, a turn of a server, a capture.
    pub steps: Vec<u32>,
}

/// One step of a workload.
///
/// Buffers are numbered from 0 in the order of their allocation, and no number is used twice. Streams are numbered
/// from 0, which is the default stream. [`Workload::check`] checks the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Requests memory.
    Allocate {
        /// The buffer's number.
        buffer: u32,
        /// The size of the request in bytes, at least 1.
        bytes: u64,
        /// The stream that the buffer belongs to.
        stream: u16,
    },
    /// Frees a buffer.
    Free {
        /// The buffer's number.
        buffer: u32,
    },
    /// Work on another stream uses the buffer (PyTorch's `record_stream`): once freed, it stays allocated until
    /// that work is done.
    Use {
        /// The buffer's number.
        buffer: u32,
        /// The other stream.
        stream: u16,
    },
    /// Puts work on a stream. It starts when all earlier work on the stream is done; the host does not wait.
    Launch {
        /// The stream.
        stream: u16,
        /// How long the work takes, in microseconds, at least 1.
        us: u32,
    },
    /// The host waits until a stream has done all its work.
    Synchronize {
        /// The stream.
        stream: u16,
    },
    /// Calls `empty_cache`.
    EmptyCache,
    /// From now on requests go to a private pool, which is created if it does not exist: the beginning of a graph
    /// capture.
    BeginPool {
        /// The pool's number, from 1.
        pool: u16,
    },
    /// Requests no longer go to the private pool.
    EndPool {
        /// The pool's number.
        pool: u16,
    },
    /// Nothing uses the private pool any more: its graphs are destroyed.
    DropPool {
        /// The pool's number.
        pool: u16,
    },
}

impl Workload {
    /// The number of buffers.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Allocate { .. })).count()
    }

    /// The load: the most bytes live at once, with each request rounded up to a multiple of `unit`. No allocator
    /// needs less.
    ///
    /// # Panics
    /// If `unit` is 0.
    #[must_use]
    pub fn load_bytes(&self, unit: u64) -> u64 {
        let mut sizes = Vec::new();
        let (mut live, mut most) = (0_u64, 0);
        for event in &self.events {
            match *event {
                Event::Allocate { buffer, bytes, .. } => {
                    let place = buffer as usize;
                    if sizes.len() <= place {
                        sizes.resize(place + 1, 0);
                    }
                    sizes[place] = bytes.div_ceil(unit).saturating_mul(unit);
                    live = live.saturating_add(sizes[place]);
                    most = most.max(live);
                }
                Event::Free { buffer } => {
                    live -= sizes.get_mut(buffer as usize).map_or(0, std::mem::take);
                }
                _ => {}
            }
        }
        most
    }
}
