//! The commands, one module each; the two that are derived from the definitions of all commands share one.
//!
//! A command is a struct `Args` for clap that implements [`Command`](crate::terminal::runner::Command): what it computes, as text and as JSON.
//! A new one is a module here and a line in each list of `lib.rs`.

pub(crate) mod advise;
pub mod beside;
#[cfg(feature = "suite")]
pub(crate) mod conform;
#[cfg(all(feature = "native", not(feature = "suite")))]
pub(crate) mod conform_elsewhere;
#[cfg(feature = "native")]
pub(crate) mod definitions;
pub(crate) mod diagnose;
pub(crate) mod diff;
#[cfg(feature = "native")]
pub(crate) mod enable;
#[cfg(feature = "native")]
pub(crate) mod export;
#[cfg(feature = "native")]
pub(crate) mod info;
#[cfg(all(feature = "native", target_os = "linux"))]
pub(crate) mod kill;
#[cfg(feature = "native")]
pub mod merge;
#[cfg(feature = "native")]
pub(crate) mod ops;
#[cfg(feature = "native")]
pub(crate) mod pack;
#[cfg(feature = "native")]
pub mod replay;
pub(crate) mod report;
#[cfg(feature = "native")]
pub(crate) mod run;
pub(crate) mod simulated;
#[cfg(feature = "native")]
pub(crate) mod stats;
#[cfg(feature = "native")]
pub mod sweep;
pub(crate) mod verify;
