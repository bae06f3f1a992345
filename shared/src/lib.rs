#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod by_address;
mod error;
mod lock;
mod shared;
mod sync;

pub use by_address::{ByAddress, Inside, RestoredPool};
pub use error::{AddressError, Error};
pub use shared::Shared;
