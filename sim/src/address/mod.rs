//! Where cudaMalloc puts a range, and where cuMemAddressReserve does: the rule as an object, so that devices can be made that
//! answer like the fake driver, like a recording, or like the real driver as far as recordings show it.
//!
//! A model decides addresses only. Memory is counted elsewhere, and the device checks every answer before it believes it.

mod linear;
mod model;
mod observed_driver;
mod reservations;
mod reuse;
mod scripted;

pub use linear::{ASCENDING_START, Ascending, DESCENDING_END, Descending};
pub use model::AddressModel;
pub use observed_driver::{LearnedAddressSpace, ObservedDriver, PlacementStep};
pub use reservations::{AscendingReservations, RESERVATION_START};
pub use reuse::Reuse;
pub use scripted::{FALLBACK_START, RESERVATION_FALLBACK_START, Scripted};
