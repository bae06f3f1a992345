//! The reference model: what an allocator may do, written a second time, the slow and obvious way.
//!
//! Nothing here calls the core or shares code with it. It knows intervals (`intervals`), PyTorch's rules about sizes (`sizes`), the
//! steps taken when no free block serves a request (`ladder`), private pools (`routing`) and what makes a trace plausible
//! (`history`).

pub mod history;
pub mod intervals;
pub mod ladder;
pub(crate) mod routing;
pub mod sizes;

pub use history::History;
pub use intervals::{FreeRun, Leaving, Live, Model, best};
pub use ladder::{Candidate, Climb, Ladder};
pub(crate) use routing::{Routing, id};
pub use sizes::{NamedSettings, Rules, SETTINGS};
