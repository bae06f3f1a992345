//! The commands, one module each.
//!
//! A command is a struct `Args` for clap that implements [`Command`](parkade_terminal::runner::Command): what it computes, as text and as JSON.
//! A new one is a module here and a line in each list of `lib.rs`. Those about studies, and `replay`, are in a crate of their own.

pub(crate) mod advise;
pub(crate) mod completions;
pub(crate) mod conform;
pub(crate) mod diagnose;
pub(crate) mod diff;
pub(crate) mod enable;
pub(crate) mod export;
pub(crate) mod info;
pub(crate) mod man;
pub(crate) mod ops;
pub(crate) mod pack;
pub(crate) mod report;
pub(crate) mod stats;
pub(crate) mod verify;

pub(crate) use parkade_studies::{merge, replay, sweep};
