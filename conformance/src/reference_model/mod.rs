#![doc = include_str!("README.md")]

pub mod allocator;
pub mod expected_ladder;
pub mod history;
pub mod intervals;
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
