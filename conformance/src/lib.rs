#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod backend;
pub mod checks;
pub mod harness;
pub mod law;
pub mod reference_model;
pub mod scripted_allocator;
pub mod suite;

pub use harness::main;
