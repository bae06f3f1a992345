//! Address models: the rules by which cudaMalloc and cuMemAddressReserve place ranges.
//!
//! A model is an object, so a device can place ranges like the fake driver ([`Ascending`], [`Descending`], [`Reuse`],
//! [`AscendingReservations`]), as a recording lists them ([`Scripted`]), or like NVIDIA's driver as far as recordings
//! show its rules ([`ObservedDriver`]). A model decides only addresses. A different module counts physical memory, and
//! the device checks every answer before using it.

mod model;
mod observed_driver;
mod observed_layout;
mod scripted;

pub use model::{
    ASCENDING_START, AddressModel, Ascending, AscendingReservations, DESCENDING_END, Descending, RESERVATION_START, Reuse,
};
pub use observed_driver::{LearnedAddressSpace, ObservedDriver, PlacementStep};
pub use scripted::{FALLBACK_START, RESERVATION_FALLBACK_START, Scripted};
