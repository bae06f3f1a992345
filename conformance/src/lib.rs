#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod backend;
pub mod checks;
pub mod core_laws;
mod drawn;
#[cfg(feature = "scenarios")]
pub mod golden;
pub mod harness;
pub mod law;
mod program;
mod reference_device;
pub mod reference_model;
mod reference_policies;
#[cfg(feature = "scenarios")]
pub mod scenarios;
pub mod scripted_allocator;
#[cfg(feature = "scenarios")]
pub mod shipped;
pub mod suite;

pub use harness::main;
