#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![allow(non_camel_case_types)] // the names are C's

mod config;
mod device;
mod failure;
mod fork;
mod inside;
#[allow(unsafe_code)] // the place for it: what C calls
mod interface;
mod serve;
mod told;
mod types;

pub use failure::Failure;
pub use interface::*;
pub use types::*;
