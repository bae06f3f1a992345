//! parkade's conformance suite: what an allocator and a device must do, checked on any device.
//!
//! [`backend`] is what the suite needs of a device, [`model`] the reference model, [`law`] the list of laws, [`checks`] what is checked,
//! [`suite`] how a list of entries is run, and [`stage`] an allocator on which stories are told.
#![forbid(unsafe_code)]

pub mod backend;
pub mod checks;
pub mod harness;
pub mod law;
pub mod model;
pub mod stage;
pub mod suite;

pub use harness::main;
