#![doc = include_str!("README.md")]

pub mod allocator;
mod graphs;
pub mod release;
pub mod settings;
mod table;
pub mod texts;

pub use allocator::Reference;
pub use release::ReleaseRules;
pub use table::{hash_of_stream, home};
