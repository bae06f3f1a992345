//! The reference model: what an allocator may do, written a second time in the slow and obvious way.
//!
//! Nothing here shares code with the core. It models free and live intervals (`intervals`), PyTorch's size rules (`sizes`), the
//! steps taken when no free block serves a request (`expected_ladder`), private pools (`routing`), what makes a trace consistent
//! (`history`), the settings string (`settings`), the rules in which releases differ (`release`), the texts of errors (`texts`), and the
//! whole allocator (`allocator`).

pub mod allocator;
pub mod expected_ladder;
pub mod history;
pub mod intervals;
pub mod numbers;
pub mod release;
pub mod routing;
pub mod settings;
pub mod sizes;
mod table;
pub mod texts;

pub use allocator::Reference;
pub use expected_ladder::{Candidate, Climb, Ladder};
pub use history::History;
pub use intervals::{FreeRun, Leaving, Live, Model, best};
pub use release::ReleaseRules;
pub use routing::{Routing, id};
pub use sizes::{NamedSettings, Rules, SETTINGS};
