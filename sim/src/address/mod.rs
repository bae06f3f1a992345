//! Address models: the rules by which cudaMalloc and cuMemAddressReserve place ranges.
//!
//! A model is an object, so a device can place ranges like the fake driver ([`Ascending`], [`Descending`],
//! [`Reuse`], [`AscendingReservations`]), as a recording lists them ([`Scripted`]), or like NVIDIA's driver
//! as far as recordings show its rules ([`ObservedDriver`]). A model decides addresses only; physical memory
//! is counted elsewhere, and the device checks every answer before it uses it.

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
