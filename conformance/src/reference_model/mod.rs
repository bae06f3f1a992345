#![doc = include_str!("README.md")]

pub mod allocator;
pub mod history;
pub mod intervals;
pub mod release;
pub mod routing;
pub mod rules;
pub mod settings;
mod table;
pub mod texts;

pub use allocator::Reference;
pub use history::History;
pub use intervals::{FreeRun, Leaving, Live, Model, best};
pub use release::ReleaseRules;
pub use routing::{Routing, id};
pub use rules::{Candidate, Climb, Ladder, NamedSettings, Rules, SETTINGS};
