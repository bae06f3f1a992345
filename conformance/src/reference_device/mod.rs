#![doc = include_str!("README.md")]

pub(crate) mod addresses;
mod device;
pub(crate) mod draw;
mod faults;
mod gaps;
mod journal;
mod order;
pub(crate) mod player;
pub(crate) mod prices;
pub(crate) mod rules;
pub(crate) mod setup;
pub(crate) mod step;
mod streams;
mod texts;
