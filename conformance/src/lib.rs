#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod checks;
pub mod harness;
pub mod scripted_allocator;
pub mod suite;

pub use harness::main;
pub use parkade_reference::{backend, law, reference_model};
