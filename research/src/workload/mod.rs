//! Programs as an allocator sees them: what is asked for, given back and used, and how long the work takes.
//!
//! A [`Workload`] is plain data, made by a generator or read off a recording, and the same for every policy. What a program would do
//! otherwise if it got less memory is not in it.

pub mod adversary;
pub mod alternate;
pub mod autograd;
mod catalogue;
pub mod chain;
pub mod cnn;
mod curve;
mod distribution;
mod error;
mod generator;
pub mod graphs;
pub mod mlp;
mod parse;
mod prealloc;
pub mod prefetch;
mod program;
pub mod recorded;
pub mod serving;
mod training;
pub mod transformer;
mod value;
pub mod varlen;
mod well_formed;

pub use autograd::Work;
pub use catalogue::{CATALOGUE, NamedWorkload, named};
pub use distribution::Lengths;
pub use error::{MAX_BYTES, MAX_EVENTS, WorkloadError};
pub use parse::{generators, keys, parse};
pub use prealloc::preallocate;
pub use training::Optimizer;
pub use well_formed::Malformed;

#[cfg(test)]
mod packed;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod tests;

/// A program's requests, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Workload {
    /// A short name, unique in a study: letters, digits, `-`, `_`, `.` and `=`.
    pub name: String,
    /// One sentence: what the program is.
    pub says: String,
    /// What happens.
    pub events: Vec<Event>,
}

/// One thing that a program does. Buffers are numbered from 0 in the order in which they are allocated, and each number is used once;
/// streams are numbered from 0, which is the default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It asks for memory.
    Allocate {
        /// The buffer's number.
        buffer: u32,
        /// Its size, at least 1.
        bytes: u64,
        /// The stream that it belongs to.
        stream: u16,
    },
    /// It gives a buffer back.
    Free {
        /// Which.
        buffer: u32,
    },
    /// Work of another stream uses the buffer (PyTorch's `record_stream`), so that once given back it stays until that work is done.
    Use {
        /// Which.
        buffer: u32,
        /// The other stream.
        stream: u16,
    },
    /// It puts work on a stream, which begins when what is on the stream already is done. The host goes on at once.
    Launch {
        /// Which stream.
        stream: u16,
        /// How long the work takes, in microseconds.
        us: u32,
    },
    /// The host waits until a stream has done all its work.
    Synchronize {
        /// Which stream.
        stream: u16,
    },
    /// It calls `empty_cache`.
    EmptyCache,
    /// Requests go to a private pool from now on, made if there is none of this number: a graph is captured.
    BeginPool {
        /// The pool's number, from 1.
        pool: u16,
    },
    /// They do not any more.
    EndPool {
        /// Which.
        pool: u16,
    },
    /// Nothing uses the private pool any more: its graphs are gone.
    DropPool {
        /// Which.
        pool: u16,
    },
}

impl Workload {
    /// The number of buffers.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Allocate { .. })).count()
    }

    /// The most bytes that live at once, each request rounded up to a multiple of `unit` (at least 1): what nothing that serves the
    /// program can undercut.
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
