#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![allow(non_camel_case_types)] // the names are C's

mod callbacks;
mod device;
mod failure;
#[allow(unsafe_code)] // the place for it: what C calls
mod interface;
mod own;
mod serve;
mod types;

pub use failure::Failure;
pub use interface::memory::*;
pub use interface::plug::*;
pub use interface::pools::*;
pub use interface::reading::*;
pub use interface::sharing::*;
pub use interface::*;
// For the expansion of `policies!`.
#[doc(hidden)]
pub use parkade_policies::Entry;
pub use serve::parkade_allocator;
pub use types::*;
