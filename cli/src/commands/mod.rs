//! The commands, one module each; the two that are derived from the definitions of all commands share one.
//!
//! A command is a struct `Args` for clap that implements [`Command`](crate::terminal::runner::Command): what it computes, as text and as JSON.
//! A new one is a module here and a line in each list of `lib.rs`.

pub(crate) mod advise;
pub mod beside;
#[cfg(feature = "suite")]
pub(crate) mod conform;
#[cfg(not(feature = "suite"))]
pub(crate) mod conform_elsewhere;
pub(crate) mod definitions;
pub(crate) mod diagnose;
pub(crate) mod diff;
pub(crate) mod enable;
pub(crate) mod export;
pub(crate) mod info;
#[cfg(target_os = "linux")]
pub(crate) mod kill;
pub mod merge;
pub(crate) mod ops;
pub(crate) mod pack;
pub mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod stats;
pub mod sweep;
pub(crate) mod verify;
